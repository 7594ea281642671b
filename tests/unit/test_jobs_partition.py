"""One attempt of a partition: which cursor each call gets, and where it stops between two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection

from tests.contract.given import awaited
from workq import WorkQueue
from workq.errors import Cancel, ConfigError, PayloadError, Refused, Retry, Snooze, SoftTimeLimit
from workq.handlers import context
from workq.handlers.retry import Fixed, Retries
from workq.jobs.define import Job, RunOptions
from workq.jobs.partition import Partition, iterate, iterate_async
from workq.jobs.values import Bookmark, JobState, NewStep, Stepped
from workq.values.task import Claim
from workq.worker.attempt import run_async, run_sync

CLAIM = Claim("1", "pull", "default", "{}", 1, "t", 0, 0, 5, 3, "2")
RETRIES = Retries(Fixed(7.0), give_up_on=(LookupError,))
HANDLER = Callable[[Any], object]


class Steps:
    """A desk whose ledger is a list of the steps that stand."""

    def __init__(self, *, begins: Any = None, steps: int = 0) -> None:
        self.begins = Bookmark(begins, steps)
        self.made: list[NewStep] = []
        self.said = Stepped(JobState.RUNNING)
        self.leaves = self.asked = False

    def is_cancelled(self, claim: Claim) -> bool:
        return self.asked

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        return awaited(awaitable)

    def transaction(self, claim: Claim, *, succeeds: Any) -> Any:
        raise AssertionError("no handler here does that")

    def part(self, kind: Any) -> Any:
        return SimpleNamespace(steps=self)

    def bookmark(self, claim: Claim) -> Bookmark:
        return self.begins

    @contextmanager
    def step(self, claim: Claim, new: NewStep, *, on_stood: Callable[[Stepped], None]) -> Iterator[Connection]:
        yield cast(Connection, None)
        if new.steps != self.begins.steps + len(self.made):
            raise Refused("made twice")
        self.made.append(new)
        on_stood(self.said)

    def is_leaving(self) -> bool:
        return self.leaves

    @property
    def cursors(self) -> list[str | None]:
        return [one.cursor for one in self.made]


class Times:
    """A clock that moves by itself, each time that it is read."""

    def __init__(self, tick_s: float) -> None:
        self.now, self.tick_s = 0.0, tick_s

    def __call__(self) -> float:
        self.now += self.tick_s
        return self.now


@pytest.fixture
def desk() -> Steps:
    return Steps()


def played(desk: Steps, handler: HANDLER, *, tick_s: float = 0.0) -> list[Any]:
    """The cursors that the handler was called with; what the attempt raises is the caller's."""
    calls: list[Any] = []
    here = context.enter(CLAIM, desk)
    try:
        here.steps = partition = Partition(CLAIM, desk, RETRIES, clock=Times(tick_s))

        def call(cursor: Any) -> object:
            calls.append(cursor)
            return handler(cursor)

        iterate(call, partition, here)
    finally:
        context.leave()
    return calls


def step(cursor: Any, items: int = 0) -> None:
    with context.current().step(cursor=cursor, items=items):
        pass


def up_to(last: int, *, of: int = 10) -> HANDLER:
    """Pages 1, 2, ... until nothing is behind the last one."""

    def handler(cursor: int | None) -> None:
        page = (cursor or 0) + 1
        step(None if page == last else page, of)

    return handler


def test_each_call_gets_the_cursor_of_the_step_before_until_nothing_is_behind_it(desk: Steps) -> None:
    calls = played(desk, up_to(4))

    assert calls == [None, 1, 2, 3]
    assert desk.made == [NewStep(0, "1", 10), NewStep(1, "2", 10), NewStep(2, "3", 10), NewStep(3, None, 10)]


def test_it_goes_on_where_the_attempt_before_has_stopped() -> None:
    desk = Steps(begins=[7, "x"], steps=3)

    assert played(desk, lambda _: step(None)) == [[7, "x"]]
    assert desk.made == [NewStep(3, None, 0)]


def test_a_call_without_a_step_is_the_last_one(desk: Steps) -> None:
    calls = played(desk, lambda cursor: step("end", 3) if cursor is None else None)

    assert (calls, desk.cursors) == ([None, "end"], ['"end"'])


def test_a_cursor_is_what_a_later_attempt_would_get(desk: Steps) -> None:
    assert played(desk, lambda cursor: step((1, 2)) if cursor is None else None) == [None, [1, 2]]


