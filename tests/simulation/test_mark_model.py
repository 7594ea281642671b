"""Marks of confirmed hints, beside those who move the task: every interleaving, and each rule is needed."""

from __future__ import annotations

import pytest

from tests.simulation.mark_model import RULES, explore


@pytest.mark.parametrize("faults", [{"crash": 1, "move": 1}, {"move": 2}], ids=str)
def test_what_is_marked_has_a_hint_that_comes_in_time_and_nothing_is_stranded(faults: dict[str, int]) -> None:
    explored = explore(faults)

    assert explored.wrong == {}
    assert explored.states > 500


@pytest.mark.parametrize(
    ("rule", "violation"), [("reserved", "unhinted"), ("whose", "unhinted"), ("reservation_ends", "stranded")]
)
def test_without_this_rule_something_goes_wrong(rule: str, violation: str) -> None:
    assert rule in RULES

    assert violation in explore({"crash": 1, "move": 1}, without=frozenset({rule})).wrong
