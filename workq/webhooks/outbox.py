"""Outbox: what an application sends webhooks with. Recorded in its own transaction, sent by its workers.

from workq import WorkQueue
from workq.webhooks import Webhooks

wq = WorkQueue()
webhooks = Webhooks(wq)
webhooks.send("invoice.paid", {"id": 17}, topic="acme", connection=session)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from workq.errors import ConfigError, MissingExtra, NotFound, Refused, Unavailable
from workq.ledger.waiting import is_behind
from workq.outbound.backoff import THROTTLED_MIN_S
from workq.values import codec
from workq.values.incarnation import this_person
from workq.values.names import check_choice, check_delay_s
from workq.values.task import State
from workq.webhooks.endpoints import TOPIC, Endpoints
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.notices import Herald, Notice
from workq.webhooks.values import (
    FAILURES_MAX,
    NOTICE_FAILURES_MAX,
    NOTICE_NAME,
    OWN,
    OWN_TOPIC,
    QUEUE,
    TASK_NAME,
    AttemptRow,
    Cause,
    DeliveryRow,
    DeliveryState,
    NewWebhook,
    Parcel,
    SentTo,
    WhichDeliveries,
    check_endpoint_id,
    check_event_type,
    check_order_key,
    check_topic,
    check_webhook_id,
)

if TYPE_CHECKING:
    from workq.app import WorkQueue


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A webhook that was sent. `id` is its `webhook-id`, for every receiver and in every attempt.

    `unheard` says why there are no `deliveries`: no endpoint has the topic, or none of the topic wants the type. That
    is no error, since a topic may get its endpoints later; None when there are some.
    """

    id: str
    deliveries: tuple[SentTo, ...]
    unheard: str | None = None


