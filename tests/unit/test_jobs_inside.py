"""From inside of a job's handler: what it adds, and what it nests."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

import workq
from tests.contract.given import NoPartition
from workq import WorkQueue
from workq.errors import ConfigError, NotInTask, PayloadError
from workq.jobs.define import Job, RunOptions
from workq.jobs.values import NewJob, nested_id
from workq.values import codec
from workq.values.task import Claim, Worked
from workq.worker.attempt import run_async, run_sync

JOB_ID = "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"


class Desk(NoPartition):
    """Of a process whose transactions stand."""

    def is_cancelled(self, claim: Claim) -> bool:
        return False

    @contextmanager
    def transaction(self, claim: Claim, *, succeeds: Any) -> Any:
        yield None
        self.added = succeeds().added


def job(function: Any, **options: Any) -> Job:
    wq = WorkQueue(ledger="sqlite:///never-opened.db")
    made: Job = wq.job(name="unit.job", chunk=2, failures_max=1, **options)(function)
    return made


def run(one: Job, items: list[Any], *, desk: Any = None, failures_max: int = 1, **params: Any) -> Worked:
    payload = codec.encode({"a": [items], "k": params}, path="payload")
    claim = Claim("0" * 36, "unit.job", "default", payload, 1, "t", 0, 0, failures_max, 3, JOB_ID)
    given = codec.decode(payload)
    if one.handler.is_async:
        worked = asyncio.run(run_async(claim, one.handler, given, desk or Desk()))
    else:
        worked = run_sync(claim, one.handler, given, desk or Desk())
    assert isinstance(worked, Worked)
    return worked


def added(worked: Worked) -> list[Any]:
    return [codec.decode(one.payload)["a"][0] for one in worked.added]


def test_items_that_are_added_become_subtasks_of_the_jobs_size() -> None:
    def grow(items: list[int]) -> None:
        assert workq.current().add(10 * item for item in [*items, 3, 4, 5]) == 5

    assert added(run(job(grow), [1, 2])) == [[10, 20], [30, 40], [50]]


def test_what_a_call_has_added_that_raises_is_added_by_none_but_those_that_return() -> None:
    def grow(items: list[int]) -> None:
        workq.current().add(items)
        if 3 in items:
            raise ValueError("no threes")

    worked = run(job(grow), [1, 2, 3, 4])

    assert added(worked) == [[1, 2], [4]]
    assert (worked.succeeded, [one.item for one in worked.failed]) == (3, ["3"])


def test_an_item_that_nothing_can_carry_is_told_to_who_adds_it() -> None:
    def grow(items: list[int]) -> None:
        with pytest.raises(PayloadError, match="items"):
            workq.current().add([1, object()])

    assert run(job(grow), [1]).added == ()


def test_it_is_added_in_the_handlers_transaction_and_not_after_it() -> None:
    def grow(items: list[int]) -> None:
        with workq.current().transaction():
            workq.current().add([1])
        with pytest.raises(ConfigError, match="add before"):
            workq.current().add([2])

    desk = Desk()
    run(job(grow), [1], desk=desk)

    assert [codec.decode(one.payload)["a"][0] for one in desk.added] == [[1]]


def test_a_nested_run_is_the_same_for_the_same_parameters_only() -> None:
    told = [("name", None, "{}"), ("name", None, "{1}"), ("name", "key", "{}"), ("other", None, "{}")]

    found = [nested_id(JOB_ID, *one) for one in told]

    assert len(set(found)) == len(told)
    assert found == [nested_id(JOB_ID, *one) for one in told]
    assert all(codec.is_task_id(one) and codec.made_at_s(one) == codec.made_at_s(JOB_ID) for one in found)
    assert nested_id(codec.new_task_id(), *told[0]) != found[0]


def test_a_job_is_nested_in_the_one_that_runs_and_in_no_other_place() -> None:
    inner = job(lambda items, *, part: None, source=[1])
    found: list[NewJob] = []

    def outer(items: list[int]) -> None:
        found.extend(inner.new_job(RunOptions(is_nested=True), {"part": part}) for part in (1, 1, 2))

    run(job(outer), [1])

    assert [one.parent_id for one in found] == [JOB_ID] * 3
    assert found[0].id == found[1].id != found[2].id
    assert [one.key for one in found] == [one.id for one in found]
    assert replace(found[0], splitter=found[1].splitter) == found[1]
    with pytest.raises(NotInTask):
        inner.new_job(RunOptions(is_nested=True), {"part": 1})


def test_what_cannot_be_is_refused() -> None:
    one = job(lambda items: None, source=[1])

    with pytest.raises(ConfigError, match="give one of them"):
        one.options(rate=1.0, spread_s=1.0)
    for spread_s in (0, -1, True, "1h"):
        with pytest.raises(ConfigError, match="spread_s"):
            one.options(spread_s=spread_s)  # type: ignore[arg-type]


def test_its_subtasks_count_for_its_limit_by_its_parameters() -> None:
    one = job(lambda items, *, host="a": None, source=[1], concurrency=3, limit="host:{host}")

    made = [one.new_job(RunOptions(), params).options.limit for params in ({}, {"host": "b"})]

    assert [(limit.key, limit.concurrency) for limit in made if limit] == [("host:a", 3), ("host:b", 3)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_gets_the_parameters_as_they_are_recorded_whatever_the_one_before_has_changed(is_async: bool) -> None:
    calls: list[tuple[list[int], list[str]]] = []

    def grow(items: list[int], *, tags: list[str]) -> None:
        tags.append("seen")
        calls.append((items, list(tags)))
        if 3 in items:
            raise ValueError("no threes")

    async def agrow(items: list[int], *, tags: list[str]) -> None:
        grow(items, tags=tags)

    run(job(agrow if is_async else grow), [1, 2, 3, 4], tags=["x"])

    assert [items for items, _ in calls] == [[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]]
    assert all(tags == ["x", "seen"] for _, tags in calls)


def test_what_is_tried_again_or_added_has_the_parameters_as_they_are_recorded() -> None:
    def grow(items: list[int], *, tags: list[str]) -> dict[int, str]:
        tags.append("seen")
        workq.current().add([7])
        return {2: "busy"}

    worked = run(job(grow), [1, 2], failures_max=3, tags=["x"])

    assert worked.again == '{"a":[[2]],"k":{"tags":["x"]}}'
    assert [one.payload for one in worked.added] == ['{"a":[[7]],"k":{"tags":["x"]}}']


def test_items_have_failed_as_they_are_recorded_when_a_handler_answers_for_what_it_was_not_given() -> None:
    def grow(rows: list[dict[str, int]]) -> dict[str, str]:
        for row in rows:
            row.clear()
        return {"other": "no"}

    worked = run(job(grow), [{"id": 1}, {"id": 2}])

    assert [one.item for one in worked.failed] == ['{"id":1}', '{"id":2}']
    assert "not given" in worked.error
