"""The parts of the ledger's port: what it promises, by who asks for it. `workq.ledger.Ledger` is all of them."""
