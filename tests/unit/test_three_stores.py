"""Custody: what a process has in hand is never forgotten, whatever the broker answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.contract.given import Clock
from tests.stores import database_of
from tests.unit.process import THREADS, Process, opened, tasks
from workq import State
from workq.broker import Delivery, Hint
from workq.errors import ConfigError, InFlightUnavailable, LedgerUnavailable
from workq.handlers.handler import Handler
from workq.inflight import Entry
from workq.ledger import Look
from workq.values.clock import PACE, QUICK_S
from workq.values.codec import new_task_id
from workq.values.task import Done
from workq.worker.fetch.intake import LOOK_EVERY_S
from workq.worker.fetch.three_stores import GIVE_BACK_AFTER_S
from workq.worker.holds import held_for


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with opened(tmp_path) as process:
        yield process


def all_run(process: Process, ids: Sequence[str]) -> None:
    """Whatever waits here starts, once there is room; nothing waits unacked for nobody."""
    for _ in ids:
        process.rounds(2)
        process.end(*process.runs())
        if process.intake.is_empty and not process.hinted():
            break
    assert [process.state(task_id) for task_id in ids] == [State.SUCCEEDED] * len(ids)


@pytest.mark.parametrize("error", [None, ConfigError("a right is missing")])
def test_what_arrived_at_a_full_process_and_cannot_be_handed_back_is_kept_and_run_here(
    process: Process, monkeypatch: pytest.MonkeyPatch, error: ConfigError | None
) -> None:
    """A full process pauses its subscription; what had arrived before must not stay unacked in its hands."""

    def refuse(hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
        if error is not None:
            raise error
        return [False] * len(hints)

    monkeypatch.setattr(process.consumer, "set_prefetch", lambda _count: None)  # it stays wide
    ids = tasks(process, 2 * THREADS + 40)
    process.rounds()
    assert len(process.runs()) == THREADS
    with monkeypatch.context() as patch:
        patch.setattr(process.stores.broker, "publish", refuse)
        patch.setattr(process.consumer, "pause", lambda: None)  # as if all had arrived before
        process.forward(GIVE_BACK_AFTER_S + 0.1)
        process.rounds()
        assert process.hinted() == set(), "it has all of them"

    all_run(process, ids)


def test_what_was_not_granted_is_not_forgotten_when_the_broker_is_away_and_others_are_claimed(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hint cannot be sent on, and the next claim has nothing to do with it."""
    ledger = process.stores.ledger
    process.rounds()
    ledger.pauses.pause("default", who="eve@host", why="?")
    [first] = tasks(process, 1)
    with monkeypatch.context() as patch:
        patch.setattr(process.intake, "_publish", lambda _hints: False)
        process.rounds()
        ledger.pauses.resume("default", who="eve@host", why="?")
        process.forward(LOOK_EVERY_S + 0.1)
        [second] = tasks(process, 1)
        process.rounds()
        assert process.runs() == {second}

    process.rounds()
    Clock(process.wq.stores.ledger.database).forward(1.0)  # its hint was sent on
    all_run(process, [first, second])


def test_behind_slow_handlers_nothing_is_held_however_quick_those_before_were(process: Process) -> None:
    """Others may be free for it; and what is cancelled meanwhile would stay held for as long as they take."""
    tasks(process, THREADS)
    process.rounds()
    quick, slow = process.runs(), set(tasks(process, THREADS))
    for task_id in quick:
        run = process.pool.taken.pop(task_id)
        process.pool.finish(run, [Done()], began=process.pool.begin(run))
    process.settle()
    process.rounds()
    assert process.runs() == slow
    for run in process.pool.taken.values():
        process.pool.begin(run)
    process.forward(1.0)
    others = set(tasks(process, 2))
    process.rounds()
    process.forward(GIVE_BACK_AFTER_S + 0.1)
    process.rounds()

    assert process.hinted() == others
    assert {hold.task_id for hold in process.stores.inflight.held_by(process.me.id)} == slow


