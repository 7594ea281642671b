"""Supervisor: keeps the consumer processes of one `workq worker`, and buries those that died."""