def test_a_call_may_make_several_steps(desk: Steps) -> None:
    def handler(cursor: int | None) -> None:
        if cursor is None:
            for number in (1, 2, 3):
                step(number)

    assert played(desk, handler) == [None, 3]
    assert desk.cursors == ["1", "2", "3"]


def test_what_it_does_after_the_last_step_is_no_other_call(desk: Steps) -> None:
    def handler(_: Any) -> None:
        step(None)
        raise ValueError("too late")

    with pytest.raises(ValueError, match="too late"):  # attempt.py knows that its task has succeeded
        played(desk, handler)
    assert len(desk.made) == 1


@pytest.mark.parametrize(
    ("state", "ends"),
    [
        (JobState.PAUSING, Snooze),
        (JobState.PAUSED, Snooze),
        (JobState.CANCELLING, Cancel),
        (JobState.FAILING, Cancel),
        (JobState.FAILED, Cancel),
    ],
)
def test_between_two_steps_it_obeys_its_job(desk: Steps, state: JobState, ends: type[Exception]) -> None:
    desk.said = Stepped(state)

    with pytest.raises(ends) as caught:
        played(desk, up_to(9))

    assert str(state) in str(caught.value)
    assert desk.cursors == ["1"]


def test_the_last_step_stands_whatever_its_job_wants(desk: Steps) -> None:
    desk.said = Stepped(JobState.CANCELLED)

    assert played(desk, up_to(1)) == [None]


def test_between_two_steps_it_stops_when_it_was_cancelled_or_its_process_leaves(desk: Steps) -> None:
    def leave(cursor: Any) -> None:
        desk.leaves = cursor == 1
        up_to(9)(cursor)

    def cancel(cursor: Any) -> None:
        desk.asked = True
        up_to(9)(cursor)

    with pytest.raises(Snooze, match="leaves") as caught:
        played(desk, leave)
    assert (caught.value.in_s, desk.cursors) == (0.0, ["1", "2"])
    desk.made.clear()
    with pytest.raises(Cancel, match="between two steps"):
        played(desk, cancel)
    assert desk.cursors == ["1"]


def test_after_a_while_others_have_their_turn(desk: Steps) -> None:
    with pytest.raises(Snooze, match="turn"):
        played(desk, up_to(99), tick_s=21.0)

    assert desk.cursors == ["1", "2", "3"], "three are 60 seconds"


def test_with_a_rate_it_waits_a_moment_here_and_longer_in_the_ledger(
    desk: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("workq.jobs.partition.time.sleep", slept.append)
    desk.said = Stepped(JobState.RUNNING, 0.25)
    played(desk, up_to(3))
    desk.made.clear()
    desk.said = Stepped(JobState.RUNNING, 20.0)

    with pytest.raises(Snooze, match="slot"):
        played(desk, up_to(3))

    assert (slept, desk.cursors) == ([0.25, 0.25], ["1"])


# -- failures


def raising(error: BaseException, *, after: int) -> HANDLER:
    """Raises after so many steps."""

    def handler(cursor: int | None) -> None:
        if (cursor or 0) == after:
            raise error
        step((cursor or 0) + 1)

    return handler


def test_what_raises_before_any_step_has_failed(desk: Steps) -> None:
    with pytest.raises(ValueError, match="boom"):
        played(desk, raising(ValueError("boom"), after=0))


@pytest.mark.parametrize(
    ("error", "again_s"), [(ValueError("boom"), 7.0), (Retry("busy", in_s=3.0), 3.0), (SoftTimeLimit(), 7.0)]
)
def test_what_raises_after_a_step_goes_on_later_and_has_not_failed(
    desk: Steps, error: Exception, again_s: float
) -> None:
    with pytest.raises(Snooze, match=f"after 2 steps: {type(error).__name__}") as caught:
        played(desk, raising(error, after=2))

    assert (caught.value.in_s, caught.value.__cause__, desk.cursors) == (again_s, error, ["1", "2"])


def test_steps_of_attempts_before_are_no_progress_of_this_one() -> None:
    with pytest.raises(ValueError, match="boom"):
        played(Steps(begins=2, steps=2), raising(ValueError("boom"), after=2))


def test_what_is_not_to_be_tried_again_is_raised_whatever_was_done(desk: Steps) -> None:
    with pytest.raises(KeyError):
        played(desk, raising(KeyError("gone"), after=2))


@pytest.mark.parametrize("error", [Cancel("enough"), Snooze(99.0)])
def test_what_a_handler_says_of_itself_is_said(desk: Steps, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        played(desk, raising(error, after=1))
    assert caught.value is error


def test_a_step_that_did_not_stand_moves_nothing(desk: Steps) -> None:
    def handler(_: Any) -> None:
        with context.current().step(cursor=1):
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        played(desk, handler)
    assert desk.made == []


# -- what cannot be


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"cursor": object()}, PayloadError),
        ({"cursor": 1, "items": -1}, ConfigError),
        ({"cursor": 1, "items": True}, ConfigError),
    ],
)
def test_what_no_step_can_be_is_refused_before_it(desk: Steps, given: dict[str, Any], error: type[Exception]) -> None:
    def handler(_: Any) -> None:
        with context.current().step(**given):
            raise AssertionError("it was begun")

    with pytest.raises(error):
        played(desk, handler)


