"""Claim and settle: the two decisions about an attempt, each a conditional update.

A claim grants one attempt under a fresh token; a settlement is accepted only with the same attempt and token. `state =
'running'` alone is not a fence: the task may have been reaped and be running again elsewhere.

When a commit is lost, the statement is repeated: a settlement that stood already answers the same, because the token
stays; a claim finds its rows by the token that it tried with. If even that stays unknown, the next claim of the same
incarnation hands back what may have been granted to nobody. Should that incarnation die first, it is reaped as usual.
A claim that races with the reaping of its own incarnation may still stand; its rows are orphans then, and returned.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, assert_never

from msgspec.structs import replace
from sqlalchemy import Connection, Row, Select, Table, Update, bindparam, case, exists, insert, null, select, update
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import Float

from workq import codec
from workq.errors import CommitUnknown, Unavailable
from workq.fingerprint import fingerprint
from workq.ledger import Hinted, Look, Settled, Unpublished, permits
from workq.ledger.among import among, as_text, in_order
from workq.ledger.database import Database
from workq.ledger.kept import Kept
from workq.ledger.paused import is_paused
from workq.ledger.rehint import rehint
from workq.ledger.states import CLAIMABLE, SUSPECT, guarded, unexpired
from workq.task import Cancelled, Claim, Dead, Done, Failed, HandedBack, Settlement, Snoozed, State

ERROR_MAX = 20_000
"""How many characters of an error are kept."""
REASON_MAX = 200
"""The width of the column `reason`, in characters."""


@dataclass(slots=True)
class _ClaimCall:
    """One call of a claim, with all its tries. `doubts`: (token, ids) of earlier ones, to hand back."""

    token: str
    by: str
    doubts: list[tuple[str, tuple[str, ...]]]
    is_single: bool = False
    """It sends one statement."""
    tries: int = 0
    tried: set[str] = field(default_factory=set)
    left_s: dict[str, float | None] = field(default_factory=dict)
    """Of those with a permit: within how many seconds each has to start."""


class Claiming:
    """The part of the ledger that workers write."""

    database: Database
    _doubtful: dict[str, list[tuple[str, tuple[str, ...]]]]
    """By incarnation: (token, ids) of claims whose commit stayed unknown, to hand back."""

    # -- the mark of the relay

    def mark_published(self, sent: Iterable[Unpublished]) -> None:
        alike: defaultdict[tuple[int, float], list[str]] = defaultdict(list)
        for one in sent:
            alike[one.attempt, one.arrives_in_s].append(one.task_id)
        if not alike:
            return
        statement = self.database.kept("mark", self._mark_statement)

        def mark(tx: Connection) -> None:
            for (attempt, arrives_in_s), ids in alike.items():
                statement.write(tx, {"b_ids": in_order(ids), "b_attempt": attempt, "b_arrives_in_s": arrives_in_s})

        self.database.run(mark, is_single=len(alike) == 1)

    def _mark_statement(self) -> Update:
        t = self.database.tables.task
        return (
            update(t)
            .where(self._among(t.c.id), t.c.attempt == bindparam("b_attempt"), guarded(t.c.state, *CLAIMABLE))
            .values(
                published_at=self.database.now(bindparam("b_arrives_in_s", type_=Float())),
                relay_until=None,
            )
        )

    # -- claim

    def claim(self, task_ids: Sequence[str], *, by: str) -> list[Claim]:
        task_ids = [task_id for task_id in task_ids if codec.is_task_id(task_id)]
        if not task_ids:
            return []
        call = _ClaimCall(secrets.token_hex(16), by, list(self._doubtful.get(by, ())), is_single=True)

        def take(tx: Connection) -> Sequence[Any]:
            self._begin_claim(tx, call)
            call.tried.update(task_ids)
            # after an unknown commit the rows are ours already: the token tells
            return self._take(tx, call, task_ids, may_stand=call.tries > 1)

        rows = self._run_claim(take, call)
        granted = {claim.task_id: claim for claim in _claims(rows, call.token)}
        if len(granted) < len(task_ids):
            try:
                granted |= self._claim_limited([task_id for task_id in task_ids if task_id not in granted], by=by)
            except Unavailable:
                if not granted:
                    raise
                # what was granted has to be told; the others are looked at as all that are missed
        return [granted[task_id] for task_id in dict.fromkeys(task_ids) if task_id in granted]

    def claim_hinted(self, hinted: Hinted, *, by: str) -> list[Claim]:
        call = _ClaimCall(secrets.token_hex(16), by, list(self._doubtful.get(by, ())))

        def take(tx: Connection) -> Sequence[Any]:
            self._begin_claim(tx, call)
            if call.tried and (stands := self._standing_claims(tx, call)):
                return stands  # all of it does: the hints are gone, too
            chosen = hinted.choose(tx)
            task_ids = [task_id for task_id in chosen if codec.is_task_id(task_id)]
            call.tried.update(task_ids)
            rows = self._take(tx, call, task_ids) if task_ids else ()
            granted = {row[0] for row in rows}
            missed = [task_id for task_id in chosen if task_id not in granted]
            looks = self._looks(tx, missed) if missed else {}
            if limited := [task_id for task_id, look in looks.items() if look.limit_key is not None]:
                rows = [*rows, *self._take_limited(tx, call, limited)]
                granted = {row[0] for row in rows}
                looks = self._looks(tx, [task_id for task_id in missed if task_id not in granted])
            for sent_again, delay_s in hinted.conclude(tx, granted, looks):
                rehint(tx, self.database, sent_again, delay_s=delay_s)
            return rows

        return _limited(_claims(self._run_claim(take, call), call.token), call.left_s)

    def _claim_limited(self, task_ids: Sequence[str], *, by: str) -> dict[str, Claim]:
        """What was refused because it shares a limit, and now gets a permit; what gets none waits for its turn."""
        c = self.database.tables.task.c
        limited = select(c.id).where(self._among(c.id), c.limit_key.is_not(None), guarded(c.state, *CLAIMABLE))
        found = self.database.ask(lambda tx: set(tx.execute(limited, {"b_ids": in_order(task_ids)}).scalars()))
        task_ids = [task_id for task_id in task_ids if task_id in found]
        if not task_ids:
            return {}
        call = _ClaimCall(secrets.token_hex(16), by, [])

        def take(tx: Connection) -> Sequence[Any]:
            self._begin_claim(tx, call)
            if call.tried and (stands := self._standing_claims(tx, call)):
                return stands
            call.tried.update(task_ids)
            return self._take_limited(tx, call, task_ids)

        rows = self._run_claim(take, call)
        return {claim.task_id: claim for claim in _limited(_claims(rows, call.token), call.left_s)}

    def _take_limited(self, tx: Connection, call: _ClaimCall, task_ids: Sequence[str]) -> Sequence[Any]:
        """Claim those of these that get a permit; the rows of those that are granted."""
        call.left_s = permits.ask(tx, self.database, task_ids)
        if not call.left_s:
            return ()
        parameters = {"b_ids": in_order(call.left_s), "b_by": call.by, "b_token": call.token}
        statement = self.database.kept("claim with a permit", partial(self._claim_statement, has_permit=True))
        statement.write(tx, parameters)
        return self.database.kept("claimed", self._claimed).rows(tx, parameters)

    def _begin_claim(self, tx: Connection, call: _ClaimCall) -> None:
        call.tries += 1
        for doubt in call.doubts:
            self._hand_back(tx, *doubt)

    def _take(
        self, tx: Connection, call: _ClaimCall, task_ids: Sequence[str], *, may_stand: bool = False
    ) -> Sequence[Any]:
        """Claim these; the rows of those that are granted."""
        parameters = {"b_ids": in_order(task_ids), "b_by": call.by, "b_token": call.token}
        if self.database.dialect != "mysql" and not may_stand:
            return self.database.kept("claim", self._claim_returning).rows(tx, parameters)
        self.database.kept("claim again", self._claim_statement).write(tx, parameters)
        return self.database.kept("claimed", self._claimed).rows(tx, parameters)

    def _standing_claims(self, tx: Connection, call: _ClaimCall) -> Sequence[Any]:
        """What an earlier try of the same call has claimed after all, although its commit was lost."""
        self._await_lost(tx, call.tried)
        parameters = {"b_ids": in_order(call.tried), "b_token": call.token}
        return self.database.kept("claimed", self._claimed).rows(tx, parameters)

    def _await_lost(self, tx: Connection, task_ids: Iterable[str]) -> None:
        """A lost transaction may still be open in the server: its locks first, so that we see how it ended."""
        c = self.database.tables.task.c
        locks = select(c.id).where(self._among(c.id)).order_by(c.id).with_for_update()
        tx.execute(locks, {"b_ids": in_order(task_ids)}).all()

    def _run_claim(self, take: Callable[[Connection], Sequence[Any]], call: _ClaimCall) -> Sequence[Any]:
        try:
            rows = self.database.run(take, is_single=call.is_single and not call.doubts)
        except CommitUnknown:
            if call.tried:
                self._doubtful.setdefault(call.by, []).append((call.token, tuple(call.tried)))
            raise
        for doubt in call.doubts:
            with suppress(ValueError):  # another thread was faster
                self._doubtful[call.by].remove(doubt)
        return rows

    def _claim_returning(self) -> ReturningUpdate[Any]:
        return self._claim_statement().returning(*self._claim_columns())

    def _claim_statement(self, *, has_permit: bool = False) -> Update:
        t, w, now = self.database.tables.task, self.database.tables.worker, self.database.now
        statement = (
            update(t)
            .where(
                self._among(t.c.id),
                guarded(t.c.state, *CLAIMABLE),
                t.c.due_at <= now(),
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
            )
        )
        return statement if has_permit else statement.where(t.c.limit_key.is_(None))

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
            self._among(c.id), c.token == bindparam("b_token"), guarded(c.state, State.RUNNING)
        )

    def _hand_back(self, tx: Connection, token: str, task_ids: Sequence[str]) -> None:
        t, now = self.database.tables.task, self.database.now
        self._await_lost(tx, task_ids)
        ours = [t.c.id.in_(task_ids), t.c.token == token, guarded(t.c.state, State.RUNNING)]
        asked = t.c.cancel_requested_at.is_not(None)
        tx.execute(update(t).where(*ours).values(_handed_back(t, now, asked)))

    def return_forgotten(self, held: Mapping[str, int], *, by: str) -> int:
        t, now = self.database.tables.task, self.database.now
        asked = t.c.cancel_requested_at.is_not(None)
        by_attempt: defaultdict[int, list[str]] = defaultdict(list)
        for task_id, attempt in held.items():
            by_attempt[attempt].append(task_id)

        def change(tx: Connection) -> int:
            returned = 0
            for attempt, ids in by_attempt.items():
                ours = [
                    self._among(t.c.id),
                    t.c.worker == by,
                    t.c.attempt == attempt,
                    guarded(t.c.state, State.RUNNING),
                ]
                statement = update(t).where(*ours).values(_handed_back(t, now, asked))
                returned += tx.execute(statement, {"b_ids": in_order(ids)}).rowcount
            return returned

        return self.database.run(change)

    # -- settle

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not settlements:
            return []

        def write(tx: Connection) -> list[Settled]:
            succeeded = self._write_outcomes(tx, settlements)
            others = [one for number, one in enumerate(settlements) if number not in succeeded]
            led_to: Iterator[State | None] = iter(())
            if others:
                states = self._led_to(tx, others)
                self._write_events(tx, others, states)
                led_to = iter(states)
            return [
                Settled(one.claim.task_id, State.SUCCEEDED) if number in succeeded else _settled(one, next(led_to))
                for number, one in enumerate(settlements)
            ]

        if self._settle_alike(settlements):
            return [Settled(one.claim.task_id, State.SUCCEEDED) for one in settlements]
        return self.database.run(write)

    def _settle_alike(self, settlements: Sequence[Settlement]) -> bool:
        """Settle what one claim granted and what succeeded alike: nearly all, and one statement.

        False: they are not alike, or not all of them were written: `settle` finds out why, and may repeat it.
        """
        first = settlements[0]
        claim = first.claim
        alike = Done, claim.attempt, claim.token, first.outcome
        if any((type(one.outcome), one.claim.attempt, one.claim.token, one.outcome) != alike for one in settlements):
            return False
        given = {
            "b_attempt": claim.attempt,
            "b_token": claim.token,
            "b_ids": in_order(one.claim.task_id for one in settlements),
        }
        given |= dict(zip(_COLUMNS[Done], _values(first), strict=True))
        return self.database.run(lambda tx: self._settling(Done).write(tx, given), is_single=True) == len(settlements)

    def _settling(self, kind: type) -> Kept:
        return self.database.kept(f"settle {kind.__name__}", partial(self._settle_statement, kind, is_bulk=True))

    def _write_outcomes(self, tx: Connection, settlements: Sequence[Settlement]) -> set[int]:
        """Write each outcome under its fence. What one claim granted and what ended alike goes in one statement.

        Answers the places of those that are known to have succeeded by this very write. Of the others it is not known
        yet: they may have come late, or stand already, and where the failed went depends on the row.
        """
        alike: defaultdict[tuple[Any, ...], dict[str, int]] = defaultdict(dict)
        for number in sorted(range(len(settlements)), key=lambda number: settlements[number].claim.task_id):
            one, claim = settlements[number], settlements[number].claim
            alike[type(one.outcome), claim.attempt, claim.token, *_values(one)][claim.task_id] = number
        succeeded: set[int] = set()
        single: defaultdict[type, dict[int, dict[str, Any]]] = defaultdict(dict)
        # in the order of the ids: two transactions that meet wait for each other instead of deadlocking
        for (kind, attempt, token, *values), places in alike.items():
            parameters = {"b_attempt": attempt, "b_token": token, **dict(zip(_COLUMNS[kind], values, strict=True))}
            if len(places) > 1:
                written = self._settling(kind).write(tx, parameters | {"b_ids": list(places)})
                if kind is Done and written == len(places):
                    succeeded.update(places.values())
            else:
                [(task_id, number)] = places.items()
                single[kind][number] = parameters | {"b_id": task_id}
        for kind, rows in single.items():
            statement = self.database.kept(f"settle one {kind.__name__}", partial(self._settle_statement, kind))
            written = statement.write_each(tx, list(rows.values()))
            if kind is Done and written == len(rows):
                succeeded.update(rows)
        return succeeded

    def _settle_statement(self, kind: type, *, is_bulk: bool = False) -> Update:
        t, now = self.database.tables.task, self.database.now
        is_cancel_asked = t.c.cancel_requested_at.is_not(None)
        fenced = update(t).where(
            self._among(t.c.id) if is_bulk else t.c.id == bindparam("b_id"),
            t.c.attempt == bindparam("b_attempt"),
            t.c.token == bindparam("b_token"),
            guarded(t.c.state, State.RUNNING),
        )
        ended = {"settled_at": now(), "live_key": None}
        if kind is Done:
            return fenced.values(
                state=State.SUCCEEDED, result=bindparam("b_result"), reason=bindparam("b_reason"), **ended
            )
        if kind is Failed:
            return fenced.values(
                state=case((is_cancel_asked, State.CANCELLED), else_=State.WAITING),
                settled_at=case((is_cancel_asked, now()), else_=null()),
                live_key=case((is_cancel_asked, null()), else_=t.c.live_key),
                reason=case((is_cancel_asked, t.c.reason), else_=null()),
                due_at=now(bindparam("b_delay_s", type_=Float())),
                queued_at=now(),
                published_at=None,
                relay_until=None,
                failures=t.c.failures + 1,
                error=bindparam("b_error"),
            )
        if kind is Snoozed:
            later = _handed_back(t, now, is_cancel_asked) | {
                "state": case((is_cancel_asked, State.CANCELLED), else_=State.WAITING),
                "due_at": now(bindparam("b_delay_s", type_=Float())),
            }
            del later["token"]  # it stays after settling: so a settlement can be repeated
            return fenced.values(later)
        if kind is Dead:
            return fenced.values(
                state=case((is_cancel_asked, State.CANCELLED), else_=State.DEAD),
                reason=case((is_cancel_asked, t.c.reason), else_=bindparam("b_reason")),
                failures=t.c.failures + bindparam("b_failed"),
                error=bindparam("b_error"),
                fingerprint=case((is_cancel_asked, null()), else_=bindparam("b_fingerprint")),
                **ended,
            )
        if kind is Cancelled:
            return fenced.values(state=State.CANCELLED, reason=bindparam("b_reason"), **ended)
        return fenced.values(_handed_back(t, now, is_cancel_asked))

    def _led_to(self, tx: Connection, settlements: Sequence[Settlement]) -> list[State | None]:
        """Where the settlements led that stand, whenever they were written; None for those that are late.

        The token stays after settling, and reaping takes it away.
        """
        c = self.database.tables.task.c
        ids = [one.claim.task_id for one in settlements]
        query = select(c.id, c.attempt, c.token, c.state).where(self._among(c.id))
        rows = tx.execute(query, {"b_ids": in_order(ids)})
        found: dict[str, Any] = {row.id: row for row in rows}
        return [_led_to(one, found.get(one.claim.task_id)) for one in settlements]

    def _write_events(self, tx: Connection, settlements: Sequence[Settlement], states: Sequence[State | None]) -> None:
        rows = []
        for one, state in zip(settlements, states, strict=True):
            entry = _event(one, state)
            if entry is not None:
                kind, detail = entry
                rows.append(
                    {
                        "kind": kind,
                        "task_id": one.claim.task_id,
                        "attempt": one.claim.attempt,
                        "detail": codec.encode(detail, path="event", max_bytes=1 << 20),
                    }
                )
        if not rows:
            return
        e = self.database.tables.event
        # an attempt is settled once: where history has its end, this very settlement came before
        ended = {
            (row.task_id, row.attempt)
            for row in tx.execute(
                select(e.c.task_id, e.c.attempt).where(
                    self._among(e.c.task_id),
                    e.c.attempt.is_not(None),
                    e.c.kind.in_(["failed", "snoozed", "cancelled", "late_result"]),
                ),
                {"b_ids": in_order(str(row["task_id"]) for row in rows)},
            )
        }
        new = [row for row in rows if (row["task_id"], row["attempt"]) not in ended]
        if new:
            tx.execute(insert(e).values(at=self.database.now()), new)

    # -- look

    def look(self, task_ids: Sequence[str]) -> dict[str, Look]:
        if not task_ids:
            return {}
        return self.database.ask(lambda tx: self._looks(tx, task_ids))

    def _looks(self, tx: Connection, task_ids: Sequence[str]) -> dict[str, Look]:
        c = self.database.tables.task.c
        ids = [task_id for task_id in task_ids if codec.is_task_id(task_id)]
        paused = is_paused(c.queue, self.database).label("is_paused")
        where_they_stand = select(
            c.id, c.state, c.queue, c.due_at, c.expires_at, c.limit_key, paused, self.database.now().label("now")
        ).where(self._among(c.id))
        rows = tx.execute(where_they_stand, {"b_ids": in_order(ids)}).all()
        return {
            row.id: Look(
                State(row.state),
                row.queue,
                (row.due_at - row.now).total_seconds(),
                is_expired=row.expires_at is not None and row.expires_at <= row.now,
                is_paused=bool(row.is_paused),
                limit_key=row.limit_key,
            )
            for row in rows
        }

    def _among(self, column: ColumnElement[Any]) -> ColumnElement[bool]:
        return among(column, self.database.dialect)


def _claims(rows: Iterable[Any], token: str) -> list[Claim]:
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


def _limited(claims: list[Claim], left_s: Mapping[str, float | None]) -> list[Claim]:
    """Claims of a limit have to start within a time. Whoever does not know it any more has missed it."""
    return [
        one if one.limit_key is None else replace(one, start_within_s=left_s.get(one.task_id, 0.0)) for one in claims
    ]


def _handed_back(
    t: Table, now: Callable[[], ColumnElement[Any]], is_cancel_asked: ColumnElement[bool]
) -> dict[str, Any]:
    """Back to ready, at no cost. The attempt's number is spent, and its fence ends."""
    return {
        "state": case((is_cancel_asked, State.CANCELLED), else_=State.READY),
        "settled_at": case((is_cancel_asked, now()), else_=null()),
        "live_key": case((is_cancel_asked, null()), else_=t.c.live_key),
        "token": None,
        "queued_at": now(),
        "published_at": None,
        "relay_until": None,
    }


