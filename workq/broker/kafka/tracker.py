"""Tracker: one life of one partition in one consumer. Which of its records are still open, and how far it is done.

Kafka keeps one offset for each partition: what stands before it is done with. So only the prefix is committed: the
offset of the first record that is still open, whatever was acked behind it (rule 5). What lies behind that one comes
again when the partition goes to another life. Pure: no clock, no I/O, not thread-safe.
"""

from __future__ import annotations

from collections import deque


class PartitionLife:
    """From the assignment of a partition until it is revoked, lost, or read from another place."""

    __slots__ = ("_arrived", "_done", "_open", "_sent", "is_over", "is_paused", "out", "place", "queue")

    def __init__(self, queue: str, place: tuple[str, int]) -> None:
        self.queue = queue
        self.place = place
        """Topic and partition."""
        self.is_over = False
        """Acks of it mean nothing any more."""
        self.is_paused = False
        """Kafka is not asked for more of it."""
        self.out = 0
        """How many of its records were given out and are not acked."""
        self._arrived: deque[tuple[int, int | None]] = deque()
        """Offset and leader epoch, in the order of the partition; from the first one that is open."""
        self._open: set[int] = set()
        self._done: tuple[int, int | None] | None = None
        """The offset up to which all is done, and the leader epoch of the last record before it."""
        self._sent: int | None = None
        """The offset that was last given to Kafka to commit."""

    def begins_anew(self, offset: int) -> bool:
        """Whether a record of this offset cannot follow those that have arrived: the log was read from before them."""
        if self._arrived:
            return offset <= self._arrived[-1][0]
        return self._done is not None and offset < self._done[0]

    def arrive(self, offset: int, leader_epoch: int | None) -> None:
        """The next record has come."""
        self._arrived.append((offset, leader_epoch))
        self._open.add(offset)

    def close(self, offset: int) -> bool:
        """This one is done with; False if it was already, or never came."""
        if offset not in self._open:
            return False
        self._open.discard(offset)
        while self._arrived and self._arrived[0][0] not in self._open:
            last, leader_epoch = self._arrived.popleft()
            self._done = last + 1, leader_epoch
        return True

    def to_commit(self) -> tuple[int, int | None] | None:
        """The offset to commit, with the leader epoch of what is before it; None: there is nothing new."""
        if self._done is None or self._done[0] == self._sent:
            return None
        return self._done

    def commit_sent(self, offset: int) -> None:
        """This offset is on its way to Kafka."""
        self._sent = offset

    def commit_refused(self) -> None:
        """Kafka has not taken it: once more."""
        self._sent = None

    @property
    def open_count(self) -> int:
        """How many of its records are open."""
        return len(self._open)
