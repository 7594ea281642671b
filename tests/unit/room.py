"""A pool for one attempt after the other, without stores: what becomes of whatever a handler does."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from workq import Times, WorkQueue
from workq.handlers.handler import Handler
from workq.jobs.values import Bookmark, NewStep, Stepped
from workq.ledger.sql import Ledger
from workq.values.codec import encode, new_task_id
from workq.values.task import Claim, Outcome, Settlement
from workq.worker.batch import FillingBatch, Member
from workq.worker.crash_board import CrashBoard
from workq.worker.pool import Pool

THREADS = 2
LONG_S = 30.0


class Room(Pool):
    """A pool for one attempt after the other; partitions are at their beginning."""

    def __init__(self) -> None:
        self.app = WorkQueue(ledger="sqlite:///never-opened.db")
        self.died = threading.Event()
        self.outcomes: queue.Queue[Settlement] = queue.Queue()
        super().__init__(
            cast(Ledger, None),
            CrashBoard.create(lines=THREADS + 8),
            threads=THREADS,
            times=Times(),
            on_finished=self.outcomes.put,
            on_death=self.died.set,
            rng=random.Random(1),
        )

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
        """Call a function as a task."""
        register: Any = self.app.task(name=f"unit.n{new_task_id()}", **options)
        return self.ends(register(function), *args)

    def ends(self, handler: Handler[..., Any], *args: Any) -> Outcome:
        self.take(claim(args), handler, {"a": args, "k": {}}, None)
        return self.next()

    def run_together(self, function: Callable[..., Any], *items: Any) -> list[Outcome]:
        """Call it once for all of them."""
        handler = self.app.task(name=f"unit.n{new_task_id()}", batch=10)(function)
        self.take_together(FillingBatch(handler, [Member(claim((item,)), item, None) for item in items], 0.0))
        return [self.next() for _ in items]

    def run_job(self, function: Callable[..., Any], *items: Any, **options: Any) -> Outcome:
        """Call it for a chunk of a job, or a partition."""
        job = self.app.job(name=f"unit.n{new_task_id()}", **options)(function)
        return self.ends(job.handler, *([items[0], None] if options.get("partitioned") else [list(items)]))

    def next(self) -> Outcome:
        settlement = self.outcomes.get(timeout=LONG_S)
        self.settled([settlement])
        return settlement.outcome

    def part(self, kind: Any) -> Any:
        return SimpleNamespace(steps=self)

    def bookmark(self, claim: Claim) -> Bookmark:
        return Bookmark(None, 0)

    def step(self, claim: Claim, new: NewStep, *, on_stood: Callable[[Stepped], None]) -> Any:
        raise AssertionError("no partition here makes a step")

    def is_cancelled(self, claim: Claim) -> bool:
        return False


def claim(args: tuple[Any, ...]) -> Claim:
    payload = encode({"a": list(args), "k": {}}, path="args")
    return Claim(new_task_id(), "unit.task", "default", payload, 1, "token", 0, 0, 3, 3, None)
