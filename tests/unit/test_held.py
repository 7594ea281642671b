"""What a process holds of two attempts of one task at once: a late answer about the first must not touch the second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.given import new
from tests.unit.process import Process, opened
from workq import State
from workq.inflight import Entry
from workq.task import Claim, Failed, HandedBack, Settlement


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with opened(tmp_path, is_direct=True) as process:
        yield process


def two_attempts(process: Process) -> tuple[Claim, Claim]:
    """One has failed, and the answer to its settlement has not come yet; the next is claimed by the same process."""
    ledger = process.stores.ledger
    [task] = ledger.record(new(1, name="work"))
    [first] = ledger.claim([task.id], by=process.me.id)
    process.held.claimed([Entry(first.task_id, first.queue, first.attempt)])
    ledger.settle([Settlement(first, Failed(0.0, "ValueError: no"))])
    [second] = ledger.claim([task.id], by=process.me.id)
    process.held.claimed([Entry(second.task_id, second.queue, second.attempt)])
    return first, second


def test_a_late_answer_about_one_attempt_leaves_the_next_where_it_is(process: Process) -> None:
    first, second = two_attempts(process)

    process.held.settled([first])
    for _ in range(3):
        process.forward(3600.0)
        assert process.held.release_strays() == 0

    assert process.state(second.task_id) is State.RUNNING


def test_when_the_last_attempt_is_settled_nothing_is_held(process: Process) -> None:
    _, second = two_attempts(process)

    process.held.settled([second])
    returned = 0
    for _ in range(3):
        process.forward(3600.0)
        returned += process.held.release_strays()

    assert returned == 1, "nobody here knows of it, though by the ledger it runs here"


def test_each_attempt_has_a_line_of_its_own_until_it_is_settled(process: Process) -> None:
    first, second = two_attempts(process)
    lines = process.pool.lines
    for claim in (first, second):
        process.pool.take(claim, None, None, HandedBack())

    process.pool.settled([Settlement(second, HandedBack())])
    assert (process.pool.is_idle, process.pool.lines) == (False, lines - 1)
    process.pool.settled([Settlement(first, HandedBack())])
    assert (process.pool.is_idle, process.pool.lines) == (True, lines)
