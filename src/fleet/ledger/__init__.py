"""The ledger: the only code that writes SQL. What admission draws down and the reconciler recomputes."""
