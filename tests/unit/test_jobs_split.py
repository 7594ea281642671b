"""Split: whatever a source does, what was read of it stands, is there once, and is read on from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from workq import WorkQueue
from workq.errors import BadSource, Snooze
from workq.jobs.define import Job, JobCall, RunOptions
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.sources import Items, Page, Source, Steps
from workq.jobs.split import Splitting
from workq.jobs.values import Full, JobRow, JobState
from workq.ledger.engine import migrate
from workq.values import codec

WINDOW = 6


@pytest.fixture
def app(tmp_path: Path) -> Iterator[WorkQueue]:
    with WorkQueue(ledger=f"sqlite:///{tmp_path}/workq.db") as app:
        database = app.database()
        migrate.migrate(database)
        database.close()
        yield app


@pytest.fixture
def job(app: WorkQueue) -> Job:
    return app.job(name="unit.job", chunk=2, window=WINDOW, source=[])(lambda items: None)


class Splits:
    """One job, and its splitter's attempts."""

    def __init__(self, app: WorkQueue, job: Job) -> None:
        self.app = app
        self.id = job.run().id

    @property
    def row(self) -> JobRow:
        row = self.app.stores.ledger.part(JobLedger).questions.job(self.id)
        assert row is not None
        return row

    def attempt(self, source: Source, *, seconds_a_look: float = 0.0, stops: Callable[[], bool] = bool) -> None:
        """`seconds_a_look`: so much time has passed whenever it looks at the clock."""
        clock = count(step=seconds_a_look) if seconds_a_look else iter(lambda: 0.0, None)
        Splitting(
            self.row,
            source,
            self.app.stores,
            self.app.producer,
            payload_max_bytes=1000,
            stops=stops,
            clock=lambda: float(next(clock)),
        ).run()

    def items(self) -> list[Any]:
        """What its subtasks have."""
        tasks = self.app.stores.ledger.questions.tasks(name="unit.job")
        return [item for task in sorted(tasks, key=lambda task: task.id) for item in task.args[0]]


@pytest.fixture
def splits(app: WorkQueue, job: Job) -> Splits:
    return Splits(app, job)


def raising(at: int) -> Source:
    """Numbers, until it raises."""

    def read(cursor: int | None) -> Iterator[tuple[int, int]]:
        for number in range(cursor or 0, 7):
            if number == at:
                raise OSError("the network is away")
            yield number, number + 1

    return Steps(read)


def test_a_source_that_raises_half_way_is_read_on_behind_what_stands(splits: Splits) -> None:
    with pytest.raises(Snooze, match="its source raised: OSError"):
        splits.attempt(raising(5))
    between = splits.row.split, splits.row.cursor
    splits.attempt(raising(99))

    assert between == (4, 4), "the page that it raised in is read again"
    assert splits.items() == list(range(7))
    assert (splits.row.is_split, splits.row.total) == (True, 7)


def test_one_that_raises_before_it_has_yielded_anything_has_failed(splits: Splits) -> None:
    with pytest.raises(OSError, match="the network is away"):
        splits.attempt(raising(0))

    assert (splits.row.state, splits.row.split) == (JobState.PLANNING, 0)


def test_one_that_yields_what_waiting_does_not_mend_has_failed_at_once_behind_what_stands(splits: Splits) -> None:
    def read(cursor: int | None) -> Iterator[tuple[int, int]]:
        yield from ((number, number + 1) for number in range(cursor or 0, 5))
        raise BadSource("line 6 is not JSON")

    with pytest.raises(BadSource, match="line 6 is not JSON"):
        splits.attempt(Steps(read))

    assert (splits.row.split, splits.row.cursor) == (4, 4)


def test_what_it_yields_twice_is_two_items(splits: Splits) -> None:
    splits.attempt(Items([1, 1, 2]))

    assert splits.items() == [1, 1, 2]
    assert splits.row.total == 3


def test_of_one_that_never_ends_no_more_than_a_window_is_open(splits: Splits) -> None:
    def numbers(cursor: int | None) -> Iterator[tuple[int, int]]:
        for number in count(cursor or 0):
            yield number, number + 1

    for _ in range(3):
        with pytest.raises(Full, match="as many subtasks are open as its window has"):
            splits.attempt(Steps(numbers))

    assert (splits.row.open_subtasks, splits.row.split, splits.row.total) == (WINDOW, 2 * WINDOW, None)


def test_what_no_subtask_can_carry_has_failed_and_the_others_go_on(splits: Splits) -> None:
    splits.attempt(Items(["a", "b" * 2000, object(), "c"]))

    assert splits.items() == ["a", "c"]
    assert (splits.row.split, splits.row.failed) == (4, 2)
    errors = [item.error for _, item in splits.app.stores.ledger.part(JobLedger).questions.failed_items(splits.id)]
    assert all(error.startswith("PayloadError: items") for error in errors)


