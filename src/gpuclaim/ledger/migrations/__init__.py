"""The ledger's schema, step by step; Alembic runs it (`store.Ledger.migrate`)."""
