"""What contracts and fault tests give a ledger: tasks, outcomes, incarnations, callers at once, and a clock to move."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session

from workq.jobs.values import JobOptions, NewJob, splitter
from workq.ledger.engine.database import Database
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import (
    AfterDeath,
    Cancelled,
    Dead,
    Done,
    Failed,
    HandedBack,
    Limit,
    NewSubtask,
    NewTask,
    OnCrash,
    Outcome,
    Snoozed,
    Unhandled,
)

T = TypeVar("T")

LONG_S = 60.0
"""How long a noisy machine may take for what normally takes milliseconds."""
HOUR_S = 3600.0
ARGUMENTS = '{"a":[1],"k":{"x":"y"}}'
OUTCOMES: dict[str, Outcome] = {
    "done": Done('{"rows":7}'),
    "failed": Failed(5.0, "boom"),
    "snoozed": Snoozed(5.0, "too early"),
    "unhandled": Unhandled(5.0, 3600.0, "no handler is registered under the name 'index'"),
    "dead": Dead("failures_max reached", "boom"),
    "cancelled": Cancelled("not needed any more"),
    "handed_back": HandedBack(),
}

OTHER_THAN_DEFAULT: dict[str, Any] = {
    "failures_max": 7,
    "crashes_max": 8,
    "on_crash": OnCrash.ASK,
    "expires_s": 60.0,
    "order_key": "user:1",
    "after_death": AfterDeath.SKIP,
    "limit": Limit("mail", 2, "5/s"),
    "job_id": "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f",
    "waits_for": "order",
}
"""For each field of a task that is stored and has a default, another value."""


def new(count: int = 1, **facts: Any) -> list[NewTask]:
    """Tasks to record."""
    given = {"name": "index", "queue": "default", "payload": ARGUMENTS} | facts
    return [NewTask(codec.new_task_id(), **given) for _ in range(count)]


def new_job(options: JobOptions, *, name: str = "index", **facts: Any) -> NewJob:
    """A job to begin."""
    job_id = codec.new_task_id()
    first = splitter(codec.new_task_id(), name, options.queue, job_id)
    return NewJob(job_id, name, '{"a":[],"k":{"index":"v2"}}', options, first, **facts)


def chunks(count: int, size: int = 10) -> list[NewSubtask]:
    """So many chunks of a job, to record."""
    payload = codec.encode({"a": [list(range(size))], "k": {}}, path="args")
    return [NewSubtask(codec.new_task_id(), payload, size) for _ in range(count)]


def let_lock_what_has_changed(session: Session) -> None:
    """Before its transaction: it may lock rows that were written since it began. MariaDB's default until 11.6.2."""
    if session.get_bind().dialect.name in ("mysql", "mariadb"):
        session.execute(text("SET @unused = 1 /*M!110402 , SESSION innodb_snapshot_isolation = OFF */"))


def incarnation(name: str = "worker") -> Incarnation:
    return Incarnation(f"{name}.{secrets.token_hex(8)}", "host", 4711)


def awaited(awaitable: Awaitable[T]) -> T:
    """Await something in an event loop of its own."""

    async def wait() -> T:
        return await awaitable

    return asyncio.run(wait())


class NoPartition:
    """What only a partition asks of a desk; what is awaitable has a loop of its own."""

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        return awaited(awaitable)

    def part(self, kind: Any) -> Any:
        raise AssertionError("only a partition asks its desk for that")

    def is_leaving(self) -> bool:
        return False


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """`call(0)`, `call(1)`, ... in threads that start together; their answers, in that order."""
    gate = threading.Barrier(count)

    def one(number: int) -> T:
        gate.wait(LONG_S)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return [future.result(LONG_S) for future in [pool.submit(one, number) for number in range(count)]]


class Clock:
    """The database's clock, which a test moves instead of sleeping."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def forward(self, seconds: float) -> None:
        self._database.clock_offset_s += seconds
