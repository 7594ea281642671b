"""Destinations: where messages go, as people keep them; and how they fare, as the workers have found.

A destination that fails rests: nothing is sent to it for a while, twice as long each time, until something is
confirmed. Of many who meet the failure at once, the first decides: while a rest lasts, no other begins.

What is sealed in a row is written and read by outbound/vault.py alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import eq
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import Connection, Row, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from workq.errors import NotFound, Refused
from workq.ledger.engine.database import Database
from workq.ledger.history import History
from workq.messages.ledger.tables import message_tables
from workq.messages.rests import rest_s
from workq.messages.values import (
    DestinationPolicy,
    DestinationRow,
    DestinationState,
    NewDestination,
)
from workq.values import codec

WELL: Final[dict[str, Any]] = dict.fromkeys(
    ("failing_since", "fault", "error", "rests_until", "probe", "probe_until"), None
) | {"failures": 0}
"""What a destination gets that does not fail any more."""
_ERROR_MAX: Final = 500
_policies: Final = msgspec.json.Decoder(DestinationPolicy)
_documents: Final = msgspec.json.Decoder(dict[str, Any])

IsSame: TypeAlias = Callable[[str | None, str | None], bool]


class KnownDestinations:
    """The destinations of messages."""

    def __init__(self, database: Database, *, history: History) -> None:
        self.database = database
        self._history = history

    def add_destination(self, new: NewDestination, *, who: str, why: str, is_same: IsSame = eq) -> DestinationRow:
        """Record a destination. Repeatable with the same values. `is_same`: whether two are sealed of the same.

        Raises:
            Refused: there is another one of that name.
        """
        d, now = message_tables(self.database).destination, self.database.now
        values = {
            "name": new.name,
            "kind": new.kind,
            "options": codec.encode(new.options, path="options"),
            "sealed": new.sealed,
            "policy": encoded_policy(new.policy),
            "state": DestinationState.ENABLED.value,
            "state_at": now(),
            "failures": 0,
            "created_at": now(),
            "changed_at": now(),
        }

        def write(tx: Connection) -> None:
            tx.execute(insert(d).values(values))
            self._history.decided(tx, f"destination {new.name} added", who=who, why=why)

        try:
            self.database.run(write)
        except IntegrityError:
            there = self.destination(new.name)
            mine = new.kind, new.options, new.policy
            is_there = there is not None and (there.kind, there.options, there.policy) == mine
            if there is None or not is_there or not is_same(there.sealed, new.sealed):
                raise Refused(
                    f"destination {new.name!r} is there already; see: workq message destination show {new.name}"
                ) from None
        return self.required(new.name)

    def destination(self, name: str) -> DestinationRow | None:
        """One destination, or None."""
        d = message_tables(self.database).destination
        row = self.database.ask(lambda tx: tx.execute(select(d).where(d.c.name == name)).first())
        return None if row is None else self._row(row)

    def required(self, name: str) -> DestinationRow:
        """One destination that has to be there.

        Raises:
            NotFound: it is not.
        """
        found = self.destination(name)
        if found is None:
            raise unknown_destination(name)
        return found

    def all(self, *, limit: int = 100, after: str | None = None) -> list[DestinationRow]:
        """Destinations by their names, a page at a time: `after` is the last name of the page before."""
        d = message_tables(self.database).destination
        query = select(d).order_by(d.c.name).limit(limit)
        if after is not None:
            query = query.where(d.c.name > after)
        return [self._row(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def in_trouble(self, *, limit: int = 100) -> list[DestinationRow]:
        """Those that are disabled or failing, by their names."""
        d = message_tables(self.database).destination
        is_out = or_(d.c.state == DestinationState.DISABLED.value, d.c.failures > 0)
        query = select(d).where(is_out).order_by(d.c.name).limit(limit)
        return [self._row(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def reseal(self, name: str, *, before: str | None, sealed: str | None) -> None:
        """Write what is sealed anew, if it is still what it was before.

        Raises:
            Refused: somebody else has changed it in this moment.
        """
        d = message_tables(self.database).destination
        mine = update(d).where(d.c.name == name, d.c.sealed == before).values(sealed=sealed)
        if sealed != before and not self.database.written(mine):
            raise Refused(f"destination {name!r} was changed by somebody else in this moment; try again")

    def failed(self, name: str, *, fault: str, error: str, asked_s: float | None = None) -> float:
        """Something was not taken that is the destination's fault: it rests. Answers for how many seconds from now.

        While it rests already, that rest stands: many meet the same failure at once.
        """
        d, now = message_tables(self.database).destination, self.database.now

        def rest(tx: Connection) -> float:
            look = select(d.c.failures, d.c.rests_until, now().label("now")).where(d.c.name == name)
            row = tx.execute(look.with_for_update()).first()
            if row is None:  # it was removed meanwhile
                return rest_s(1)
            left_s = 0.0 if row.rests_until is None else (row.rests_until - row.now).total_seconds()
            if left_s > 0.0:
                return float(left_s)
            for_s = rest_s(row.failures + 1, asked_s=asked_s)
            values = {
                "failures": row.failures + 1,
                "failing_since": func.coalesce(d.c.failing_since, now()),
                "fault": fault,
                "error": codec.storable(error, characters_max=_ERROR_MAX),
                "rests_until": now(for_s),
                "probe": None,
                "probe_until": None,
            }
            tx.execute(update(d).where(d.c.name == name).values(values))
            return for_s

        return self.database.run(rest)

    def arrived(self, name: str) -> bool:
        """Something was confirmed: it does not fail any more. Repeatable; answers whether it had been failing."""
        d = message_tables(self.database).destination
        mine = update(d).where(d.c.name == name, d.c.failures > 0)
        return self.database.written(mine.values(WELL)) > 0

    def _row(self, row: Row[Any]) -> DestinationRow:
        return DestinationRow(
            name=row.name,
            kind=row.kind,
            options=document_in(row.options),
            sealed=row.sealed,
            policy=policy_in(row.policy),
            state=DestinationState(row.state),
            state_at=row.state_at,
            who=row.who,
            why=row.why,
            failures=row.failures,
            failing_since=row.failing_since,
            fault=row.fault,
            error=row.error,
            rests_until=row.rests_until,
            created_at=row.created_at,
            changed_at=row.changed_at,
        )


def unknown_destination(name: str) -> NotFound:
    """No destination has this name."""
    return NotFound(f"no destination {name[:100]!r}; see: workq message destination ls")


@lru_cache(1_000)
def policy_in(text: str) -> DestinationPolicy:
    """What `encoded_policy` has written; what a newer version has added is not known here."""
    return _policies.decode(text)


def encoded_policy(policy: DestinationPolicy) -> str:
    """As it is stored."""
    return msgspec.json.encode(policy).decode()


@lru_cache(1_000)
def document_in(text: str) -> dict[str, Any]:
    """An object that is stored as JSON. Not to be changed."""
    return _documents.decode(text)
