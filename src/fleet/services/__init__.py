"""Use cases: what a caller may do, as functions over the ledger, the core and the queue."""
