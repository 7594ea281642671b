"""The course of a run of `workq certify`: when it may be judged."""

from __future__ import annotations

from pathlib import Path

from tests.contract.given import new
from workq.lab.certify.trial import have_all_ended
from workq.ledger import Counts
from workq.ledger.engine.database import Database
from workq.ledger.entry import EntryRules
from workq.ledger.questions import Questions
from workq.ledger.sql import Ledger
from workq.slices import SLICES, every_table


class SlowQuestions(Questions):
    """Ten seconds pass behind each answer."""

    def counts(self) -> Counts:
        found = super().counts()
        self.database.clock_offset_s += 10.0
        return found


def test_a_task_that_becomes_due_between_two_looks_has_not_ended(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'workq.db'}")
    every_table(database.tables).create_all(database.engine)
    ledger = Ledger(database, SLICES)
    questions = SlowQuestions(database, rules=EntryRules(database, SLICES.entry))
    before = have_all_ended(questions)
    ledger.tasks.record(new(delay_s=5.0))

    assert before
    assert [have_all_ended(questions) for _ in range(3)] == [False] * 3
    database.close()
