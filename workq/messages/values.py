"""Messages as values: destinations, what is sent to them, and the task that sends each message.

A message has no state of its own: its state is that of its newest task, which sends it. So a confirm costs no write
beyond the settlement of that task.

    waiting, ready   not sent yet            running     on its way
    succeeded        the destination has confirmed it
    dead             it was not confirmed in as many attempts as its destination allows, or was not taken
    cancelled        by a person

Imports values only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from workq.errors import ConfigError
from workq.values import codec
from workq.values.names import check_key
from workq.values.task import AfterDeath, Limit, NewTask, State

TASK_NAME: Final = "workq.message"
QUEUE: Final = "workq.messages"
FAILURES_MAX: Final = 30
"""Attempts after which a message that was never confirmed is dead: some four hours."""
CRASHES_MAX: Final = 10
"""Of its task: a hundred are under way at once, and are there when their process dies of something else."""
BATCH: Final = 100
"""Messages that one call sends to one destination."""
TIMEOUT_S: Final = 10.0
TIMEOUT_MAX_S: Final = 300.0
NAME_MAX: Final = 64
ID_MAX: Final = 100
ORDER_KEY_MAX: Final = 120
"""Characters: in front of them comes the destination, and both are the order key of a task."""
BODY_MAX_BYTES: Final = 256 * 1024
KEPT_AFTER_S: Final = 30 * 86_400.0
"""Of a message whose task is kept no longer, it is still known for so long that it was there."""
BEYOND_SUSPICION: Final = frozenset({TASK_NAME})
"""Tasks that are not what their process has died of: they do not run alone afterwards."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ID: Final = re.compile(r"[!-~]+")


class DestinationState(StrEnum):
    """Whether anything is sent to a destination."""

    ENABLED = "enabled"
    DISABLED = "disabled"


class DestinationPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a destination is served, whatever its kind. Kept as JSON, so that it only grows."""

    concurrency: int | None = None
    """Messages at once, in all processes; None: as many as there are."""
    rate: str | None = None
    """Messages in a time, such as `100/s`."""
    failures_max: int = FAILURES_MAX
    timeout_s: float = TIMEOUT_S
    """How long a confirm is waited for."""
    levels_s: tuple[float, ...] = ()
    """A delay is rounded up to the next of these; none: delays are exact."""


class NewDestination(msgspec.Struct, frozen=True):
    """A destination to add. `options`: as its kind has checked them, without secrets. `sealed`: its URL, if any."""

    name: str
    kind: str
    options: dict[str, Any]
    sealed: str | None
    policy: DestinationPolicy


@dataclass(frozen=True, slots=True)
class DestinationRow:
    """A destination as the ledger knows it.

    `failures`: in a row, since `failing_since`; the last one was `fault`, in the words of `error`. `rests_until`: it is
    enabled, and nothing is sent before.
    """

    name: str
    kind: str
    options: dict[str, Any]
    sealed: str | None
    policy: DestinationPolicy
    state: DestinationState
    state_at: datetime
    who: str | None
    why: str | None
    failures: int
    failing_since: datetime | None
    fault: str | None
    error: str | None
    rests_until: datetime | None
    created_at: datetime
    changed_at: datetime


class NewMessage(msgspec.Struct, frozen=True):
    """A message to record. `body` is text, or base64 where it `is_binary`.

    It is sent `delay_s` after the insert, by the ledger's clock; or `at` an instant, to which that is about as long.
    """

    id: str
    task_id: str
    destination: str
    body: str
    is_binary: bool
    content_type: str
    key: str | None = None
    headers: dict[str, str] = {}
    order_key: str | None = None
    delay_s: float = 0.0
    at: datetime | None = None
    intake: str | None = None
    """The way in whose record it was."""


class SentMessage(msgspec.Struct, frozen=True):
    """A message that was recorded. `created` False: this id was recorded before, and that one stands."""

    id: str
    task_id: str
    created: bool = True


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message as the ledger knows it, without its body.

    `state` None: its task is kept no longer, and neither is its body. `due_at`: when it was to be sent; `next_at`: when
    it is tried, if that is known; else `waits_for` says what it waits for. `sending`: 1, and one more for each restore.
    `where`: what the destination told of it.
    """

    id: str
    destination: str
    task_id: str
    sending: int
    state: State | None
    content_type: str
    key: str | None
    headers: dict[str, str]
    order_key: str | None
    attempts: int
    failures: int
    error: str | None
    reason: str | None
    where: str | None
    created_at: datetime
    due_at: datetime
    next_at: datetime | None
    waits_for: str | None
    settled_at: datetime | None


