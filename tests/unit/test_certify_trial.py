"""The course of a run of `workq certify`: when it may be judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.given import new
from workq.lab.certify.trial import have_all_ended
from workq.ledger import Counts
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES, every_table


def test_a_task_that_becomes_due_between_two_looks_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'workq.db'}")
    every_table(database.tables).create_all(database.engine)
    questions = Ledger(database, SLICES).questions
    look = questions.counts

    def counts() -> Counts:
        found = look()
        database.clock_offset_s += 10.0
        return found

    monkeypatch.setattr(questions, "counts", counts)
    before = have_all_ended(questions)
    Ledger(database, SLICES).tasks.record(new(delay_s=5.0))

    assert before
    assert [have_all_ended(questions) for _ in range(3)] == [False] * 3
    database.close()