def test_a_page_that_is_too_large_together_becomes_several_subtasks(splits: Splits) -> None:
    splits.attempt(Items(["a" * 700, "b" * 700]))

    assert [len(item) for item in splits.items()] == [700, 700]
    assert splits.row.subtasks == 2


def test_it_gives_its_thread_back_each_second_and_goes_on_where_it_was(splits: Splits) -> None:
    turns = 0
    while not splits.row.is_split:
        turns += 1
        with suppress(Snooze):
            splits.attempt(Items(range(8)), seconds_a_look=0.7)

    assert splits.items() == list(range(8))
    assert turns > 1


def test_told_to_stop_it_leaves_off_behind_what_is_recorded(splits: Splits) -> None:
    with pytest.raises(Snooze):
        splits.attempt(Items(range(8)), stops=lambda: True)

    assert splits.items() == list(range(splits.row.cursor))


def test_who_loses_a_page_to_an_earlier_attempt_leaves_off_and_reads_on_behind_it(splits: Splits) -> None:
    class Slow(Items):
        def pages(self, cursor: Any, size: int) -> Iterator[Page]:
            for page in super().pages(cursor, size):
                if page.cursor == 2:
                    with pytest.raises(Snooze):
                        splits.attempt(Items(range(8)), stops=lambda: True)
                yield page

    with pytest.raises(Snooze, match="an earlier attempt has recorded this page"):
        splits.attempt(Slow(range(8)))
    between = splits.row.split, splits.row.cursor
    splits.attempt(Items(range(8)))

    assert between == (2, 2)
    assert splits.items() == list(range(8))
    assert (splits.row.is_split, splits.row.total) == (True, 8)


def test_of_a_job_that_was_cancelled_meanwhile_nothing_more_is_made(splits: Splits) -> None:
    def cancels() -> Iterator[int]:
        yield from range(2)
        splits.app.stores.ledger.part(JobLedger).decisions.cancel_job(splits.id, who="eve@host", why="?")
        yield from range(2)

    class Once(Items):
        def __init__(self) -> None:
            super().__init__(())
            self._items = cancels()

    splits.attempt(Once())

    assert splits.row.state in (JobState.CANCELLING, JobState.CANCELLED)
    assert splits.row.split == 2


def test_paused_meanwhile_it_leaves_off_and_goes_on_when_the_job_does(splits: Splits) -> None:
    ledger = splits.app.stores.ledger

    class Pausing(Items):
        def pages(self, cursor: Any, size: int) -> Iterator[Page]:
            for page in super().pages(cursor, size):
                if page.cursor == 4:
                    ledger.part(JobLedger).decisions.pause_job(splits.id, who="eve@host", why="?")
                yield page

    with pytest.raises(Snooze, match="its job is paused"):
        splits.attempt(Pausing(list(range(7))))
    between = splits.row.split, splits.row.cursor
    with pytest.raises(Snooze, match="its job is paused"):
        splits.attempt(Items(range(7)))
    ledger.part(JobLedger).decisions.resume_job(splits.id, who="eve@host", why="?")
    splits.attempt(Items(range(7)))

    assert between == (2, 2)
    assert splits.items() == list(range(7))
    assert splits.row.is_split


def test_who_feeds_a_job_waits_while_it_is_paused(app: WorkQueue) -> None:
    job = app.job(name="unit.fed", chunk=2)(lambda items: None)
    ledger = app.stores.ledger
    begun = JobCall(job, RunOptions()).open_feed()

    def items() -> Iterator[int]:
        yield from range(4)
        ledger.part(JobLedger).decisions.pause_job(begun.id, who="eve@host", why="?")
        resume = partial(ledger.part(JobLedger).decisions.resume_job, begun.id, who="eve@host", why="?")
        threading.Timer(0.3, resume).start()
        yield from range(4, 7)

    class Once(Items):
        def __init__(self) -> None:
            super().__init__(())
            self._items = items()

    fed = job.feed_into(begun.id, Once())

    assert (fed.split, fed.total, fed.state) == (7, 7, JobState.RUNNING)


def test_each_page_carries_the_parameters_of_the_run(app: WorkQueue) -> None:
    job = app.job(name="unit.other", chunk=2)(lambda items, *, index: None)
    begun = job.feed([1, 2, 3], index="v2")

    [first, second] = sorted(app.stores.ledger.questions.tasks(name="unit.other"), key=lambda task: task.id)
    assert [(task.args, task.kwargs) for task in (first, second)] == [
        (([1, 2],), {"index": "v2"}),
        (([3],), {"index": "v2"}),
    ]
    row = app.stores.ledger.part(JobLedger).questions.job(begun.id)
    assert row is not None
    assert (row.total, codec.decode(row.params)["k"]) == (3, {"index": "v2"})
