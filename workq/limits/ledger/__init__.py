"""What limits keep in the ledger, and decide there."""
