"""Fallback polling: while the broker is away, a process with room finds due tasks in the ledger."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.contract.given import Clock
from tests.unit.process import THREADS, Process, opened, tasks
from workq import State
from workq.broker import PAGE, Delivery
from workq.broker.embedded import EmbeddedBroker
from workq.inflight import Entry
from workq.ledger import Evidence, Unpublished
from workq.ledger.due_tasks import DueTask
from workq.recovery.reap import end_worker
from workq.recovery.swept import Swept
from workq.values import codec
from workq.worker.fetch import fallback_polling, three_stores
from workq.worker.fetch.fallback_polling import ASK_EVERY_S, DUE_S, SOON_S, SPREAD, TELL_EVERY_S, FallbackPolling
from workq.worker.fetch.three_stores import GIVE_BACK_AFTER_S

ONCE_S = ASK_EVERY_S * (1.0 + SPREAD) + 0.1
"""After so long it has asked."""
OTHER = "host.b007.1.3.other"
OF_POLLING = frozenset({"poll.before_hold", "poll.after_hold", "worker.before_let_go"})
"""What was found is about to be held, or is; what a busy process holds is about to be left to others."""


class Away:
    """Between this process and the broker."""

    def __init__(self, process: Process, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._consumer = process.consumer

    def begin(self) -> None:
        def fetch(*, ids_max: int, wait_s: float) -> list[Delivery]:
            return []

        self._patch.setattr(self._consumer, "fetch", fetch)
        self._patch.setattr(self._consumer, "trouble", "away")

    def end(self) -> None:
        self._patch.undo()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with opened(tmp_path) as process:
        process.rounds(1)
        yield process


@pytest.fixture
def with_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A process whose broker is well, and gives it nothing: all that waits is in parts of queues that others own."""
    monkeypatch.setattr(EmbeddedBroker, "has_owners", True)
    with opened(tmp_path) as process:
        monkeypatch.setattr(process.consumer, "fetch", lambda **_: [])
        process.rounds(1)
        yield process


@pytest.fixture
def away(process: Process) -> Iterator[Away]:
    with pytest.MonkeyPatch.context() as patch:
        away = Away(process, patch)
        away.begin()
        yield away


def asks(process: Process) -> None:
    """Time passes until it has asked."""
    process.rounds(1)
    process.forward(ONCE_S)
    process.rounds()


