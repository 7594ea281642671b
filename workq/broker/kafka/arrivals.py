"""Arrivals: what has come to one consumer and is not acked. It waits line by line, and is given out by the prefetch.

Records come from the thread that polls, which alone begins and ends lives of partitions. Any thread may take, ack and
put back. A delivery belongs to one life of its partition (tracker.py): what comes of an older one is dropped.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from workq.broker import Delivery
from workq.broker.fair_turns import FairBuffer
from workq.broker.kafka.records import RecordTag
from workq.broker.kafka.tracker import PartitionLife
from workq.errors import ConfigError

PUT_BACK_MAX_S: Final = 60.0
"""A record that is put back holds back the offset of its partition meanwhile."""
Place = tuple[str, int]
"""Topic and partition."""
ArrivedRecord = tuple[Place, int, int | None, Callable[[PartitionLife], Delivery]]
"""Where it stood, its offset and leader epoch, and what it is as a delivery of a life."""


class _Line:
    """One queue of a consumer: what has arrived and was not given out, and how many are out."""

    __slots__ = ("out", "queue", "waiting")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.waiting: deque[Delivery] = deque()
        self.out = 0


class Arrivals:
    """Of one consumer that serves these queues, with `prefetch` records of each given out and unacked at most."""

    def __init__(self, queues: Collection[str], *, prefetch: int) -> None:
        self._changed = threading.Condition()
        self._buffer = FairBuffer()
        self._lines: dict[str, _Line] = {}
        self._lives: dict[Place, PartitionLife] = {}
        self._served = tuple(dict.fromkeys(queues))
        self._prefetch = prefetch
        self._aside: list[tuple[float, int, Delivery]] = []
        """A heap of what is put back: when."""
        self._numbers = itertools.count()
        self._error: ConfigError | None = None
        self._is_woken = False
        self._paused_at: float | None = None
        self.is_closed = False

    @property
    def lives(self) -> Mapping[Place, PartitionLife]:
        """Of each partition that is ours. For the thread that polls."""
        return self._lives

    @property
    def served(self) -> tuple[str, ...]:
        """The queues that are served."""
        return self._served

    @property
    def paused_s(self) -> float | None:
        """For how long nothing is wanted; None: something is."""
        paused_at = self._paused_at
        return None if paused_at is None else time.monotonic() - paused_at

    def take(self, *, ids_max: int, wait_s: float) -> list[Delivery]:
        """As `fetch` of the port. Raises ConfigError: what `fail` was told."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if self._buffer:
                    found = [one for one in self._buffer.take(ids_max) if not one.tag.life.is_over]
                    if found:
                        self._is_woken = False
                        return found
                    continue
                left_s = deadline - time.monotonic()
                if self.is_closed or self._is_woken or left_s <= 0:
                    self._is_woken = False
                    return []
                self._changed.wait(left_s)

    def wake(self) -> None:
        """Whoever takes goes on."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def fail(self, error: ConfigError) -> None:
        """Nothing can be taken any more, for good."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is given out any more. Repeatable."""
        with self._changed:
            self.is_closed = True
            self._buffer.clear()
            self._changed.notify_all()

    def wait_closed(self, within_s: float) -> None:
        """Wait until it is closed, for so long at most."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed, within_s)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """These are done with."""
        with self._changed:
            for one in deliveries:
                self._close(one.tag)

    def set_aside(self, delivery: Delivery) -> bool:
        """It goes to another place, and counts no more against the prefetch; False: it is not ours any more."""
        with self._changed:
            return self._set_aside(delivery.tag)

    def put_back(self, delivery: Delivery, *, delay_s: float) -> None:
        """It goes on its way again in so long, `PUT_BACK_MAX_S` at most: `due_back` answers it then."""
        when = time.monotonic() + min(delay_s, PUT_BACK_MAX_S)
        with self._changed:
            if self._set_aside(delivery.tag):
                heapq.heappush(self._aside, (when, next(self._numbers), delivery))

    def due_back(self) -> list[Delivery]:
        """What is to go on its way now; each is answered once. What is not ours any more comes again as it was."""
        now, found = time.monotonic(), []
        with self._changed:
            while self._aside and self._aside[0][0] <= now:
                delivery = heapq.heappop(self._aside)[2]
                if not delivery.tag.life.is_over:
                    found.append(delivery)
        return found

    def moved(self, delivery: Delivery, *, is_stored: bool) -> None:
        """What was set aside stands in its other place; or it does not, and is given out again."""
        tag: RecordTag = delivery.tag
        with self._changed:
            if is_stored:
                self._close(tag)
            elif not tag.life.is_over:
                tag.is_aside = False
                line = self._lines[tag.life.queue]
                line.waiting.appendleft(delivery)
                self._fill_line(line)

    def set_prefetch(self, count: int) -> None:
        """Give out so many of each queue from now on."""
        if count != self._prefetch:
            with self._changed:
                self._prefetch = count
                self._fill()

    def serve(self, queues: Collection[str]) -> None:
        """Give out of these queues from now on."""
        served = tuple(dict.fromkeys(queues))
        if served != self._served:
            with self._changed:
                self._served = served
                self._fill()

    def pause(self) -> None:
        """Give out no more. Repeatable."""
        if self._paused_at is None:
            with self._changed:
                self._paused_at = time.monotonic()

    def resume(self) -> None:
        """Give out again. Repeatable."""
        if self._paused_at is not None:
            with self._changed:
                self._paused_at = None
                self._fill()

    def places_held_back(self) -> set[Place]:
        """While nothing is wanted: our partitions, where new records would wait for us."""
        if self._paused_at is None:
            return set()
        with self._changed:
            return set(self._lives)

    # By the thread that polls

    def begin(self, queue: str, places: Sequence[Place]) -> None:
        """These partitions of a queue are ours, or are read from another place: each has a new life."""
        with self._changed:
            self._lines.setdefault(queue, _Line(queue))
            for place in places:
                self._begin(queue, place)

    def end(self, places: Collection[Place]) -> list[PartitionLife]:
        """These partitions are not ours any more: nothing of them is given out or acked. Answers their lives."""
        with self._changed:
            return [life for place in places if (life := self._end(place)) is not None]

    def receive(self, records: Sequence[ArrivedRecord]) -> bool:
        """These have come. Answers whether any is of a partition that is ours."""
        lines: set[str] = set()
        with self._changed:
            for place, offset, leader_epoch, as_delivery in records:
                life = self._lives.get(place)
                if life is None:
                    continue
                if life.begins_anew(offset):
                    life = self._begin(life.queue, place)
                life.arrive(offset, leader_epoch)
                self._lines[life.queue].waiting.append(as_delivery(life))
                lines.add(life.queue)
            for queue in lines:
                self._fill_line(self._lines[queue])
        return bool(lines)

    def to_commit(self) -> list[tuple[PartitionLife, int, int | None]]:
        """Of each partition with something new: the offset up to which all is done, and its leader epoch."""
        with self._changed:
            found = [(life, *done) for life in self._lives.values() if (done := life.to_commit()) is not None]
            for life, offset, _ in found:
                life.commit_sent(offset)
        return found

    def waiting(self, queue: str) -> int:
        """How many records of a queue wait here."""
        return len(self._lines[queue].waiting)

    # Under the lock

    def _close(self, tag: RecordTag) -> None:
        life = tag.life
        if not life.is_over and life.close(tag.offset) and not tag.is_aside:
            self._free(life)

    def _set_aside(self, tag: RecordTag) -> bool:
        if tag.life.is_over or tag.is_aside:
            return False
        tag.is_aside = True
        self._free(tag.life)
        return True

    def _free(self, life: PartitionLife) -> None:
        life.out -= 1
        line = self._lines[life.queue]
        line.out -= 1
        self._fill_line(line)

    def _fill(self) -> None:
        for line in self._lines.values():
            self._fill_line(line)

    def _fill_line(self, line: _Line) -> None:
        """Give out of a line what the prefetch allows."""
        if self._paused_at is not None or self.is_closed or line.queue not in self._served:
            return
        was_empty = not self._buffer
        while line.waiting and line.out < self._prefetch:
            delivery = line.waiting.popleft()
            life: PartitionLife = delivery.tag.life
            if not life.is_over:
                life.out += 1
                line.out += 1
                self._buffer.append(delivery)
        if was_empty and self._buffer:
            self._changed.notify_all()

    def _begin(self, queue: str, place: Place) -> PartitionLife:
        before = self._end(place)
        life = self._lives[place] = PartitionLife(queue, place)
        life.is_paused = before is not None and before.is_paused  # Kafka knows nothing of lives
        return life

    def _end(self, place: Place) -> PartitionLife | None:
        life = self._lives.pop(place, None)
        if life is not None:
            life.is_over = True
            line = self._lines[life.queue]
            line.out -= life.out
            line.waiting = deque(one for one in line.waiting if one.tag.life is not life)
            self._fill_line(line)
        return life
