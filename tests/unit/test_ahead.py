"""A handler may read what it needs for all that were claimed together, before any of them starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.process import THREADS, Process, opened
from workq.handlers.handler import Handler
from workq.worker.pace import Pace


@pytest.fixture(params=[False, True], ids=["custody", "direct"])
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    with opened(tmp_path, is_direct=request.param) as process:
        yield process


def use(number: int, found: int = 0) -> None:
    pass


def test_what_was_claimed_together_is_looked_at_once_and_started_with_what_was_found(process: Process) -> None:
    looked_at: list[list[Any]] = []

    def ahead(calls: Sequence[Any]) -> list[Any]:
        assert process.runs().isdisjoint(enqueued.values())
        looked_at.append([call["a"] for call in calls])
        return [{"a": call["a"], "k": {"found": 10 * call["a"][0]}} for call in calls]

    process.wq.task(name="plain")(len)
    able: Handler[..., Any] = process.wq.task(name="able")(use)
    able.ahead = ahead
    enqueued = {number: process.wq.handler("able").enqueue(number).id for number in range(THREADS - 1)}
    other = process.wq.handler("plain").enqueue("text").id
    process.wq.producer.relay.flush(timeout_s=30.0)

    process.rounds()

    assert sorted(looked_at) == [[(number,) for number in range(THREADS - 1)]]
    taken = {task_id: attempt.attempts[0].arguments for task_id, attempt in process.pool.taken.items()}
    assert taken == {
        **{task_id: {"a": (number,), "k": {"found": 10 * number}} for number, task_id in enqueued.items()},
        other: {"a": ("text",), "k": {}},
    }


def test_a_batch_is_as_many_attempts_as_it_has_tasks() -> None:
    pace = Pace(4)
    for _ in range(50):
        pace.add(0.01, attempts=50)

    assert pace.ahead(0.25, 10_000) == pytest.approx(4 * 0.25 * 50 / 0.01, rel=0.01)
    assert pace.ahead(0.25, 10_000, busy_s=0.5) == pytest.approx(4 * 0.25 * 50 / 0.5, rel=0.05)
