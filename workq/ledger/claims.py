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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, assert_never

from sqlalchemy import Connection, Row, Select, Table, Update, bindparam, case, exists, insert, null, select, update
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import Float

from workq import codec
from workq.errors import CommitUnknown
from workq.ledger import Look, Settled, Unpublished
from workq.ledger.database import Database
from workq.ledger.states import CLAIMABLE, SUSPECT, guarded
from workq.task import Cancelled, Claim, Dead, Done, HandedBack, Retry, Settlement, State

ERROR_MAX = 20_000
"""How many characters of an error are kept."""
REASON_MAX = 200
"""The width of the column `reason`, in characters."""


class Claiming:
    """The part of the ledger that workers write."""

    database: Database
    _doubtful: dict[str, list[tuple[str, tuple[str, ...]]]]
    """By incarnation: (token, ids) of claims whose commit stayed unknown, to hand back."""

    # -- the mark of the relay

    def mark_published(self, sent: Iterable[Unpublished]) -> None:
        by_attempt: defaultdict[int, list[str]] = defaultdict(list)
        for one in sent:
            by_attempt[one.attempt].append(one.task_id)
        if not by_attempt:
            return
        t = self.database.tables.task

        def mark(tx: Connection) -> None:
            for attempt, ids in by_attempt.items():
                tx.execute(
                    update(t)
                    .where(t.c.id.in_(sorted(ids)), t.c.attempt == attempt, guarded(t.c.state, *CLAIMABLE))
                    .values(published_at=self.database.now(), relay_until=None)
                )

        self.database.run(mark)

    # -- claim

    def claim(self, task_ids: Sequence[str], *, by: str) -> list[Claim]:
        task_ids = [task_id for task_id in task_ids if codec.is_task_id(task_id)]
        if not task_ids:
            return []
        token = secrets.token_hex(16)
        tries = 0
        doubts = list(self._doubtful.get(by, ()))

        def take(tx: Connection) -> Sequence[Row[Any]]:
            nonlocal tries
            tries += 1
            for doubt in doubts:
                self._hand_back(tx, *doubt)
            statement = self._claim_statement(task_ids, by, token)
            if tries == 1 and self.database.dialect != "mysql":
                return tx.execute(statement.returning(*self._claim_columns())).all()
            tx.execute(statement)  # after an unknown commit the rows are ours already: the token tells
            return tx.execute(self._claimed(task_ids, token)).all()

        try:
            found = {row.id: row for row in self.database.run(take)}
        except CommitUnknown:
            self._doubtful.setdefault(by, []).append((token, tuple(task_ids)))
            raise
        for doubt in doubts:
            with suppress(ValueError):  # another thread was faster
                self._doubtful[by].remove(doubt)
        return [
            Claim(
                task_id=row.id,
                name=row.name,
                queue=row.queue,
                payload=row.payload,
                attempt=row.attempt,
                token=token,
                failures=row.failures,
                crashes=row.crashes,
                failures_max=row.failures_max,
                crashes_max=row.crashes_max,
                job_id=row.job_id,
                is_suspect=row.is_suspect >= SUSPECT,
            )
            for task_id in dict.fromkeys(task_ids)
            if (row := found.get(task_id)) is not None
        ]

    def _claim_statement(self, task_ids: Sequence[str], by: str, token: str) -> Update:
        t, w, now = self.database.tables.task, self.database.tables.worker, self.database.now
        return (
            update(t)
            .where(
                t.c.id.in_(sorted(set(task_ids))),  # in one order, so that two claims of the same page rarely deadlock
                guarded(t.c.state, *CLAIMABLE),
                t.c.due_at <= now(),
                exists(select(w.c.id).where(w.c.id == by, w.c.state == "live")),
            )
            .values(state=State.RUNNING, attempt=t.c.attempt + 1, token=token, worker=by, started_at=now())
        )

    def _claim_columns(self) -> list[ColumnElement[Any]]:
        c = self.database.tables.task.c
        return [
            c.id,
            c.name,
            c.queue,
            c.payload,
            c.attempt,
            c.failures,
            c.crashes,
            c.failures_max,
            c.crashes_max,
            c.job_id,
            c.is_suspect,
        ]

    def _claimed(self, task_ids: Sequence[str], token: str) -> Select[Any]:
        c = self.database.tables.task.c
        return select(*self._claim_columns()).where(
            c.id.in_(task_ids), c.token == token, guarded(c.state, State.RUNNING)
        )

    def _hand_back(self, tx: Connection, token: str, task_ids: Sequence[str]) -> None:
        t, now = self.database.tables.task, self.database.now
        # the lost transaction may still be open in the server: its locks first, so that the update sees how it ended
        tx.execute(select(t.c.id).where(t.c.id.in_(task_ids)).order_by(t.c.id).with_for_update()).all()
        ours = [t.c.id.in_(task_ids), t.c.token == token, guarded(t.c.state, State.RUNNING)]
        asked = t.c.cancel_requested_at.is_not(None)
        tx.execute(update(t).where(*ours).values(_handed_back(t, now, asked)))

    # -- settle

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not settlements:
            return []

        def write(tx: Connection) -> list[Settled]:
            self._write_outcomes(tx, settlements)
            states = self._led_to(tx, settlements)
            self._write_events(tx, settlements, states)
            return [_settled(one, state) for one, state in zip(settlements, states, strict=True)]

        return self.database.run(write)

    def _write_outcomes(self, tx: Connection, settlements: Sequence[Settlement]) -> None:
        """Write each outcome under its fence. What one claim granted and what ended alike goes in one statement."""
        alike: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)
        # in the order of the ids: two transactions that meet wait for each other instead of deadlocking
        for one in sorted(settlements, key=lambda one: one.claim.task_id):
            kind, values = type(one.outcome), _parameters(one)
            alike[kind, one.claim.attempt, one.claim.token, *values.items()].append(one.claim.task_id)
        single: defaultdict[type, list[dict[str, Any]]] = defaultdict(list)
        for (kind, attempt, token, *pairs), ids in alike.items():
            parameters = {"b_attempt": attempt, "b_token": token, **dict(pairs)}
            if len(ids) > 1:
                tx.execute(self._settle_statement(kind, many=True), parameters | {"b_ids": ids})
            else:
                single[kind].append(parameters | {"b_id": ids[0]})
        for kind, rows in single.items():
            tx.execute(self._settle_statement(kind), rows)

    def _settle_statement(self, kind: type, *, many: bool = False) -> Update:
        t, now = self.database.tables.task, self.database.now
        is_cancel_asked = t.c.cancel_requested_at.is_not(None)
        fenced = update(t).where(
            t.c.id.in_(bindparam("b_ids", expanding=True)) if many else t.c.id == bindparam("b_id"),
            t.c.attempt == bindparam("b_attempt"),
            t.c.token == bindparam("b_token"),
            guarded(t.c.state, State.RUNNING),
        )
        ended = {"settled_at": now(), "live_key": None}
        if kind is Done:
            return fenced.values(
                state=State.SUCCEEDED, result=bindparam("b_result"), reason=bindparam("b_reason"), **ended
            )
        if kind is Retry:
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
        if kind is Dead:
            return fenced.values(
                state=case((is_cancel_asked, State.CANCELLED), else_=State.DEAD),
                reason=case((is_cancel_asked, t.c.reason), else_=bindparam("b_reason")),
                failures=t.c.failures + bindparam("b_failed"),
                error=bindparam("b_error"),
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
        rows = tx.execute(
            select(c.id, c.attempt, c.token, c.state).where(c.id.in_({one.claim.task_id for one in settlements}))
        )
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
                    e.c.task_id.in_([row["task_id"] for row in rows]),
                    e.c.attempt.is_not(None),
                    e.c.kind.in_(["failed", "cancelled", "late_result"]),
                )
            )
        }
        new = [row for row in rows if (row["task_id"], row["attempt"]) not in ended]
        if new:
            tx.execute(insert(e).values(at=self.database.now()), new)

    # -- look

    def look(self, task_ids: Sequence[str]) -> dict[str, Look]:
        if not task_ids:
            return {}
        c = self.database.tables.task.c
        ids = [task_id for task_id in task_ids if codec.is_task_id(task_id)]
        where_they_stand = select(c.id, c.state, c.queue, c.due_at, self.database.now().label("now")).where(
            c.id.in_(ids)
        )
        rows = self.database.ask(lambda tx: tx.execute(where_they_stand).all())
        return {row.id: Look(State(row.state), row.queue, (row.due_at - row.now).total_seconds()) for row in rows}


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


