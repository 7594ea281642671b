"""Every interleaving of a small model: all states that can be reached, what is wrong in them, and who is stranded.

A step whose name begins with `!` is a fault. A state is stranded where no way without faults leads to an end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Explored:
    """All that can be reached. `wrong` has for each kind of violation the shortest way to it."""

    states: int
    wrong: dict[str, list[str]]


def explored(
    start: State,
    steps: Callable[[State], Iterable[tuple[str, State]]],
    *,
    broken: Callable[[State], str],
    has_ended: Callable[[State], bool],
    until: str | None = None,
) -> Explored:
    """Reach every state. `broken` names what is wrong in one, or nothing; there and at an end nothing follows.

    `until`: no further than to the first state in which that is wrong.

    Stranded states are looked for where nothing else is wrong.
    """
    number: dict[State, int] = {start: 0}
    states = [start]
    came: list[tuple[int, str] | None] = [None]
    before: list[list[int]] = [[]]
    wrong: dict[str, list[str]] = {}
    ends: set[int] = set()
    at = 0
    while at < len(states):
        state = states[at]
        if (what := broken(state)) != "":
            wrong.setdefault(what, _way(came, at))
        elif has_ended(state):
            ends.add(at)
        else:
            for what, then in steps(state):
                known = number.setdefault(then, len(states))  # a state is hashed once: that is what takes long
                if known == len(states):
                    states.append(then)
                    came.append((at, what))
                    before.append([])
                    if until is not None and broken(then) == until:
                        return Explored(len(states), wrong | {until: _way(came, known)})
                if not what.startswith("!"):
                    before[known].append(at)
        at += 1
    reached = deque(ends)
    while reached:
        for earlier in before[reached.popleft()]:
            if earlier not in ends:
                ends.add(earlier)
                reached.append(earlier)
    if not wrong and (stranded := next((one for one in range(len(states)) if one not in ends), None)) is not None:
        wrong["stranded"] = _way(came, stranded)
    return Explored(len(states), wrong)


def one_fewer(left: tuple[int, ...], at: int) -> tuple[int, ...] | None:
    """How many faults of each kind are left, with one of this kind less; None: there is none of it left."""
    return (*left[:at], left[at] - 1, *left[at + 1 :]) if left[at] else None


def _way(came: list[tuple[int, str] | None], at: int) -> list[str]:
    way = []
    while (step := came[at]) is not None:
        at, what = step
        way.append(what)
    return way[::-1]
