"""The values of the queue: which state may follow which."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import msgspec
import pytest

from workq.values.task import SETTLED, TRANSITIONS, Claim, Done, Event, NewTask, Settlement, State, Task

PROMISED = """
    ready -> running waiting cancelled
    waiting -> running ready cancelled
    running -> succeeded waiting ready dead cancelled
    succeeded ->
    dead -> ready cancelled
    cancelled -> ready
"""


def test_the_transitions_are_those_of_the_design() -> None:
    promised = {}
    for line in PROMISED.strip().splitlines():
        before, _, after = line.partition("->")
        promised[State(before.strip())] = frozenset(map(State, after.split()))

    assert promised == TRANSITIONS


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(State)


def test_no_state_follows_itself() -> None:
    assert all(state not in after for state, after in TRANSITIONS.items())


def test_only_a_claim_leads_to_running() -> None:
    assert {state for state, after in TRANSITIONS.items() if State.RUNNING in after} == {State.READY, State.WAITING}


def test_a_success_is_final_and_everything_else_can_become_ready() -> None:
    assert TRANSITIONS[State.SUCCEEDED] == frozenset()
    reached, more = {State.READY}, True
    while more:
        more = False
        for state, after in TRANSITIONS.items():
            if state not in reached and after & reached:
                reached.add(state)
                more = True
    assert reached == set(State) - {State.SUCCEEDED}


def test_a_settled_task_never_runs_again_by_itself_and_only_the_dead_can_be_given_up() -> None:
    assert {state: set(TRANSITIONS[state]) for state in SETTLED} == {
        State.SUCCEEDED: set(),
        State.DEAD: {State.READY, State.CANCELLED},
        State.CANCELLED: {State.READY},
    }


def test_a_state_reads_as_its_name_in_sql_and_in_text() -> None:
    assert (
        [str(state) for state in State] == [state.value for state in State] == [state.name.lower() for state in State]
    )


@pytest.mark.parametrize("kind", [NewTask, Claim, Settlement, Task, Event, Done])
def test_values_are_frozen_and_take_no_other_names(kind: type[Any]) -> None:
    names = [one.name for one in (fields(kind) if is_dataclass(kind) else msgspec.structs.fields(kind))]
    value = kind(**dict.fromkeys(names))

    with pytest.raises(FrozenInstanceError if is_dataclass(kind) else AttributeError):
        setattr(value, names[0], 1)
    with pytest.raises((AttributeError, TypeError)):
        value.another = 1
    assert not hasattr(value, "__dict__")