def asks_on(process: Process) -> None:
    """And for as long as it takes to have tried a page."""
    asks(process)
    for _ in range(PAGE // THREADS):
        process.forward(SOON_S)
        process.rounds(1)


def held(process: Process, by: str) -> set[str]:
    return {hold.task_id for hold in process.stores.inflight.held_by(by)}


def polled(process: Process) -> list[int]:
    """What the ledger was told."""
    found = process.stores.ledger.questions.happened(("polled",), within_s=1e6, limit=10)
    return [event.detail["tasks"] for event in found]


def test_what_is_due_runs_from_the_ledger_and_its_hints_are_worth_nothing_later(process: Process, away: Away) -> None:
    ids = tasks(process, THREADS + 4)
    process.rounds(1)
    process.forward(ASK_EVERY_S - 0.1)
    process.rounds()
    assert process.runs() == set(), "for a moment the broker is waited for"

    process.forward(SPREAD + 0.2)
    process.rounds()
    assert process.runs() == set(ids[:THREADS])
    assert held(process, process.me.id) == set(ids[:THREADS])
    for _ in ids:
        process.end(*process.runs())
        process.rounds(2)
    assert [process.state(one) for one in ids] == [State.SUCCEEDED] * len(ids)

    away.end()
    process.rounds(2 * len(ids))
    assert (process.runs(), process.hinted(), process.intake.is_empty) == (set(), set(), True)
    assert [one.attempt for one in process.stores.ledger.questions.tasks()] == [1] * len(ids)
    assert (held(process, process.me.id), polled(process)) == (set(), [len(ids)])


def test_a_task_that_never_had_a_hint_runs_too(process: Process, away: Away) -> None:
    handler = process.wq.handler("work")
    new = handler.new_task(handler.defaults, (1,), {})
    process.stores.ledger.tasks.record([new])  # its producer could not reach the broker

    asks(process)

    assert process.runs() == {new.id}


def test_while_the_broker_is_there_the_ledger_is_not_asked(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object, **__: object) -> list[Entry]:
        raise AssertionError("it was asked")

    monkeypatch.setattr(process.stores.ledger.due_tasks, "oldest", ask)
    [task_id] = tasks(process, 1)
    for _ in range(5):
        asks(process)

    assert process.runs() == {task_id}


def test_what_a_live_other_holds_is_left_to_it_and_what_is_behind_that_is_found(process: Process, away: Away) -> None:
    ids = tasks(process, PAGE + 20)
    inflight = process.stores.inflight
    inflight.join(OTHER, lease_s=3600.0)
    inflight.hold([Entry(one, "default") for one in ids[: PAGE + 10]], by=OTHER)

    asks_on(process)
    assert process.runs() <= set(ids[PAGE + 10 :])
    assert len(process.runs()) == THREADS

    process.end(*process.runs())
    inflight.release([(one, "default") for one in ids[:2]], by=OTHER)
    for _ in range(6):
        asks_on(process)
        process.end(*process.runs())
    assert {one for one in ids if process.state(one) is State.SUCCEEDED} == {*ids[:2], *ids[PAGE + 10 :]}
    assert held(process, OTHER) == set(ids[2 : PAGE + 10])


def test_a_busy_process_leaves_what_it_holds_to_others(process: Process, away: Away) -> None:
    """What had come with a hint is marked in the ledger, since that hint is gone; what was found keeps what it has."""
    away.end()
    process.consumer.set_prefetch(50)
    ledger = process.stores.ledger
    running = tasks(process, THREADS)
    process.rounds()
    process.end()
    hinted = tasks(process, 2)
    process.intake._pool.pace.add(0.01)  # it looks quick: so it holds ahead
    process.rounds(1)
    assert held(process, process.me.id) == {*running, *hinted}

    away.begin()
    process.forward(GIVE_BACK_AFTER_S + 0.1)
    found = tasks(process, 1)
    process.intake._hold_found([Entry(found[0], "default")])  # type: ignore[attr-defined]
    process.intake._relieve()  # type: ignore[attr-defined]
    process.forward(GIVE_BACK_AFTER_S + 0.1)
    process.intake._relieve()  # type: ignore[attr-defined]

    assert held(process, process.me.id) == set(running)
    Clock(ledger.database).forward(60.0)
    needed = ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0, dry_run=True)
    assert [one.task_id for one in needed] == hinted


def test_what_is_not_granted_goes_without_a_new_hint(process: Process, away: Away) -> None:
    ledger = process.stores.ledger
    ids = tasks(process, 2)
    away.end()
    assert process.stores.broker.depths(["default"])["default"].ready == 2
    away.begin()
    oldest = ledger.due_tasks.oldest

    with pytest.MonkeyPatch.context() as patch:

        def then_paused(queues: Sequence[str], **given: Any) -> list[DueTask]:
            found = oldest(queues, **given)
            ledger.pauses.pause("default", who="eve@host", why="?")
            return found

        patch.setattr(ledger.due_tasks, "oldest", then_paused)
        asks(process)

    assert (process.runs(), held(process, process.me.id), process.intake.is_empty) == (set(), set(), True)
    assert process.stores.broker.depths(["default"])["default"].ready == 2
    ledger.pauses.resume("default", who="eve@host", why="?")
    for _ in range(3):
        asks(process)
    assert process.runs() == set(ids)


def test_what_was_not_granted_is_marked_in_the_ledger_while_the_broker_is_away(process: Process, away: Away) -> None:
    ledger = process.stores.ledger
    [task_id] = tasks(process, 1)
    away.end()
    ledger.pauses.pause("default", who="eve@host", why="?")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.intake, "_publish", lambda _hints: False)
        process.rounds()
    assert held(process, process.me.id) == {task_id}

    away.begin()
    process.rounds()

    assert (held(process, process.me.id), process.intake.is_empty) == (set(), True)
    Clock(ledger.database).forward(60.0)
    needed = ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0, dry_run=True)
    assert needed == [Unpublished(task_id, "default", 0, 0.0)]


