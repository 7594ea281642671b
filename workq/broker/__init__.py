"""The port of the broker: it carries hints, and may lose, repeat, delay or reorder them.

A hint is only a wake-up: a queue and task ids. It carries no payload and no attempt, and it decides nothing: the
claim in the ledger does. So a duplicate, stale, early or forged hint costs one look at the ledger and no more, and a
lost hint only makes its task late: the sweep sends another.

Who decides: the ledger. What happens on failure: `publish` answers False for whatever the broker did not confirm in
time, and the row stays unpublished for the sweep; `fetch` and `ack` never raise for a broken connection: the
consumer connects again by itself, with jitter, and the broker delivers again what was not acked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from workq.values.hint import HintRow

PAGE = 100
"""How many task ids one hint carries at most."""
HOP_S = 2.0
"""How long a hint may take from where it waited to its queue, where it may come late. See `arrives_in_s`."""
QUARANTINE_BODY_MAX: Final = 64 * 1024
"""So many bytes of a foreign message are kept."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Wake up and look at these tasks of one queue, in `delay_s` seconds, and so many more for each as `waits_s` says.

    `looks` counts how often ids that the ledger does not know were looked up already (see worker/fetch/refused.py).
    With `marker` it is no hint but a marker: without ids, never delayed, and delivered after everything that was
    confirmed before.
    """

    queue: str
    task_ids: tuple[str, ...]
    delay_s: float = 0.0
    looks: int = 0
    marker: str | None = None
    waits_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """One arrival of a message in one of our queues.

    `fault` is None for a hint; otherwise the message is foreign and this is the reason for its quarantine:
    `empty`, `not_json`, `bad_envelope`, `newer_version` or `too_large`. `tag` belongs to the consumer that made it.
    `returns` counts how often somebody sent it on its way again unread (`put_back`). With `marker` it is a marker.
    """

    tag: Any = field(repr=False)
    queue: str
    task_ids: tuple[str, ...]
    looks: int = 0
    is_redelivered: bool = False
    fault: str | None = None
    returns: int = 0
    marker: str | None = None
    waits_s: tuple[float, ...] = ()
    """It comes before its time: so much is left for each id when it is fetched, 0.1 s at most. Empty: none for any."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How many hints (not tasks: a hint carries up to `PAGE` ids) a queue holds, as the broker counts them."""

    ready: int
    unacked: int | None
    consumers: int | None


@dataclass(frozen=True, slots=True)
class Browsed:
    """How many messages of one queue were looked at. `foreign` ones are no hints or markers of ours."""

    hints: int
    foreign: int
    is_whole: bool
    """Whether all that was in the queue at the beginning was looked at, or has left it: False when the time was up."""


See = Callable[[Hint], bool]
"""Shown each hint and marker of a queue; answers whether it shall stay there."""


class Consumer(Protocol):
    """One worker's subscription to some queues. Used by one thread; `close` and `wake` may be called by any."""

    @property
    def trouble(self) -> str | None:
        """Why nothing can arrive just now: no connection, or no subscription. None while all is well."""
        ...

    def fetch(self, *, ids_max: int, wait_s: float) -> list[Delivery]:
        """Deliveries with about `ids_max` task ids together, waiting at most `wait_s` seconds for the first.

        Queues take turns, and the bands of one queue share by their weights (see fair_turns.py).

        At least one delivery is returned when any is there, even if its page alone exceeds `ids_max`.
        Foreign messages come along, with `fault` set. Empty when nothing came, also while disconnected, or when woken.
        """
        ...

    def wake(self) -> None:
        """Let whoever waits in `fetch`, or comes there next, go on without a delivery. May be called by any thread."""
        ...

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """The broker may forget these deliveries. One of an older connection is ignored: it comes again anyway."""
        ...

    def quarantine(self, delivery: Delivery, *, reason: str) -> None:
        """Move one message to the quarantine: its reason, its hash, its body up to `QUARANTINE_BODY_MAX`; then ack it.

        If the quarantine cannot be written, the delivery stays unacked and comes again.
        """
        ...

    def put_back(self, delivery: Delivery, *, delay_s: float) -> None:
        """Send a message that we cannot read on its way again as it is, in about `delay_s` seconds, then ack it.

        For a hint of a newer version, which another worker may understand. Its next delivery has one more of `returns`.
        If it cannot be sent, the delivery stays unacked and comes again.
        """
        ...

    def set_prefetch(self, count: int) -> None:
        """Have about `count` deliveries unacked from now on: of each queue, or of all together, as the broker counts.

        Repeatable. What was delivered stays; on a server it does not count against the new number.
        """
        ...

    def serve(self, queues: Collection[str]) -> None:
        """Ask for deliveries of these queues only, which may be new to it. Repeatable.

        What has arrived already of others can still be fetched. A consumer starts with the queues it was made with, and
        declares no other before it is told to serve it.
        """
        ...

    def pause(self) -> None:
        """Ask the broker for no more. What has arrived already can still be fetched. Repeatable."""
        ...

    def resume(self) -> None:
        """Ask for deliveries again. Repeatable; a consumer starts resumed."""
        ...

    def renew(self) -> None:
        """Subscribe anew: hints wait, and nothing arrives. What was not acked is delivered again. Repeatable."""
        ...

    def close(self) -> None:
        """Leave. What was not acked is delivered again, to somebody. Bounded in time; repeatable."""
        ...


