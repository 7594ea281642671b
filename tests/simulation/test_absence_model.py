"""Ending early who is gone from every store: every interleaving, and each rule is needed."""

from __future__ import annotations

import pytest

from tests.simulation.absence_model import BROKER, INFLIGHT, LEDGER, RULES, explore


@pytest.mark.parametrize(
    "faults",
    [
        {"cut": 2, "ended": 1},
        {"cut": 2, "wipe": 1},
        {"cut": 2, "missed": 1},
        {"cut": 2, "jump": 1},
        {"cut": 2, "unsigned": 1},
        {"cut": 1, "restart": 1},
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


ALL = (LEDGER, BROKER, INFLIGHT)
NEEDED: dict[str, tuple[tuple[int, ...], dict[str, int], str]] = {
    "ledger": ((BROKER, INFLIGHT), {"ended": 1}, "false"),
    "broker": ((LEDGER, INFLIGHT), {}, "false"),
    "inflight": ((LEDGER, BROKER), {}, "false"),
    "long": ((LEDGER, BROKER), {}, "false"),
    "given": ((LEDGER, INFLIGHT), {"unsigned": 1}, "false"),
    "wiped": ((LEDGER, BROKER), {"wipe": 1}, "false"),
    "clock": ((LEDGER, BROKER), {"jump": 1}, "false"),
    "twice": ((LEDGER, INFLIGHT), {"ended": 1}, "false"),
    "series": ((LEDGER, INFLIGHT), {"ended": 2}, "false"),
    "witness": ((LEDGER, INFLIGHT), {"restart": 1}, "false"),
    "retry": ((LEDGER, BROKER), {"ended": 1}, "false"),
    "apart": ((LEDGER, BROKER), {}, "false"),
    "soon": (ALL, {}, "false"),
    "statement": (ALL, {}, "seen"),
}
"""What goes wrong without each, to which stores the way is cut then, and with which faults."""


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_something_goes_wrong(rule: str) -> None:
    cut, faults, violation = NEEDED[rule]

    assert violation in explore(faults, cut=cut, without=frozenset({rule}), until=violation).wrong
    assert violation not in explore(faults, cut=cut).wrong
