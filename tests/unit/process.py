"""One consumer process without its threads: its real parts on the real embedded stores, step by step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.simulation.embedded import OneLook
from workq import State, WorkQueue
from workq.handlers.handler import Handler
from workq.inflight.embedded import EmbeddedInFlight
from workq.ledger.engine import migrate
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Settlement
from workq.webhooks.values import TASK_NAME
from workq.worker.crash_board import CrashBoard
from workq.worker.fetch.intake import Parts
from workq.worker.holds import held_for
from workq.worker.lease import LeaseKeeper
from workq.worker.pool import Pool
from workq.worker.process import take_in
from workq.worker.run import Run

THREADS = 3


class ByHand(Pool):
    """A pool that only notes what it was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.taken: dict[str, Run] = {}

    def dispatch(self, run: Run) -> None:
        self.taken[run.attempts[0].claim.task_id] = run


class Process:
    """One consumer process without its threads."""

    def __init__(self, wq: WorkQueue, *, is_direct: bool, name: str = "host.b007.1.2.steps") -> None:
        self.now = 1000.0
        self.wq = wq
        self.stores = wq.stores
        if not is_direct:  # as with servers: nobody sees what is behind the ports
            database = wq.stores.broker.database  # type: ignore[attr-defined]  # it is embedded
            self.stores = replace(wq.stores, inflight=EmbeddedInFlight(database), direct=None)
        self.settleable: list[Settlement] = []
        self.me = Incarnation(name, "host", 4711)
        self.board = CrashBoard.create(lines=64)
        self.held = held_for(self.stores, by=self.me.id)
        self.heart = LeaseKeeper(
            self.stores,
            self.held,
            me=self.me,
            times=wq.settings.times,
            offer=wq.producer.relay.offer,
            clock=self.clock,
        )
        self.pool = ByHand(
            self.stores.ledger,
            self.board,
            threads=THREADS,
            times=wq.settings.times,
            on_finished=self.settleable.append,
            on_death=lambda: None,
            rng=random.Random(1),
            clock=self.clock,
        )
        self.heart.join(queues=["default"], threads=THREADS)
        self.consumer, self.intake = take_in(
            Parts(
                self.stores,
                me=self.me.id,
                queues=["default"],
                registry=wq.registry,
                settings=wq.settings,
                heart=self.heart,
                held=self.held,
                pool=self.pool,
                rng=random.Random(2),
                admit=lambda _keys: None,
                clock=self.clock,
            )
        )
        self.consumer.set_prefetch(50)
        self.consumer._watch = OneLook()  # type: ignore[attr-defined]  # nobody else publishes: nothing to wait for

    def clock(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds
        self.heart.beat_in_flight()

    def rounds(self, count: int = 3) -> None:
        for _ in range(count):
            self.intake.round()

    def end(self, *task_ids: str) -> None:
        """The handlers of these tasks return, and their outcomes are settled."""
        for task_id in task_ids:
            self.pool.finish(self.pool.taken.pop(task_id), [Done()])
        self.settle()

    def settle(self) -> None:
        batch, self.settleable[:] = list(self.settleable), []
        if batch:
            self.stores.ledger.outcomes.settle(batch)
            self.pool.settled(batch)
            self.held.settled([one.claim for one in batch])

    def runs(self) -> set[str]:
        return set(self.pool.taken)

    def state(self, task_id: str) -> State:
        task = self.stores.ledger.questions.get(task_id)
        assert task is not None
        return task.state

    def hinted(self) -> set[str]:
        """What another consumer finds in the queue, if it looks now."""
        other = self.stores.broker.consumer(["default"], name="other", prefetch=100)
        found = {task_id for delivery in other.fetch(ids_max=200, wait_s=0.0) for task_id in delivery.task_ids}
        other.close()
        return found


@contextmanager
def opened(folder: Path, *, is_direct: bool = False) -> Iterator[Process]:
    """A process on a new SQLite file, with handlers for work and webhooks. Through custody, unless `is_direct`."""
    with WorkQueue(ledger=f"sqlite:///{folder / 'workq.db'}", namespace="steps") as wq:
        database = wq.database()
        migrate.migrate(database)
        database.close()
        for name in ("work", TASK_NAME):
            wq.task(name=name)(lambda number: number)
        process = Process(wq, is_direct=is_direct)
        try:
            yield process
        finally:
            process.consumer.close()
            process.board.remove()


def tasks(process: Process, count: int, *, name: str = "work") -> list[str]:
    """New tasks, with their hints."""
    handler: Handler[..., Any] = process.wq.handler(name)
    ids = [handler.enqueue(number).id for number in range(count)]
    process.wq.producer.relay.flush(timeout_s=30.0)
    return ids
