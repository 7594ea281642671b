"""Every interleaving of a small model: all states that can be reached, what is wrong in them, and who is stranded.

A step whose name begins with `!` is a fault. A state is stranded where no way without faults leads to an end.
"""

from __future__ import annotations

from collections import defaultdict, deque
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
    came: dict[State, tuple[State, str] | None] = {start: None}
    before: defaultdict[State, list[State]] = defaultdict(list)
    wrong: dict[str, list[str]] = {}
    ends: set[State] = set()
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if (what := broken(state)) != "":
            wrong.setdefault(what, _way(came, state))
            if what == until:
                break
            continue
        if has_ended(state):
            ends.add(state)
            continue
        for what, then in steps(state):
            if not what.startswith("!"):
                before[then].append(state)
            if then not in came:
                came[then] = (state, what)
                waiting.append(then)
    reached = deque(ends)
    while reached:
        for earlier in before[reached.popleft()]:
            if earlier not in ends:
                ends.add(earlier)
                reached.append(earlier)
    if not wrong and (stranded := next((state for state in came if state not in ends), None)) is not None:
        wrong["stranded"] = _way(came, stranded)
    return Explored(len(came), wrong)


def _way(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    way = []
    while (step := came[state]) is not None:
        state, what = step
        way.append(what)
    return way[::-1]