_COLUMNS: Final[dict[type, tuple[str, ...]]] = {
    Done: ("b_result", "b_reason"),
    Failed: ("b_delay_s", "b_error"),
    Snoozed: ("b_delay_s",),
    Dead: ("b_reason", "b_error", "b_failed", "b_fingerprint"),
    Cancelled: ("b_reason",),
    HandedBack: (),
}
"""The parameters of each statement that settles, in the order of `_values`."""


def _values(one: Settlement) -> tuple[Any, ...]:
    match one.outcome:
        case Done(result=result, note=note):
            return result, _reason(note) if note else None
        case Failed(delay_s=delay_s, error=error):
            return delay_s, _error(error)
        case Snoozed(delay_s=delay_s):
            return (delay_s,)
        case Dead(reason=reason, error=error, failed=failed):
            reason, error = _reason(reason), _error(error)
            return reason, error, int(failed), fingerprint(one.claim.name, reason, error)
        case Cancelled(reason=reason):
            return (_reason(reason),)
        case HandedBack():
            return ()
        case _:
            assert_never(one.outcome)


def _error(text: str) -> str:
    return codec.storable(text, characters_max=ERROR_MAX)


def _reason(text: str) -> str:
    return codec.storable(text, characters_max=REASON_MAX)


def _led_to(one: Settlement, row: Row[Any] | None) -> State | None:
    if row is None or row.attempt != one.claim.attempt:
        return None
    state = State(row.state)
    if isinstance(one.outcome, HandedBack):  # that ended the fence, so that a handler which runs all the same is late
        stands = row.token is None and state in (*CLAIMABLE, State.CANCELLED)
    else:
        stands = row.token == one.claim.token and state is not State.RUNNING
        stands = stands and (state is State.SUCCEEDED) == isinstance(one.outcome, Done)
    return state if stands else None


