"""What jobs keep in the ledger, and decide there."""
