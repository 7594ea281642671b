"""What the parts of the ledger run on: one database, its dialects, and statements that are kept."""
