"""What Alembic runs the steps with: the connection, and the transaction, of `store.Ledger.migrate`."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
