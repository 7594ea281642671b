"""Sending: a webhook, its deliveries and their tasks are recorded in one transaction, ours or the caller's.

Who gets it is decided there: all endpoints of a topic that want its type, or the one that is named. A delivery is
unique by its webhook and its endpoint, so whoever sends the same once more gets the one that stands. Repeatable after a
commit that was lost: the ids of the deliveries are made before it.

Where an endpoint keeps an order, its deliveries stand in line as tasks of one order key do (see positions.py): in the
order of the commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from workq.codec import new_task_id
from workq.delivery import Cause, DeliveryState, NewWebhook, SentTo, task_of, wants
from workq.errors import KeyConflict, NotFound
from workq.ledger import HintRows, Unpublished
from workq.ledger.database import without_values
from workq.ledger.endpoints import Keeping, options_in, types_in
from workq.ledger.positions import NEVER_S
from workq.ledger.record import Recording, begin_in_sqlite, core_connection
from workq.task import NewTask


class Sending(Recording, Keeping):
    """The part of the ledger that records webhooks."""

    def send(
        self, webhook: NewWebhook, *, connection: Any = None, hints: HintRows | None = None
    ) -> tuple[list[SentTo], list[Unpublished]]:
        """Record a webhook for everybody who wants it; answers its deliveries, and the hints that are to be sent.

        Raises:
            NotFound: there is no such endpoint.
            KeyConflict: another webhook has that id.
        """
        mine: dict[str, str] = {}
        """The ids of deliveries that we make, by endpoint."""

        def write(tx: Connection) -> tuple[list[SentTo], list[NewTask]]:
            return self._send(tx, webhook, mine, hints)

        if connection is None:
            try:
                sent, tasks = self.database.run(write)
            except IntegrityError:  # another has just sent the same: it is there now
                sent, tasks = self.database.run(write)
        else:
            tx = core_connection(connection, self.database)
            try:
                begin_in_sqlite(tx)
                try:
                    with tx.begin_nested():
                        sent, tasks = write(tx)
                except IntegrityError:
                    with tx.begin_nested():
                        sent, tasks = write(tx)
            except IntegrityError as error:
                raise without_values(error) from None
            except DBAPIError as error:
                raise self.database.translate(error) from error
        return sent, [] if hints is not None else [Unpublished(task.id, task.queue, 0, task.delay_s) for task in tasks]

    def _send(
        self, tx: Connection, webhook: NewWebhook, mine: dict[str, str], hints: HintRows | None
    ) -> tuple[list[SentTo], list[NewTask]]:
        """The deliveries, and the tasks whose turn it is."""
        d = self.database.tables.delivery
        order_key = self._write_webhook(tx, webhook)
        standing = {
            row.endpoint_id: row.id
            for row in tx.execute(select(d.c.endpoint_id, d.c.id).where(d.c.webhook_id == webhook.id))
        }
        sent: list[SentTo] = []
        tasks: list[NewTask] = []
        rows: list[dict[str, Any]] = []
        for row in self._receivers(tx, webhook):
            known = standing.get(row.id)
            if known is not None:
                sent.append(SentTo(known, row.id, mine.get(row.id) == known))
                continue
            delivery_id = mine.setdefault(row.id, new_task_id())
            options = options_in(row.options)
            tasks.append(
                task_of(delivery_id, delivery_id, row.id, options, order_key=order_key, delay_s=webhook.delay_s)
            )
            rows.append(
                {
                    "id": delivery_id,
                    "webhook_id": webhook.id,
                    "endpoint_id": row.id,
                    "task_id": delivery_id,
                    "state": DeliveryState.PENDING.value,
                    "cause": Cause.SCHEDULED.value,
                    "attempts": 0,
                }
            )
            sent.append(SentTo(delivery_id, row.id, True))
        if rows:
            tx.execute(insert(d).values(created_at=self.database.now()), rows)
            tasks = [task for task in self._insert(tx, tasks, hints) if task.delay_s < NEVER_S]
        return sent, tasks

    def _write_webhook(self, tx: Connection, webhook: NewWebhook) -> str | None:
        """Answers its order key: that of the one which was sent first."""
        w = self.database.tables.webhook
        there = tx.execute(select(w.c.type, w.c.data_hash, w.c.order_key).where(w.c.id == webhook.id)).first()
        if there is None:
            tx.execute(
                insert(w).values(
                    id=webhook.id,
                    type=webhook.type,
                    topic=webhook.topic,
                    body=webhook.body,
                    data_hash=webhook.data_hash,
                    order_key=webhook.order_key,
                    created_at=self.database.now(),
                )
            )
            return webhook.order_key
        if (there.type, there.data_hash) != (webhook.type, webhook.data_hash):
            raise KeyConflict(
                f"event_id {webhook.id!r} was sent before, as {there.type} with other data; "
                "another event needs another id"
            )
        found: str | None = there.order_key
        return found

    def _receivers(self, tx: Connection, webhook: NewWebhook) -> Sequence[Any]:
        e = self.database.tables.endpoint
        query = select(e.c.id, e.c.types, e.c.options).order_by(e.c.id)
        if webhook.endpoint_id is not None:
            found = tx.execute(query.where(e.c.id == bindparam("b_id")), {"b_id": webhook.endpoint_id}).all()
            if not found:
                raise NotFound(f"no endpoint {webhook.endpoint_id!r}; see: workq webhook endpoint ls")
            return found
        rows = tx.execute(query.where(e.c.topic == bindparam("b_topic")), {"b_topic": webhook.topic}).all()
        return [row for row in rows if wants(types_in(row.types), webhook.type)]