def _settled(one: Settlement, state: State | None) -> Settled:
    delay_s = one.outcome.delay_s if isinstance(one.outcome, Failed | Snoozed) and state is State.WAITING else 0.0
    return Settled(one.claim.task_id, state, delay_s)


def _event(one: Settlement, state: State | None) -> tuple[str, dict[str, Any]] | None:
    """What history keeps of a settlement: the happy path lives in the task's own row."""
    outcome = one.outcome
    if state is None:
        return None if isinstance(outcome, HandedBack) else ("late_result", {"outcome": type(outcome).__name__.lower()})
    match outcome:
        case Failed(error=error) if state is State.CANCELLED:
            return "failed", {"error": _error(error), "cancelled": True}
        case Failed(delay_s=delay_s, error=error):
            return "failed", {"error": _error(error), "retry_in_s": round(delay_s, 3)}
        case Snoozed(delay_s=delay_s, reason=reason):
            detail = {"reason": _reason(reason)} if reason else {}
            if state is State.CANCELLED:
                return "snoozed", detail | {"cancelled": True}
            return "snoozed", detail | {"again_in_s": round(delay_s, 3)}
        case Dead(reason=reason, error=error):
            return "failed", {"error": _error(error), "dead": _reason(reason)}
        case Cancelled(reason=reason):
            return "cancelled", {"reason": _reason(reason), "by": "handler"}
        case Done() | HandedBack():
            return None
        case _:
            assert_never(outcome)
