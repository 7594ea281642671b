"""Entry rules: what has a say when tasks come into the ledger, and when a person sends one back or moves its time.

They are a closed tuple, put together with the ledger, and asked one after the other in the transaction that writes.

To add one: a class of these three functions, in the tuple of workq/slices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from workq.ledger.engine.database import Database
from workq.values.task import NewTask


class KeyedTask(NamedTuple):
    """A task that is there, and what it shares with others."""

    id: str
    order_key: str | None
    limit_key: str | None


class EntryRule(Protocol):
    """One of them. What it decides is written in the transaction that it is given."""

    def enter(self, tx: Connection, database: Database, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        """Before new tasks are inserted: the same, in their order; those are due never that have to wait for others."""

    def comes_back(self, tx: Connection, database: Database, task: KeyedTask) -> bool:
        """A person has sent this task back, and it is ready; False: it has to wait for others."""

    def keeps_its_time(self, tx: Connection, database: Database, task: KeyedTask) -> str | None:
        """Why a person cannot let a task that waits for others be due at another time, if so."""