def _parameters(one: Settlement) -> dict[str, Any]:
    match one.outcome:
        case Done(result=result, note=note):
            return {"b_result": result, "b_reason": _reason(note) if note else None}
        case Retry(delay_s=delay_s, error=error):
            return {"b_delay_s": delay_s, "b_error": _error(error)}
        case Dead(reason=reason, error=error, failed=failed):
            return {"b_reason": _reason(reason), "b_error": _error(error), "b_failed": int(failed)}
        case Cancelled(reason=reason):
            return {"b_reason": _reason(reason)}
        case HandedBack():
            return {}
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
    delay_s = one.outcome.delay_s if isinstance(one.outcome, Retry) and state is State.WAITING else 0.0
    return Settled(one.claim.task_id, state, delay_s)


def _event(one: Settlement, state: State | None) -> tuple[str, dict[str, Any]] | None:
    """What history keeps of a settlement: the happy path lives in the task's own row."""
    outcome = one.outcome
    if state is None:
        return None if isinstance(outcome, HandedBack) else ("late_result", {"outcome": type(outcome).__name__.lower()})
    match outcome:
        case Retry(error=error) if state is State.CANCELLED:
            return "failed", {"error": _error(error), "cancelled": True}
        case Retry(delay_s=delay_s, error=error):
            return "failed", {"error": _error(error), "retry_in_s": round(delay_s, 3)}
        case Dead(reason=reason, error=error):
            return "failed", {"error": _error(error), "dead": _reason(reason)}
        case Cancelled(reason=reason):
            return "cancelled", {"reason": _reason(reason), "by": "handler"}
        case Done() | HandedBack():
            return None
        case _:
            assert_never(outcome)
