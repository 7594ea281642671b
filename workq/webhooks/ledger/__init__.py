"""What webhooks keep in the ledger, and decide there."""
