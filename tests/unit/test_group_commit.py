"""Gather: calls of several threads share a transaction, each with its own answer; a single one waits for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from workq.enqueue.group_commit import Gather
from workq.errors import KeyConflict, LedgerUnavailable
from workq.values.codec import new_task_id
from workq.values.task import Enqueued, NewTask, State

LONG_S = 30.0


def task() -> NewTask:
    return NewTask(new_task_id(), "work", "default", "{}", delay_s=0.0, failures_max=1, crashes_max=1, key=None)


class Ledger:
    """Notes what is recorded together; the first transaction lasts until the test lets it go."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.judge: Callable[[Sequence[NewTask]], None] = lambda tasks: None
        self.gather = Gather(self.record, writers=1)

    def record(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        self.batches.append([one.id for one in tasks])
        if not self.began.is_set():
            self.began.set()
            assert self.let_go.wait(LONG_S)
        self.judge(tasks)
        return [Enqueued(one.id, State.READY, True) for one in tasks]

    def enqueue_while_one_is_written(self, tasks: Sequence[NewTask]) -> tuple[Future[Enqueued], list[Future[Enqueued]]]:
        """The first call, and those that came while it was being written."""
        pool = ThreadPoolExecutor(len(tasks) + 1)
        first = pool.submit(self.gather.record, task())
        assert self.began.wait(LONG_S)
        others = [pool.submit(self.gather.record, one) for one in tasks]
        while len(self.gather._waiting) < len(tasks):
            threading.Event().wait(0.001)
        self.let_go.set()
        pool.shutdown(wait=True)
        return first, others


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_a_call_by_itself_is_written_at_once_and_alone(ledger: Ledger) -> None:
    ledger.let_go.set()
    tasks = [task() for _ in range(3)]

    answers = [ledger.gather.record(one) for one in tasks]

    assert [one.id for one in answers] == [one.id for one in tasks]
    assert ledger.batches == [[one.id] for one in tasks]


def test_calls_that_come_while_one_is_written_are_written_together(ledger: Ledger) -> None:
    tasks = [task() for _ in range(7)]

    _, others = ledger.enqueue_while_one_is_written(tasks)

    assert [one.result().id for one in others] == [one.id for one in tasks]
    assert [sorted(batch) for batch in ledger.batches[1:]] == [sorted(one.id for one in tasks)]


def test_with_two_writers_a_second_call_does_not_wait_for_the_first(ledger: Ledger) -> None:
    ledger.gather = Gather(ledger.record, writers=2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ledger.gather.record, task())
        assert ledger.began.wait(LONG_S)

        second = ledger.gather.record(task())

        assert second.created
        assert not first.done()
        ledger.let_go.set()
    assert first.result().created


def test_an_error_of_one_task_is_raised_for_it_alone(ledger: Ledger) -> None:
    tasks = [task() for _ in range(5)]
    bad = tasks[2]

    def refuse(given: Sequence[NewTask]) -> None:
        if bad in given:
            raise KeyConflict("taken")

    ledger.judge = refuse

    _, others = ledger.enqueue_while_one_is_written(tasks)

    assert [type(one.exception()) for one in others] == [type(None), type(None), KeyConflict, type(None), type(None)]
    assert [one.result().id for one in others if one.exception() is None] == [one.id for one in tasks if one is not bad]


def test_a_ledger_that_is_away_is_told_to_each_and_asked_once(ledger: Ledger) -> None:
    def away(given: Sequence[NewTask]) -> None:
        if len(given) > 1:
            raise LedgerUnavailable("no ledger")

    ledger.judge = away

    _, others = ledger.enqueue_while_one_is_written([task() for _ in range(4)])

    errors = [one.exception() for one in others]
    assert [str(one) for one in errors] == ["no ledger"] * 4
    assert len({id(one) for one in errors}) == 4, "each has a traceback of its own"
    assert len(ledger.batches) == 2


def test_a_writer_that_is_interrupted_leaves_the_others_to_the_next(ledger: Ledger) -> None:
    interrupted: list[int] = []

    def interrupt(given: Sequence[NewTask]) -> None:
        if len(given) > 1 and not interrupted:
            interrupted.append(len(given))
            raise KeyboardInterrupt

    ledger.judge = interrupt

    _, others = ledger.enqueue_while_one_is_written([task() for _ in range(4)])

    raised = [one.exception() for one in others if one.exception() is not None]
    assert interrupted == [4]
    assert [type(one) for one in raised] == [KeyboardInterrupt]
    assert sum(one.exception() is None for one in others) == 3
    assert not ledger.gather._waiting


def test_a_signal_handler_that_enqueues_in_the_thread_that_writes_does_not_wait_for_itself(ledger: Ledger) -> None:
    ledger.let_go.set()
    nested: list[Enqueued] = []

    def handle(given: Sequence[NewTask]) -> None:
        if not nested:
            nested.append(Enqueued("", State.READY, False))
            nested.append(ledger.gather.record(task()))

    ledger.judge = handle

    ledger.gather.record(task())

    assert len(ledger.batches) == 2
    assert nested[1].created