def test_where_parts_of_queues_have_owners_who_is_idle_takes_what_waits_behind_others(
    with_owners: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback_polling, "DUE_S", 600.0)  # longer than a busy machine stands still
    process = with_owners
    ids = tasks(process, THREADS + 2)
    process.rounds(1)
    Clock(process.stores.ledger.database).forward(300.0)
    process.forward(ONCE_S)
    process.rounds()
    assert process.runs() == set(), "their hints may be on their way"

    Clock(process.stores.ledger.database).forward(301.0)
    process.forward(ONCE_S)
    process.rounds()
    assert process.runs() == set(ids[:THREADS])

    asked = process.stores.ledger.due_tasks.oldest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.stores.ledger.due_tasks, "oldest", None)
        process.intake._pool.pace.add(0.01)  # it may hold more, and has no thread for it
        process.forward(ONCE_S)
        process.rounds()
    assert process.stores.ledger.due_tasks.oldest == asked
    process.end(*process.runs())
    process.forward(ONCE_S)
    process.rounds()
    process.end(*process.runs())
    assert [process.state(one) for one in ids] == [State.SUCCEEDED] * len(ids)
    assert process.intake.give_back()
    [event] = process.stores.ledger.questions.happened(("polled",), within_s=1e6, limit=10)
    assert event.detail == {"tasks": len(ids)}, "and no reason: the broker was there"


def test_where_parts_of_queues_have_owners_who_begins_asks_at_once_and_then_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedBroker, "has_owners", True)
    with opened(tmp_path) as process:
        monkeypatch.setattr(process.consumer, "fetch", lambda **_: [])
        clock = Clock(process.stores.ledger.database)
        [early] = tasks(process, 1)
        clock.forward(DUE_S)
        process.rounds(2)
        assert process.runs() == {early}

        process.end(early)
        process.rounds()
        [late] = tasks(process, 1)
        clock.forward(DUE_S)
        process.forward(ASK_EVERY_S - 0.1)
        process.rounds()
        assert process.runs() == set()
        process.forward(SPREAD + 0.2)
        process.rounds()
        assert process.runs() == {late}


def test_who_takes_what_waits_behind_others_goes_on_from_the_newest(with_owners: Process) -> None:
    """Owners come from the oldest; and once in a second or so the oldest may be what an owner does not come to."""
    process = with_owners
    ids = tasks(process, 4 * THREADS)
    Clock(process.stores.ledger.database).forward(DUE_S)
    found: list[set[str]] = []
    for wait_s in (ONCE_S, 0.0, ONCE_S):
        process.forward(wait_s)
        process.rounds()
        found.append(process.runs())
        process.end(*process.runs())

    assert found == [set(ids[:THREADS]), set(ids[-THREADS:]), set(ids[THREADS : 2 * THREADS])]


def test_while_no_hint_reaches_anybody_what_is_due_starts_from_the_oldest(process: Process, away: Away) -> None:
    ids = tasks(process, 2 * THREADS)
    asks(process)
    process.end(*process.runs())
    process.forward(SOON_S)
    process.rounds()
    assert process.runs() == set(ids[THREADS:])
    later = tasks(process, 2 * THREADS)
    process.end(*process.runs())
    process.forward(SOON_S)
    process.rounds()
    assert process.runs() == set(later[:THREADS])


@pytest.mark.parametrize(("count", "asks_at_once"), [(PAGE, True), (1, False)])
def test_where_parts_of_queues_have_owners_who_hears_no_more_after_many_hints_asks_at_once(
    count: int, asks_at_once: bool, process: Process
) -> None:
    """Its own part has run dry, and those of others may hold more."""
    ledger = process.stores.ledger
    polling = FallbackPolling(ledger, me="me", rng=random.Random(1), clock=process.clock, has_owners=True)
    assert polling.is_due(None, is_wide=True, is_free=True), "it begins"
    assert polling.ask(["default"], ids_max=THREADS) == []
    polling.took([])
    assert not polling.is_due(None, is_wide=True, is_free=True)

    polling.heard([Delivery(None, "default", tuple(codec.new_task_id() for _ in range(count)))])

    assert polling.is_due(None, is_wide=True, is_free=True) is asks_at_once
    assert not polling.is_due(None, is_wide=True, is_free=False)


