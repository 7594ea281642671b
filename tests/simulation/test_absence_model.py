"""Ending early who is gone from every store: every interleaving, and each rule is needed."""

from __future__ import annotations

import pytest

from tests.simulation.absence_model import RULES, explore


@pytest.mark.parametrize(
    "faults",
    [
        {"cut": 2, "ended": 1},
        {"cut": 2, "wipe": 1},
        {"cut": 2, "missed": 1},
        {"cut": 2, "unsigned": 1},
        {"cut": 1, "restart": 1, "ended": 1},
        {"cut": 1, "stopped": 1},
        {"cut": 1, "host": 1},
        {"cut": 1, "killed": 1, "wipe": 1},
    ],
    ids=str,
)
def test_no_process_is_ended_early_that_kept_a_way_to_a_store(faults: dict[str, int]) -> None:
    explored = explore(faults)

    assert explored.wrong == {}
    assert explored.states > 500


def test_a_process_whose_host_died_is_ended_within_the_bound() -> None:
    assert explore({"host": 1}, is_prompt=True).wrong == {}


NEEDED = {
    "ledger": ({"cut": 2, "ended": 1}, "false"),
    "broker": ({"cut": 2}, "false"),
    "inflight": ({"cut": 2}, "false"),
    "long": ({"cut": 2}, "false"),
    "given": ({"cut": 2, "unsigned": 1}, "false"),
    "wiped": ({"cut": 2, "wipe": 1}, "false"),
    "twice": ({"cut": 2, "ended": 1}, "false"),
    "series": ({"cut": 2, "ended": 2}, "false"),
    "witness": ({"cut": 2, "restart": 1}, "false"),
    "retry": ({"cut": 2, "ended": 1}, "false"),
    "apart": ({"cut": 2}, "false"),
    "soon": ({"cut": 3}, "false"),
    "statement": ({"cut": 3}, "seen"),
}
"""What goes wrong without each, and with which faults."""


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_something_goes_wrong(rule: str) -> None:
    faults, violation = NEEDED[rule]

    assert violation in explore(faults, without=frozenset({rule}), until=violation).wrong
