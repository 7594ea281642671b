"""What the order of keys keeps in the ledger, and decides there."""
