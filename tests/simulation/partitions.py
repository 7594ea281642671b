"""A broker in memory that behaves like Kafka: a queue has parts, each belongs to one consumer, and nothing is removed.

An owner is sent what is in its parts, in order, and commits the contiguous prefix of what it has acked, a moment later.
When consumers come and go, or change what they serve, parts change hands, and the new owner goes on behind what was
committed. A dead one keeps its parts until its session ends. What was committed or removed decides whether a position
has passed (`PartitionedBroker.has_passed`).

A topic that is made again begins at 0, and its owners do not know that until they look. An owner whose place is beyond
the end begins at the beginning; one whose place is not goes on there, and what is below it never comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from tests.simulation.broker import Backup, Message, Server, SimBroker, Subscription
from workq.broker import Depth

PARTS = 3
NEVER = -1
COMMIT_S = 0.05
"""What is acked is committed so much later, if its owner lives then."""


@dataclass(eq=False, slots=True)
class Part:
    """One part of a queue."""

    log: list[Message] = field(default_factory=list)
    """By offset."""
    low: int = 0
    """What is below was removed."""
    committed: int = NEVER
    owner: Subscription | None = None
    place: int = 0
    """What is sent to the owner next."""
    unacked: dict[int, Message] = field(default_factory=dict)
    """What was sent to the owner, by offset."""
    done: set[int] = field(default_factory=set)
    """What was ever acked."""
    acked_at: float | None = None
    """When something was acked that is not committed."""
    is_new: bool = False
    """It was made again, and the owner has not seen that."""

    @property
    def end(self) -> int:
        return len(self.log)

    @property
    def begins(self) -> int:
        """Where whoever becomes its owner goes on."""
        place = self.low if self.committed == NEVER else self.committed
        return place if self.low <= place <= self.end else self.low

    def to_come(self) -> list[Message]:
        """What is still to be acked, by this owner or the next."""
        place = self.begins if self.owner is None else self.place
        if self.is_new or not self.low <= place <= self.end:
            place = self.low
        return [*self.unacked.values(), *self.log[place:]]

    def goes_to(self, owner: Subscription | None) -> None:
        """What the last owner had and has not acked comes again."""
        for message in self.unacked.values():
            if self.owner is not None and self.owner.sent.get(message.serial) is message:
                del self.owner.sent[message.serial]
                self.owner.arrived = deque(one for one in self.owner.arrived if one is not message)
            message.is_redelivered = True
        self.unacked, self.acked_at, self.is_new = {}, None, False
        self.owner, self.place = owner, self.begins

    def begin_again(self) -> None:
        """What its owner has in hand stays there; it does not count any more."""
        self.unacked, self.place, self.is_new = {}, self.low, False

    def commit(self) -> list[Message]:
        """Note how far all was acked; answers what is skipped by that, where the topic is another one by now."""
        if self.acked_at is None:
            return []
        self.committed, self.acked_at = min((*self.unacked, self.place)), None
        skipped = [offset for offset in range(self.low, min(self.committed, self.end)) if offset not in self.done]
        self.done.update(skipped)
        return [self.log[offset] for offset in skipped]


class PartitionedServer(Server):
    """The broker that all clients share. `session_s`: for so long a dead consumer keeps its parts."""

    def __init__(self, now: Callable[[], float], *, session_s: float) -> None:
        super().__init__(now)
        self.session_s = session_s
        self.topics: dict[str, list[Part]] = {}
        self._dead: dict[Subscription, float] = {}
        """When the session of each ends."""

    # -- messages

    def append(self, message: Message) -> None:
        parts = self.parts(message.queue)
        parts[message.serial % len(parts)].log.append(message)

    def dispatch(self) -> None:
        """End sessions, commit what is due, deal out the parts, and send owners what they have room for."""
        now = self.now()
        self.undelay()
        for one in [one for one, ends_at in self._dead.items() if ends_at <= now]:
            del self._dead[one]
            self.subscriptions.remove(one)
        for queue, parts in self.topics.items():
            for part in parts:
                if part.acked_at is not None and now >= part.acked_at + COMMIT_S and self._lives(part.owner):
                    self._commit(part)
            self._deal_out(queue, parts)
            for part in parts:
                self._send(queue, part)

    def _lives(self, owner: Subscription | None) -> bool:
        return owner is not None and owner not in self._dead

    def _commit(self, part: Part) -> None:
        self.on_lost([task_id for message in part.commit() for task_id in message.ids])

    def _deal_out(self, queue: str, parts: list[Part]) -> None:
        members = [one for one in self.subscriptions if queue in one.queues and queue not in one.unserved]
        members.sort(key=lambda one: one.name)
        for number, part in enumerate(parts):
            owner = members[number % len(members)] if members else None
            if part.owner is not owner:
                if self._lives(part.owner):
                    self._commit(part)  # its owner is told before it loses the part
                part.goes_to(owner)

    def _send(self, queue: str, part: Part) -> None:
        owner = part.owner
        if owner is None or not self._lives(owner):
            return
        if not part.low <= part.place <= part.end:
            part.begin_again()
        while part.place < part.end and owner.has_room(queue):
            message = part.log[part.place]
            part.unacked[part.place] = message
            part.place += 1
            message.deliveries += 1
            owner.sent[message.serial] = message
            owner.arrived.append(message)
            owner.on_arrival()

    def acked(self, message: Message) -> None:
        for part in self.parts(message.queue):
            for offset, one in part.unacked.items():
                if one is message:
                    del part.unacked[offset]
                    part.done.add(offset)
                    part.acked_at = self.now() if part.acked_at is None else part.acked_at
                    self.on_delay(self.now() + 2 * COMMIT_S)
                    return

    def looks(self, subscription: Subscription) -> None:
        """A consumer learns which of its topics were made again, and begins these at their beginning."""
        for part in self._of(subscription):
            if part.is_new:
                part.begin_again()

    def cut(self, subscription: Subscription) -> None:
        """It is taken for gone, and comes again at once."""
        for part in self._of(subscription):
            part.goes_to(None)
        subscription.sent.clear()
        subscription.arrived.clear()
        self.dispatch()

    def end(self, subscription: Subscription) -> None:
        """It leaves."""
        if subscription.is_open:
            subscription.is_open = False
            self.subscriptions.remove(subscription)
            self.dispatch()

    def dies(self, subscription: Subscription) -> None:
        """Its process is dead, and nobody knows."""
        subscription.is_open = False
        self._dead[subscription] = self.now() + self.session_s
        self.on_delay(self._dead[subscription] + 0.01)

    def messages(self) -> Iterable[Message]:
        found = {id(one): one for parts in self.topics.values() for part in parts for one in part.to_come()}
        found |= {id(one): one for _, _, one in self.delayed}
        found |= {id(one): one for each in self.subscriptions if each.is_open for one in each.sent.values()}
        return found.values()

    def shown(self, queue: str) -> list[Message]:
        return [message for message in self.messages() if message.queue == queue]

    def remove(self, message: Message) -> None:
        """Nothing can be taken out of the middle."""

    def depth(self, queue: str) -> Depth:
        ready = sum(part.end - max(part.begins, part.low) for part in self.topics.get(queue, []))
        members = sum(queue in one.queues and queue not in one.unserved for one in self.subscriptions)
        return Depth(ready, None, members)

    def parts(self, queue: str) -> list[Part]:
        return self.topics.setdefault(queue, [Part() for _ in range(PARTS)])

    # -- an operator

    def purge(self, queue: str) -> int:
        """All records are removed; offsets go on."""
        count = 0
        for part in self.topics.get(queue, []):
            gone = [
                message for offset, message in enumerate(part.log) if offset >= part.low and offset not in part.done
            ]
            self.on_lost([task_id for message in gone for task_id in message.ids])
            count += len(gone)
            part.low = part.end
        return count

    def delete_queue(self, queue: str) -> int:
        """The topic is deleted and made again: its owners go on where they were until they look."""
        count = self.purge(queue)
        for part in self.topics.get(queue, []):
            part.log, part.done, part.low, part.committed = [], set(), 0, NEVER
            part.is_new = part.owner is not None
        return count

    def truncate(self, queue: str) -> int:
        """A server that was behind leads now: the last record of each part is gone."""
        count = 0
        for part in self.topics.get(queue, []):
            if part.low < part.end:
                self.on_lost(part.log.pop().ids)
                part.done.discard(part.end)
                count += 1
        return count

    def expire_offsets(self, queue: str) -> None:
        """The offsets of parts without an owner are gone."""
        for part in self.topics.get(queue, []):
            if part.owner is None:
                part.committed = NEVER

    def wipe(self) -> int:
        return self.purge_ladder() + sum(self.delete_queue(queue) for queue in list(self.topics))

    def copy(self) -> Backup:
        """Nothing: nobody copies it."""
        return Backup({}, [])

    def roll_back(self, _: Backup) -> None:
        """It was started with an empty folder."""
        self.wipe()

    def _of(self, subscription: Subscription) -> list[Part]:
        return [part for parts in self.topics.values() for part in parts if part.owner is subscription]


class PartitionedBroker(SimBroker):
    """The port, for one client."""

    has_owners = True
    tells_position = True
    _server: PartitionedServer

    def position(self, queue: str) -> str | None:
        after = self._befall("position")
        if after is not None:
            raise after
        return msgspec.json.encode([part.end for part in self._server.parts(queue)]).decode()

    def has_passed(self, queue: str, position: str) -> bool:
        after = self._befall("has_passed")
        if after is not None:
            raise after
        self._server.dispatch()
        ends: list[int] = msgspec.json.decode(position)
        return all(
            max(part.committed if part.committed <= part.end else 0, part.low) >= min(end, part.end)
            for end, part in zip(ends, self._server.parts(queue), strict=True)
        )