@pytest.fixture
def early(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hint comes 80 ms before its time, as it says itself, and as the ledger says."""
    fetch = process.consumer.fetch
    due_in_s(process, monkeypatch, 0.08)

    def fetch_early(**kwargs: Any) -> list[Delivery]:
        return [replace(one, waits_s=(0.08,) * len(one.task_ids)) for one in fetch(**kwargs)]

    monkeypatch.setattr(process.consumer, "fetch", fetch_early)


def due_in_s(process: Process, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """What the ledger says of every task from now on."""
    look = process.stores.ledger.claims.look

    def looks(task_ids: Sequence[str]) -> dict[str, Look]:
        return {task_id: structs.replace(one, due_in_s=seconds) for task_id, one in look(task_ids).items()}

    monkeypatch.setattr(process.stores.ledger.claims, "look", looks)


@pytest.mark.usefixtures("early")
def test_what_comes_early_is_held_until_its_time_and_nothing_waits_behind_it(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = set(tasks(process, 2))
    process.rounds()
    assert (process.runs(), process.hinted()) == (set(), set())
    assert {hold.task_id for hold in process.stores.inflight.held_by(process.me.id)} == ids
    process.forward(0.079)
    process.rounds()
    assert process.runs() == set()

    monkeypatch.undo()
    [prompt] = tasks(process, 1)
    process.rounds()
    assert process.runs() == {prompt}
    process.forward(0.002)
    process.rounds(1)
    assert process.runs() == {prompt, *ids}


@pytest.mark.usefixtures("early")
def test_what_is_early_waits_for_no_longer_than_its_time(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks(process, 1)
    process.rounds(1)
    waits: list[float] = []
    fetch = process.consumer.fetch

    def timed(*, ids_max: int, wait_s: float) -> list[Delivery]:
        waits.append(wait_s)
        return fetch(ids_max=ids_max, wait_s=0.0)

    monkeypatch.setattr(process.consumer, "fetch", timed)
    process.forward(0.03)
    process.rounds(1)

    assert waits == [pytest.approx(0.05)]


def assert_starts_after(process: Process, seconds: float) -> None:
    """New tasks start so long after their hints have come, to the millisecond."""
    ids = set(tasks(process, 2))
    process.rounds()
    process.forward(seconds - 0.001)
    process.rounds()
    before = process.runs()
    process.forward(0.002)
    process.rounds()
    assert (before, process.runs()) == (set(), ids)


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize(
    ("says_s", "waits_s"),
    [pytest.param(0.03, 0.03, id="it was late on its way"), pytest.param(500.0, 0.08, id="it is due later now")],
)
def test_how_early_a_hint_is_the_ledger_knows_best_but_nothing_stays_here_for_long(
    process: Process, monkeypatch: pytest.MonkeyPatch, says_s: float, waits_s: float
) -> None:
    due_in_s(process, monkeypatch, says_s)

    assert_starts_after(process, waits_s)


@pytest.mark.usefixtures("early")
def test_while_the_ledger_is_away_a_hint_is_as_early_as_it_says(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_task_ids: Sequence[str]) -> dict[str, Look]:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(process.stores.ledger.claims, "look", away)

    assert_starts_after(process, 0.08)


@pytest.mark.usefixtures("early")
def test_a_process_that_leaves_gives_back_what_is_early_too(process: Process) -> None:
    ids = set(tasks(process, 2))
    process.rounds()
    had = not process.intake.is_empty

    given_back = process.intake.give_back()

    assert (had, given_back, process.intake.is_empty) == (True, True, True)
    assert process.hinted() == ids
    assert process.stores.inflight.held_by(process.me.id) == []


# -- what was claimed by whoever settled


def handed(process: Process, count: int = 1) -> list[str]:
    """Tasks that were claimed for this process, and are handed over to it."""
    handler: Handler[..., Any] = process.wq.handler("work")
    new = [handler.new_task(handler.defaults, (number,), {}) for number in range(count)]
    process.stores.ledger.tasks.record(new)  # without hints
    claims = process.stores.ledger.claims.claim([one.id for one in new], by=process.me.id)
    assert process.intake.hand_over(claims, asked_at=process.now)
    return [one.id for one in new]


@pytest.fixture(params=["custody", "direct"])
def either(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    """A process, through custody, and one that claims straight from the hints."""
    with opened(tmp_path, is_direct=request.param == "direct") as process:
        process.rounds(1)
        yield process


def test_what_is_handed_over_is_held_and_runs(either: Process) -> None:
    ids = handed(either)
    is_in_hand = not either.intake.is_empty

    either.rounds(1)

    assert (is_in_hand, either.runs()) == (True, set(ids))
    assert [hold.task_id for hold in either.stores.inflight.held_by(either.me.id)] == ids
    assert [either.held.release_strays() for _ in range(2)] == [0, 0]
    either.end(*ids)
    assert ([either.state(one) for one in ids], either.intake.is_empty) == ([State.SUCCEEDED], True)
    assert either.stores.inflight.held_by(either.me.id) == []


def test_there_is_room_for_all_but_one_slot(either: Process) -> None:
    """Else the backlog of one limit would keep a process for itself."""
    rooms = [either.intake.room()]
    handed(either)
    rooms.append(either.intake.room())
    either.rounds(1)
    rooms.append(either.intake.room())
    tasks(either, THREADS)
    either.rounds()

    assert (rooms, either.intake.room()) == ([THREADS - 1, THREADS - 2, THREADS - 2], 0)
    assert len(either.runs()) == THREADS


def test_there_is_none_without_a_lease_nor_for_what_is_not_served(either: Process) -> None:
    assert ("default" in either.intake.served, "other" in either.intake.served) == (True, False)

    either.now += either.wq.settings.times.lease_s + 1.0

    assert either.intake.room() == 0


def test_a_process_that_leaves_hands_back_what_was_handed_over(either: Process) -> None:
    ids = handed(either)

    given_back = either.intake.give_back()
    either.settle()

    assert (given_back, either.intake.is_empty, either.intake.room()) == (True, True, 0)
    assert [either.state(one) for one in ids] == [State.READY]
    assert not either.intake.hand_over([], asked_at=either.now), "it takes no more"


def test_what_cannot_be_held_when_it_is_handed_over_goes_back(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(entries: Sequence[Entry], *, by: str) -> set[str]:
        raise InFlightUnavailable("away")

    process.rounds(1)
    ids = [*handed(process), *handed(process)]
    monkeypatch.setattr(process.stores.inflight, "hold", away)

    with pytest.raises(InFlightUnavailable):
        process.rounds(1)
    process.settle()

    assert (process.runs(), process.intake.is_empty) == (set(), True)
    assert [process.state(one) for one in ids] == [State.READY] * 2


def test_what_is_handed_over_waits_for_a_line_of_the_board(either: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand outcomes wait to be settled: each has its line until then."""
    ids = handed(either)
    with monkeypatch.context() as patch:
        patch.setattr(type(either.pool), "lines", 0)
        either.rounds(1)
        assert (either.runs(), either.intake.is_empty) == (set(), False)

    either.rounds(1)
    assert either.runs() == set(ids)


def test_a_hold_that_nobody_here_knows_is_dropped_at_the_second_look(process: Process) -> None:
    [stray, known] = tasks(process, 2)
    process.stores.inflight.hold([Entry(stray, "default"), Entry(known, "default")], by=process.me.id)
    process.held.add([Entry(known, "default")])

    assert process.held.release_strays() == 0, "it may just be being taken"
    assert process.held.release_strays() == 1
    assert process.held.release_strays() == 0
    assert [hold.task_id for hold in process.stores.inflight.held_by(process.me.id)] == [known]


def test_a_hold_that_was_being_taken_at_the_first_look_is_kept(process: Process) -> None:
    [task_id] = tasks(process, 1)
    process.stores.inflight.hold([Entry(task_id, "default")], by=process.me.id)
    assert process.held.release_strays() == 0

    process.held.add([Entry(task_id, "default")])

    assert process.held.release_strays() == 0
    process.held.release([(task_id, "default")])
    assert process.stores.inflight.held_by(process.me.id) == []


def test_a_claim_that_a_process_does_not_know_goes_back_at_the_second_look(either: Process) -> None:
    """It was started again from an older copy of itself: nobody else would ever end those claims while it lives."""
    [forgotten, known] = tasks(either, 2)
    either.stores.ledger.claims.claim([forgotten], by=either.me.id)
    either.rounds()
    assert either.runs() == {known}

    assert either.held.return_forgotten() == [], "it may just be being claimed"
    assert [hint.task_id for hint in either.held.return_forgotten()] == [forgotten]
    assert either.held.return_forgotten() == []
    assert [either.state(one) for one in (forgotten, known)] == [State.READY, State.RUNNING]
    task = either.stores.ledger.questions.get(forgotten)
    assert task is not None
    assert (task.failures, task.crashes) == (0, 0)


def test_a_look_at_its_claims_that_takes_long_is_made_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a transaction stays open, PostgreSQL keeps a version of each task that ever ran here."""
    at, looks = 0.0, []

    def look(worker: str) -> dict[str, str]:
        nonlocal at
        looks.append(worker)
        at += 2 * QUICK_S
        return {}

    with opened(tmp_path, is_direct=True) as process:
        monkeypatch.setattr(process.stores.ledger.workers, "claimed_by", look)
        held = held_for(process.stores, by=process.me.id, clock=lambda: at)
        for _ in range(4):
            held.return_forgotten()
        assert len(looks) == 2
        at += PACE * 2 * QUICK_S
        held.return_forgotten()
        assert len(looks) == 3


def test_the_hint_of_an_unknown_id_is_not_dropped_while_another_is_about_to_let_it_go(process: Process) -> None:
    """The other one has sent this hint for the next look, and holds the id until that is confirmed."""
    unknown, database = new_task_id(), database_of(process.wq)
    other = Process(process.wq, is_direct=False, name="host.b007.1.3.other")
    other.stores.inflight.hold([Entry(unknown, "default")], by=other.me.id)
    process.stores.broker.publish([Hint("default", (unknown,), looks=1)], deadline_s=5.0)

    def noted() -> list[str]:
        events = process.stores.ledger.questions.happened(["quarantined"], within_s=86_400.0, limit=9)
        return [task_id for one in events for task_id in one.detail["tasks"]]

    process.rounds()
    other.stores.inflight.release([(unknown, "default")], by=other.me.id)
    for _ in range(3):
        assert noted() == []
        database.clock_offset_s += 2 * process.wq.settings.times.beat_s
        process.rounds()
        if noted():
            break

    assert noted() == [unknown]
    assert process.intake.is_empty
