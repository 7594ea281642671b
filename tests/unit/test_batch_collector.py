"""Tasks wait for each other before they are called together: one process, step by step, on the real embedded stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.process import THREADS, Process, opened
from tests.unit.test_dispatch import suspects
from workq import State, WorkQueue
from workq.handlers.handler import Handler
from workq.handlers.options import Batch
from workq.values.task import Claim, Done
from workq.worker.batch import BatchCollector, Member
from workq.worker.fetch.three_stores import GIVE_BACK_AFTER_S

BATCH = 10
LINGER_S = 0.5


@pytest.fixture(params=[False, True], ids=["custody", "direct"])
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    with opened(tmp_path, is_direct=request.param) as process:
        process.wq.task(name="index", batch=BATCH, linger_s=LINGER_S)(len)
        yield process


def enqueued(process: Process, count: int, *, name: str = "index") -> list[str]:
    handler: Handler[..., Any] = process.wq.handler(name)
    ids = [handler.enqueue(number).id for number in range(count)]
    process.wq.producer.relay.flush(timeout_s=30.0)
    return ids


def calls(process: Process) -> list[list[str]]:
    """The tasks of each call that was begun and not ended."""
    return [[one.claim.task_id for one in first.attempts] for first in process.pool.taken.values()]


def sizes(process: Process) -> list[int]:
    return sorted((len(call) for call in calls(process)), reverse=True)


def claimed(process: Process, ids: list[str]) -> int:
    return sum(process.state(task_id) is State.RUNNING for task_id in ids)


def test_they_go_together_when_they_are_as_many_as_the_handler_takes(process: Process) -> None:
    ids = enqueued(process, BATCH)
    process.rounds(6)

    assert [sorted(call) for call in calls(process)] == [sorted(ids)]


def test_where_the_handler_says_so_only_tasks_of_one_kind_share_a_call(process: Process) -> None:
    process.wq.handler("index").batch_by = lambda number: "even" if number % 2 == 0 else "odd"
    ids = enqueued(process, 2 * BATCH)
    process.rounds(6)

    assert sorted(sorted(call) for call in calls(process)) == sorted([sorted(ids[::2]), sorted(ids[1::2])])


def test_few_go_when_the_first_of_them_has_waited_for_long_enough_and_not_before(process: Process) -> None:
    [first] = enqueued(process, 1)
    process.rounds()
    process.forward(LINGER_S - 0.1)
    [second] = enqueued(process, 1)
    process.rounds()
    before = sizes(process), claimed(process, [first, second])
    process.forward(0.11)
    process.rounds(1)

    assert before == ([], 2)
    assert sorted(calls(process)[0]) == sorted([first, second])


def test_what_waits_for_company_takes_no_thread_from_others(process: Process) -> None:
    enqueued(process, BATCH - 1)
    process.rounds(6)
    others = enqueued(process, THREADS + 2, name="work")
    process.rounds(6)

    assert set(sizes(process)) == {1}
    assert len(calls(process)) >= THREADS
    assert claimed(process, others) <= THREADS + 1, "at most as many more as there was room for company"


def test_a_process_of_few_threads_gathers_many_and_claims_more_each_time(process: Process) -> None:
    process.wq.task(name="many", batch=30, linger_s=LINGER_S)(len)
    enqueued(process, 30, name="many")
    rounds = 0
    while not process.pool.taken and rounds < 20:
        process.intake.round()
        rounds += 1

    assert sizes(process) == [30]
    assert rounds <= 8, "three at a time, it would be ten"


def test_each_handler_has_its_own_group(process: Process) -> None:
    process.wq.task(name="other", batch=BATCH, linger_s=LINGER_S)(len)
    mine, others = enqueued(process, 3), enqueued(process, 4, name="other")
    process.rounds(6)
    process.forward(LINGER_S + 0.01)
    process.rounds(1)

    assert sorted(map(sorted, calls(process))) == sorted([sorted(mine), sorted(others)])


def test_what_waits_for_company_is_not_handed_back_because_all_threads_are_busy(process: Process) -> None:
    process.wq.task(name="patient", batch=BATCH, linger_s=60.0)(len)
    patient = enqueued(process, 2, name="patient")
    process.rounds()
    enqueued(process, THREADS, name="work")
    process.rounds(6)
    assert sizes(process) == [1] * THREADS
    for _ in range(3):
        process.forward(GIVE_BACK_AFTER_S + 0.1)
        process.rounds(2)
    process.settle()

    assert claimed(process, patient) == 2


def test_a_process_that_leaves_hands_back_what_waits_for_company_at_no_cost(process: Process) -> None:
    ids = enqueued(process, 3)
    process.rounds()
    waited = claimed(process, ids), process.intake.is_empty

    assert process.intake.give_back()
    process.settle()

    assert waited == (3, False)
    assert process.intake.is_empty
    for task_id in ids:
        task = process.stores.ledger.questions.get(task_id)
        assert task is not None
        assert (task.state, task.failures, task.crashes) == (State.READY, 0, 0)


def test_nothing_of_it_stands_on_the_board_before_it_starts(process: Process) -> None:
    """So that it is charged with nothing when the process dies; and then all of them stand there."""
    ids = enqueued(process, 3)
    process.rounds()
    before = process.board.started()
    process.forward(LINGER_S + 0.01)
    process.rounds(1)
    [first] = process.pool.taken.values()
    process.pool.begin(first)

    assert before == []
    assert sorted(one.task_id for one in process.board.started()) == sorted(ids)


def test_suspects_are_called_alone_and_nobody_waits_for_company_beside_them(process: Process) -> None:
    process.wq.task(name="patient", batch=BATCH, linger_s=60.0)(len)
    patient = enqueued(process, 2, name="patient")
    process.rounds()
    assert calls(process) == []
    process.wq.registry._handlers["work"] = process.wq.handler("index")  # it is what `suspects` enqueues
    ids = suspects(process, 2)
    process.rounds()
    at_once = [sorted(call) for call in calls(process)]
    seen = []
    for _ in range(3):
        [first] = process.pool.taken.values()
        seen.append([one.claim.task_id for one in first.attempts])
        process.pool.taken.clear()
        process.pool.begin(first)
        process.pool.finish(first, [Done() for _ in first.attempts], began=process.now)
        process.settle()
        process.rounds(1)

    assert at_once == [sorted(patient)]
    assert sorted(map(sorted, seen)) == sorted([sorted(patient), *([one] for one in ids)])
    assert process.pool.is_idle


class TestLinger:
    """Who goes when, by a clock that stands."""

    def setup_method(self) -> None:
        self.now = 100.0
        self.linger = BatchCollector(most=500, clock=lambda: self.now)
        self.handlers: dict[str, Handler[..., Any]] = {}

    def add(self, count: int = 1, *, name: str = "index", size: int = 100, start_by: float | None = None) -> None:
        if name not in self.handlers:
            app = WorkQueue(ledger="sqlite:///never-opened.db")
            self.handlers[name] = app.task(name=name, batch=size, linger_s=2.0)(len)
        for number in range(count):
            claim = Claim(str(number), name, "default", "{}", 1, "t", 0, 0, 3, 3, None)
            self.linger.add(Batch(size, 2.0), self.handlers[name], Member(claim, number, start_by))

    def went(self, *, is_all: bool = False) -> list[int]:
        return [len(group.members) for group in self.linger.ready(is_all=is_all)]

    def test_a_slot_in_a_rate_is_not_waited_away(self) -> None:
        self.add()
        self.now = 100.5
        self.add(start_by=101.5)
        early = self.went()
        self.now = 101.0

        assert (early, self.went()) == ([], [2])

    def test_a_round_waits_until_the_next_is_due(self) -> None:
        self.add()
        self.now = 101.5
        self.add(name="other")

        assert self.linger.wait_s() == pytest.approx(0.5)
        self.now = 103.0
        assert self.linger.wait_s() == 0.0

    def test_more_than_a_handler_takes_are_several_calls(self) -> None:
        self.add(250)

        assert (self.went(), self.linger.count) == ([100, 100], 50)
        assert self.went(is_all=True) == [50]

    def test_in_a_crowded_process_nobody_waits(self) -> None:
        for number in range(10):
            self.add(50, name=f"index{number}")

        assert self.went() == [50] * 10

    def test_more_is_claimed_while_nothing_comes_but_company(self) -> None:
        seen = []
        for came in (4, 8, 16, 32):
            self.add(came)
            self.linger.came(came)
            self.went()
            seen.append(self.linger.more)

        assert seen == [4, 12, 28, 40], "as many as have come, and no more than there is room for"

    def test_it_is_not_when_others_come_too_or_nobody_waits(self) -> None:
        self.add(4)
        self.linger.came(5)
        self.went()
        mixed = self.linger.more
        self.add(4)
        self.linger.came(4)
        self.went(is_all=True)

        assert (mixed, self.linger.more) == (0, 0)
