"""The pool: as many attempts run at once as there are threads, however they arrive."""

from __future__ import annotations

import asyncio
import ctypes
import random
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from workq import Times, WorkQueue
from workq.handlers.handler import Handler
from workq.ledger.sql import Ledger
from workq.values.codec import new_task_id
from workq.values.task import Claim, HandedBack, Settlement
from workq.worker.crash_board import CrashBoard
from workq.worker.pool import CLAIM_AHEAD_BYTES, CLAIM_AHEAD_MAX, HAND_BACK_AFTER_S, Pool

THREADS = 4
LONG_S = 30.0


def claim(payload: str = "") -> Claim:
    return Claim(new_task_id(), "wait", "default", payload, 1, "token", 0, 0, 3, 3, None)


class Stage:
    """A pool whose attempts say that they have begun, and end when they are let go."""

    def __init__(self, *, is_async: bool) -> None:
        self.began = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.finished: list[Settlement] = []
        self.another_finished = threading.Semaphore(0)
        self.app = WorkQueue(ledger="sqlite:///never-opened.db")
        self.handler: Handler[..., Any] = self.app.task(name="wait")(self.await_it if is_async else self.wait)
        self.board = CrashBoard.create(lines=THREADS + 8)
        self.skipped_s = 0.0
        self.pool = Pool(
            cast(Ledger, None),
            self.board,
            threads=THREADS,
            times=Times(),
            on_finished=self.finish,
            on_death=lambda: None,
            rng=random.Random(1),
            clock=lambda: self.skipped_s,  # it stands, unless a test moves it
        )

    def wait(self) -> None:
        self.began.release()
        self.let_go.wait(LONG_S)

    async def await_it(self) -> None:
        self.began.release()
        async with asyncio.timeout(LONG_S):
            while not self.let_go.is_set():
                await asyncio.sleep(0.002)

    def finish(self, settlement: Settlement) -> None:
        self.finished.append(settlement)
        self.another_finished.release()

    def take(self) -> None:
        self.pool.take(claim(), self.handler, {"a": (), "k": {}}, None)

    def began_another(self) -> bool:
        return self.began.acquire(timeout=LONG_S)


