"""Webhooks as values: endpoints, what is sent to them, and each delivery of it.

    pending -> succeeded                     it has arrived
    pending -> exhausted                     it was tried as often as its endpoint's schedule says
    pending -> gone                          the receiver has answered 410: it wants nothing any more
    pending -> held                          its endpoint was disabled: a person releases it, or discards it
    held -> pending | cancelled
    pending -> cancelled                     by a person, or because it is too old
    succeeded, exhausted, gone, cancelled -> pending
                                             by a person, who sends it once more

A webhook is what is sent, the same bytes to everybody; a delivery is one webhook on its way to one endpoint, and its
task sends it. Who decides: the ledger, in the transaction that settles the task. Imports values only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from workq.errors import ConfigError
from workq.values import codec
from workq.values.names import check_key
from workq.values.task import AfterDeath, Limit, NewTask

TASK_NAME: Final = "workq.webhook"
NOTICE_NAME: Final = "workq.webhook.notice"
QUEUE: Final = "webhooks"
CONCURRENCY: Final = 8
FAILURES_MAX: Final = 1_000
"""Of its task: its endpoint's schedule is what ends it."""
CRASHES_MAX: Final = 10
"""Of its task: many are under way at once, and are there when their process dies of something else."""
TYPE_MAX: Final = 200
TYPES_MAX: Final = 100
ID_MAX: Final = 100
ORDER_KEY_MAX: Final = 120
"""Characters: in front of them comes the endpoint, and both are the order key of a task."""

_WORD: Final = "[A-Za-z0-9_-]+"
_TYPE: Final = re.compile(rf"{_WORD}(\.{_WORD})*")
_PATTERN: Final = re.compile(rf"\*|{_WORD}(\.{_WORD})*(\.\*)?")
_ID: Final = re.compile(_WORD)
_TOPIC: Final = re.compile(r"[A-Za-z0-9_.:@/-]{1,200}")
OWN: Final = "workq."
"""How the types of workq's own events begin."""
OWN_TOPIC: Final = "workq"
"""Its endpoints are sent what operators should know: the notices."""
BEYOND_SUSPICION: Final = frozenset({TASK_NAME})
"""Tasks that are not what their process has died of: they do not run alone afterwards."""
NOTICE_FAILURES_MAX: Final = 20
NOTICE_AGAIN_S: Final = 3600.0
"""What happens again and again at an endpoint is told once in so long."""
_ASKED: Final = "429 Too Many Requests; the wait is its Retry-After, or that of the schedule where that is longer"


