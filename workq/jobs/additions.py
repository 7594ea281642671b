"""Additions: items that the handler of a subtask adds to its own job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from workq.values.task import NewSubtask, Worked


class Additions:
    """What the handler of a subtask adds to its job: kept, once the call that has added it has returned."""

    def __init__(self, cut: Callable[[Iterable[Any]], list[NewSubtask]]) -> None:
        """`cut` makes subtasks of items."""
        self._cut = cut
        self.kept: list[NewSubtask] = []
        """By calls that have returned."""
        self._of_this_call: list[NewSubtask] = []

    def begin(self) -> None:
        """A call begins: what one before has added, and has not returned, is forgotten."""
        self._of_this_call = []

    def add(self, items: Iterable[Any]) -> int:
        """Answers how many items these are."""
        subtasks = self._cut(items)
        self._of_this_call += subtasks
        return sum(one.items for one in subtasks)

    def keep(self) -> None:
        """The call has returned."""
        self.kept += self._of_this_call
        self._of_this_call = []

    def all(self) -> tuple[NewSubtask, ...]:
        """With those of the call that is under way."""
        return (*self.kept, *self._of_this_call)

    def succeeded(self) -> Worked:
        """What its task succeeds as, at the end of its own transaction."""
        return Worked(0, added=self.all())