@pytest.fixture(params=["threads", "coroutines"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    stage = Stage(is_async=request.param == "coroutines")
    yield stage
    stage.let_go.set()
    stage.pool.wait_until_idle(LONG_S)
    stage.pool.end()


def test_every_thread_runs_an_attempt_though_they_come_one_by_one(stage: Stage) -> None:
    for _ in range(THREADS):
        stage.take()
        assert stage.began_another(), "a thread was free, and the attempt waits behind another"

    assert stage.pool.active == THREADS


def test_every_thread_runs_an_attempt_again_after_a_quiet_time(stage: Stage) -> None:
    stage.let_go.set()
    for _ in range(3):
        stage.take()
        assert stage.pool.wait_until_idle(LONG_S)
    while stage.began.acquire(blocking=False):
        pass
    stage.let_go.clear()

    for _ in range(THREADS):
        stage.take()
        assert stage.began_another()


def test_what_is_more_than_the_threads_waits_and_can_be_handed_back(stage: Stage) -> None:
    for _ in range(THREADS + 2):
        stage.take()
    for _ in range(THREADS):
        assert stage.began_another()

    stage.pool.hand_back()

    assert [settlement.outcome for settlement in stage.finished] == [HandedBack(), HandedBack()]
    stage.let_go.set()
    assert stage.pool.wait_until_idle(LONG_S)


def test_the_pool_is_idle_when_all_that_ran_is_settled(stage: Stage) -> None:
    assert stage.pool.is_idle
    stage.take()
    assert stage.began_another()
    running = stage.pool.is_idle
    stage.let_go.set()
    assert stage.another_finished.acquire(timeout=LONG_S)
    unsettled = stage.pool.is_idle

    stage.pool.settled(stage.finished)

    assert (running, unsettled, stage.pool.is_idle) == (False, False, True)


def test_what_was_claimed_ahead_goes_back_when_the_threads_turn_out_to_be_busy(stage: Stage) -> None:
    """Quick attempts let it claim ahead; then come some that take long, and others may have a thread free."""
    stage.pool.pace.add(0.00001)
    assert stage.pool.startable() > THREADS
    for _ in range(THREADS + 6):
        stage.take()
    for _ in range(THREADS):
        assert stage.began_another()
    stage.pool.relieve()
    assert stage.finished == [], "they may yet be quick"

    stage.skipped_s = HAND_BACK_AFTER_S + 0.1
    stage.pool.relieve()

    assert [type(one.outcome) for one in stage.finished] == [HandedBack] * 6
    assert stage.pool.active == THREADS
    stage.pool.settled(stage.finished)
    assert stage.pool.startable() == 0, "nothing is claimed ahead while nothing ends"


def test_of_large_payloads_fewer_are_claimed_ahead(stage: Stage) -> None:
    """Quick attempts alone would let it claim hundreds, whatever memory they need."""
    stage.let_go.set()
    stage.pool.pace.add(0.00001)
    stage.pool.pace.weigh(200)
    small = stage.pool.pace.fit(CLAIM_AHEAD_BYTES)

    stage.pool.take(claim("x" * (CLAIM_AHEAD_BYTES // 6)), stage.handler, {"a": (), "k": {}}, None)

    assert stage.pool.wait_until_idle(LONG_S)
    assert small > CLAIM_AHEAD_MAX
    assert stage.pool.startable() == 6


def test_an_attempt_that_was_just_taken_is_not_handed_back_after_a_quiet_time(stage: Stage) -> None:
    stage.skipped_s = 100.0
    for _ in range(THREADS):
        stage.take()

    stage.pool.relieve()

    for _ in range(THREADS):
        assert stage.began_another()
    assert stage.finished == []


class Strange(BaseException):
    """What it raises when it is looked at is not looked at either."""

    def __getattribute__(self, name: str) -> Any:
        raise Strange


def test_what_dies_of_anything_but_its_handler_ends_its_process_whatever_becomes_of_the_log(stage: Stage) -> None:
    """Its attempt would never be settled: the supervisor gives back what a dead process had."""
    died = threading.Event()
    stage.pool._on_death = died.set

    def refuse(_: Settlement) -> None:
        raise Strange

    stage.pool._on_finished = refuse
    stage.let_go.set()
    stage.take()

    assert died.wait(LONG_S)


def test_a_thread_that_is_ended_while_it_waits_ends_its_process() -> None:
    """Careless code ends every thread that it finds: this one would take one more attempt, and never run it."""
    stage = Stage(is_async=False)
    stage.let_go.set()
    died = threading.Event()
    stage.pool._on_death = died.set
    stage.take()
    assert stage.another_finished.acquire(timeout=LONG_S)

    [waiting] = stage.pool._running
    assert waiting.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waiting.ident), ctypes.py_object(SystemExit))
    stage.take()

    assert died.wait(LONG_S)
    stage.pool.end()


def test_what_a_handler_cancels_before_it_has_begun_goes_back_at_no_cost() -> None:
    """Careless code that ends a program cancels all tasks of its loop, also those that are not its own."""
    stage = Stage(is_async=True)

    async def cancels_all() -> None:
        stage.take()
        stage.pool._start_coming()  # as the loop would in its next round
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    stage.pool.start()
    stage.pool.take(claim(), stage.app.task(name="cancels_all")(cancels_all), {"a": (), "k": {}}, None)
    for _ in range(2):
        assert stage.another_finished.acquire(timeout=LONG_S)
    stage.let_go.set()
    stage.take()
    assert stage.another_finished.acquire(timeout=LONG_S)
    stage.pool.end()

    assert sorted(type(one.outcome).__name__ for one in stage.finished) == ["Done", "Done", "HandedBack"]
