"""Delays on both legs: nothing starts early, nothing waits behind a longer delay, and a race has one outcome."""

from __future__ import annotations

import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from sqlalchemy import select

from tests.stores import database_of
from tests.system.fleet import Fleet, wait_until
from tests.system.legs import Leg
from workq import State
from workq.errors import Refused
from workq.ledger import CancelAnswer

EARLY_S = 0.05
"""By how much a clock of a server and that of a worker may differ, at most, before somebody notices."""
BEHIND_AN_HOUR_S = 30.0
"""Later than this, a task of a second waited for one of an hour; a machine that is busy elsewhere costs less."""
SEED = 11
CLEAR = 5
"""Races with a clear winner, of each kind."""
TRIED = 20
"""Tasks that show how late this machine usually starts them, just now."""


def due(leg: Leg) -> dict[str, float]:
    """When each task was to start, in seconds since 1970."""
    database = database_of(leg.app)
    c = database.tables.task.c
    rows = database.ask(lambda tx: tx.execute(select(c.id, c.due_at)).all())
    return {row.id: row.due_at.replace(tzinfo=row.due_at.tzinfo or UTC).timestamp() for row in rows}


def first_starts(leg: Leg) -> dict[str, float]:
    """When each task started first."""
    found: dict[str, float] = {}
    for line in leg.testimony():
        if line.what == "start":
            found[line.task_id] = min(line.at, found.get(line.task_id, line.at))
    return found


def record(leg: Leg, delays: list[float], *, page: int = 500) -> None:
    """A task for each delay."""
    handler = leg["note"]
    for at in range(0, len(delays), page):
        calls = [handler.options(delay_s=delay)._options for delay in delays[at : at + page]]
        leg.app.producer.record([handler.new_task(one, (0,), {}) for one in calls])


def memory_mib(fleet: Fleet) -> float:
    """Of the consumer processes together, those that are there."""
    total = 0.0
    for child in fleet.children():
        try:
            total += child.memory_info().rss / 2**20
        except psutil.NoSuchProcess:
            continue
    return total


@pytest.mark.parametrize("delay_s", [1.0, pytest.param(5.0, marks=pytest.mark.only_long)])
def test_how_late_a_delay_is_on_a_quiet_machine_is_told_and_never_early(
    leg: Leg, delay_s: float, long_run: bool
) -> None:
    count = 1_000 if long_run else 50
    with leg.fleet(processes=2, threads=4) as fleet:
        wait_until(lambda: len(leg.app.stores.ledger.questions.workers()) == 2, timeout_s=30, what="both workers serve")
        leg["note"].options(delay_s=0.2).enqueue(0)  # the first delayed hint of a producer declares the ladder
        leg.wait_settled(timeout_s=30)
        first = due(leg)
        for _ in range(count):
            leg["note"].options(delay_s=delay_s).enqueue(0)
            time.sleep(0.005)
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(20) == 0

    starts = first_starts(leg)
    late = sorted(starts[task_id] - at for task_id, at in due(leg).items() if task_id not in first)
    print(
        f"{leg.name}: {count} tasks at {delay_s:g} s: late by p50 {1000 * late[len(late) // 2]:.1f} ms, "
        f"p99 {1000 * late[int(len(late) * 0.99)]:.1f} ms, most {1000 * late[-1]:.1f} ms"
    )
    assert len(late) == count
    assert late[0] > -EARLY_S


