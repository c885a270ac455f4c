"""The table of intervals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes it."""
    op.create_table(
        "intervals",
        sa.Column("claim_uid", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("started_at", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.BigInteger, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("class_name", sa.Text, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("set_name", sa.Text, nullable=False),
        sa.Column("node_name", sa.Text, nullable=False),
        sa.CheckConstraint("ended_at > started_at", name="intervals_not_empty"),
        sa.CheckConstraint("kind IN ('Held', 'Attached')", name="intervals_kind"),
        sa.CheckConstraint("count > 0 AND seconds >= 0", name="intervals_counts"),
    )
    op.create_index("intervals_by_end", "intervals", ["ended_at"])
    op.create_index("intervals_by_namespace", "intervals", ["namespace", "ended_at"])


def downgrade() -> None:
    """Drops it, with what it holds."""
    op.drop_table("intervals")
