"""Limiting: what comes free of a limit goes to the first that is parked (see permits.py).

Who gives it: whoever has settled a task of the limit, or claimed one that has a rate; and the sweep, for whoever died
in between. Each under the lock of the limit's row, so that ten at once do what one does. A worker that has room claims
those whose turn has come in the same transaction: no hint has to go round for them.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Select, and_, func, select, union
from sqlalchemy.sql.elements import ColumnElement

from workq.errors import Unavailable
from workq.ledger import Unpublished
from workq.ledger.claims import claims_of, limited
from workq.ledger.engine.id_lists import among
from workq.limits.ledger import parked, permits
from workq.limits.ledger.tables import limit_tables
from workq.values.task import Claim, State

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger

log = logging.getLogger("workq.ledger")

IN_USE_S = 60.0
"""A permit that is in use for longer is looked at: its worker may have died."""


class LimitRow(msgspec.Struct, frozen=True):
    """One limit that is in use: how many of its tasks run, how many are hinted and may start, and how many wait.

    `closed_until`: nothing of it starts before, and one at a time afterwards; None: it is open.
    """

    key: str
    running: int
    coming: int
    parked: int
    closed_until: datetime | None = None


class _OnlyLooked(Exception):
    """Rolls back what a dry run has decided."""

    def __init__(self, hints: list[Unpublished]) -> None:
        super().__init__()
        self.hints = hints


class Limits:
    """Admits tasks that have waited for a limit, in one ledger: `ledger.part(Limits)`."""

    def __init__(self, ledger: Ledger) -> None:
        self.database = ledger.database
        self._claims = ledger.claims
        self._reserved_s = ledger.reserved_s

    def admit(self, keys: Iterable[str], *, dry_run: bool = False) -> list[Unpublished]:
        """Give what has come free of these limits to the first that are parked; answers whose turn has come.

        Those are ready, or waiting for their slot, and need a hint. Repeatable.
        """
        return [hint for key in self._look_at(keys) for hint in self._admit(key, dry_run=dry_run)]

    def admit_and_claim(
        self, keys: Iterable[str], *, by: str, room: int, queues: Container[str]
    ) -> tuple[list[Claim], list[Unpublished]]:
        """As `admit`, and those whose turn is now are claimed for `by`, of these queues as many as there is room for.

        Answers the claims, and those that need a hint. Subtasks of jobs are never claimed here.

        Raises:
            As `claim` does.
        """
        claims: list[Claim] = []
        hints: list[Unpublished] = []
        for key in self._look_at(keys):
            try:
                while True:
                    granted, turns = self._admit_and_claim(key, by=by, room=room - len(claims), queues=queues)
                    if not turns.is_cut:
                        break
            except Unavailable as error:
                if not (claims or hints):
                    raise
                log.warning("settle.admit: %s", error)
                break  # what was claimed has to be told; a sweep does the rest
            claims += granted
            hints += turns.hints
        return claims, hints

    def _look_at(self, keys: Iterable[str]) -> list[str]:
        wanted = sorted(set(keys))
        if len(wanted) == 1 and self.database.dialect != "sqlite":  # a look at one costs a server as much as a try
            return wanted
        return self._worth(wanted)

    def _worth(self, keys: Sequence[str]) -> list[str]:
        """Of these limits, those for which somebody waits, or that nobody has used for long.

        Under the locks of all of them: who is about to park the first has done so, or finds what has come free. (Who is
        about to park behind others may be missed, when all those go by meanwhile: a sweep finds it.) On SQLite nobody
        is about to: whoever writes after what has come free sees it.
        """

        def look(tx: Connection) -> list[str]:
            given = {"b_ids": list(keys)}
            found = self.database.kept("lock limits", self._locks_statement).rows(tx, given)
            waiting = self.database.kept("limits with parked", self._parked_statement).rows(tx, given)
            waited_for = {key for (key,) in waiting}
            return [key for key, is_idle in found if is_idle or key in waited_for]

        if not keys:
            return []
        return self.database.ask(look) if self.database.dialect == "sqlite" else self.database.run(look)

    def _locks_statement(self) -> Select[Any]:
        h, now = limit_tables(self.database).throttle, self.database.now
        return (
            select(h.c.id, (h.c.changed_at < now(-permits.IDLE_S)).label("is_idle"))
            .where(among(h.c.id, self.database.dialect, item="TEXT"))
            .order_by(h.c.id)
            .with_for_update()
        )

    def _parked_statement(self) -> Select[Any]:
        h = limit_tables(self.database).throttle
        these = among(h.c.id, self.database.dialect, item="TEXT")
        return select(h.c.id).where(these, parked.is_waited_for(self.database))

    def _admit(self, key: str, *, dry_run: bool) -> list[Unpublished]:
        def give(tx: Connection) -> permits.NextPermits:
            turns = permits.admit(tx, self.database, key, reserved_s=self._reserved_s)
            if dry_run:
                raise _OnlyLooked(turns.hints)
            return turns

        try:
            while (turns := self.database.run(give)).is_cut:
                continue
        except _OnlyLooked as looked:
            return looked.hints
        return turns.hints

    def _admit_and_claim(
        self, key: str, *, by: str, room: int, queues: Container[str]
    ) -> tuple[list[Claim], permits.NextPermits]:
        call = self._claims.claim_call(by)
        turns = permits.NextPermits()

        def take(tx: Connection) -> Sequence[Any]:
            nonlocal turns
            self._claims.begin_claim(tx, call)
            if call.tried and (stands := self._claims.standing_claims(tx, call)):
                return stands  # all of it does; a sweep sends the hints
            turns = permits.admit(tx, self.database, key, reserved_s=self._reserved_s, room=room, queues=queues)
            if not turns.takes:
                return ()
            call.tried.update(turns.left_s)
            call.left_s = turns.left_s
            rows = self._claims.take_permitted(tx, call, [*turns.left_s], is_parked=True)
            granted = {row[0] for row in rows}
            if missed := [one for one in turns.takes if one.task_id not in granted]:
                parked.come(tx, self.database, [one.task_id for one in missed], reserved_until=turns.reserved_until)
                turns.hints += [replace(one, reserved_until=turns.reserved_until) for one in missed]
            return rows

        claims = limited(claims_of(self._claims.run_claim(take, call), call.token), call.left_s)
        return claims, turns

    def limits_to_look_at(self, *, limit: int) -> list[str]:
        """The limits whose permits may have come free without anybody's noticing; longest ago looked at first."""
        tables, now = limit_tables(self.database), self.database.now
        h, p, k = tables.throttle, tables.permit, tables.parked
        wanted = union(
            select(k.c.limit_key),
            select(p.c.limit_key).where(p.c.at < now(-IN_USE_S)),
            select(h.c.id).where(h.c.changed_at < now(-permits.IDLE_S)),
        )
        query = select(h.c.id).where(h.c.id.in_(wanted)).order_by(h.c.changed_at, h.c.id).limit(limit)
        return self.database.ask(lambda tx: list(tx.execute(query).scalars()))

    def all(self, *, key: str | None = None, limit: int = 100) -> list[LimitRow]:
        """The limits that are in use, by name; or one."""
        tables, t = limit_tables(self.database), self.database.tables.task
        h, p, k = tables.throttle, tables.permit, tables.parked

        def count(what: ColumnElement[Any], *where: ColumnElement[bool]) -> ColumnElement[Any]:
            return select(func.count(what)).where(*where).correlate(h).scalar_subquery()

        is_running = and_(t.c.state == State.RUNNING, t.c.attempt == p.c.attempt)
        query = (
            select(
                h.c.id,
                h.c.closed_until,
                count(p.c.task_id, p.c.limit_key == h.c.id, t.c.id == p.c.task_id, is_running).label("running"),
                count(p.c.task_id, p.c.limit_key == h.c.id, p.c.attempt.is_(None)).label("coming"),
                count(k.c.task_id, k.c.limit_key == h.c.id).label("parked"),
            )
            .order_by(h.c.id)
            .limit(limit)
        )
        if key is not None:
            query = query.where(h.c.id == key)
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return [LimitRow(row.id, row.running, row.coming, row.parked, row.closed_until) for row in rows]
