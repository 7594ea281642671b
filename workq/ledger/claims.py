"""Claim: the right to one attempt, granted under a fresh token by a conditional update. How it ends: outcomes.py.

When a commit is lost, the statement is repeated, and finds its rows by the token that it tried with. If even that stays
unknown, the next claim of the same incarnation hands back what may have been granted to nobody. Should that incarnation
die first, it is reaped as usual.
A claim that races with the reaping of its own incarnation may still stand; its rows are orphans then, and returned.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace
from sqlalchemy import (
    Connection,
    Select,
    Update,
    bindparam,
    exists,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.elements import ColumnElement

from workq.errors import CommitUnknown, Unavailable
from workq.ledger import Hinted, Look, handed_back, waiting
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.ledger.engine.states import CLAIMABLE, SUSPECT, guarded, unexpired
from workq.ledger.hints import rehint
from workq.ledger.pauses import is_paused
from workq.ledger.start import StartGates
from workq.values import codec
from workq.values.task import Claim, State


@dataclass(slots=True)
class ClaimCall:
    """One call of a claim, with all its tries. `doubts`: (token, ids) of earlier ones, to hand back."""

    token: str
    by: str
    doubts: list[tuple[str, tuple[str, ...]]]
    is_single: bool = False
    """It sends one statement."""
    tries: int = 0
    tried: set[str] = field(default_factory=set)
    guarded: set[str] = field(default_factory=set)
    """Of those: claimable, with a limit or a job."""
    left_s: dict[str, float | None] = field(default_factory=dict)
    """Of those with a permit: within how many seconds each has to start."""


class Claims:
    """Grants claims, and tells where a task stands."""

    def __init__(self, database: Database, *, gates: StartGates) -> None:
        self.database = database
        self._gates = gates
        self._doubtful: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        """By incarnation: (token, ids) of claims whose commit stayed unknown, to hand back."""
        self._are_guarded = False
        """Of what was claimed last, some had limits or jobs: so will what comes next."""

    # -- claim

    def claim(self, task_ids: Sequence[str], *, by: str) -> list[Claim]:
        """Claim those tasks that are ready or waiting, due, not expired, and not paused: the only way to run one.

        One conditional update: running, attempt + 1, a new token. What is missing in the answer was settled, cancelled,
        expired, not due, paused, or somebody else's. An incarnation that is not live in the ledger gets nothing.
        """
        task_ids = [task_id for task_id in task_ids if codec.is_task_id(task_id)]
        if not task_ids:
            return []
        granted = self._claim_all(task_ids, by=by) if self._are_guarded else self._claim(task_ids, by=by)
        return [granted[task_id] for task_id in dict.fromkeys(task_ids) if task_id in granted]

    def _claim(self, task_ids: Sequence[str], *, by: str) -> dict[str, Claim]:
        """In one statement what has neither limit nor job, and then what has."""
        call = self.claim_call(by, is_single=True)

        def take(tx: Connection) -> Sequence[Any]:
            self.begin_claim(tx, call)
            call.tried.update(task_ids)
            # after an unknown commit the rows are ours already: the token tells
            return self._take(tx, call, task_ids, may_stand=call.tries > 1)

        rows = self.run_claim(take, call)
        granted = {claim.task_id: claim for claim in claims_of(rows, call.token)}
        if len(granted) < len(task_ids):
            try:
                granted |= self._claim_guarded([task_id for task_id in task_ids if task_id not in granted], by=by)
            except Unavailable:
                if not granted:
                    raise
                # what was granted has to be told; the others are looked at as all that are missed
        return granted

    def claim_hinted(self, hinted: Hinted, *, by: str) -> list[Claim]:
        """As `claim`, of tasks whose hints are rows of the ledger's own database: the hints go in the same transaction.

        When the commit was lost, the next try finds by its token whether it stands; if it does, the hints are gone too.
        """
        call = self.claim_call(by)

        def take(tx: Connection) -> Sequence[Any]:
            self.begin_claim(tx, call)
            if call.tried and (stands := self.standing_claims(tx, call)):
                return stands  # all of it does: the hints are gone, too
            chosen = hinted.choose(tx)
            task_ids = [task_id for task_id in chosen if codec.is_task_id(task_id)]
            call.tried.update(task_ids)
            rows = self._take_all(tx, call, task_ids) if task_ids else ()
            granted = {row[0] for row in rows}
            missed = [task_id for task_id in chosen if task_id not in granted]
            looks = self._looks(tx, missed) if missed else {}
            for sent_again, delay_s in hinted.conclude(tx, granted, looks):
                rehint(tx, self.database, sent_again, delay_s=delay_s)
            return rows

        return limited(claims_of(self.run_claim(take, call), call.token), call.left_s)

    def _claim_guarded(self, task_ids: Sequence[str], *, by: str) -> dict[str, Claim]:
        """What was refused because it has a limit or a job, and may start all the same; what may not waits."""
        given, theirs = {"b_ids": in_order(task_ids)}, self.database.kept("guarded", self._guarded_statement)
        found = self.database.ask(lambda tx: {task_id for (task_id,) in theirs.rows(tx, given)})
        self._are_guarded = bool(found)
        task_ids = [task_id for task_id in task_ids if task_id in found]
        return self._claim_all(task_ids, by=by) if task_ids else {}

    def _claim_all(self, task_ids: Sequence[str], *, by: str) -> dict[str, Claim]:
        """In one transaction, what has limits and jobs and what has not."""
        call = self.claim_call(by)

        def take(tx: Connection) -> Sequence[Any]:
            self.begin_claim(tx, call)
            if call.tried and (stands := self.standing_claims(tx, call)):
                return stands
            call.tried.update(task_ids)
            return self._take_all(tx, call, task_ids)

        rows = self.run_claim(take, call)
        return {claim.task_id: claim for claim in limited(claims_of(rows, call.token), call.left_s)}

    def _guarded_statement(self) -> Select[Any]:
        c = self.database.tables.task.c
        return select(as_text(c.id, self.database.dialect)).where(
            among(c.id, self.database.dialect), self._gates.concern(), guarded(c.state, *CLAIMABLE)
        )

    def _take_all(self, tx: Connection, call: ClaimCall, task_ids: Sequence[str]) -> Sequence[Any]:
        """Claim these; first what most of them are likely to be. The rows of those that are granted."""
        if self._are_guarded:
            rows = self._take_guarded(tx, call, task_ids)
            others = [task_id for task_id in task_ids if task_id not in call.guarded]
            more = self._take(tx, call, others) if others else ()
        else:
            rows = self._take(tx, call, task_ids)
            granted = {row[0] for row in rows}
            more = self._take_guarded(tx, call, [task_id for task_id in task_ids if task_id not in granted])
        self._are_guarded = bool(call.guarded)
        return [*rows, *more] if more else rows

    def _take_guarded(self, tx: Connection, call: ClaimCall, task_ids: Sequence[str]) -> Sequence[Any]:
        """Of these, claim what concerns a start gate, and is let pass by all of them; their rows."""
        asking = self._gates.look(tx, task_ids) if task_ids else []
        call.guarded = {one.id for one in asking}
        if not asking:
            return ()
        call.left_s = self._gates.ask(tx, asking)
        return self.take_permitted(tx, call, list(call.left_s)) if call.left_s else ()

    def take_permitted(
        self, tx: Connection, call: ClaimCall, task_ids: Sequence[str], *, is_parked: bool = False
    ) -> Sequence[Any]:
        """Claim these, whatever limits and jobs they have; the rows of those that are granted.

        `is_parked`: they were until now, and are due.
        """
        parameters = {"b_ids": in_order(task_ids), "b_by": call.by, "b_token": call.token}
        name, given = f"claim with a permit{', parked' * is_parked}", {"has_permit": True, "is_parked": is_parked}
        if self.database.dialect != "mysql":
            return self.database.kept(name, partial(self._claim_returning, **given)).rows(tx, parameters)
        self.database.kept(name, partial(self._claim_statement, **given)).write(tx, parameters)
        return self.database.kept("claimed", self._claimed).rows(tx, parameters)

    def claim_call(self, by: str, *, is_single: bool = False) -> ClaimCall:
        """One call, with what earlier ones of this incarnation have left in doubt."""
        return ClaimCall(secrets.token_hex(16), by, list(self._doubtful.get(by, ())), is_single=is_single)

    def begin_claim(self, tx: Connection, call: ClaimCall) -> None:
        """What every try begins with."""
        call.tries += 1
        for doubt in call.doubts:
            self._hand_back(tx, *doubt)

    def _take(
        self, tx: Connection, call: ClaimCall, task_ids: Sequence[str], *, may_stand: bool = False
    ) -> Sequence[Any]:
        """Claim these; the rows of those that are granted."""
        parameters = {"b_ids": in_order(task_ids), "b_by": call.by, "b_token": call.token}
        if self.database.dialect != "mysql" and not may_stand:
            return self.database.kept("claim", self._claim_returning).rows(tx, parameters)
        self.database.kept("claim again", self._claim_statement).write(tx, parameters)
        return self.database.kept("claimed", self._claimed).rows(tx, parameters)

    def standing_claims(self, tx: Connection, call: ClaimCall) -> Sequence[Any]:
        """What an earlier try of the same call has claimed after all, although its commit was lost."""
        self._await_lost(tx, call.tried)
        parameters = {"b_ids": in_order(call.tried), "b_token": call.token}
        return self.database.kept("claimed", self._claimed).rows(tx, parameters)

    def _await_lost(self, tx: Connection, task_ids: Iterable[str]) -> None:
        """A lost transaction may still be open in the server: its locks first, so that we see how it ended."""
        c = self.database.tables.task.c
        locks = select(c.id).where(among(c.id, self.database.dialect)).order_by(c.id).with_for_update()
        tx.execute(locks, {"b_ids": in_order(task_ids)}).all()

    def run_claim(self, take: Callable[[Connection], Sequence[Any]], call: ClaimCall) -> Sequence[Any]:
        """`take` in a transaction; what may be granted and nobody knows is remembered."""
        is_single = call.is_single and not call.doubts
        try:
            try:
                rows = self.database.run(take, is_single=is_single)
            except IntegrityError:  # two were parked with one number: it will be another
                rows = self.database.run(take, is_single=is_single)
        except CommitUnknown:
            if call.tried:
                self._doubtful.setdefault(call.by, []).append((call.token, tuple(call.tried)))
            raise
        self._are_clear(call.by, call.doubts)
        return rows

    def _claim_returning(self, **kinds: bool) -> ReturningUpdate[Any]:
        return self._claim_statement(**kinds).returning(*self._claim_columns())

    def _claim_statement(self, *, has_permit: bool = False, is_parked: bool = False) -> Update:
        t, w, now = self.database.tables.task, self.database.tables.worker, self.database.now
        statement = (
            update(t)
            .where(
                among(t.c.id, self.database.dialect),
                guarded(t.c.state, *CLAIMABLE),
                waiting.waits(t, self.database) if is_parked else t.c.due_at <= now(),
                unexpired(t.c.expires_at, now()),
                ~is_paused(t.c.queue, self.database),
                exists(select(w.c.id).where(w.c.id == bindparam("b_by"), w.c.state == "live")),
            )
            .values(
                state=State.RUNNING,
                attempt=t.c.attempt + 1,
                token=bindparam("b_token"),
                worker=bindparam("b_by"),
                started_at=now(),
                **({"due_at": now(), "waits_for": None} if is_parked else {}),
            )
        )
        if has_permit:
            return statement.where(self._gates.are_open())
        return statement.where(*self._gates.unconcerned())

    def _claim_columns(self) -> list[ColumnElement[Any]]:
        c = self.database.tables.task.c
        return [
            as_text(c.id, self.database.dialect),
            c.name,
            c.queue,
            c.payload,
            c.attempt,
            c.failures,
            c.crashes,
            c.failures_max,
            c.crashes_max,
            as_text(c.job_id, self.database.dialect),
            c.is_suspect,
            c.order_key,
            c.limit_key,
        ]

    def _claimed(self) -> Select[Any]:
        c = self.database.tables.task.c
        return select(*self._claim_columns()).where(
            among(c.id, self.database.dialect), c.token == bindparam("b_token"), guarded(c.state, State.RUNNING)
        )

    def _hand_back(self, tx: Connection, token: str, task_ids: Sequence[str]) -> int:
        t, now = self.database.tables.task, self.database.now
        self._await_lost(tx, task_ids)
        ours = [t.c.id.in_(task_ids), t.c.token == token, guarded(t.c.state, State.RUNNING)]
        asked = t.c.cancel_requested_at.is_not(None)
        attempts = [(task_id, attempt) for task_id, attempt in tx.execute(select(t.c.id, t.c.attempt).where(*ours))]
        if attempts:
            tx.execute(update(t).where(*ours).values(handed_back.values(t, now, asked)))
            handed_back.note(tx, self.database, attempts)
        return len(attempts)

    def return_doubtful(self, *, by: str) -> int:
        """Hand back what calls of this incarnation have claimed whose commit stayed unknown; answers how many.

        The next claim does so first; this is for whoever makes none. Repeatable.
        """
        doubts = list(self._doubtful.get(by, ()))
        if not doubts:
            return 0

        def change(tx: Connection) -> int:
            return sum(self._hand_back(tx, *doubt) for doubt in doubts)

        returned = self.database.run(change)
        self._are_clear(by, doubts)
        return returned

    def _are_clear(self, by: str, doubts: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        for doubt in doubts:
            with suppress(ValueError):  # another thread was faster
                self._doubtful[by].remove(doubt)

    # -- look

    def look(self, task_ids: Sequence[str]) -> dict[str, Look]:
        """Where these tasks stand; an id that the ledger does not know is missing in the answer."""
        if not task_ids:
            return {}
        return self.database.ask(lambda tx: self._looks(tx, task_ids))

    def _looks(self, tx: Connection, task_ids: Sequence[str]) -> dict[str, Look]:
        ids = [task_id for task_id in task_ids if codec.is_task_id(task_id)]
        rows = self.database.kept("look", self._look_statement).rows(tx, {"b_ids": in_order(ids)})
        return {
            task_id: Look(
                State(state),
                queue,
                (due_at - now).total_seconds(),
                is_expired=expires_at is not None and expires_at <= now,
                is_paused=bool(paused),
            )
            for task_id, state, queue, due_at, expires_at, paused, now in rows
        }

    def _look_statement(self) -> Select[Any]:
        c = self.database.tables.task.c
        return select(
            as_text(c.id, self.database.dialect),
            c.state,
            c.queue,
            c.due_at,
            c.expires_at,
            is_paused(c.queue, self.database),
            self.database.now(),
        ).where(among(c.id, self.database.dialect))


def claims_of(rows: Iterable[Any], token: str) -> list[Claim]:
    """As rows tell them."""
    return [
        Claim(
            task_id,
            name,
            queue,
            payload,
            attempt,
            token,
            failures,
            crashes,
            failures_max,
            crashes_max,
            job_id,
            is_suspect >= SUSPECT,
            order_key,
            limit_key,
        )
        for (
            task_id,
            name,
            queue,
            payload,
            attempt,
            failures,
            crashes,
            failures_max,
            crashes_max,
            job_id,
            is_suspect,
            order_key,
            limit_key,
        ) in rows  # a tuple's items are ten times cheaper than a row's names
    ]


def limited(claims: list[Claim], left_s: Mapping[str, float | None]) -> list[Claim]:
    """Claims of a limit have to start within a time. Whoever does not know it any more has missed it."""
    return [
        one if one.limit_key is None else replace(one, start_within_s=left_s.get(one.task_id, 0.0)) for one in claims
    ]
