"""The ledger on SQLite, PostgreSQL and MySQL/MariaDB, put together from the parts of its life.

One set of statements serves the three dialects; where one does better, it says so where it matters (`RETURNING` in
claims.py, `SKIP LOCKED` in repair.py).
"""

from __future__ import annotations

from collections import deque

from workq.ledger.auditing import Auditing
from workq.ledger.database import Database
from workq.ledger.dead import Grouping
from workq.ledger.floor import Floor
from workq.ledger.holding import Holding
from workq.ledger.limiting import Limiting
from workq.ledger.marks import Marking
from workq.ledger.nesting import Nesting
from workq.ledger.ordering import Ordering
from workq.ledger.pausing import Pausing
from workq.ledger.pruning import Pruning
from workq.ledger.question import Asking
from workq.ledger.rebuilds import Rebuilding
from workq.ledger.repair import RESERVED_S
from workq.ledger.scheduling import Scheduling
from workq.ledger.sending import Sending
from workq.ledger.standing import Reporting
from workq.ledger.stepping import Stepping
from workq.ledger.withdraw import Withdrawing


class Ledger(
    Nesting,
    Scheduling,
    Stepping,
    Ordering,
    Limiting,
    Auditing,
    Pruning,
    Rebuilding,
    Marking,
    Pausing,
    Grouping,
    Withdrawing,
    Sending,
    Holding,
    Asking,
    Reporting,
):
    """A ledger in one SQL database. Thread-safe."""

    def __init__(self, database: Database, *, reserved_s: float = RESERVED_S) -> None:
        """`reserved_s`: after how long another sweep may publish what a relay that died had reserved."""
        self.database = database
        self.reserved_s = reserved_s
        self.floor = Floor(database)
        self._doubtful = {}
        self.untold = deque()
        self.bands_met = frozenset()

    @property
    def writers(self) -> int:
        """How many transactions are worth writing at once from one process: SQLite has one writer."""
        return 1 if self.database.dialect == "sqlite" else 2

    def give_way(self) -> None:
        """For a loop of events, between two rounds: wait a moment for a thread that keeps all others from writing."""
        self.database.writer.give_way()

    def close(self) -> None:
        """Close connections. Repeatable."""
        self.database.close()
