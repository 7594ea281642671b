"""Buffer: deliveries that have arrived and were not fetched yet, of all queues of one consumer, fetched in turns.

Each band stays first in, first out: a marker comes out after every hint that came in before it.
"""

from __future__ import annotations

from collections import deque

from workq.broker import Delivery
from workq.broker.fair_turns import Rotation


class FairBuffer:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Delivery]] = {}
        self._turns = Rotation()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, delivery: Delivery) -> None:
        """One has arrived."""
        waiting = self._waiting.get(delivery.queue)
        if waiting is None:
            waiting = self._waiting[delivery.queue] = deque()
            self._turns.serve(self._waiting)
        waiting.append(delivery)
        self._count += 1

    def take(self, ids_max: int) -> list[Delivery]:
        """Those whose turn it is, up to so many task ids together; the first one in any case."""
        taken: list[Delivery] = []
        ids = 0
        while (chosen := self._turns.next(self._has)) is not None:
            line, name = chosen
            size = len(self._waiting[name][0].task_ids) or 1
            if taken and ids + size > ids_max:
                break
            taken.append(self._waiting[name].popleft())
            self._count -= 1
            line.took(name, min(size, ids_max))  # of a page that is too long, the rest goes back
            self._turns.turn(line)
            ids += size
        return taken

    def clear(self) -> None:
        """Forget what has arrived."""
        for waiting in self._waiting.values():
            waiting.clear()
        self._count = 0

    def _has(self, name: str) -> bool:
        return bool(self._waiting[name])
