"""Who is charged when the kernel kills more than one process for want of memory: the one that had used most."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workq.ledger import Evidence
from workq.supervisor.autopsy import TOGETHER_S, OpenDeath, judged
from workq.worker.crash_board import CrashBoard

MIB = 1 << 20


@pytest.fixture
def board() -> Iterator[CrashBoard]:
    board = CrashBoard.create(lines=1)
    yield board
    board.remove()


def test_of_two_that_die_together_only_the_larger_is_charged(board: CrashBoard) -> None:
    evidence = Evidence("out of memory", started={"a": 1})
    large = OpenDeath("large", evidence, board, 100.0, 380 * MIB, is_out_of_memory=True)
    small = OpenDeath("small", evidence, board, 100.2, 70 * MIB, is_out_of_memory=True)
    victims = [small, large]

    assert judged(large, victims) == evidence
    told = judged(small, victims)
    assert told.is_bystander
    assert told.cause == "out of memory; another process had used 380 MiB, this one 70 MiB"
    assert told.started == evidence.started


@pytest.mark.parametrize(
    "other",
    [
        (100.0 + TOGETHER_S, 380 * MIB, True),
        (100.0, 70 * MIB, True),
        (100.0, None, True),
    ],
    ids=["at another time", "as large", "of unknown size"],
)
def test_whoever_dies_at_another_time_or_was_no_larger_excuses_nobody(
    other: tuple[float, int | None, bool], board: CrashBoard
) -> None:
    evidence = Evidence("out of memory", started={"a": 1})
    mine = OpenDeath("mine", evidence, board, 100.0, 70 * MIB, is_out_of_memory=True)

    assert judged(mine, [mine, OpenDeath("other", evidence, board, *other)]) == evidence


def test_what_did_not_die_for_want_of_memory_is_not_excused(board: CrashBoard) -> None:
    evidence = Evidence("SIGSEGV", started={"a": 1})
    large = OpenDeath("large", evidence, board, 100.0, 380 * MIB, is_out_of_memory=True)

    assert judged(OpenDeath("mine", evidence, board, 100.0, 70 * MIB), [large]) == evidence