def test_what_was_found_and_could_not_be_held_is_not_asked_for_again_at_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The in-flight store is away."""
    ledger = process.stores.ledger
    tasks(process, THREADS)
    Clock(ledger.database).forward(DUE_S)
    now = [0.0]
    polling = FallbackPolling(ledger, me="me", rng=random.Random(1), clock=lambda: now[0], has_owners=True)
    oldest = ledger.due_tasks.oldest

    def slow(queues: Sequence[str], **given: Any) -> list[DueTask]:
        now[0] += 0.3
        return oldest(queues, **given)

    monkeypatch.setattr(ledger.due_tasks, "oldest", slow)
    assert polling.is_due(None, is_wide=True, is_free=True)
    assert len(polling.ask(["default"], ids_max=THREADS)) == THREADS

    assert not polling.is_due(None, is_wide=True, is_free=True)
    now[0] += ONCE_S
    assert polling.is_due(None, is_wide=True, is_free=True)


class Dies(BaseException):
    """A process dies at this very moment."""


@pytest.mark.parametrize("point", sorted(OF_POLLING))
def test_a_death_at_this_point_loses_nothing(
    point: str, process: Process, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who buries it finds what it held; another process without a broker runs all of it, once."""

    def reach(reached: str) -> None:
        if reached == point:
            raise Dies

    stores = process.stores
    monkeypatch.setattr(three_stores, "reach", reach)
    ids = tasks(process, THREADS)
    if point == "worker.before_let_go":  # these have come with hints, and cannot start
        away.end()
        monkeypatch.setattr(type(process.pool), "startable", lambda _pool: 0)
        process.rounds(1)
        away.begin()
    act = process.intake.give_back if point == "worker.before_let_go" else partial(asks, process)
    with pytest.raises(Dies):
        act()
    monkeypatch.undo()

    end_worker(stores, process.wq.settings, process.me.id, Evidence("SIGKILL"), Swept(), is_known_dead=True)
    other = Process(process.wq, is_direct=False, name=OTHER)
    behind = Away(other, monkeypatch)
    behind.begin()
    asks(other)
    assert other.runs() == set(ids)
    other.end(*ids)
    behind.end()
    other.rounds(2 * len(ids))

    assert [one.attempt for one in stores.ledger.questions.tasks()] == [1] * len(ids)
    assert [other.state(one) for one in ids] == [State.SUCCEEDED] * len(ids)
    assert (held(process, process.me.id), held(other, OTHER), other.hinted()) == (set(), set(), set())
    other.consumer.close()
    other.board.remove()


def test_the_ledger_is_told_each_minute_how_many_were_found(process: Process, away: Away) -> None:
    for _ in range(2):
        tasks(process, 2)
        asks(process)
        process.end(*process.runs())
        process.forward(TELL_EVERY_S)
        asks(process)
    assert process.intake.give_back()

    assert sorted(polled(process)) == [2, 2]


def test_a_ledger_that_is_slow_to_answer_is_asked_more_rarely(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    polling = FallbackPolling(
        process.stores.ledger, me="me", rng=random.Random(1), clock=lambda: now[0], has_owners=False
    )
    assert not polling.is_due("away", is_wide=True, is_free=True)
    now[0] = ONCE_S
    assert polling.is_due("away", is_wide=True, is_free=True)

    oldest = process.stores.ledger.due_tasks.oldest

    def slow(queues: Sequence[str], **given: Any) -> list[DueTask]:
        now[0] += 3.0
        return oldest(queues, **given)

    monkeypatch.setattr(process.stores.ledger.due_tasks, "oldest", slow)
    [task_id] = tasks(process, 1)
    assert [entry.task_id for entry in polling.ask(["default"], ids_max=3)] == [task_id]
    polling.took([task_id])

    now[0] += 29.0
    assert not polling.is_due("away", is_wide=True, is_free=True)
    now[0] += 1.0
    assert polling.is_due("away", is_wide=True, is_free=True)


def test_each_reason_why_nothing_arrives_is_told_at_once_and_then_once_in_each_interval(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process.consumer, "fetch", lambda **_: [])
    for second in range(31):
        monkeypatch.setattr(process.consumer, "trouble", f"node {second % 2} is away")
        process.rounds(1)
        process.forward(1.0)

    told = [vars(one) for one in caplog.records if one.msg == "worker.nothing_arrives"]
    assert [(one["reason"], one["count"]) for one in told] == [
        ("node 0 is away", 1),
        ("node 1 is away", 1),
        ("node 0 is away", 4),
        ("node 1 is away", 4),
        ("node 0 is away", 5),
        ("node 1 is away", 5),
        ("node 0 is away", 5),
    ]
