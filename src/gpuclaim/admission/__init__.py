"""The webhook: orders are decided and launcher pods pinned when they are created (section 7 of the design)."""
