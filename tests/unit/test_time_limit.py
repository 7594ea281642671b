"""The soft time limit of a thread: raised once, or never; and not in what is whole, but before it, or behind it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import text

from tests.system.fleet import wait_until
from tests.unit.test_writer import is_held
from workq.errors import SoftTimeLimit
from workq.ledger.engine.database import Database
from workq.values.time_limit import SoftDeadline, apart, whole

LONG_S = 10.0


def hit(limit: SoftDeadline, go: threading.Event, after_s: float) -> None:
    go.wait()
    until = time.perf_counter() + after_s
    while time.perf_counter() < until:
        pass
    limit.exceed()


def elsewhere(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def exceed(limit: SoftDeadline) -> None:
    """By another thread, as the keeper of limits does."""
    elsewhere(limit.exceed).join(LONG_S)


def nap() -> bool:
    """Wait, without a lock of its own: the standard library's stay taken where they are cut."""
    time.sleep(0.001)
    return False


def work() -> None:
    """Steps of Python, in each of which what was raised would come."""
    for _ in range(1000):
        sys.intern("x")


@pytest.fixture
def limit() -> Iterator[SoftDeadline]:
    limit = SoftDeadline(0.0)
    yield limit
    limit.ended()


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(usual_s)


def spin(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not until():
        assert time.monotonic() < deadline


def test_a_limit_interrupts_python_code_once() -> None:
    limit, has_begun = SoftDeadline(0.0), threading.Event()

    def exceed() -> None:
        has_begun.wait(10.0)
        limit.exceed()

    def begin_and_spin() -> None:
        has_begun.set()
        spin(lambda: False)

    threading.Thread(target=exceed).start()

    with pytest.raises(SoftTimeLimit):
        begin_and_spin()

    limit.ended()
    spin(lambda: True)


def test_a_limit_that_comes_after_the_end_raises_nothing() -> None:
    limit = SoftDeadline(0.0)
    limit.ended()

    limit.exceed()

    for _ in range(10_000):
        sys.intern("x")


def test_a_limit_never_leaks_out_of_the_attempt_it_was_for(switching: None) -> None:
    """Exceeded at every possible moment around the end of the handler: inside it arrives, afterwards it never does."""
    arrived = leaked = 0
    rng = Random(11)
    for _ in range(400):
        limit, go = SoftDeadline(0.0), threading.Event()
        hitter = threading.Thread(target=hit, args=(limit, go, rng.uniform(0.0, 0.002)))
        hitter.start()
        try:
            try:
                go.set()
                until = time.perf_counter() + 0.001
                while time.perf_counter() < until:
                    pass
            finally:
                limit.ended()
        except SoftTimeLimit:
            arrived += 1
        try:
            hitter.join()
            for _ in range(50):
                sys.intern("y")
        except SoftTimeLimit:
            leaked += 1

    assert leaked == 0
    assert arrived > 0


TRACED = """
import sys, threading, time
from workq.errors import SoftTimeLimit
from workq.values.time_limit import SoftDeadline

def handled(exceeds):
    limit = SoftDeadline(0.0)
    is_at_end = []

    def exceed():
        while not is_at_end:
            time.sleep(0)
        limit.exceed()

    thread = threading.Thread(target=exceed)
    if exceeds == "at the end":  # begun here: a limit in the middle of a thread's start leaves that half done
        thread.start()
    try:
        try:
            if exceeds == "within":
                limit.exceed()
                for _ in range(10):
                    pass
        finally:
            is_at_end.append(True)
            limit.ended()
    except SoftTimeLimit:
        pass
    if thread.ident is not None:
        thread.join()
    if exceeds == "afterwards":
        limit.exceed()

def called():
    return 7

for _ in range(20):
    handled(sys.argv[1])
sys.settrace(lambda frame, event, arg: None)
answer = called()
sys.settrace(None)
print(answer)
"""


@pytest.mark.parametrize("exceeded", ["never", "within", "at the end", "afterwards"])
def test_after_a_limit_calls_can_be_traced(exceeded: str) -> None:
    """A debugger or coverage in a process that had one: CPython 3.11 hung for ever where it was taken back."""
    command = [sys.executable, "-c", TRACED, exceeded]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (ran.stdout, ran.stderr) == ("7\n", "")


def test_it_comes_behind_what_is_whole(limit: SoftDeadline) -> None:
    steps: list[str] = []

    def handler() -> None:
        with whole():
            with whole():
                exceed(limit)
                work()
            steps.append("inner")
            work()
            steps.append("outer")
        steps.append("behind")

    with pytest.raises(SoftTimeLimit):
        handler()
    with whole():
        work()

    assert steps == ["inner", "outer"]


def test_code_of_others_inside_may_be_cut(limit: SoftDeadline) -> None:
    steps: list[str] = []

    def handler() -> None:
        with whole():
            try:
                with apart():
                    limit.exceed()
                    work()
                    steps.append("not cut")
            finally:
                work()
                steps.append("cleaned up")

    with pytest.raises(SoftTimeLimit):
        handler()

    assert steps == ["cleaned up"]


def test_what_had_to_wait_comes_where_code_of_others_begins(limit: SoftDeadline) -> None:
    steps: list[str] = []

    def handler() -> None:
        with whole():
            exceed(limit)
            with apart():
                steps.append("theirs")

    with pytest.raises(SoftTimeLimit):
        handler()

    assert steps == []


def test_an_end_in_time_raises_nothing_behind_what_is_whole() -> None:
    limit = SoftDeadline(0.0)
    with whole():
        limit.ended()
        exceed(limit)
    work()


def test_a_thread_without_a_limit_has_nothing_to_wait_for() -> None:
    with whole(), apart():
        work()


def test_whenever_it_comes_a_lock_that_is_taken_in_a_whole_step_is_given_back(switching: None) -> None:
    rng, lock = Random(7), threading.Lock()
    arrived = 0
    for _ in range(300):
        limit, go = SoftDeadline(0.0), threading.Event()
        hitter = threading.Thread(target=hit, args=(limit, go, rng.uniform(0.0, 0.001)))
        hitter.start()
        try:
            try:
                go.set()
                until = time.perf_counter() + LONG_S
                while time.perf_counter() < until:
                    with whole():
                        lock.acquire(timeout=LONG_S)
                        sys.intern("x")
                        lock.release()
            finally:
                limit.ended()
        except SoftTimeLimit:
            arrived += 1
        hitter.join(LONG_S)
        assert not lock.locked()

    assert arrived == 300


@pytest.mark.parametrize("loop", ["quick", "without a branch", "waits in a call"])
def test_a_handler_gives_back_what_it_holds_around_a_loop_wherever_its_limit_comes(loop: str, switching: None) -> None:
    """CPython skips `finally` and `with` around some loops since 3.13, when the exception is of another thread."""
    lock = threading.Lock()

    def handler(begun: threading.Event) -> None:
        step = 0
        with lock:
            while step >= 0:
                step += 1
                begun.set()
                if loop == "waits in a call":
                    while not nap():
                        pass
                while loop == "without a branch":
                    sys.intern("x")

    arrived = 0
    for _ in range(10):
        begun, limits = threading.Event(), list[SoftDeadline]()

        def attempt(begun: threading.Event = begun, limits: list[SoftDeadline] = limits) -> None:
            nonlocal arrived
            limit = SoftDeadline(0.0)
            limits.append(limit)
            try:
                try:
                    handler(begun)
                finally:
                    limit.ended()
            except SoftTimeLimit:
                arrived += 1

        running = elsewhere(attempt)
        assert begun.wait(LONG_S)
        limits[0].exceed()
        while running.is_alive():  # the keeper of limits looks again, too
            running.join(0.01)
            limits[0].exceed()
        assert not lock.locked()

    assert arrived == 10


def test_who_waits_for_its_turn_to_write_when_its_limit_comes_keeps_it_from_nobody(tmp_path: Path) -> None:
    """Its turn comes in the very moment in which the limit does."""
    database = Database(f"sqlite:///{tmp_path / 'workq.db'}")
    said: list[object] = []
    limits: list[SoftDeadline] = []

    def handler() -> None:
        limit = SoftDeadline(0.0)
        limits.append(limit)
        try:
            try:
                database.run(lambda tx: said.append(tx.execute(text("SELECT 1")).scalar()))
            finally:
                limit.ended()
        except SoftTimeLimit:
            said.append("limit")

    with database.writer.turn(is_short=False):
        waiting = elsewhere(handler)
        wait_until(
            lambda: bool(limits) and is_held(database.writer._door), timeout_s=LONG_S, what="it waits for its turn"
        )
        exceed(limits[0])
    waiting.join(LONG_S)

    elsewhere(lambda: database.run(lambda tx: said.append(tx.execute(text("SELECT 2")).scalar()))).join(LONG_S)
    database.close()
    assert said == [1, "limit", 2]
