"""Outbox: what an application sends webhooks with. Recorded in its own transaction, sent by its workers.

from workq import WorkQueue
from workq.webhooks import Webhooks

wq = WorkQueue()
webhooks = Webhooks(wq)
webhooks.send("invoice.paid", {"id": 17}, topic="acme", connection=session)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from workq import codec
from workq.delivery import (
    FAILURES_MAX,
    OWN,
    QUEUE,
    TASK_NAME,
    Cause,
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
from workq.errors import ConfigError, MissingExtra, NotFound, Refused
from workq.ledger.positions import is_behind
from workq.names import check_delay_s
from workq.webhooks.endpoints import TOPIC, Endpoints

if TYPE_CHECKING:
    from workq.app import WorkQueue


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A webhook that was sent. `id` is its `webhook-id`, for every receiver and in every attempt."""

    id: str
    deliveries: tuple[SentTo, ...]


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

        Recorded when this returns, or with the caller's transaction. The body is written once, and is the same, byte
        for byte, for every receiver and in every attempt: `{"type": ..., "timestamp": ..., "data": ...}`.

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
        webhook = self._new(event_type, data, topic, endpoint, event_id, delay_s, order_key)
        sent = self._app.producer.send(webhook, connection=connection)
        return Dispatch(webhook.id, tuple(sent))

    async def asend(self, event_type: str, data: Any, **more: Any) -> Dispatch:
        """`send` without blocking the event loop."""
        if more.get("connection") is not None:
            raise ConfigError("asend: a connection belongs to its thread; use `await session.run_sync(...)` and send()")
        return await asyncio.to_thread(self.send, event_type, data, **more)

    def retry(self, delivery_id: str) -> bool:
        """Try a delivery again now, whether it waits for its next attempt or has ended; False: it runs just now.

        Raises:
            NotFound: there is no such delivery.
            Refused: it is held, or waits for its turn in an order, or its endpoint is disabled, or its body is kept no
                longer.
        """
        ledger = self._app.stores.ledger
        found = ledger.delivery(delivery_id)
        if found is None:
            raise NotFound(f"no delivery {delivery_id[:100]}; see: workq webhook delivery ls")
        if found.state is DeliveryState.HELD:
            raise Refused(f"delivery {delivery_id} is held: workq webhook endpoint release {found.endpoint_id}")
        if found.state is DeliveryState.PENDING:
            try:
                hint = ledger.reschedule(found.task_id, delay_s=0.0, why="retried by a person")
            except Refused:
                task = ledger.get(found.task_id)
                if task is not None and is_behind(task.due_at, datetime.now(UTC)):
                    raise Refused(
                        f"delivery {delivery_id} waits for its turn in the order of its endpoint; "
                        f"for whom: workq why {found.task_id}"
                    ) from None
                return False
            self._app.producer.relay.offer([hint])
            return True
        if not self._app.producer.resend([delivery_id], cause=Cause.MANUAL):
            raise Refused(f"delivery {delivery_id}: its endpoint is gone or disabled, or its body is kept no longer")
        return True

    def recover(self, endpoint: str, *, since_s: float, dry_run: bool = False) -> int:
        """Send again what was sent within `since_s`, and is exhausted or gone; answers how many.

        Raises:
            NotFound: there is no such endpoint.
        """
        self.endpoints.get(endpoint)
        return sum(
            self._again(
                WhichDeliveries(endpoint_id=endpoint, state=state, since_s=since_s), Cause.MANUAL, dry_run=dry_run
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
    ) -> int:
        """Send once more what was sent between two moments so long ago, whether it has arrived or not; how many.

        Args:
            event_type: of this type only; `invoice.*` is all that begins so.
            endpoint: to this endpoint only.

        Raises:
            NotFound: there is no such endpoint.
        """
        if endpoint is not None:
            self.endpoints.get(endpoint)
        which = WhichDeliveries(endpoint_id=endpoint, type=event_type, since_s=since_s, until_s=until_s)
        return self._again(which, Cause.REPLAY, dry_run=dry_run)

    def _again(self, which: WhichDeliveries, cause: Cause, *, dry_run: bool) -> int:
        count, after = 0, None
        while page := self._app.stores.ledger.resendable(which, after=after):
            count += len(page) if dry_run else len(self._app.producer.resend(page, cause=cause))
            after = page[-1]
        return count

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
        check_event_type(event_type)
        if event_type.startswith(OWN):
            raise ConfigError(f"event type: those that begin with {OWN} are workq's own, got {event_type!r}")
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

    def __init__(self, app: WorkQueue) -> None:
        """Register the handler of deliveries.

        Raises:
            ConfigError: a setting is wrong, or the application has its webhooks already.
            MissingExtra: aiohttp is not installed.
        """
        super().__init__(app)
        try:
            from workq.webhooks.carry import Carrier
        except ImportError:
            raise MissingExtra("webhooks need aiohttp: install the extra [webhooks]") from None
        self.carrier = Carrier(self._parcels, vault=self.endpoints.vault, policy=self.endpoints.policy)
        self.handler = app.task(name=TASK_NAME, queue=QUEUE, failures_max=FAILURES_MAX)(self.carrier.carry)

    def _parcels(self, delivery_ids: Sequence[str]) -> dict[str, Parcel]:
        return self._app.stores.ledger.parcels(delivery_ids)
