"""Delayed hints that are rows, beside a ladder of queues: every interleaving, and each rule is needed."""

from __future__ import annotations

import pytest

from tests.simulation.mover_model import RULES, explore


@pytest.mark.parametrize(
    "faults", [{"crash": 2, "unconfirmed": 1}, {"crash": 1, "purge": 1}, {"crash": 1, "retry": 1}], ids=str
)
def test_no_delayed_hint_is_early_dropped_or_falsely_proved_lost_and_none_is_stranded(faults: dict[str, int]) -> None:
    explored = explore(faults)

    assert explored.wrong == {}
    assert explored.states > 500


@pytest.mark.parametrize(
    ("rule", "violation"),
    [
        ("publish_first", "dropped"),
        ("confirm", "dropped"),
        ("overdue", "false"),
        ("one_commit", "early"),
        ("reservation_ends", "stranded"),
        ("slack", "false"),
    ],
)
def test_without_this_rule_something_goes_wrong(rule: str, violation: str) -> None:
    assert rule in RULES

    assert violation in explore({"crash": 1, "unconfirmed": 1}, without=frozenset({rule})).wrong