class Broker(Protocol):
    """What every broker promises. Thread-safe, apart from its consumers."""

    is_transactional: bool
    """Hints are rows beside the ledger's, written in its transactions (`rows`): nothing is left to relay."""
    rows_from_s: float
    """Hints with a delay of at least so much are rows of the ledger, which may be written beside their tasks (`rows`),
    though others are not. Infinite where none are, or all of them (`is_transactional`)."""
    horizon_s: float
    """The longest delay that a hint can carry. Later tasks wait in the ledger until the sweep promotes them."""
    unit_s: float
    """Tasks that are due within so much of each other may share a hint, with `waits_s`. 0: none may."""
    is_late: bool
    """Delayed hints may come after their time, as `waits_s` tells, and never before. Else they come at it, or up to
    `unit_s` before, and tell what is left."""
    is_listable: bool
    """`browse` only reads: it moves nothing, and no marker loses its meaning by it."""
    has_owners: bool
    """A part of a queue belongs to one process, and what is in it waits for that one, busy or dead. So who is idle asks
    the ledger for due tasks, also while hints come (worker/fetch/fallback_polling.py). `browse` removes nothing."""

    tells_position: bool
    """`position` answers. Where it does not, markers are sent through the queues."""

    def waits_s(self, delay_s: float) -> float:
        """How long a hint with this delay waits in all: longer than its delay only where `is_late`.

        There, tasks for which this is the same may share a hint, and whoever marks them as published stamps them with
        the instant at which it has come for certain (`arrives_in_s`): until then no marker proves it lost.

        Raises:
            ValueError: the delay is negative or above `horizon_s`.
        """
        ...

    def publish(self, hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
        """Send hints; for each, True once the broker has confirmed it durably, False if not by the deadline.

        Declares missing queues first. A False may still arrive: a duplicate hint is harmless. Never raises for a
        broken connection. Delays above `horizon_s` are a caller's error (ValueError).
        """
        ...

    def rows(self, hints: Sequence[Hint]) -> list[HintRow]:
        """Hints as the ledger writes them beside their tasks. Where `is_transactional`, or from `rows_from_s` on."""
        ...

    def wake(self) -> None:
        """Hints were written beside their tasks: who waits for some in this process looks at once."""
        ...

    def consumer(self, queues: Sequence[str], *, name: str, prefetch: int) -> Consumer:
        """Subscribe to queues, which are declared first. `name` is the incarnation, shown to the operator.

        `prefetch` bounds the messages of one queue that are delivered and not acked. Does not wait for the connection.
        """
        ...

    def forget_consumer(self, name: str) -> None:
        """The consumer of this name is dead for certain: deliver again what it has not acked, now."""
        ...

    def depths(self, queues: Sequence[str], *, with_consumers: bool = False) -> Mapping[str, Depth]:
        """How many hints each queue holds; a missing queue counts 0.

        `with_consumers`: tell the consumers, too, where that is another question.

        Raises:
            BrokerUnavailable: it did not answer.
        """
        ...

    def position(self, queue: str) -> str | None:
        """Where a queue ends now, as a text of this broker's own; None: it proves losses by markers.

        A hint that is not delayed is before it once its `publish` has answered True. Of a missing queue: its beginning.

        Raises:
            BrokerUnavailable: it did not answer.
        """
        ...

    def has_passed(self, queue: str, position: str) -> bool:
        """Whether all that was before this position has left the queue: it was acked, or is gone.

        True as well where the queue ends before the position now, and what is left of it has been acked. After the
        broker has lost something it may be True too early: then hints are sent again that are still to come.
        False where `position` is None: this one is of the broker that was there before.

        Raises:
            BrokerUnavailable: it did not answer.
        """
        ...

    def browse(self, queue: str, see: See, *, deadline_s: float) -> Browsed:
        """Show `see` all hints and markers that wait in a queue to be delivered, in their order.

        What is delayed is not in the queue yet. What others take or add meanwhile may be shown or not; nothing is shown
        twice but a hint that is there twice. Where `depths` tells what is delivered and not acked, that is shown too.

        Where the broker is not `is_listable`, everything is moved once around the queue: each message is put at its end
        again as it is, and only then taken from its head. The order of what was there stays; a marker that was on its
        way proves nothing afterwards (see `Audits.markers_voided`); a crash leaves some messages twice, and none lost.
        `see` is called on the thread that called, and should not take long; what it raises ends the browsing.

        Raises:
            BrokerUnavailable: it did not answer, or the connection broke.
        """
        ...

    def check(self) -> str:
        """Connect once and answer the server's name and version.

        Raises:
            BrokerUnavailable: it did not answer; the message says why and what to do.
        """
        ...

    def close(self) -> None:
        """End threads and connections, within a bound. Repeatable."""
        ...


def arrives_in_s(broker: Broker, delay_s: float) -> float:
    """In how many seconds a hint that is published now is in its queue for certain: its delay, where that is exact."""
    if not broker.is_late:
        return delay_s
    waits_s = broker.waits_s(delay_s)
    return waits_s + HOP_S if waits_s else 0.0