class Outbox:
    """The webhooks of an application: its endpoints, and what is sent to them. Its workers send it: see `Webhooks`."""

    def __init__(self, app: WorkQueue) -> None:
        """Raises:
        ConfigError: a setting is wrong.
        """
        self._app = app
        self.endpoints = Endpoints(app)

    def send(
        self,
        event_type: str,
        data: Any,
        *,
        topic: str | None = None,
        endpoint: str | None = None,
        event_id: str | None = None,
        delay_s: float | None = None,
        order_key: str | None = None,
        connection: Any = None,
    ) -> Dispatch:
        """Send an event to all endpoints of a topic that want its type, or to one endpoint.

        Recorded when this returns, or with the caller's transaction. Where no endpoint wants it, nothing is recorded to
        be sent, and `unheard` of the answer says why: nothing is raised. The body is written once, and is the same,
        byte for byte, for every receiver and in every attempt: `{"type": ..., "timestamp": ..., "data": ...}`.

        Args:
            event_type: words with dots between, such as `invoice.paid`.
            data: JSON.
            topic: whose endpoints; `default` without one.
            endpoint: the id of one endpoint, in the place of a topic; it gets this event whatever types it wants.
            event_id: the event's own, of letters, digits, `_` and `-`: who sends the same once more gets the deliveries
                that stand. Made without one.
            delay_s: seconds from now until it is sent.
            order_key: up to 120 characters: an endpoint that is `ordered="key"` gets what has the same key one after
                the other, and what has none in no order. Others do not mind it.
            connection: the caller's SQLAlchemy connection or session: it is sent if that commits.

        Raises:
            ConfigError: an argument is wrong. PayloadError: JSON cannot carry the data, or it is too large.
            NotFound: there is no such endpoint. KeyConflict: this id was sent before, with another type or other data.
            LedgerUnavailable: nothing was recorded, or as CommitUnknown perhaps.
        """
        check_event_type(event_type)
        if event_type.startswith(OWN):
            raise ConfigError(f"event type: those that begin with {OWN} are workq's own, got {event_type!r}")
        if topic == OWN_TOPIC:
            raise ConfigError(f"topic: {OWN_TOPIC} is for what workq itself tells operators; choose another name")
        webhook = self._new(event_type, data, topic, endpoint, event_id, delay_s, order_key)
        sent = self._record(webhook, connection=connection)
        return Dispatch(webhook.id, tuple(sent), None if sent else self._why_unheard(webhook))

    async def asend(self, event_type: str, data: Any, **more: Any) -> Dispatch:
        """`send` without blocking the event loop."""
        if more.get("connection") is not None:
            raise ConfigError("asend: a connection belongs to its thread; use `await session.run_sync(...)` and send()")
        return await asyncio.to_thread(self.send, event_type, data, **more)

    def deliveries(
        self,
        *,
        endpoint: str | None = None,
        event_id: str | None = None,
        event_type: str | None = None,
        state: str | None = None,
        error_class: str | None = None,
        since_s: float | None = None,
    ) -> Iterator[DeliveryRow]:
        """Deliveries from the newest, read page by page. None: whatever it is.

        Args:
            endpoint: to this one.
            event_id: of this webhook.
            event_type: of this type; `invoice.*` is all that begins so.
            state: `pending`, `held`, `succeeded`, `exhausted`, `gone` or `cancelled`.
            error_class: whose last attempt failed so: `dns`, `tls`, `server_error`, ...
            since_s: sent since so many seconds.

        Raises:
            ConfigError: there is no such state.
        """
        which = WhichDeliveries(
            endpoint_id=endpoint,
            webhook_id=event_id,
            type=event_type,
            state=None if state is None else check_choice(state, DeliveryState, "state"),
            error_class=error_class,
            since_s=since_s,
        )
        return self._pages(which)

    def _pages(self, which: WhichDeliveries) -> Iterator[DeliveryRow]:
        after: str | None = None
        while page := self._app.existing.ledger.part(WebhookLedger).deliveries.all(which, after=after):
            yield from page
            after = page[-1].id

    def attempts(self, delivery_id: str) -> list[AttemptRow]:
        """The newest 200 attempts of a delivery, the oldest first: where to, the answer, how long it took."""
        return self._app.existing.ledger.part(WebhookLedger).deliveries.attempts(delivery_id)

    def retry(
        self, delivery_id: str, *, dry_run: bool = False, why: str = "retried by a person", who: str | None = None
    ) -> bool:
        """Try a delivery again now, whether it waits for its next attempt or has ended; False: it runs just now.

        `dry_run`: only say whether it would be. Who has decided and why is kept in the history of its task.

        Raises:
            NotFound: there is no such delivery.
            Refused: it is held, or waits for its turn in an order, or its endpoint is disabled, or its body is kept no
                longer.
        """
        ledger = self._app.existing.ledger
        found = ledger.part(WebhookLedger).deliveries.delivery(delivery_id)
        if found is None:
            raise NotFound(f"no delivery {delivery_id[:100]}; see: workq webhook delivery ls")
        if found.state is DeliveryState.HELD:
            raise Refused(f"delivery {delivery_id} is held: workq webhook endpoint release {found.endpoint_id}")
        if found.state is DeliveryState.PENDING:
            return self._hasten(found, dry_run=dry_run, who=who or this_person(), why=why)
        which = WhichDeliveries(endpoint_id=found.endpoint_id, webhook_id=found.webhook_id)
        if not (
            ledger.part(WebhookLedger).decisions.resendable(which)
            if dry_run
            else self._resend([delivery_id], cause=Cause.MANUAL, who=who, why=why)
        ):
            raise Refused(f"delivery {delivery_id}: its endpoint is gone or disabled, or its body is kept no longer")
        return True

    def _hasten(self, found: DeliveryRow, *, dry_run: bool, who: str, why: str) -> bool:
        """Let what waits for its next attempt be due now; False: it runs."""
        ledger = self._app.existing.ledger
        if not dry_run:
            ledger.part(WebhookLedger).decisions.want_delivery(found.id)  # first: it may be sent as soon as it is due
            try:
                hint = ledger.decisions.reschedule(found.task_id, delay_s=0.0, who=who, why=why)
            except Refused:
                pass  # it runs, or it is not its turn
            else:
                self._app.producer.relay.offer([hint])
                return True
        task = ledger.questions.get(found.task_id)
        if task is not None and task.order_key is not None and is_behind(task.due_at, datetime.now(UTC)):
            raise Refused(
                f"delivery {found.id} waits for its turn in the order of its endpoint; "
                f"for whom: workq why {found.task_id}"
            )
        return dry_run and task is not None and task.state in (State.READY, State.WAITING)

    def recover(
        self,
        endpoint: str,
        *,
        since_s: float,
        dry_run: bool = False,
        why: str = "recovered by a person",
        who: str | None = None,
    ) -> int:
        """Send again what was sent within `since_s`, and is exhausted or gone; answers how many.

        Who has decided and why is kept in the history of each task.

        Raises:
            NotFound: there is no such endpoint.
        """
        self.endpoints.get(endpoint)
        return sum(
            self._again(
                WhichDeliveries(endpoint_id=endpoint, state=state, since_s=since_s),
                Cause.MANUAL,
                dry_run=dry_run,
                who=who,
                why=why,
            )
            for state in (DeliveryState.EXHAUSTED, DeliveryState.GONE)
        )

    def replay(
        self,
        *,
        event_type: str | None = None,
        endpoint: str | None = None,
        since_s: float,
        until_s: float | None = None,
        dry_run: bool = False,
        why: str = "replayed by a person",
        who: str | None = None,
    ) -> int:
        """Send once more what was sent between two moments so long ago, whether it has arrived or not; how many.

        Args:
            event_type: of this type only; `invoice.*` is all that begins so.
            endpoint: to this endpoint only.
            why, who: kept in the history of each task.

        Raises:
            NotFound: there is no such endpoint.
        """
        if endpoint is not None:
            self.endpoints.get(endpoint)
        which = WhichDeliveries(endpoint_id=endpoint, type=event_type, since_s=since_s, until_s=until_s)
        return self._again(which, Cause.REPLAY, dry_run=dry_run, who=who, why=why)

    def _again(self, which: WhichDeliveries, cause: Cause, *, dry_run: bool, who: str | None, why: str) -> int:
        count, after = 0, None
        while page := self._app.existing.ledger.part(WebhookLedger).decisions.resendable(which, after=after):
            count += len(page) if dry_run else len(self._resend(page, cause=cause, who=who, why=why))
            after = page[-1]
        return count

    def _record(self, webhook: NewWebhook, *, connection: Any = None) -> list[SentTo]:
        """For everybody who wants it, in one transaction, ours or the caller's."""
        producer, webhooks = self._app.producer, self._app.stores.ledger.part(WebhookLedger)
        if connection is None:
            producer.check_outside("send in it, with connection=connection, or after it")
        return producer.record_by(
            lambda hints: webhooks.sent.send(webhook, connection=connection, hints=hints), connection=connection
        )

    def _resend(self, delivery_ids: Sequence[str], *, cause: Cause, who: str | None, why: str) -> list[str]:
        """Send deliveries that have ended once more; answers which."""
        webhooks, by = self._app.stores.ledger.part(WebhookLedger), who or this_person()
        return self._app.producer.record_by(
            lambda hints: webhooks.decisions.resend(delivery_ids, cause=cause, who=by, why=why, hints=hints)
        )

    def _why_unheard(self, webhook: NewWebhook) -> str:
        """Why no endpoint gets this webhook, which is recorded: what the ledger does not answer now is left out."""
        said = f"nothing is recorded to be sent: no endpoint has the topic {webhook.topic!r}"
        try:
            if self._app.stores.ledger.part(WebhookLedger).endpoints.all(topic=webhook.topic, limit=1):
                return f"nothing is recorded to be sent: no endpoint of topic {webhook.topic!r} wants {webhook.type!r}"
            known = self._app.stores.ledger.part(WebhookLedger).endpoints.topics()
        except Unavailable:
            return said
        near = get_close_matches(webhook.topic or "", known, n=1)
        return f"{said}; did you mean {near[0]!r}?" if near else said

    def _new(
        self,
        event_type: str,
        data: Any,
        topic: str | None,
        endpoint: str | None,
        event_id: str | None,
        delay_s: float | None,
        order_key: str | None,
    ) -> NewWebhook:
        if topic is not None and endpoint is not None:
            raise ConfigError("topic and endpoint: give one of them")
        most = self._app.settings.payload_max_bytes
        told = codec.encode([event_type, data], path="data", max_bytes=most)
        body = {"type": event_type, "timestamp": datetime.now(UTC).isoformat(), "data": data}
        return NewWebhook(
            f"msg_{codec.new_task_id().replace('-', '')}" if event_id is None else check_webhook_id(event_id),
            event_type,
            codec.encode(body, path="data", max_bytes=most),
            sha256(told.encode()).hexdigest(),
            topic=None if endpoint is not None else check_topic(topic if topic is not None else TOPIC),
            endpoint_id=None if endpoint is None else check_endpoint_id(endpoint),
            delay_s=0.0 if delay_s is None else check_delay_s(delay_s),
            order_key=None if order_key is None else check_order_key(order_key),
        )