@pytest.mark.timeout(600)
def test_many_delays_at_once_are_all_kept_and_no_consumer_holds_them(leg: Leg, long_run: bool) -> None:
    count, longest_s = (100_000, 60.0) if long_run else (600, 6.0)
    rng = random.Random(SEED)
    with leg.fleet(processes=2, threads=4) as fleet:
        wait_until(lambda: len(leg.app.stores.ledger.questions.workers()) == 2, timeout_s=30, what="both workers serve")
        leg["note"].options(delay_s=0.2).enqueue(0)  # the first delayed hint of a producer declares the ladder
        wait_until(lambda: bool(first_starts(leg)), timeout_s=30, what="the first has started")
        before_mib = memory_mib(fleet)
        record(leg, [rng.uniform(0.1, longest_s) for _ in range(count - 1)])
        most_mib = 0.0
        while leg.unsettled():
            most_mib = max(most_mib, memory_mib(fleet))
            assert fleet.process.poll() is None
            time.sleep(0.5)
        fleet.terminate()
        assert fleet.wait(20) == 0

    starts, wanted = first_starts(leg), due(leg)
    late = sorted(starts[task_id] - wanted[task_id] for task_id in wanted)
    p50, p99, most = late[len(late) // 2], late[int(len(late) * 0.99)], late[-1]
    print(
        f"{leg.name}: {count} delays of 0.1 to {longest_s:g} s: late by p50 {1000 * p50:.0f} ms, "
        f"p99 {1000 * p99:.0f} ms, most {1000 * most:.0f} ms, earliest {1000 * late[0]:.0f} ms; "
        f"memory {before_mib:.0f} -> {most_mib:.0f} MiB"
    )
    assert len(starts) == len(wanted) == count
    assert leg.states()[State.SUCCEEDED] == count
    assert late[0] > -EARLY_S
    assert max(leg.starts().values()) == 1
    assert most_mib - before_mib < 32.0


@pytest.mark.only_long
@pytest.mark.timeout(600)
def test_a_burst_that_is_due_at_one_moment_runs_and_how_fast_is_told(leg: Leg, long_run: bool) -> None:
    count, delay_s = (50_000, 30.0) if long_run else (1_000, 5.0)
    at = datetime.now(UTC) + timedelta(seconds=delay_s)
    with leg.fleet(processes=2, threads=4) as fleet:
        wait_until(lambda: len(leg.app.stores.ledger.questions.workers()) == 2, timeout_s=30, what="both workers serve")
        handler = leg["note"]
        for _ in range(0, count, 500):
            options = handler.options(at=at)._options
            leg.app.producer.record([handler.new_task(options, (0,), {}) for _ in range(500)])
        assert leg.app.producer.relay.flush(timeout_s=60)
        leg.wait_settled(timeout_s=120)
        fleet.terminate()
        assert fleet.wait(20) == 0

    starts = sorted(first_starts(leg).values())
    due_at = at.timestamp()
    took_s = starts[-1] - due_at
    print(
        f"{leg.name}: {count} tasks due at one moment: the first {1000 * (starts[0] - due_at):.0f} ms late, the last "
        f"{took_s:.2f} s: {count / took_s:.0f} /s"
    )
    assert len(starts) == count
    assert starts[0] - due_at > -EARLY_S
    assert max(leg.starts().values()) == 1


def test_a_second_behind_an_hour_is_on_time(leg: Leg) -> None:
    with leg.fleet(processes=1, threads=2) as fleet:
        wait_until(lambda: bool(leg.app.stores.ledger.questions.workers()), timeout_s=30, what="the worker serves")
        record(leg, [3600.0] * 500)
        record(leg, [1.0])
        wait_until(lambda: bool(first_starts(leg)), timeout_s=30, what="the short one has started")
        fleet.terminate()
        assert fleet.wait(20) == 0

    wanted = due(leg)
    [(task_id, started)] = first_starts(leg).items()
    assert task_id == min(wanted, key=lambda one: wanted[one])
    assert -EARLY_S < started - wanted[task_id] < BEHIND_AN_HOUR_S, fleet.text()
    assert leg.states()[State.WAITING] == 500


@pytest.mark.timeout(600)
@pytest.mark.parametrize("deed", ["cancel", "reschedule"])
@pytest.mark.one_leg
def test_raced_against_the_due_moment_a_deed_has_exactly_one_outcome(leg: Leg, deed: str, long_run: bool) -> None:
    count, spread_s, later_s = (1_000, 20.0, 4.0) if long_run else (60, 3.0, 2.0)
    rng = random.Random(SEED)
    ledger = leg.app.stores.ledger
    answers: dict[str, CancelAnswer | None] = {}
    acted: dict[str, float] = {}
    lock = threading.Lock()

    def act(task_id: str, at: float) -> None:
        time.sleep(max(0.0, at - time.time()))
        asked = time.time()  # its new time counts from a moment behind this one
        answer: CancelAnswer | None
        try:
            if deed == "cancel":
                answer = leg.app.cancel(task_id)
            else:
                leg.app.reschedule(task_id, delay_s=later_s)
                answer = CancelAnswer.CANCELLED  # as good as: not at its first time
        except Refused:
            answer = None
        with lock:
            answers[task_id], acted[task_id] = answer, asked

    with leg.fleet(processes=2, threads=4) as fleet:
        wait_until(lambda: len(ledger.questions.workers()) == 2, timeout_s=30, what="both workers serve")
        record(leg, [1.0] * TRIED)
        leg.wait_settled(timeout_s=30)
        tried = due(leg)
        usual_s = statistics.median(first_starts(leg)[task_id] - tried[task_id] for task_id in tried)
        record(leg, [2.0 + rng.uniform(0.0, spread_s) for _ in range(count)], page=100)
        moments = {task_id: at for task_id, at in due(leg).items() if task_id not in tried}
        with ThreadPoolExecutor(16) as pool:
            # most of them in the thick of it, and some that must be won, or lost
            near = [rng.uniform(-0.03, 2 * usual_s + 0.03) for _ in range(count - 2 * CLEAR)]
            offsets = [*near, *[-0.5] * CLEAR, *[usual_s + 1.0] * CLEAR]
            deeds = sorted(
                (at + offset, task_id) for (task_id, at), offset in zip(moments.items(), offsets, strict=True)
            )
            for done in [pool.submit(act, task_id, at) for at, task_id in deeds]:
                done.result()
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(20) == 0

    starts, counts = first_starts(leg), leg.starts()
    print(
        f"{leg.name}: {deed} raced {count} times: {sum(one is CancelAnswer.CANCELLED for one in answers.values())} won"
    )
    assert len(answers) == count
    assert set(counts.values()) == {1}, "nothing ran twice"
    for task_id, answer in answers.items():
        task = ledger.questions.get(task_id)
        assert task is not None
        if deed == "cancel" and answer is CancelAnswer.CANCELLED:
            assert (task.state, counts[task_id]) == (State.CANCELLED, 0), "its cancel was answered: it never starts"
        else:
            assert (task.state, counts[task_id]) == (State.SUCCEEDED, 1)
        if deed == "reschedule" and answer is not None:
            assert starts[task_id] >= acted[task_id] + later_s - 0.5, "it ran at its new time"
            assert task.due_at is not None
            assert task.due_at > datetime.fromtimestamp(moments[task_id], UTC)
    assert len({one is CancelAnswer.CANCELLED for one in answers.values()}) == 2, "some races were won, some lost"
