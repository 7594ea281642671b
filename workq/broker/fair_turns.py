"""Fair turns: which queue is looked at next, and which of its bands; and the buffer whose deliveries are taken so.

Queues take turns, and none of them counts for more. The bands of one queue share by weight, 16 : 4 : 1, so that what is
higher goes first and nothing starves. This is stride scheduling (Waldspurger, 1995): each band has a `pass`, the least
is next, and a task that is taken moves it on by 1, 4 or 16. A band with nothing in it when its turn comes starts again
one such step after the present pass, and never in the past: to be empty saves nothing up. But what was taken from last
time keeps its turn for the length of one step, since the next hint of it may just be on its way from the broker.

The limit first: this is the choice of one process, among what waits at one moment. Between two tasks of a band that are
taken, the others advance by no more than the step of that band (they start at or after the present pass, and of equal
passes the lower band's is first). So while all bands wait, of any 21 tasks in a row one is low and four are normal, and
a low task that is first in line is taken after at most 20 higher ones. Hints carry up to 100 tasks, and a whole one is
taken where there is room: then it is 20 hints, and in any case fewer than 20 * n + 200 higher tasks between n low ones
that were taken in one go and the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from workq.broker import Delivery
from workq.values.lane import queue_of, split
from workq.values.task import Priority

WEIGHTS: Final = {Priority.HIGH: 16, Priority.NORMAL: 4, Priority.LOW: 1}
STEPS: Final = {priority: max(WEIGHTS.values()) // weight for priority, weight in WEIGHTS.items()}
"""How far one task moves a band on: whole numbers, so that passes stay exact."""

Has = Callable[[str], bool]
"""Whether something of a band can be taken now. It may cost a question: a band is asked when it is its turn."""


class _Band:
    """One band of a queue."""

    __slots__ = ("at", "missed_at", "name", "step")

    def __init__(self, name: str, now: int) -> None:
        self.name = name
        self.step = STEPS[split(name)[1]]
        self.at = now + self.step
        self.missed_at: int | None = now
        """The first turn at which it was empty, since something was taken."""

    def miss(self, now: int) -> None:
        """It was its turn, and there was nothing."""
        if self.missed_at is None:
            self.missed_at = self.at
        self.at = now if now - self.missed_at < self.step else now + self.step


class QueueTurns:
    """One queue: those of its bands that are served."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._now = 0
        """The pass of the band that was chosen last."""
        self._bands: list[_Band] = []

    def serve(self, names: Iterable[str]) -> None:
        """Choose among these bands from now on; those that it had keep their pass."""
        had = {band.name: band for band in self._bands}
        self._bands = [had.get(name) or _Band(name, self._now) for name in names]

    def next(self, has: Has) -> str | None:
        """The band that is next among those which have something; the same when asked again, until `took`."""
        bands = self._bands
        if len(bands) == 1:
            return bands[0].name if has(bands[0].name) else None
        empty: list[_Band] = []
        for band in sorted(bands, key=_turn):
            if has(band.name):
                self._now = band.at
                for other in empty:
                    other.miss(band.at)
                return band.name
            empty.append(band)
        return None

    def took(self, name: str, tasks: int) -> None:
        """So many tasks of a band were taken. What is no hint of a task counts as one."""
        if len(self._bands) > 1:
            for band in self._bands:
                if band.name == name:
                    band.at += band.step * max(1, tasks)
                    band.missed_at = None


def _turn(band: _Band) -> tuple[int, int]:
    """Of equal passes the lower band's is first: it has waited for more of the others."""
    return band.at, -band.step


class Rotation:
    """The queues of one consumer. Not thread-safe."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.lines: list[QueueTurns] = []
        """In the order of their turns."""
        self.has_bands = False
        """Whether any of them has more than one."""
        self.serve(names)

    def serve(self, names: Iterable[str]) -> None:
        """Take turns among these from now on: the names of bands, in any order."""
        wanted: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            wanted.setdefault(queue_of(name), []).append(name)
        self.lines = [line for line in self.lines if line.queue in wanted]
        had = {line.queue for line in self.lines}
        self.lines += [QueueTurns(queue) for queue in wanted if queue not in had]
        for line in self.lines:
            line.serve(wanted[line.queue])
        self.has_bands = any(len(bands) > 1 for bands in wanted.values())

    def next(self, has: Has) -> tuple[QueueTurns, str] | None:
        """The queue whose turn it is among those that have something, and the band of it."""
        for line in self.lines:
            if (name := line.next(has)) is not None:
                return line, name
        return None

    def turn(self, line: QueueTurns) -> None:
        """This one had its turn: the others come first."""
        if len(self.lines) > 1:
            self.lines.remove(line)
            self.lines.append(line)


class FairBuffer:
    """Deliveries of all queues of one consumer that have arrived and were not fetched yet, fetched in turns.

    Each band stays first in, first out: a marker comes out after every hint that came in before it. Not thread-safe.
    """

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
