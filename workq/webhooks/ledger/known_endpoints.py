"""Endpoints: where webhooks go, as people keep them. Added, changed, looked at, removed.

Each change leaves an event in the history, in its transaction: what a person has decided, who and why.

What is sealed in a row is written and read by outbound/vault.py alone. A change holds from the next attempt on, also
for what was sent before it: the URL, the secrets and the schedule are read for each attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, Text, delete, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from workq.errors import NotFound, Refused
from workq.ledger.answers import BEHIND_S
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.ledger.history import History, who_and_why
from workq.limits.ledger import closing
from workq.limits.ledger.tables import limit_tables
from workq.values import codec
from workq.values.plural import counted
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.values import (
    DELIVERY_OPEN,
    EndpointChange,
    EndpointOptions,
    EndpointRow,
    EndpointState,
    NewEndpoint,
    limit_key,
)

AT_ONCE: Final = 500
"""Deliveries that are dealt with in one transaction."""
_decoder: Final = msgspec.json.Decoder(EndpointOptions)
_types: Final = msgspec.json.Decoder(tuple[str, ...])


class KnownEndpoints:
    """The receivers of webhooks."""

    def __init__(self, database: Database, *, history: History) -> None:
        self.database = database
        self._history = history

    def add_endpoint(self, new: NewEndpoint, *, who: str, why: str) -> EndpointRow:
        """Record an endpoint. Repeatable with the same values.

        Raises:
            Refused: there is another one of that name.
        """
        e, now = webhook_tables(self.database).endpoint, self.database.now

        def write(tx: Connection) -> None:
            tx.execute(
                insert(e).values(
                    id=new.id,
                    topic=new.topic,
                    url=new.url,
                    types=encoded_types(new.types),
                    sealed=new.sealed,
                    options=encoded_options(new.options),
                    state=EndpointState.ENABLED.value,
                    state_at=now(),
                    failures=0,
                    warned=0,
                    created_at=now(),
                    changed_at=now(),
                )
            )
            self._history.decided(tx, f"endpoint {new.id} added", who=who, why=why)

        try:
            self.database.run(write)
        except IntegrityError:
            there = self.endpoint(new.id)
            if there is None or (there.url, there.sealed) != (new.url, new.sealed):  # ours, from a lost commit?
                raise Refused(
                    f"endpoint {new.id!r} is there already; change it: workq webhook endpoint edit {new.id}"
                ) from None
        found = self.endpoint(new.id)
        if found is None:
            raise NotFound(f"endpoint {new.id!r} was removed in this moment")
        return found

    def endpoint(self, endpoint_id: str) -> EndpointRow | None:
        """One endpoint, or None."""
        e = webhook_tables(self.database).endpoint
        query = select(e, rests_until(self.database, e.c.id)).where(e.c.id == endpoint_id)
        row = self.database.ask(lambda tx: tx.execute(query).first())
        return None if row is None else endpoint_of(row)

    def topics(self, *, limit: int = 1000) -> list[str]:
        """The topics that endpoints have, by name, at most so many."""
        topic = webhook_tables(self.database).endpoint.c.topic
        query = select(topic).distinct().order_by(topic).limit(limit)
        return self.database.ask(lambda tx: list(tx.execute(query).scalars()))

    def all(
        self,
        *,
        topic: str | None = None,
        state: EndpointState | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[EndpointRow]:
        """Endpoints by their names, a page at a time: `after` is the last name of the page before."""
        e = webhook_tables(self.database).endpoint
        query = select(e, rests_until(self.database, e.c.id)).order_by(e.c.id).limit(limit)
        if topic is not None:
            query = query.where(e.c.topic == topic)
        if state is not None:
            query = query.where(e.c.state == state.value)
        if after is not None:
            query = query.where(e.c.id > after)
        return [endpoint_of(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def change_endpoint(
        self,
        endpoint_id: str,
        change: EndpointChange,
        *,
        what: str,
        who: str,
        why: str,
        sealed_before: str | None = None,
    ) -> None:
        """Change what the change names; nothing where it is so already. Repeatable.

        `what`: `edited`, `rotated` or `sealed`, for the history.
        `sealed_before`: what is sealed is replaced only while it is still this: two who rotate at once lose no secret.

        Raises:
            NotFound: there is no such endpoint. Refused: what is sealed is another by now.
        """
        e, t = webhook_tables(self.database).endpoint, self.database.tables.task
        values: dict[str, Any] = {}
        if change.topic is not None:
            values["topic"] = change.topic
        if change.url is not None:
            values["url"] = change.url
        if change.types is not None:
            values["types"] = encoded_types(change.types)
        if change.sealed is not None:
            values["sealed"] = change.sealed
        if change.options is not None:
            values["options"] = encoded_options(change.options)

        def write(tx: Connection) -> None:
            row = tx.execute(select(e).where(e.c.id == endpoint_id).with_for_update()).first()
            if row is None:
                raise NotFound(f"no endpoint {endpoint_id!r}; see: workq webhook endpoint ls")
            if sealed_before is not None and row.sealed not in (sealed_before, change.sealed):
                raise Refused(f"endpoint {endpoint_id!r} was changed by somebody else in this moment; try again")
            if all(getattr(row, name) == value for name, value in values.items()):
                return  # also of a commit that we could not see
            tx.execute(update(e).where(e.c.id == endpoint_id).values(**values, changed_at=self.database.now()))
            self._history.decided(tx, f"endpoint {endpoint_id} {what}", who=who, why=why)
            if change.options is not None:
                before = _decoder.decode(row.options)
                if (before.concurrency, before.rate) != (change.options.concurrency, change.options.rate):
                    # what was sent before keeps the limit, and its new measure
                    open_of = update(t).where(guarded(t.c.state, *CLAIMABLE), t.c.limit_key == limit_key(endpoint_id))
                    tx.execute(open_of.values(limit_most=change.options.concurrency, limit_rate=change.options.rate))

        self.database.run(write)

    def remove_endpoint(self, endpoint_id: str, *, who: str, why: str) -> None:
        """Forget an endpoint, of which nothing is open any more, with its deliveries.

        Raises:
            NotFound: there is no such endpoint. Refused: something is on its way to it.
        """
        who_and_why(who, why)  # refused before the first page goes
        tables = webhook_tables(self.database)
        e, d, a = tables.endpoint, tables.delivery, tables.delivery_attempt
        opened = select(func.count()).where(
            d.c.endpoint_id == endpoint_id, d.c.state.in_([one.value for one in DELIVERY_OPEN])
        )
        mine = select(d.c.id).where(d.c.endpoint_id == endpoint_id).order_by(d.c.id).limit(AT_ONCE)

        def look(tx: Connection) -> None:
            if tx.execute(select(e.c.id).where(e.c.id == endpoint_id).with_for_update()).first() is None:
                raise NotFound(f"no endpoint {endpoint_id!r}; see: workq webhook endpoint ls")
            count = tx.execute(opened).scalar_one()
            if count:
                raise Refused(
                    f"{counted(count, 'delivery', 'deliveries')} to {endpoint_id!r} "
                    f"{'is' if count == 1 else 'are'} open; discard {'it' if count == 1 else 'them'}: "
                    f"workq webhook endpoint discard {endpoint_id}"
                )

        def forget(tx: Connection) -> bool:
            look(tx)
            page = list(tx.execute(mine).scalars())
            if page:
                tx.execute(delete(a).where(a.c.delivery_id.in_(page)))
                tx.execute(delete(d).where(d.c.id.in_(page)))
                return True
            tx.execute(delete(e).where(e.c.id == endpoint_id))
            # another of this name begins anew
            closing.reopen(tx, self.database, [limit_key(endpoint_id)], at_once=True)
            self._history.decided(tx, f"endpoint {endpoint_id} removed", who=who, why=why)
            return False

        while self.database.run(forget):
            pass


def endpoint_of(row: Row[Any]) -> EndpointRow:
    """A row as a value."""
    return EndpointRow(
        id=row.id,
        topic=row.topic,
        url=row.url,
        types=_types.decode(row.types),
        sealed=row.sealed,
        options=options_in(row.options),
        state=EndpointState(row.state),
        state_at=row.state_at,
        who=row.who,
        why=row.why,
        failing_since=row.failing_since,
        failures=row.failures,
        created_at=row.created_at,
        changed_at=row.changed_at,
        rests_until=row.rests_until,
    )


def rests_until(database: Database, endpoint_id: ColumnElement[Any]) -> ColumnElement[Any]:
    """Until when nothing is sent to the endpoint that a column names; None where it does not rest, or is disabled."""
    h = limit_tables(database).throttle
    key = literal(limit_key(""), Text()) + endpoint_id
    end = select(h.c.closed_until).where(
        h.c.id == key, h.c.closed_until > database.now(), h.c.closed_until < database.now(BEHIND_S)
    )
    return end.scalar_subquery().label("rests_until")


@lru_cache(1_000)
def options_in(text: str) -> EndpointOptions:
    """What `encoded_options` has written; what a newer version has added is not known here."""
    return _decoder.decode(text)


def types_in(text: str) -> tuple[str, ...]:
    """What `encoded_types` has written."""
    return _types.decode(text)


def encoded_options(options: EndpointOptions) -> str:
    """As it is stored."""
    return msgspec.json.encode(options).decode()


def encoded_types(types: Sequence[str]) -> str:
    """As it is stored."""
    return codec.encode(list(types), path="types")
