"""The two queues that every system test runs on: embedded in one SQLite file, and RabbitMQ + Redis + PostgreSQL.

A leg is a fresh namespace with its schema, the environment that worker processes need to find it, and the witness's
handlers bound to it for the test process.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pika
from sqlalchemy import Select, case, delete, func, literal_column, select

from tests.stores import database_of
from tests.system import pace, witness
from tests.system.fleet import Fleet, wait_until
from tests.system.witness import Line, testimony
from workq import State, WorkQueue
from workq.config import LEDGER
from workq.handlers.handler import Handler
from workq.ledger.engine import migrate

OPEN = (State.READY, State.WAITING, State.RUNNING)
SETTLED = (State.SUCCEEDED, State.DEAD, State.CANCELLED)


@dataclass
class Leg:
    """One queue for one test."""

    name: str
    folder: Path
    environ: dict[str, str]
    app: WorkQueue
    onlooker: WorkQueue  # what the test itself asks: `app`, unless the way of that to the ledger may be cut
    handlers: dict[str, Handler[..., Any]] = field(default_factory=dict)

    @staticmethod
    def open(
        name: str,
        folder: Path,
        *,
        ledger: str,
        broker: str | None = None,
        inflight: str | None = None,
        divide: float = 1.0,
        queue_type: str = "quorum",
        ladder: str = LEDGER,
        namespace: str | None = None,
        asked_at: str | None = None,
    ) -> Leg:
        """A new namespace on these servers; its name is drawn unless it is given.

        The test's own questions about states go to the ledger at `asked_at`, where `ledger` may be cut.
        """
        namespace = namespace or f"t{secrets.token_hex(4)}"
        environ = {
            "WORKQ_LEDGER_URL": ledger,
            "WORKQ_NAMESPACE": namespace,
            "WORKQ_QUEUE_TYPE": queue_type,
            "WORKQ_LADDER": ladder,
            "WITNESS": str(folder / "witness"),
            pace.VARIABLE: str(divide),
        }
        if broker is not None:
            environ["WORKQ_BROKER_URL"] = broker
        if inflight is not None:
            environ["WORKQ_INFLIGHT_URL"] = inflight
        app = WorkQueue(
            ledger=ledger,
            broker=broker,
            inflight=inflight,
            namespace=namespace,
            queue_type=queue_type,
            ladder=ladder,
            times=pace.paced(divide),
        )
        database = app.database()
        migrate.migrate(database)
        database.close()
        onlooker = app if asked_at is None else WorkQueue(ledger=asked_at, namespace=namespace)
        leg = Leg(name, folder, environ, app, onlooker)
        for task_name in witness.wq.registry.names():
            handler = witness.wq.handler(task_name)
            register = app.task(
                name=task_name,
                queue=handler.defaults.queue,
                failures_max=handler.defaults.failures_max,
                crashes_max=handler.defaults.crashes_max,
            )
            leg.handlers[task_name.removeprefix("witness.")] = register(handler.function)
        return leg

    def __getitem__(self, name: str) -> Handler[..., Any]:
        """The witness's handler of that name, to enqueue on this leg."""
        return self.handlers[name]

    def fleet(
        self,
        *,
        processes: int = 2,
        threads: int = 4,
        drain: bool = False,
        queues: str | None = None,
        environ: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        app: str = "tests.system.witness:wq",
    ) -> Fleet:
        """Start a supervisor with consumer processes on this leg."""
        return Fleet(
            self.folder,
            {**self.environ, **(environ or {})},
            processes=processes,
            threads=threads,
            drain=drain,
            queues=queues,
            prefix=prefix,
            app=app,
        )

    def testimony(self) -> list[Line]:
        """What the handlers wrote so far."""
        return testimony(self.folder / "witness")

    def starts(self) -> Counter[str]:
        """How often each task started."""
        return Counter(line.task_id for line in self.testimony() if line.what == "start")

    def charges(self, task_id: str) -> Counter[str]:
        """What its attempts were charged with: each failure, crash, suspicion or presence explains one more start."""
        history = self.app.stores.ledger.questions.history(task_id)
        charged = [str(event.detail["charged"]) for event in history if event.kind == "reaped"]
        charged += ["failure" for event in history if event.kind == "failed"]
        return Counter(one for one in charged if one != "nothing")

    def untold(self) -> list[tuple[str, int]]:
        """Attempts with a later one after them, of which the history does not say how they ended."""
        questions = self.app.stores.ledger.questions
        found = []
        for task in questions.tasks(limit=100_000):
            if task.attempt > 1:
                told = {event.attempt for event in questions.history(task.id)}
                found += [(task.id, attempt) for attempt in range(1, task.attempt) if attempt not in told]
        return found

    def states(self) -> dict[State, int]:
        """How many tasks are in each state; who waited, and is due, is ready."""
        rows = database_of(self.onlooker).ask(lambda tx: tx.execute(self._by_state).all())
        return dict.fromkeys(State, 0) | {State(state): count for state, count in rows}

    def unsettled(self) -> int:
        """How many tasks are still to be settled."""
        return int(database_of(self.onlooker).ask(lambda tx: tx.execute(self._still_open).scalar_one()))

    # Tests ask these two some times a second: they cost a tenth of the question behind `workq status`.

    @cached_property
    def _by_state(self) -> Select[Any]:
        database = database_of(self.onlooker)
        t = database.tables.task.c
        place = case(((t.state == State.WAITING) & (t.due_at <= database.now()), State.READY), else_=t.state)
        return select(place.label("place"), func.count()).group_by(literal_column("place"))

    @cached_property
    def _still_open(self) -> Select[Any]:
        t = database_of(self.onlooker).tables.task
        return select(func.count()).select_from(t).where(t.c.state.in_(OPEN))

    def wait_settled(self, *, timeout_s: float) -> None:
        """Wait until every task is settled."""
        wait_until(lambda: self.unsettled() == 0, timeout_s=timeout_s, what=f"settled, but {self.name} has open tasks")

    def lose_hints(self, queue: str = "witness") -> int:
        """The broker loses everything that waits in a queue; answers how many hints that were."""
        url = self.app.settings.broker
        if url is None:
            database = self.app.database()
            gone = delete(database.tables.hint).where(database.tables.hint.c.queue == queue)
            hints = database.run(lambda tx: tx.execute(gone).rowcount)
            database.close()
            return hints
        connection = pika.BlockingConnection(pika.URLParameters(url))
        purged = connection.channel().queue_purge(f"{self.app.settings.namespace}.q.{queue}")
        connection.close()
        return int(purged.method.message_count or 0)

    def close(self) -> None:
        """Close the test's own connections, and delete what the namespace left on RabbitMQ and Redis."""
        self.app.close()
        if self.onlooker is not self.app:
            self.onlooker.close()


def check_once(leg: Leg, count: int) -> None:
    """So many tasks have succeeded, and each has started once; nothing else has ended an attempt.

    An attempt may have been spent without a start: what is claimed ahead of quick tasks, and would wait for long behind
    slow ones, is handed back. It costs nothing, and the history says so.
    """
    ledger = leg.app.stores.ledger
    tasks = ledger.questions.tasks(limit=10 * count)
    assert [(task.state, task.failures, task.crashes) for task in tasks] == [(State.SUCCEEDED, 0, 0)] * count
    assert leg.starts() == Counter(task.id for task in tasks)
    assert ledger.questions.happened(["failed", "reaped", "late_result"], within_s=86400.0, limit=100) == []