class DeliveryState(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    HELD = "held"
    SUCCEEDED = "succeeded"
    EXHAUSTED = "exhausted"
    GONE = "gone"
    CANCELLED = "cancelled"


DELIVERY_OPEN: Final = frozenset({DeliveryState.PENDING, DeliveryState.HELD})


class EndpointState(StrEnum):
    """Whether anything is sent to an endpoint."""

    ENABLED = "enabled"
    DISABLED = "disabled"


class Cause(StrEnum):
    """Why a delivery was sent."""

    SCHEDULED = "scheduled"
    """It is new, or was tried again as its endpoint's schedule says."""
    MANUAL = "manual"
    """A person wanted it to be tried again."""
    REPLAY = "replay"
    """A person wanted it to be sent once more."""


class Ordered(StrEnum):
    """Which deliveries to an endpoint wait for each other: the next one is sent when the one before it has ended."""

    NO = "no"
    ENDPOINT = "endpoint"
    """All of them."""
    KEY = "key"
    """Those that were sent with the same key; without a key, none."""


class OnGone(StrEnum):
    """What becomes of an endpoint whose receiver answers 410: it wants nothing any more."""

    DISABLE = "disable"
    """It is disabled at once."""
    CONFIRM = "confirm"
    """It is asked once more, an hour later: some answer so while a new version is rolled out."""


class NoticeKind(StrEnum):
    """What operators are told of."""

    FAILING = "endpoint.failing"
    """So much of what disables an endpoint has come to pass: 50, 70 and 90 percent, once each."""
    DISABLED = "endpoint.disabled"
    EXHAUSTED = "delivery.exhausted"
    RECOVERED = "delivery.recovered"
    """One that had failed has arrived after all, because a person has sent it again."""


class EndpointOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an endpoint is served. Kept as JSON, so that it only grows. None: as for all (see webhooks/)."""

    steps_s: tuple[float, ...] | None = None
    """The waits behind the first attempt, the second, and so on."""
    max_age_s: float | None = None
    """No attempt is begun later than this after it was sent, unless a person wants one."""
    concurrency: int = CONCURRENCY
    rate: str | None = None
    connect_s: float | None = None
    total_s: float | None = None
    ordered: Ordered = Ordered.NO
    on_410: OnGone = OnGone.DISABLE
    header_alias: str | None = None
    """What the three headers of every webhook are called, too: `svix` says `svix-id` beside `webhook-id`."""


class NewEndpoint(msgspec.Struct, frozen=True):
    """An endpoint to add. `sealed`: its secrets and its headers, as `outbound.vault` writes them."""

    id: str
    topic: str
    url: str
    types: tuple[str, ...]
    sealed: str
    options: EndpointOptions


class EndpointChange(msgspec.Struct, frozen=True):
    """What is to be another; None: as it is."""

    topic: str | None = None
    url: str | None = None
    types: tuple[str, ...] | None = None
    sealed: str | None = None
    options: EndpointOptions | None = None


class NewWebhook(msgspec.Struct, frozen=True):
    """A webhook to send: to all endpoints of a topic that want its type, or to one.

    `body` is what is sent, and `data_hash` what tells it from another: its body without the time.
    """

    id: str
    type: str
    body: str
    data_hash: str
    topic: str | None = None
    endpoint_id: str | None = None
    delay_s: float = 0.0
    order_key: str | None = None


class NewNotice(msgspec.Struct, frozen=True):
    """Something that operators should know of an endpoint. `facts`: what its kind has beside that, as JSON."""

    kind: NoticeKind
    endpoint_id: str
    facts: dict[str, Any]

    @property
    def key(self) -> str | None:
        """What is told once in `NOTICE_AGAIN_S`; None: the ledger has decided that it is told."""
        if self.kind in (NoticeKind.EXHAUSTED, NoticeKind.RECOVERED):
            return f"{self.kind}:{self.endpoint_id}"
        return None


class SentTo(msgspec.Struct, frozen=True):
    """One delivery of a webhook that was sent. `created` False: it was sent to this endpoint before."""

    delivery_id: str
    endpoint_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """An endpoint as the ledger knows it. `failures`: in a row, since `failing_since`.

    `rests_until`: it is enabled, and nothing is sent before: it has answered 429, or has failed again and again.
    """

    id: str
    topic: str
    url: str
    types: tuple[str, ...]
    sealed: str
    options: EndpointOptions
    state: EndpointState
    state_at: datetime
    who: str | None
    why: str | None
    failing_since: datetime | None
    failures: int
    created_at: datetime
    changed_at: datetime
    rests_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery as the ledger knows it. `status` and `error_class`: of its last attempt.

    `next_at`: not before, by its own schedule and while its endpoint rests.
    """

    id: str
    webhook_id: str
    type: str
    endpoint_id: str
    task_id: str
    state: DeliveryState
    cause: Cause
    attempts: int
    status: int | None
    error_class: str | None
    created_at: datetime
    attempted_at: datetime | None
    next_at: datetime | None
    ended_at: datetime | None
    order_key: str | None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One time that a delivery was sent, or could not be. `answer`: the first 16 KiB, `is_cut`: there was more."""

    number: int
    cause: Cause
    url: str
    status: int | None
    error_class: str | None
    error: str | None
    duration_ms: float
    answer: str
    is_cut: bool
    at: datetime
    next_at: datetime | None


class Parcel(msgspec.Struct, frozen=True):
    """All that is needed to send a delivery once. `body` None: it is kept no longer. `age_s`: since it was sent."""

    delivery_id: str
    task_id: str
    webhook_id: str
    endpoint_id: str
    cause: str
    attempts: int
    body: str | None
    url: str
    sealed: str
    options: EndpointOptions
    state: str
    age_s: float
    last_class: str | None = None
    """The error class of its last attempt."""


class WhichDeliveries(msgspec.Struct, frozen=True):
    """Deliveries that are asked for; None: whatever it is. `since_s`, `until_s`: so long ago they were sent."""

    endpoint_id: str | None = None
    webhook_id: str | None = None
    type: str | None = None
    state: DeliveryState | None = None
    error_class: str | None = None
    status: int | None = None
    since_s: float | None = None
    until_s: float | None = None


def check_event_type(value: object) -> str:
    """The type of an event, unchanged: words with dots between them.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str) or len(value) > TYPE_MAX or not _TYPE.fullmatch(value):
        raise ConfigError(f"event type: need words with dots between, such as invoice.paid, got {value!r:.100}")
    return value


def check_types(values: object) -> tuple[str, ...]:
    """The types that an endpoint wants: `invoice.paid`, `invoice.*`, `*`.

    Raises:
        ConfigError: none, too many, or one that is no type.
    """
    found = tuple(values) if isinstance(values, list | tuple) else ()
    if not 1 <= len(found) <= TYPES_MAX:
        raise ConfigError(f"types: need 1 to {TYPES_MAX} event types, such as invoice.paid, invoice.* or *")
    for one in found:
        if not isinstance(one, str) or len(one) > TYPE_MAX or not _PATTERN.fullmatch(one):
            raise ConfigError(f"types: need invoice.paid, invoice.* or *, got {one!r:.100}")
    return tuple(dict.fromkeys(found))


