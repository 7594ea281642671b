"""The ledger on SQLite, PostgreSQL and MySQL/MariaDB, put together from the parts of its life.

One set of statements serves the three dialects; where one does better, it says so where it matters (`RETURNING` in
claims.py, `SKIP LOCKED` in workers.py).
"""

from __future__ import annotations

from collections import deque

from workq.ledger.audits import Auditing
from workq.ledger.bulk import Grouping
from workq.ledger.engine.database import Database
from workq.ledger.hints import Marking
from workq.ledger.job_decisions import Nesting
from workq.ledger.limits import Limiting
from workq.ledger.order import Ordering
from workq.ledger.pauses import Pausing
from workq.ledger.questions import Asking
from workq.ledger.rebuilds import Rebuilding
from workq.ledger.scan_floor import Floor
from workq.ledger.schedules import Scheduling
from workq.ledger.standing import Reporting
from workq.ledger.transactions import Stepping
from workq.ledger.webhook_decisions import Holding
from workq.ledger.webhook_retention import Pruning
from workq.ledger.webhooks import Sending
from workq.ledger.withdraw import Withdrawing
from workq.ledger.workers import RESERVED_S


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
