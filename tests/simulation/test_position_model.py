"""Proof of loss by positions: every interleaving, and each rule is needed."""

from __future__ import annotations

import pytest

from tests.simulation.position_model import RULES, explore


@pytest.mark.parametrize(
    "faults",
    [
        {"crash": 1, "expiry": 1},
        {"busy": 1, "rebalance": 1},
        {"retention": 1, "other": 1},
        {"truncation": 1, "other": 1},
        {"made_again": 1},
    ],
    ids=str,
)
def test_no_hint_is_falsely_proved_lost_and_none_is_lost_for_ever(faults: dict[str, int]) -> None:
    explored = explore(faults)

    assert explored.wrong == {}
    assert explored.states > 500


NEEDED = {
    "noted_first": ({}, "false"),
    "every_partition": ({}, "false"),
    "end_now": ({"made_again": 1}, "stranded"),
    "low": ({"retention": 1}, "stranded"),
    "prefix": ({}, "false"),
    "holds": ({}, "false"),
    "stamp": ({"busy": 1}, "false"),
    "overdue": ({}, "false"),
    "earliest": ({"crash": 1}, "stranded"),
    "new_topic": ({"made_again": 1, "other": 1}, "stranded"),
}
"""What goes wrong without each, and with which faults."""


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_something_goes_wrong(rule: str) -> None:
    faults, violation = NEEDED[rule]

    assert violation in explore(faults, without=frozenset({rule})).wrong
