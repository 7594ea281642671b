"""Deliveries: what each needs to be sent, where it stands, and its attempts. Questions alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, and_, func, select

from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.ledger.engine.instants import instant, unread
from workq.values import codec
from workq.webhooks.ledger.known_endpoints import options_in, rests_until
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.values import AttemptRow, Cause, DeliveryRow, DeliveryState, Parcel, WhichDeliveries


class Deliveries:
    """Deliveries of webhooks, one webhook on its way to one endpoint each."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def parcels(self, delivery_ids: Sequence[str]) -> dict[str, Parcel]:
        """What is needed to send these now, by their ids; one that is gone is missing in the answer."""
        given, query = {"b_ids": in_order(delivery_ids)}, self.database.kept("parcels", self._parcels_statement)
        rows = self.database.ask(lambda tx: query.rows(tx, given))
        return {
            delivery_id: Parcel(
                delivery_id,
                task_id,
                webhook_id,
                endpoint_id,
                cause,
                attempts,
                body,
                url,
                sealed,
                options_in(options),
                state,
                (instant(now) - instant(sent_at)).total_seconds(),
                last_class,
            )
            for (
                delivery_id,
                task_id,
                webhook_id,
                endpoint_id,
                cause,
                attempts,
                body,
                url,
                sealed,
                options,
                state,
                now,
                sent_at,
                last_class,
            ) in rows
        }

    def _parcels_statement(self) -> Select[Any]:
        tables, dialect = webhook_tables(self.database), self.database.dialect
        d, w, e = tables.delivery, tables.webhook, tables.endpoint
        return (
            select(
                as_text(d.c.id, dialect),
                as_text(d.c.task_id, dialect),
                d.c.webhook_id,
                d.c.endpoint_id,
                d.c.cause,
                d.c.attempts,
                w.c.body,
                e.c.url,
                e.c.sealed,
                e.c.options,
                e.c.state,
                unread(self.database.now()),
                unread(w.c.created_at),
                d.c.error_class,
            )
            .join(w, w.c.id == d.c.webhook_id)
            .join(e, e.c.id == d.c.endpoint_id)
            .where(among(d.c.id, dialect))
        )

    def delivery(self, delivery_id: str) -> DeliveryRow | None:
        """One delivery, or None."""
        if not codec.is_task_id(delivery_id):
            return None
        tables = webhook_tables(self.database)
        d, w = tables.delivery, tables.webhook
        columns = select(d, w.c.type, w.c.order_key, rests_until(self.database, d.c.endpoint_id))
        query = columns.outerjoin(w, w.c.id == d.c.webhook_id).where(d.c.id == delivery_id)
        row = self.database.ask(lambda tx: tx.execute(query).first())
        return None if row is None else _delivery_row(row)

    def all(self, which: WhichDeliveries, *, limit: int = 100, after: str | None = None) -> list[DeliveryRow]:
        """Deliveries by id from the newest, a page at a time: `after` is the last id of the page before."""
        tables = webhook_tables(self.database)
        d, w = tables.delivery, tables.webhook
        query = select(d, w.c.type, w.c.order_key, rests_until(self.database, d.c.endpoint_id))
        query = query.outerjoin(w, w.c.id == d.c.webhook_id)
        query = query.where(*self.which_deliveries(which)).order_by(d.c.id.desc()).limit(limit)
        if after is not None:
            query = query.where(d.c.id < after)
        return [_delivery_row(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def which_deliveries(self, which: WhichDeliveries) -> list[Any]:
        """As conditions on deliveries and their webhooks."""
        tables = webhook_tables(self.database)
        d, w, now = tables.delivery, tables.webhook, self.database.now
        found: list[Any] = []
        for column, value in (
            (d.c.endpoint_id, which.endpoint_id),
            (d.c.webhook_id, which.webhook_id),
            (d.c.error_class, which.error_class),
            (d.c.status, which.status),
            (d.c.state, None if which.state is None else which.state.value),
        ):
            if value is not None:
                found.append(column == value)
        if which.type is not None:
            prefix = which.type[:-1] if which.type.endswith(".*") else None
            if prefix is not None:
                found.append(func.substr(w.c.type, 1, len(prefix)) == prefix)
            elif which.type != "*":
                found.append(w.c.type == which.type)
        if which.since_s is not None:
            found.append(d.c.created_at >= now(-which.since_s))
        if which.until_s is not None:
            found.append(d.c.created_at < now(-which.until_s))
        return [and_(*found)] if found else []

    def delivery_counts(self, which: WhichDeliveries) -> dict[DeliveryState, int]:
        """How many there are, in each state in which there are any."""
        tables = webhook_tables(self.database)
        d, w = tables.delivery, tables.webhook
        query = (
            select(d.c.state, func.count().label("n"))
            .outerjoin(w, w.c.id == d.c.webhook_id)
            .where(*self.which_deliveries(which))
            .group_by(d.c.state)
        )
        return {DeliveryState(row.state): row.n for row in self.database.ask(lambda tx: tx.execute(query).all())}

    def attempts(self, delivery_id: str, *, limit: int = 200) -> list[AttemptRow]:
        """The newest attempts of a delivery, the oldest first."""
        a = webhook_tables(self.database).delivery_attempt
        query = select(a).where(a.c.delivery_id == delivery_id).order_by(a.c.at.desc(), a.c.attempt.desc()).limit(limit)
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return [
            AttemptRow(
                number=row.number,
                cause=Cause(row.cause),
                url=row.url,
                status=row.status,
                error_class=row.error_class,
                error=row.error,
                duration_ms=row.duration_ms,
                answer=row.answer or "",
                is_cut=bool(row.is_cut),
                at=row.at,
                next_at=row.next_at,
            )
            for row in reversed(rows)
        ]

    def webhook_body(self, webhook_id: str) -> str | None:
        """What is sent, or None: it is kept no longer, or never was."""
        w = webhook_tables(self.database).webhook
        return self.database.ask(lambda tx: tx.execute(select(w.c.body).where(w.c.id == webhook_id)).scalar())


def _delivery_row(row: Row[Any]) -> DeliveryRow:
    times = [row.next_at, row.rests_until if row.state == DeliveryState.PENDING else None]
    return DeliveryRow(
        id=row.id,
        webhook_id=row.webhook_id,
        type=row.type or "",
        endpoint_id=row.endpoint_id,
        task_id=row.task_id,
        state=DeliveryState(row.state),
        cause=Cause(row.cause),
        attempts=row.attempts,
        status=row.status,
        error_class=row.error_class,
        created_at=row.created_at,
        attempted_at=row.attempted_at,
        next_at=max((one for one in times if one is not None), default=None),
        ended_at=row.ended_at,
        order_key=row.order_key,
    )