def test_in_any_other_handler_there_are_no_steps(desk: Steps) -> None:
    context.enter(CLAIM, desk)
    try:
        with pytest.raises(ConfigError, match="partitioned=True"):
            step(1)
    finally:
        context.leave()


# -- coroutines


async def played_async(desk: Steps, handler: Callable[[Any], Any]) -> None:
    here = context.enter(CLAIM, desk)
    here.steps = partition = Partition(CLAIM, desk, RETRIES)
    await iterate_async(handler, partition, here)


def test_a_coroutine_makes_its_steps_in_a_thread(desk: Steps) -> None:
    async def handler(cursor: Any) -> None:
        await asyncio.to_thread(up_to(3), cursor)

    asyncio.run(played_async(desk, handler))

    assert desk.cursors == ["1", "2", None]


def test_in_the_event_loop_itself_a_step_is_refused_and_what_raises_later_goes_on(desk: Steps) -> None:
    async def blocks(_: Any) -> None:
        step(1)

    async def raises(cursor: Any) -> None:
        await asyncio.to_thread(raising(ValueError("boom"), after=1), cursor)

    with pytest.raises(ConfigError, match="to_thread"):
        asyncio.run(played_async(desk, blocks))
    with pytest.raises(Snooze, match="after 1 steps: ValueError"):
        asyncio.run(played_async(desk, raises))


# -- as the user writes it


def job(**options: Any) -> Job:
    wq = WorkQueue(ledger="sqlite:///never-opened.db")
    made: Job = wq.job(name="unit.pull", partitioned=True, source=["eu"], **options)(pull)
    return made


def pull(region: str, cursor: Any, *, since: str) -> None:
    context.current().add([region])


def test_a_partition_is_a_subtask_of_its_own_and_gets_the_parameters_by_name() -> None:
    new = job().new_job(RunOptions(), {"since": "monday"})

    assert (new.options.is_partitioned, new.options.chunk, new.total) == (True, 1, None)
    with pytest.raises(TypeError, match="since"):
        job().check({})
    with pytest.raises(ConfigError, match="chunk and partitioned"):
        job(chunk=5)
    with pytest.raises(ConfigError, match="collect"):
        job(collect="all")
    with pytest.raises(ConfigError, match="nobody knows how many items"):
        job().options(spread_s=60.0)


def test_it_adds_no_partitions(desk: Steps) -> None:
    with pytest.raises(ConfigError, match="its source yields"):
        run_sync(CLAIM, job().handler, {"a": ("eu", None), "k": {"since": "monday"}}, desk)


@pytest.mark.parametrize("is_async", [False, True])
def test_each_step_gets_its_partition_and_parameters_as_they_are_recorded(desk: Steps, is_async: bool) -> None:
    calls: list[Any] = []

    def one(region: dict[str, Any], cursor: Any, *, tags: list[str]) -> None:
        tags.append("seen")
        calls.append((region.pop("name"), cursor, tags))
        step(None if cursor == 2 else (cursor or 0) + 1)

    async def aone(region: dict[str, Any], cursor: Any, *, tags: list[str]) -> None:
        await asyncio.to_thread(one, region, cursor, tags=tags)

    wq = WorkQueue(ledger="sqlite:///never-opened.db")
    handler = wq.job(name="unit.pull", partitioned=True, source=["eu"])(aone if is_async else one).handler
    claim = replace(CLAIM, payload='{"a":[{"name":"eu"},null],"k":{"tags":["x"]}}')
    arguments = {"a": ({"name": "eu"}, None), "k": {"tags": ["x"]}}

    if is_async:
        asyncio.run(run_async(claim, handler, arguments, desk))
    else:
        run_sync(claim, handler, arguments, desk)

    assert calls == [("eu", cursor, ["x", "seen"]) for cursor in (None, 1, 2)]