class Webhooks(Outbox):
    """The webhooks of an application, and the handler that delivers them.

    Made once, beside the application's handlers: its workers send what is due, from the queue `webhooks`.
    """

    def __init__(
        self,
        app: WorkQueue,
        *,
        on_notice: Callable[[Notice], object] | None = None,
        throttled_min_s: float = THROTTLED_MIN_S,
    ) -> None:
        """Register the handler of deliveries.

        Args:
            on_notice: is called in a worker when an endpoint fails or is disabled, and when a delivery is exhausted or
                arrives after all; again when it raises, so it may get one twice, with the same id (see notices.py).
            throttled_min_s: so long at least who has answered 429, or not in time, is left alone.

        Raises:
            ConfigError: a setting or an argument is wrong, or the application has its webhooks already.
            MissingExtra: aiohttp is not installed.
        """
        super().__init__(app)
        try:
            from workq.webhooks.carry import Carrier
        except ImportError:
            raise MissingExtra("webhooks need aiohttp: install the extra [webhooks]") from None
        self.carrier = Carrier(
            self._parcels,
            vault=self.endpoints.vault,
            policy=self.endpoints.policy,
            throttled_min_s=check_delay_s(throttled_min_s, "throttled_min_s"),
        )
        self.handler = app.task(name=TASK_NAME, queue=QUEUE, failures_max=FAILURES_MAX)(self.carrier.carry)
        self.handler.ahead = self.carrier.ahead
        self.herald = Herald(lambda: app.existing.ledger.part(WebhookLedger), hook=on_notice, forward=self._forward)
        app.task(name=NOTICE_NAME, queue=QUEUE, failures_max=NOTICE_FAILURES_MAX)(self.herald.tell)

    def _forward(self, notice: Notice) -> None:
        """To the endpoints of operators, once each."""
        event_type, event_id = f"{OWN}{notice.kind}", f"notice_{notice.id}"
        webhook = self._new(event_type, notice.as_json(), OWN_TOPIC, None, event_id, None, None)
        self._record(webhook)

    def _parcels(self, delivery_ids: Sequence[str]) -> dict[str, Parcel]:
        return self._app.existing.ledger.part(WebhookLedger).deliveries.parcels(delivery_ids)
