"""Sending: a webhook, its deliveries and their tasks are recorded in one transaction, ours or the caller's.

Who gets it is decided there: all endpoints of a topic that want its type, or the one that is named. A delivery is
unique by its webhook and its endpoint, so whoever sends the same once more gets the one that stands. Repeatable after a
commit that was lost: the ids of the deliveries are made before it.

Where an endpoint keeps an order, its deliveries stand in line as tasks of one order key do (see
order/ledger/positions.py): in the order of the commits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, Insert, Select, Update, bindparam, insert, literal_column, select, update
from sqlalchemy.exc import IntegrityError

from workq.errors import KeyConflict, NotFound
from workq.ledger import HintRows, Unpublished
from workq.ledger.callers_transaction import reads_the_past, record_within
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import as_text
from workq.ledger.engine.kept_rows import NewRow
from workq.ledger.tasks import Tasks
from workq.values.codec import new_task_id
from workq.values.task import NewTask
from workq.webhooks.ledger.known_endpoints import options_in, types_in
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.values import Cause, DeliveryState, NewWebhook, SentTo, task_of, wants


class SentWebhooks:
    """Records webhooks, with a delivery for each receiver."""

    def __init__(self, database: Database, *, tasks: Tasks) -> None:
        self.database = database
        self._tasks = tasks

    def send(
        self, webhook: NewWebhook, *, connection: Any = None, hints: HintRows | None = None
    ) -> tuple[list[SentTo], list[Unpublished]]:
        """Record a webhook for everybody who wants it, in one transaction, ours or the caller's.

        Answers its deliveries, also those that stand since it was sent before, and the hints that are to be sent.

        Raises:
            NotFound: there is no such endpoint. KeyConflict: another webhook has that id.
        """
        mine: dict[str, str] = {}
        """The ids of deliveries that we make, by endpoint."""

        def write(tx: Connection, is_again: bool = False) -> tuple[list[SentTo], list[NewTask]]:
            is_newest = is_again and reads_the_past(self.database)
            return self._send(tx, webhook, mine, hints, is_newest=is_newest)

        if connection is None:
            try:
                sent, tasks = self.database.run(write)
            except IntegrityError:  # another has just sent the same: it is there now
                sent, tasks = self.database.run(write)
        else:
            sent, tasks = record_within(connection, self.database, write, what=f"event_id {webhook.id!r}")
        return sent, [] if hints is not None else [Unpublished(task.id, task.queue, 0, task.delay_s) for task in tasks]

    def _send(
        self, tx: Connection, webhook: NewWebhook, mine: dict[str, str], hints: HintRows | None, *, is_newest: bool
    ) -> tuple[list[SentTo], list[NewTask]]:
        """The deliveries, and the tasks whose turn it is.

        `is_newest`: look for what was sent before as it is by now, in a transaction that reads the past.
        """
        order_key, standing, has_body = self._write_webhook(tx, webhook, is_newest=is_newest)
        sent: list[SentTo] = []
        tasks: list[NewTask] = []
        rows: list[dict[str, Any]] = []
        for endpoint_id, given_options in self._receivers(tx, webhook):
            known = standing.get(endpoint_id)
            if known is not None:
                sent.append(SentTo(known, endpoint_id, mine.get(endpoint_id) == known))
                continue
            delivery_id = mine.setdefault(endpoint_id, new_task_id())
            options = options_in(given_options)
            tasks.append(
                task_of(delivery_id, delivery_id, endpoint_id, options, order_key=order_key, delay_s=webhook.delay_s)
            )
            rows.append({"b_id": delivery_id, "b_webhook": webhook.id, "b_endpoint": endpoint_id})
            sent.append(SentTo(delivery_id, endpoint_id, True))
        if rows:
            if not has_body:  # for those who have come since it was pruned
                again = self.database.kept("webhook again", self._again_statement)
                again.write(tx, {"b_id": webhook.id, "b_body": webhook.body})
            self.database.kept_rows("deliver", self._delivery_row).write(tx, rows)
            tasks = [task for task in self._tasks.insert(tx, tasks, hints) if task.waits_for is None]
        return sent, tasks

    def _write_webhook(
        self, tx: Connection, webhook: NewWebhook, *, is_newest: bool
    ) -> tuple[str | None, dict[str, str], bool]:
        """Answers its order key, that of the one which was sent first; its deliveries that stand, by endpoint; and
        whether its body is still kept."""
        given = {"b_id": webhook.id}
        newest = ", newest" * is_newest
        webhook_query = partial(self._webhook_query, is_newest=is_newest)
        there = self.database.kept(f"webhook{newest}", webhook_query).rows(tx, given)
        if not there:
            new = {
                "b_type": webhook.type,
                "b_topic": webhook.topic,
                "b_body": webhook.body,
                "b_data_hash": webhook.data_hash,
                "b_order_key": webhook.order_key,
            }
            self.database.kept("send", self._webhook_statement).write(tx, given | new)
            return webhook.order_key, {}, True
        [(kind, data_hash, order_key, has_body)] = there
        if (kind, data_hash) != (webhook.type, webhook.data_hash):
            raise KeyConflict(
                f"event_id {webhook.id!r} was sent before, as {kind} with other data; another event needs another id"
            )
        standing_query = partial(self._standing_query, is_newest=is_newest)
        standing = self.database.kept(f"deliveries of a webhook{newest}", standing_query).rows(tx, given)
        return order_key, dict(standing), bool(has_body)

    def _receivers(self, tx: Connection, webhook: NewWebhook) -> list[tuple[str, Any]]:
        """Who gets it: ids, and options as they stand in their rows."""
        if webhook.endpoint_id is not None:
            one = self.database.kept("endpoint to send to", partial(self._endpoints_query, "id"))
            found = one.rows(tx, {"b_key": webhook.endpoint_id})
            if not found:
                raise NotFound(f"no endpoint {webhook.endpoint_id!r}; see: workq webhook endpoint ls")
        else:
            topic = self.database.kept("endpoints to send to", partial(self._endpoints_query, "topic"))
            found = [row for row in topic.rows(tx, {"b_key": webhook.topic}) if wants(types_in(row[1]), webhook.type)]
        return [(endpoint_id, options) for endpoint_id, _, options in found]

    # -- statements

    def _webhook_query(self, *, is_newest: bool) -> Select[Any]:
        c = webhook_tables(self.database).webhook.c
        query = select(c.type, c.data_hash, c.order_key, c.body.is_not(None)).where(
            c.id == bindparam("b_id", type_=c.id.type)
        )
        return query.with_for_update(read=True) if is_newest else query

    def _webhook_statement(self) -> Insert:
        w = webhook_tables(self.database).webhook
        given = ("id", "type", "topic", "body", "data_hash", "order_key")
        values = {name: bindparam(f"b_{name}", type_=w.c[name].type) for name in given}
        return insert(w).values(**values, created_at=self.database.now())

    def _again_statement(self) -> Update:
        w = webhook_tables(self.database).webhook
        pruned = w.c.id == bindparam("b_id", type_=w.c.id.type), w.c.body.is_(None)
        values = {"body": bindparam("b_body", type_=w.c.body.type), "created_at": self.database.now()}
        return update(w).where(*pruned).values(values)

    def _standing_query(self, *, is_newest: bool) -> Select[Any]:
        c = webhook_tables(self.database).delivery.c
        of = c.webhook_id == bindparam("b_id", type_=c.webhook_id.type)
        query = select(c.endpoint_id, as_text(c.id, self.database.dialect)).where(of)
        return query.with_for_update(read=True) if is_newest else query

    def _endpoints_query(self, column: str) -> Select[Any]:
        c = webhook_tables(self.database).endpoint.c
        these = c[column] == bindparam("b_key", type_=c[column].type)
        return select(c.id, c.types, c.options).where(these).order_by(c.id)

    def _delivery_row(self) -> NewRow:
        c = webhook_tables(self.database).delivery.c
        delivery_id = bindparam("b_id", type_=c.id.type)
        return {
            c.id: delivery_id,
            c.task_id: delivery_id,
            c.webhook_id: bindparam("b_webhook", type_=c.webhook_id.type),
            c.endpoint_id: bindparam("b_endpoint", type_=c.endpoint_id.type),
            c.state: literal_column(f"'{DeliveryState.PENDING.value}'"),
            c.cause: literal_column(f"'{Cause.SCHEDULED.value}'"),
            c.attempts: literal_column("0"),
            c.created_at: self.database.now(),
        }
