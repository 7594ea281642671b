"""Ways in as values: what was read from a broker, what that asks for, and how far it was taken in.

Imports values only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from workq.messages.values import NewMessage

BATCH: Final = 500
"""Records that are taken in together, in one transaction."""
LINE: Final = "intake:"
"""How the name of a way in begins, where the processes that serve it are listed beside workers."""


class NewIntake(msgspec.Struct, frozen=True):
    """A way in to add. `options`: as its kind has checked them, without secrets. `sealed`: its URL."""

    name: str
    kind: str
    options: dict[str, Any]
    sealed: str | None
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class IntakeRow:
    """A way in as the ledger knows it. The counts are of records, since it was added.

    `destination`: of records that name none. `error`: why nothing could be read, since `failing_since`.
    """

    name: str
    kind: str
    options: dict[str, Any]
    sealed: str | None
    destination: str | None
    recorded: int
    repeated: int
    cancelled: int
    quarantined: int
    quarantined_why: str | None
    quarantined_at: datetime | None
    error: str | None
    failing_since: datetime | None
    taken_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class IntakeOffset:
    """How far one partition was taken in: `next_offset` is that of the next record, None: nothing was read yet.

    `topic_id`: of the topic that it was read of; None: its Kafka has no such ids.
    """

    topic: str
    part: int
    next_offset: int | None
    owner: str
    epoch: int
    changed_at: datetime
    topic_id: str | None = None


class Position(msgspec.Struct, frozen=True):
    """Where to read on in a partition that was taken, and the number of that taking."""

    next_offset: int | None
    epoch: int


class OffsetMove(msgspec.Struct, frozen=True):
    """A partition was read up to `next_offset`, by the owner of this epoch."""

    topic: str
    part: int
    epoch: int
    next_offset: int


class CancelOf(msgspec.Struct, frozen=True):
    """A record that asks to cancel a message."""

    message_id: str


class Unreadable(msgspec.Struct, frozen=True):
    """A record that cannot become a message, and why, in one line."""

    reason: str


Step = NewMessage | CancelOf


class TakenIn(msgspec.Struct, frozen=True):
    """What one transaction has taken in, in records."""

    recorded: int
    repeated: int
    cancelled: int


class KnownIds(msgspec.Struct, frozen=True):
    """What the ledger knows of a batch before it is recorded: destinations that are there, ids with theirs."""

    destinations: frozenset[str]
    messages: Mapping[str, str]


class BrokerRecord(msgspec.Struct, frozen=True):
    """One record of a topic, or message of a queue, as it was read.

    `headers`: names and raw values. `own_id`: names this record and no other, for one without a `workq-id`; None: it
    has no such name. `where`: for a person. `fault`: why a part of it could not be read at all.
    """

    body: bytes | None
    headers: Mapping[str, bytes]
    key: bytes | None
    own_id: str | None
    where: str
    content_type: str | None = None
    fault: str | None = None


class IntakeBatch(msgspec.Struct, frozen=True):
    """Records in their order, and the positions behind them, which move when they are recorded.

    `tokens`: what the link that has read them needs to let them go. `lost`: records before them that are gone, and were
    never read.
    """

    records: Sequence[BrokerRecord] = ()
    moves: Sequence[OffsetMove] = ()
    tokens: Sequence[Any] = ()
    lost: int = 0


class IntakeBacklog(msgspec.Struct, frozen=True):
    """What waits to be taken in. `lost`: records that were gone before they were read.

    `records` None: nobody can say, and `unknown` is the reason.
    """

    records: int | None
    lost: int = 0
    unknown: str | None = None


class Overtaken(Exception):
    """Another process has taken a partition that this batch is of: nothing of the batch was recorded."""
