"""What messages keep in the ledger: destinations, messages, and what people decide about them."""
