"""The pool runs tasks that share a call: in one thread, each with its own line and its own outcome."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from workq import Times, WorkQueue
from workq.handlers.handler import Handler
from workq.ledger.sql import Ledger
from workq.values.codec import new_task_id
from workq.values.task import Claim, Done, Failed, HandedBack, Outcome, Settlement
from workq.worker.batch import FillingBatch, Member
from workq.worker.crash_board import CrashBoard
from workq.worker.pool import Pool

THREADS = 2
LONG_S = 30.0


class Stage:
    """A pool with handlers of lists that say that they have begun, and end when they are let go."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.calls: list[list[int]] = []
        self.finished: list[Settlement] = []
        self.app = WorkQueue(ledger="sqlite:///never-opened.db")
        self.board = CrashBoard.create(lines=64)
        self.now = 0.0
        self.is_trusted = True
        self.pool = Pool(
            cast(Ledger, None),
            self.board,
            threads=THREADS,
            times=Times(),
            on_finished=self.finished.append,
            on_death=lambda: None,
            rng=random.Random(1),
            may_start=lambda: self.is_trusted,
            clock=lambda: self.now,  # it stands, unless a test moves it
        )

    def registered(self, function: Any = None, **options: Any) -> Handler[..., Any]:
        return self.app.task(name=f"h{new_task_id()}", batch=50, **options)(function or self.work)

    def work(self, numbers: list[int]) -> dict[int, str]:
        self.calls.append(numbers)
        self.began.release()
        self.let_go.wait(LONG_S)
        return {number: "odd" for number in numbers if number % 2}

    def take(self, count: int, handler: Handler[..., Any] | None = None, **start_by: float) -> None:
        members = [
            Member(
                Claim(new_task_id(), "h", "default", f'{{"a":[{number}],"k":{{}}}}', 1, "token", 0, 0, 3, 3, None),
                number,
                start_by.get(f"n{number}"),
            )
            for number in range(count)
        ]
        self.pool.take_together(FillingBatch(handler or self.registered(), members, 0.0))

    def began_another(self) -> bool:
        return self.began.acquire(timeout=LONG_S)

    def end(self) -> list[Outcome]:
        self.let_go.set()
        assert self.pool.wait_until_idle(LONG_S)
        deadline = time.monotonic() + LONG_S  # they are told after it is idle
        while len(self.pool._lines) + len(self.finished) < self.board.lines and time.monotonic() < deadline:
            time.sleep(0.001)
        return [one.outcome for one in self.finished]


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.let_go.set()
    stage.pool.wait_until_idle(LONG_S)
    stage.pool.end()


def test_they_take_one_thread_and_the_others_are_free(stage: Stage) -> None:
    stage.take(20)
    assert stage.began_another()
    while_first_runs = stage.pool.active, stage.pool.started, stage.pool.startable()
    stage.take(20)

    assert stage.began_another(), "a thread was free"
    assert while_first_runs == (1, 1, THREADS - 1)
    assert [len(call) for call in stage.calls] == [20, 20]


def test_each_is_settled_by_itself_and_its_line_is_free_when_it_is(stage: Stage) -> None:
    stage.take(4)
    found = stage.end()

    assert [type(one) for one in found] == [Done, Failed, Done, Failed]
    assert (stage.pool.active, stage.pool.started, stage.pool.is_idle) == (0, 0, False)
    stage.pool.settled(stage.finished)
    assert stage.pool.is_idle
    assert len(stage.pool._lines) == stage.board.lines
    assert stage.board.started() == []


def test_the_board_tells_of_all_of_them_that_they_run_and_then_how_they_ended(stage: Stage) -> None:
    handler = stage.registered(time_limit_s=60.0)
    stage.take(3, handler)
    assert stage.began_another()
    running = stage.board.started()
    stage.end()

    assert len(running) == 3
    assert len({(one.thread, one.hard_at) for one in running}) == 1
    assert running[0].hard_at > 60.0
    assert sorted(one.claim.task_id for one in stage.board.outcomes()) == sorted(one.task_id for one in running)


def test_whose_slot_is_over_goes_back_and_the_others_are_called(stage: Stage) -> None:
    stage.let_go.set()
    stage.now = 10.0
    stage.take(3, n1=9.0)
    found = stage.end()

    assert stage.calls == [[0, 2]]
    assert sorted(type(one).__name__ for one in found) == ["Done", "Done", "HandedBack"]
    assert stage.pool.active == 0


def test_when_all_slots_are_over_nobody_is_called(stage: Stage) -> None:
    stage.now = 10.0
    stage.take(2, n0=9.0, n1=9.0)

    assert stage.end() == [HandedBack(), HandedBack()]
    assert stage.calls == []


@pytest.mark.parametrize("is_async", [False, True])
def test_without_a_trusted_lease_all_go_back(stage: Stage, is_async: bool) -> None:
    async def work(numbers: list[int]) -> None:
        stage.calls.append(numbers)

    stage.is_trusted = False
    stage.take(5, stage.registered(work) if is_async else None)

    assert stage.end() == [HandedBack()] * 5
    assert stage.calls == []
    assert (stage.pool.active, stage.pool.started) == (0, 0)


def test_what_waits_for_a_thread_goes_back_when_the_process_leaves(stage: Stage) -> None:
    for _ in range(THREADS):
        stage.take(2)
        assert stage.began_another()
    stage.take(3)
    stage.pool.hand_back()

    assert [one.outcome for one in stage.finished] == [HandedBack()] * 3
    assert stage.pool.active == THREADS


def test_coroutines_share_a_call_in_the_event_loop(stage: Stage) -> None:
    async def work(numbers: list[int]) -> dict[int, str]:
        stage.calls.append(numbers)
        if len(numbers) > 1 and 2 in numbers:
            raise ValueError("find it")
        return {2: "bad"} if 2 in numbers else {}

    stage.take(4, stage.registered(work))
    found = stage.end()

    assert [type(one) for one in found] == [Done, Done, Failed, Done]
    assert stage.calls == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]


def test_a_soft_limit_ends_the_call_and_is_said_of_all(stage: Stage) -> None:
    def work(_: list[int]) -> None:
        stage.began.release()
        while not stage.let_go.is_set():
            time.sleep(0.005)

    stage.pool.start()
    stage.take(3, stage.registered(work, time_limit_s=5.0))
    assert stage.began_another()
    stage.now = 100.0
    assert stage.pool.wait_until_idle(LONG_S)
    found = stage.end()

    assert all(isinstance(one, Failed) and one.error.startswith("SoftTimeLimit") for one in found)
    assert len(found) == 3


def test_a_claim_is_as_large_as_there_is_room_for_company(stage: Stage) -> None:
    handler = stage.registered()
    batch = handler.batch
    assert batch is not None
    for number in range(20):
        claim = Claim(new_task_id(), "h", "default", "", 1, "token", 0, 0, 3, 3, None)
        stage.pool.linger.add(batch, handler, Member(claim, number, None))
    stage.pool.linger.came(20)
    assert stage.pool.linger.ready() == []
    free = stage.pool.startable()
    for _ in range(THREADS):
        stage.take(2)
        assert stage.began_another()

    assert free == THREADS + 20
    assert stage.pool.startable() == 0, "all threads are busy: others may be free"
