"""Registry: the handlers of one application by name, and what it schedules."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from workq.errors import ConfigError
from workq.handlers.handler import Handler
from workq.handlers.naming import place_of

if TYPE_CHECKING:
    from workq.jobs.define import Job
    from workq.schedules.timetable import NewSchedule

ALIKE_MAX: Final = 3


class Registry:
    """The handlers of one application, by name, and what it schedules."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._schedules: dict[str, NewSchedule] = {}
        self.jobs: dict[str, Job] = {}
        self._is_frozen = False

    def add(self, handler: Handler[..., Any]) -> None:
        """Register. Raises ConfigError when the name is taken by another function, or a worker runs already."""
        if self._is_frozen:
            raise ConfigError(
                f"task {handler.name!r} is registered after the worker started; register at import time, "
                "in the module that WORKQ_APP names or one that it imports"
            )
        taken = self._handlers.get(handler.name)
        if taken is not None:
            raise ConfigError(
                f"task {handler.name!r} is registered twice: by {place_of(taken.function)} "
                f"and {place_of(handler.function)}; give one of them another name="
            )
        self._check_limit(handler)
        self._handlers[handler.name] = handler

    def _check_limit(self, handler: Handler[..., Any]) -> None:
        rule = handler.defaults.limit
        for other in self._handlers.values():
            theirs = other.defaults.limit
            if rule is not None and theirs is not None and theirs.name == rule.name and theirs != rule:
                raise ConfigError(
                    f"limit {rule.name!r}: task {handler.name!r} and task {other.name!r} give it other numbers; "
                    "what shares a limit has to agree on them"
                )

    def schedule(self, given: NewSchedule) -> None:
        """Let something tick. Raises ConfigError when the name is taken."""
        if given.name in self._schedules:
            raise ConfigError(f"schedule {given.name!r} is there twice; give one of them another name")
        self._schedules[given.name] = given

    def schedules(self) -> list[NewSchedule]:
        """All that is to tick, by name."""
        return [self._schedules[name] for name in sorted(self._schedules)]

    def get(self, name: str) -> Handler[..., Any] | None:
        """The handler of a name, or None."""
        return self._handlers.get(name)

    def alike(self, name: str) -> list[str]:
        """Names that end as one that is unknown, a few at most: of a function that was started, or moved, otherwise."""
        parts = name.split(".")[::-1]

        def shared(other: str) -> int:
            pairs = zip(parts, other.split(".")[::-1], strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        return sorted(filter(shared, self.names()), key=shared, reverse=True)[:ALIKE_MAX]

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._handlers)

    def batch_max(self) -> int:
        """The most tasks that a call of one of them takes; 0 when none takes several."""
        return max((handler.batch.size for handler in self._handlers.values() if handler.batch), default=0)

    def queues(self) -> list[str]:
        """The queues that the handlers use by default, sorted."""
        return sorted({handler.defaults.queue for handler in self._handlers.values()})

    def freeze(self) -> None:
        """From now on registering is an error: a running worker would not serve the new task's queue."""
        self._is_frozen = True
