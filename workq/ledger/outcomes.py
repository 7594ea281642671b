"""Settle: outcomes are written under their fences, and counted by those whom they concern, in one transaction.

A settlement is accepted only with the attempt and the token of its claim. `state = 'running'` alone is not a fence: the
task may have been reaped and be running again elsewhere. When a commit is lost, the statement is repeated: what stood
already answers the same, because the token stays.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, assert_never

from sqlalchemy import Connection, Row, Update, and_, bindparam, case, insert, not_, null, or_, select, update
from sqlalchemy.types import Float

from workq.errors import LedgerUnavailable
from workq.ledger import Settled, Unpublished, handed_back, unhandled
from workq.ledger.after_settle import AfterSettle, Afterwards, SettleCounter
from workq.ledger.engine import after_commit
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.prepared import Kept
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.ledger.history import ERROR_MAX, REASON_MAX
from workq.ledger.log_lines import by_outcomes
from workq.values import codec
from workq.values.fingerprint import fingerprint
from workq.values.task import (
    Cancelled,
    Claim,
    Dead,
    Delivered,
    Done,
    Failed,
    HandedBack,
    Settlement,
    Snoozed,
    State,
    Unhandled,
    Worked,
)


class Outcomes:
    """Writes how attempts ended."""

    def __init__(self, database: Database, *, counters: Sequence[AfterSettle]) -> None:
        """`counters`: who counts what is settled, each in the transaction that settles it."""
        self.database = database
        self._counters = tuple(counters)
        self._untold: deque[Unpublished] = deque()
        """Hints of what a handler's own transaction led to: the next settlement answers them."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write outcomes, each guarded by its fence, in one transaction; answers in the same order.

        A settlement whose fence is old changes nothing and is recorded as `late_result`. Repeatable: settling again
        answers the same. A failure of a task whose cancel was requested ends as cancelled.
        """
        settled, afterwards = self._write_all(settlements)
        follows = [hint for act in afterwards for hint in act()]
        while settled and self._untold:
            follows.append(self._untold.popleft())
        if not follows:
            return settled
        first = settled[0]
        return [Settled(first.task_id, first.state, first.delay_s, tuple(follows)), *settled[1:]]

    def succeed_in(self, tx: Connection, claim: Claim) -> bool:
        """In a transaction of its handler, the task succeeds, under its fence; False: the attempt does not run."""
        succeed = self.database.kept("settle one Done", partial(self.settle_statement, Done))
        fence = {"b_id": claim.task_id, "b_attempt": claim.attempt, "b_token": claim.token}
        return bool(succeed.write(tx, fence | {"b_result": None, "b_reason": None}))

    def count_success(self, tx: Connection, one: Settlement) -> list[Afterwards]:
        """Behind `succeed_in`: count it, as all that is settled; answers what to do when the transaction stands."""
        settled = [Settled(one.claim.task_id, State.SUCCEEDED)]
        return [_loaded(each).count_settled(tx, [one], settled) for each in self._counters if each.concerned([one])]

    def prepare(self, claim: Claim) -> None:
        """Load what will count a success of this claim, before a transaction of its handler begins."""
        for each in self._counters:
            if each.concerned([Settlement(claim, Done())]):
                _loaded(each)

    def follow_later(self, afterwards: Sequence[Afterwards]) -> None:
        """Do what a handler's own transaction led to, now that it stands; the next settlement answers the hints."""
        self._untold.extend(hint for act in afterwards for hint in act())

    def _write_all(self, given: Sequence[Settlement]) -> tuple[list[Settled], list[Afterwards]]:
        """As `settle`; and what is to be done when the transaction stands."""
        if not given:
            return [], []
        concerned = [(places, _loaded(each)) for each in self._counters if (places := each.concerned(given))]
        settlements = list(given)
        for places, counter in concerned:
            for place in places:
                settlements[place] = counter.plain(settlements[place])

        def write(tx: Connection) -> tuple[list[Settled], list[Afterwards]]:
            succeeded = self._write_outcomes(tx, settlements)
            others = [one for number, one in enumerate(settlements) if number not in succeeded]
            led_to: Iterator[State | None] = iter(())
            if others:
                states = self._led_to(tx, others)
                self._write_events(tx, others, states)
                looks = [
                    (one.claim, one.outcome, state)
                    for one, state in zip(others, states, strict=True)
                    if isinstance(one.outcome, Unhandled) and state is not None
                ]
                if looks:
                    unhandled.note(tx, self.database, looks)
                given_back = [
                    (one.claim.task_id, one.claim.attempt)
                    for one, state in zip(others, states, strict=True)
                    if isinstance(one.outcome, HandedBack) and state is not None
                ]
                if given_back:
                    handed_back.note(tx, self.database, given_back)
                led_to = iter(states)
            settled = [
                Settled(one.claim.task_id, State.SUCCEEDED) if number in succeeded else _settled(one, next(led_to))
                for number, one in enumerate(settlements)
            ]
            if others:
                after_commit.note(tx, by_outcomes(given, settled))
            return settled, [counter.count_settled(tx, given, settled) for _, counter in concerned]

        if not concerned and self._settle_alike(settlements):
            return [Settled(one.claim.task_id, State.SUCCEEDED) for one in settlements], []
        return self.database.run(write)

    def _settle_alike(self, settlements: Sequence[Settlement]) -> bool:
        """Settle what one claim granted and what succeeded alike: nearly all, and one statement.

        False: they are not alike, or not all of them were written: `settle` finds out why, and may repeat it.
        """
        first = settlements[0]
        claim = first.claim
        for one in settlements:
            if type(one.outcome) is not Done or one.outcome != first.outcome:
                return False
            if one.claim.token != claim.token or one.claim.attempt != claim.attempt:
                return False
        given = {
            "b_attempt": claim.attempt,
            "b_token": claim.token,
            "b_ids": in_order(one.claim.task_id for one in settlements),
        }
        given |= dict(zip(_COLUMNS[Done], _values(first), strict=True))
        return self.database.run(lambda tx: self._settling(Done).write(tx, given), is_single=True) == len(settlements)

    def _settling(self, kind: type) -> Kept:
        return self.database.kept(f"settle {kind.__name__}", partial(self.settle_statement, kind, is_bulk=True))

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
            statement = self.database.kept(f"settle one {kind.__name__}", partial(self.settle_statement, kind))
            written = statement.write_each(tx, list(rows.values()))
            if kind is Done and written == len(rows):
                succeeded.update(rows)
        return succeeded

    def settle_statement(self, kind: type, *, is_bulk: bool = False) -> Update:
        t, now = self.database.tables.task, self.database.now
        is_cancel_asked = t.c.cancel_requested_at.is_not(None)
        fenced = update(t).where(
            among(t.c.id, self.database.dialect) if is_bulk else t.c.id == bindparam("b_id"),
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
            later = handed_back.values(t, now, is_cancel_asked) | {
                "state": case((is_cancel_asked, State.CANCELLED), else_=State.WAITING),
                "reason": case((is_cancel_asked, t.c.reason), else_=null()),
                "due_at": now(bindparam("b_delay_s", type_=Float())),
            }
            del later["token"]  # it stays after settling: so a settlement can be repeated
            return fenced.values(later)
        if kind is Unhandled:
            is_over = unhandled.since(self.database, t.c.id) <= now(-bindparam("b_wait_s", type_=Float()))
            has_ended = or_(is_cancel_asked, is_over)
            return fenced.values(
                state=case((is_cancel_asked, State.CANCELLED), (is_over, State.DEAD), else_=State.WAITING),
                settled_at=case((has_ended, now()), else_=null()),
                live_key=case((has_ended, null()), else_=t.c.live_key),
                reason=case((is_cancel_asked, t.c.reason), else_=unhandled.NO_HANDLER),
                due_at=now(bindparam("b_delay_s", type_=Float())),
                queued_at=now(),
                published_at=None,
                relay_until=None,
                error=bindparam("b_error"),
                fingerprint=case((and_(is_over, not_(is_cancel_asked)), bindparam("b_fingerprint")), else_=null()),
            )
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
        return fenced.values(handed_back.values(t, now, is_cancel_asked))

    def _led_to(self, tx: Connection, settlements: Sequence[Settlement]) -> list[State | None]:
        """Where the settlements led that stand, whenever they were written; None for those that are late.

        The token stays after settling, and reaping takes it away.
        """
        c = self.database.tables.task.c
        ids = [one.claim.task_id for one in settlements]
        query = select(c.id, c.attempt, c.token, c.state).where(among(c.id, self.database.dialect))
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
                    among(e.c.task_id, self.database.dialect),
                    e.c.attempt.is_not(None),
                    e.c.kind.in_(["failed", "snoozed", "cancelled", "late_result"]),
                ),
                {"b_ids": in_order(str(row["task_id"]) for row in rows)},
            )
        }
        new = [row for row in rows if (row["task_id"], row["attempt"]) not in ended]
        if new:
            tx.execute(insert(e).values(at=self.database.now()), new)


