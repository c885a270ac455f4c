"""Usage: intervals that follow from claims, the SQL ledger that keeps them, reports made of them (R50, R51)."""