def check_webhook_id(value: object) -> str:
    """What receivers know a webhook by: letters, digits, `_` and `-`; no dot, which the signature puts behind it.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str) or len(value) > ID_MAX or not _ID.fullmatch(value):
        raise ConfigError(f"event_id: need up to {ID_MAX} letters, digits, _ and -, got {value!r:.100}")
    return value


def check_order_key(value: object) -> str:
    """The key by which an endpoint keeps the order of what is sent to it, unchanged.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= ORDER_KEY_MAX:
        raise ConfigError(f"order_key: need text of 1 to {ORDER_KEY_MAX} characters, got {value!r:.100}")
    return check_key(value)


def check_endpoint_id(value: object) -> str:
    """The name of an endpoint, unchanged.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str) or len(value) > 64 or not _ID.fullmatch(value) or value.startswith("-"):
        raise ConfigError(f"endpoint: need up to 64 letters, digits, _ and -, got {value!r:.100}")
    return value


def check_topic(value: object) -> str:
    """The name of a topic, unchanged.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str) or not _TOPIC.fullmatch(value) or value.startswith("-"):
        raise ConfigError(f"topic: need up to 200 letters, digits and _ . : @ / -, got {value!r:.100}")
    return value


def wants(types: tuple[str, ...], event_type: str) -> bool:
    """Whether an endpoint that names these types gets an event of that one."""
    return any(one in ("*", event_type) or (one.endswith(".*") and event_type.startswith(one[:-1])) for one in types)


RESTS_AFTER: Final = 10
"""So many failures in a row let an endpoint rest: half as long as it has been failing, within bounds."""


def limit_key(endpoint_id: str) -> str:
    """The limit that all deliveries to an endpoint share."""
    return f"webhook:{endpoint_id}"


def endpoint_of(limit: str | None) -> str | None:
    """The id of the endpoint whose limit this is; None: it is another limit."""
    return limit.removeprefix(limit_key("")) if limit is not None and limit.startswith(limit_key("")) else None


def line_of(endpoint_id: str, options: EndpointOptions, order_key: str | None) -> str | None:
    """The order key of the tasks that send what was sent with this key to this endpoint; None: in no order."""
    match options.ordered:
        case Ordered.NO:
            return None
        case Ordered.ENDPOINT:
            return f"webhook:{endpoint_id}"
        case Ordered.KEY:
            return None if order_key is None else f"webhook:{endpoint_id}:{order_key}"


def task_of(
    task_id: str, delivery_id: str, endpoint_id: str, options: EndpointOptions, *, order_key: str | None, delay_s: float
) -> NewTask:
    """The task that sends a delivery. When it has ended, however that was, the next one of its order follows."""
    arguments: dict[str, Any] = {"a": [delivery_id], "k": {}}
    line = line_of(endpoint_id, options, order_key)
    return NewTask(
        id=task_id,
        name=TASK_NAME,
        queue=QUEUE,
        payload=codec.encode(arguments, path="args"),
        delay_s=delay_s,
        failures_max=FAILURES_MAX,
        crashes_max=CRASHES_MAX,
        order_key=line,
        after_death=AfterDeath.BLOCK if line is None else AfterDeath.SKIP,
        limit=Limit(limit_key(endpoint_id), options.concurrency, options.rate),
    )


def task_of_notice(task_id: str, notice: NewNotice) -> NewTask:
    """The task that tells operators of something."""
    arguments = {"a": [notice.kind.value, notice.endpoint_id, notice.facts], "k": {}}
    return NewTask(
        id=task_id,
        name=NOTICE_NAME,
        queue=QUEUE,
        payload=codec.encode(arguments, path="notice"),
        failures_max=NOTICE_FAILURES_MAX,
        key=notice.key,
        key_for_s=None if notice.key is None else NOTICE_AGAIN_S,
    )


@dataclass(frozen=True, slots=True)
class PrunedWebhooks:
    """How many webhooks retention removed with what hung on them, and from how many it took their `bodies`."""

    webhooks: int
    bodies: int
    deliveries: int
    attempts: int


def why_it_rests(endpoint: EndpointRow) -> str:
    """Why an endpoint rests: it has asked for it, or has failed again and again."""
    if endpoint.failures < RESTS_AFTER:
        return f"it has answered {_ASKED}"
    return f"its last {endpoint.failures} attempts have failed"


def wait_asked_for(error: str | None) -> str:
    """What is said of an attempt that has failed, when its receiver has asked for the wait; nothing otherwise."""
    return f" with {_ASKED}" if (error or "").startswith("throttled:") else ""
