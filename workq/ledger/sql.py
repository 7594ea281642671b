"""The ledger on SQLite, PostgreSQL and MySQL/MariaDB, put together from the parts of its life.

One set of statements serves the three dialects; where one does better, it says so where it matters (`RETURNING` in
claims.py, `SKIP LOCKED` in workers.py).
"""

from __future__ import annotations

from workq.ledger.audits import Audits
from workq.ledger.bulk import BulkDecisions
from workq.ledger.claims import Claims
from workq.ledger.decisions import Decisions
from workq.ledger.deliveries import Deliveries
from workq.ledger.endpoints import KnownEndpoints
from workq.ledger.engine.database import Database
from workq.ledger.hints import RESERVED_S, Hints
from workq.ledger.history import History
from workq.ledger.job_care import JobCare
from workq.ledger.job_counts import JobCounts
from workq.ledger.job_decisions import JobDecisions
from workq.ledger.job_gate import JobGate
from workq.ledger.job_questions import JobQuestions
from workq.ledger.job_settle import SubtaskCounter
from workq.ledger.jobs import Jobs
from workq.ledger.lanes import Lanes
from workq.ledger.limits import Limits
from workq.ledger.notices import Notices
from workq.ledger.order import Order
from workq.ledger.outcomes import Outcomes
from workq.ledger.pauses import Pauses
from workq.ledger.permits import LimitGate
from workq.ledger.plans import Plans
from workq.ledger.questions import Questions
from workq.ledger.scan_floor import Floor
from workq.ledger.schedules import Schedules
from workq.ledger.start import StartGates
from workq.ledger.tasks import Tasks
from workq.ledger.transactions import HandlerTransactions
from workq.ledger.upkeep import Upkeep
from workq.ledger.webhook_decisions import WebhookDecisions
from workq.ledger.webhook_retention import Pruning
from workq.ledger.webhooks import SentWebhooks
from workq.ledger.workers import Workers


class Ledger:
    """A ledger in one SQL database: what each part of it does is in the part's own class. Thread-safe."""

    def __init__(self, database: Database, *, reserved_s: float = RESERVED_S, floor: Floor | None = None) -> None:
        """`reserved_s`: after how long another sweep may publish what a relay that died had reserved."""
        self.database = database
        floor = floor or Floor(database)
        self.history = History(database)
        self.lanes = Lanes(database)
        self.endpoints = KnownEndpoints(database)
        self.claims = Claims(database, gates=StartGates(database, (JobGate(), LimitGate())))
        self.hints = Hints(database, floor=floor, reserved_s=reserved_s)
        self.order = Order(database, reserved_s=reserved_s)
        self.job_questions = JobQuestions(database)
        self.questions = Questions(database)
        self.tasks = Tasks(database, lanes=self.lanes)
        self.limits = Limits(database, claims=self.claims, reserved_s=reserved_s)
        self.workers = Workers(database, history=self.history, floor=floor, reserved_s=reserved_s)
        self.upkeep = Upkeep(database, history=self.history, floor=floor)
        self.pauses = Pauses(database, history=self.history)
        self.decisions = Decisions(database, history=self.history, reserved_s=reserved_s)
        notices = Notices(database, tasks=self.tasks)
        self.webhooks = SentWebhooks(database, tasks=self.tasks)
        job_counts = JobCounts(database, tasks=self.tasks, history=self.history)
        self.plans = Plans(
            database, upkeep=self.upkeep, workers=self.workers, history=self.history, reserved_s=reserved_s
        )
        self.bulk = BulkDecisions(database, history=self.history, decisions=self.decisions)
        self.schedules = Schedules(database, lanes=self.lanes, history=self.history, tasks=self.tasks)
        self.deliveries = Deliveries(database, notices=notices)
        self.audits = Audits(database, plans=self.plans, workers=self.workers)
        self.pruning = Pruning(database, plans=self.plans)
        self.job_care = JobCare(
            database,
            tasks=self.tasks,
            job_counts=job_counts,
            bulk=self.bulk,
            history=self.history,
            reserved_s=reserved_s,
            cancel_nested=lambda job_id: self.job_decisions.cancel_nested(job_id),  # which is made later, of this
        )
        self.webhook_decisions = WebhookDecisions(
            database, deliveries=self.deliveries, notices=notices, tasks=self.tasks, reserved_s=reserved_s
        )
        self.outcomes = Outcomes(
            database,
            counters=(self.deliveries, SubtaskCounter(database, job_counts=job_counts, job_care=self.job_care)),
        )
        self.job_decisions = JobDecisions(
            database,
            job_care=self.job_care,
            job_questions=self.job_questions,
            job_counts=job_counts,
            history=self.history,
        )
        self.transactions = HandlerTransactions(
            database, job_counts=job_counts, outcomes=self.outcomes, job_care=self.job_care
        )
        self.jobs = Jobs(
            database,
            job_counts=job_counts,
            tasks=self.tasks,
            job_questions=self.job_questions,
            history=self.history,
            job_decisions=self.job_decisions,
            job_care=self.job_care,
        )

    def give_way(self) -> None:
        """For a loop of events, between two rounds: wait a moment for a thread that keeps all others from writing."""
        self.database.writer.give_way()

    def close(self) -> None:
        """Close connections. Repeatable."""
        self.database.close()