class Letter(msgspec.Struct, frozen=True):
    """All that is needed to send a message once. `body` None: it is kept no longer.

    `rests_s`: nothing is sent to its destination for so long. `changed_at`: of the destination, in text, to know when
    a connection to it has to be made anew.
    """

    id: str
    sending: int
    body: bytes | None
    content_type: str
    key: str | None
    headers: Mapping[str, str]
    destination: str
    kind: str
    options: Mapping[str, Any]
    sealed: str | None
    policy: DestinationPolicy
    state: str
    is_failing: bool
    rests_s: float
    changed_at: str
    is_waited_for: bool = False
    """Others wait until it takes messages again."""


class EndedMessage(msgspec.Struct, frozen=True):
    """How a message has ended. `late_s`: from when it was due to its settlement."""

    state: State
    attempts: int
    sending: int
    late_s: float


class WhichMessages(msgspec.Struct, frozen=True):
    """Messages that are asked for; None: whatever it is. `since_s`, `until_s`: so long ago they were recorded."""

    destination: str | None = None
    state: State | None = None
    since_s: float | None = None
    until_s: float | None = None


class MessagePosition(NamedTuple):
    """Where a message stands among those of its destination, in the order in which they were recorded."""

    created_at: datetime
    id: str


class Restorable(msgspec.Struct, frozen=True):
    """What a restore would send again and make due; and what it would send if retention had not removed it.

    `unknown`: removed, and how these had ended is not known: a worker of the schema before 17 has removed their tasks.
    """

    again: int
    late: int
    gone: int
    unknown: int = 0


class Restored(msgspec.Struct, frozen=True):
    """What a restore has done, or would do: sent again; made due at once, of what was overdue and open."""

    sent_again: int
    made_due: int


def check_destination_name(value: object) -> str:
    """The name of a destination, unchanged.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str) or len(value) > NAME_MAX or not _NAME.fullmatch(value):
        raise ConfigError(f"destination: need up to {NAME_MAX} letters, digits, _ . and -, got {value!r:.100}")
    return value


def check_message_id(value: object) -> str:
    """What every copy of a message is known by, unchanged.

    Raises:
        ConfigError: it is not up to 100 printable characters of ASCII without blanks.
    """
    if not isinstance(value, str) or len(value) > ID_MAX or not _ID.fullmatch(value):
        raise ConfigError(f"message_id: need up to {ID_MAX} printable ASCII characters, no blanks, got {value!r:.100}")
    return value


def check_message_order_key(value: object) -> str:
    """The key by which messages to one destination are sent one after the other, unchanged.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= ORDER_KEY_MAX:
        raise ConfigError(f"order_key: need text of 1 to {ORDER_KEY_MAX} characters, got {value!r:.100}")
    return check_key(value, "order_key")


def limit_of_destination(name: str, policy: DestinationPolicy) -> Limit | None:
    """The limit that all messages to a destination share, if it has one."""
    if policy.concurrency is None and policy.rate is None:
        return None
    return Limit(f"message:{name}", policy.concurrency, policy.rate)


def item_of(destination: str, sending: int, message_id: str) -> str:
    """The argument of the task that sends a message: to where, which sending of it, which message."""
    return f"{destination} {sending} {message_id}"


def destination_in(item: object) -> str:
    """The destination that an item names; nothing, where it is none of ours."""
    return item.partition(" ")[0] if isinstance(item, str) else ""


def parts_of(item: object) -> tuple[str, int, str] | None:
    """Destination, sending and message that an item names; None: it is none of ours."""
    if not isinstance(item, str):
        return None
    parts = item.split(" ")
    return (parts[0], int(parts[1]), parts[2]) if len(parts) == 3 and parts[1].isdigit() else None


def task_of_message(
    task_id: str,
    message_id: str,
    destination: str,
    policy: DestinationPolicy,
    *,
    sending: int = 1,
    order_key: str | None = None,
    delay_s: float = 0.0,
    at: datetime | None = None,
) -> NewTask:
    """The task that sends a message. When it has ended, however that was, the next one of its order key follows."""
    arguments: dict[str, Any] = {"a": [item_of(destination, sending, message_id)], "k": {}}
    return NewTask(
        id=task_id,
        name=TASK_NAME,
        queue=QUEUE,
        payload=codec.encode(arguments, path="args"),
        delay_s=delay_s,
        at=at,
        failures_max=policy.failures_max,
        crashes_max=CRASHES_MAX,
        order_key=None if order_key is None else f"message:{destination}:{order_key}",
        after_death=AfterDeath.BLOCK if order_key is None else AfterDeath.SKIP,
        limit=limit_of_destination(destination, policy),
    )
