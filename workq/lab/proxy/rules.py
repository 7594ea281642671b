"""What bytes meet on their way through the proxy: the rules in force, for all of its connections.

Only the proxy's thread changes them. The faults of `FaultProxy` are values here; a link asks for each piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Any, assert_never


class Direction(Enum):
    """Which way bytes go."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"
    BOTH = "both"


@dataclass(frozen=True)
class WayRule:
    """What bytes meet in one direction, on every connection."""

    is_blocked: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    rng: Random = field(default_factory=Random)
    slice_bytes: int | None = None
    pause_s: float = 0.0


class Rules:
    """What holds now, in each direction."""

    def __init__(self) -> None:
        self._ways = {Direction.TO_SERVER: WayRule(), Direction.TO_CLIENT: WayRule()}
        self._budgets: dict[Direction, int] = {}
        self._passed = {Direction.TO_SERVER: 0, Direction.TO_CLIENT: 0}
        self.spent = threading.Event()
        """Set when a budget has cut a connection."""
        self._changed = asyncio.Event()

    def passed(self, direction: Direction = Direction.BOTH) -> int:
        """How many bytes went on in this direction so far."""
        return sum(self._passed[way] for way in _ways_of(direction))

    def change(self, direction: Direction, **facts: Any) -> None:
        """Let these facts of a `WayRule` hold from now on."""
        for way in _ways_of(direction):
            self._ways[way] = replace(self._ways[way], **facts)
        self._changed.set()
        self._changed = asyncio.Event()

    def arm(self, count: int, direction: Direction) -> None:
        """Let `count` more bytes pass this way, and cut the connection that brings the next one."""
        self.spent.clear()
        self._budgets[direction] = count

    def end(self) -> None:
        """End all faults."""
        self._budgets.clear()
        self.change(Direction.BOTH, is_blocked=False, delay_s=0.0, jitter_s=0.0, slice_bytes=None, pause_s=0.0)

    def arrival(self, way: Direction, now: float) -> float:
        """When a piece that came in at `now` may go on."""
        rule = self._ways[way]
        return now + rule.delay_s + (rule.rng.uniform(0.0, rule.jitter_s) if rule.jitter_s else 0.0)

    def rule(self, way: Direction) -> WayRule:
        """What bytes that go this way meet at this moment."""
        return self._ways[way]

    def grant(self, way: Direction, wanted: int) -> int:
        """How many of these bytes may pass; fewer than `wanted` means that the connection is cut now."""
        budget = self._budgets.get(way)
        if budget is None:
            granted = wanted
        elif wanted <= budget:
            self._budgets[way] = budget - wanted
            granted = wanted
        else:
            granted = self._budgets.pop(way)
            self.spent.set()
        self._passed[way] += granted
        return granted

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the rules change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


def _ways_of(direction: Direction) -> tuple[Direction, ...]:
    match direction:
        case Direction.TO_SERVER | Direction.TO_CLIENT:
            return (direction,)
        case Direction.BOTH:
            return (Direction.TO_SERVER, Direction.TO_CLIENT)
        case _:
            assert_never(direction)
