"""A hint, where it is a row of the ledger's own database."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HintRow:
    """A hint as a row of the ledger's own database: its encoded body, and how many ids are in it."""

    queue: str
    body: str
    size: int
    delay_s: float
