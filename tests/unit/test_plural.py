"""Numbers and nouns: they agree, in all that the command line, doctor and why say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workq.values.plural import counted

PACKAGE = Path(__file__).parents[2] / "workq"
SPOKEN = [
    *PACKAGE.glob("cli/**/*.py"),
    *PACKAGE.glob("diagnose/doctor/*.py"),
    *PACKAGE.glob("diagnose/why/*.py"),
    PACKAGE / "recovery/plan.py",
]
NOUNS = (
    "tasks|hints|workers|items|subtasks|deliveries|endpoints|threads|processes|changes|schedules|queues|are|were|have"
)
NEVER_ONE = {"{len(found)} workers", "{COUNTED_MAX} tasks"}
"""What is said only where there are several; a rate is no number of things."""


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (0, ("task",), "0 tasks"),
        (1, ("task",), "1 task"),
        (2, ("task",), "2 tasks"),
        (1, ("delivery is", "deliveries are"), "1 delivery is"),
        (12_345, ("delivery is", "deliveries are"), "12,345 deliveries are"),
    ],
)
def test_one_is_singular_and_all_others_are_plural(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said


def test_no_message_puts_a_number_before_a_plural_that_one_would_not_have() -> None:
    found = {
        f"{file.name}: {match[0]}"
        for file in SPOKEN
        for match in re.finditer(rf'f".*?(\{{[^{{}}"]*\}} (?:{NOUNS})\b)', file.read_text(encoding="utf-8"))
        if match[1] not in NEVER_ONE and not re.search(r":g\}|\.0f\}", match[1])
    }

    assert found == set()