_COLUMNS: Final[dict[type, tuple[str, ...]]] = {
    Done: ("b_result", "b_reason"),
    Failed: ("b_delay_s", "b_error"),
    Snoozed: ("b_delay_s",),
    Unhandled: ("b_delay_s", "b_wait_s", "b_error", "b_fingerprint"),
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
        case Unhandled(delay_s=delay_s, wait_s=wait_s, error=error):
            error = _error(error)
            return delay_s, wait_s, error, fingerprint(one.claim.name, unhandled.NO_HANDLER, error)
        case Dead(reason=reason, error=error, failed=failed):
            reason, error = _reason(reason), _error(error)
            return reason, error, int(failed), fingerprint(one.claim.name, reason, error)
        case Cancelled(reason=reason):
            return (_reason(reason),)
        case HandedBack() | Worked() | Delivered():  # the last two are written as what their counters make of them
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
    delay_s = (
        one.outcome.delay_s if isinstance(one.outcome, Failed | Snoozed | Unhandled) and state is State.WAITING else 0.0
    )
    return Settled(one.claim.task_id, state, delay_s)


def _event(one: Settlement, state: State | None) -> tuple[str, dict[str, Any]] | None:
    """What history keeps of a settlement: the happy path lives in the task's own row."""
    outcome = one.outcome
    if state is None:
        return (
            None
            if isinstance(outcome, HandedBack | Unhandled)
            else ("late_result", {"outcome": type(outcome).__name__.lower()})
        )
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
        case Done() | Unhandled() | HandedBack() | Worked() | Delivered():  # see unhandled.py and handed_back.py
            return None
        case _:
            assert_never(outcome)


def _loaded(counter: AfterSettle) -> SettleCounter:
    """What it needs. Nothing is settled while that cannot be had: the outcome is kept, as when the database is away."""
    try:
        return counter.load()
    except (ImportError, OSError) as error:
        raise LedgerUnavailable(
            f"a part of workq cannot be loaded ({error}); was it installed anew under this process? Start it again"
        ) from error
