"""Settling deliveries: what came of each delivery that was sent, in the transaction that settles its task.

Each attempt is a row, by its task and the number of its claim: a settlement that is repeated writes it once, and one
that comes late is recorded too, because the receiver has had it; but it decides nothing any more.

What operators should know of it is recorded there, too (see notices.py).

Locks: tasks first, then deliveries, then endpoints, each in the order of their ids, then notices. Deliveries that ended
alike go together: whoever else writes an open one has its task before, so that two do not meet there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Select,
    Update,
    bindparam,
    case,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.types import Float

from workq.ledger import Settled, Unpublished
from workq.ledger.after_settle import Afterwards
from workq.ledger.engine import after_commit
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.ledger.engine.instants import Instant
from workq.ledger.engine.kept_rows import NewRow
from workq.ledger.engine.states import guarded
from workq.ledger.history import BY_ITSELF, who_and_why
from workq.ledger.waiting import NEVER_S
from workq.limits.ledger import closing
from workq.values import codec
from workq.values.task import Delivered, Failed, Sent, Settlement, State
from workq.webhooks.ledger.notices import Notices
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.values import (
    DELIVERY_OPEN,
    RESTS_AFTER,
    TASK_NAME,
    Cause,
    DeliveryState,
    EndpointState,
    NewNotice,
    NoticeKind,
    limit_key,
)

ANSWER_MAX: Final = 16 * 1024
ERROR_MAX: Final = 1_000
REST_MIN_S: Final = 5.0
REST_MAX_S: Final = 3600.0
DISABLED_AFTER_S: Final = 5 * 86_400.0
DISABLED_AFTER: Final = 20
"""Nothing has arrived for so long, and so many attempts have failed in a row: it is disabled."""
WARNED_AT: Final = (90, 70, 50)
"""Percent of both of that: operators are told."""
TENDED_S: Final = 86_400.0
WORKER_LOST: Final = "worker_lost"
"""The class of a delivery whose task is dead of its workers' deaths: nobody knows what the receiver has seen."""
_LED_TO: Final = {
    State.SUCCEEDED: DeliveryState.SUCCEEDED,
    State.WAITING: DeliveryState.PENDING,
    State.DEAD: DeliveryState.EXHAUSTED,
    State.CANCELLED: DeliveryState.CANCELLED,
}


class DeliveryCounter:
    """The after-settle counter of webhooks: attempts to deliver them, and what these make of the endpoint."""

    def __init__(self, database: Database, *, notices: Notices) -> None:
        self.database = database
        self._notices = notices

    def plain(self, one: Settlement) -> Settlement:
        return Settlement(one.claim, one.outcome.then) if isinstance(one.outcome, Delivered) else one

    def count_settled(
        self, tx: Connection, settlements: Sequence[Settlement], settled: Sequence[Settled]
    ) -> Afterwards:
        hints = self._record_attempts(tx, settlements, settled)
        return lambda: hints

    def _record_attempts(
        self, tx: Connection, settlements: Sequence[Settlement], settled: Sequence[Settled]
    ) -> list[Unpublished]:
        """What was sent, and where that led its delivery; answers the hints of what operators are told."""
        made = [
            (one, one.outcome, result)
            for one, result in zip(settlements, settled, strict=True)
            if isinstance(one.outcome, Delivered)
        ]
        if not made:
            return []
        recorded = self.database.kept("attempts of tasks", self._recorded_statement)
        known = set(recorded.rows(tx, {"b_ids": in_order(one.claim.task_id for one, *_ in made)}))
        new = sorted(
            (one for one in made if (one[0].claim.task_id, one[0].claim.attempt) not in known),
            key=lambda one: one[1].sent.delivery_id,
        )
        if not new:
            return []
        self.database.kept_rows("attempt", self._attempt_row).write(
            tx, [_attempt(one, outcome, result) for one, outcome, result in new]
        )
        stands = [(outcome, result) for _, outcome, result in new if result.state in _LED_TO]
        if not stands:
            return []
        notices = self._recoveries(tx, [outcome for outcome, _ in stands])
        self._write_deliveries(tx, stands)
        notices += self._mark_health(tx, [outcome for outcome, _ in stands])
        notices += [
            _of_delivery(NoticeKind.EXHAUSTED, outcome.sent)
            for outcome, result in stands
            if _state(outcome, result) is DeliveryState.EXHAUSTED
        ]
        return self._notices.notice(tx, notices)

    def _recorded_statement(self) -> Select[Any]:
        a, dialect = webhook_tables(self.database).delivery_attempt, self.database.dialect
        return select(as_text(a.c.task_id, dialect), a.c.attempt).where(among(a.c.task_id, dialect))

    def _attempt_row(self) -> NewRow:
        c, now = webhook_tables(self.database).delivery_attempt.c, self.database.now
        given = [one for one in c if one.name not in ("at", "next_at")]
        next_s = bindparam("b_next_s", type_=Float())
        return {
            **{one: bindparam(f"b_{one.name}", type_=one.type) for one in given},
            c.at: now(),
            c.next_at: case((next_s < 0.0, null()), else_=now(next_s)),
        }

    def _write_deliveries(self, tx: Connection, stands: Sequence[tuple[Delivered, Settled]]) -> None:
        """Where each of them is now. Nearly all have succeeded alike: those go in one statement."""
        alike: defaultdict[tuple[Any, ...], list[tuple[str, str]]] = defaultdict(list)
        for outcome, result in stands:
            alike[_values(outcome, result)].append((outcome.sent.delivery_id, result.task_id))
        single: list[dict[str, Any]] = []
        for values, ids in alike.items():
            given = dict(zip(_DELIVERY_COLUMNS, values, strict=True))
            if len(ids) == 1:
                [(delivery_id, task_id)] = ids
                single.append(given | {"b_id": delivery_id, "b_task": task_id})
            else:
                given |= {"b_ids": in_order(one for one, _ in ids), "b_tasks": in_order(one for _, one in ids)}
                self.database.kept("delivered alike", partial(self._delivered_statement, is_bulk=True)).write(tx, given)
        if single:
            single.sort(key=itemgetter("b_id"))
            self.database.kept("delivered", self._delivered_statement).write_each(tx, single)

    def _delivered_statement(self, *, is_bulk: bool = False) -> Update:
        """Those that were made by these tasks: a delivery that is sent again has another one."""
        d, now, dialect = webhook_tables(self.database).delivery, self.database.now, self.database.dialect
        next_s = bindparam("b_next_s", type_=Float())
        is_over = next_s < 0.0
        one = d.c.id == bindparam("b_id", type_=d.c.id.type), d.c.task_id == bindparam("b_task", type_=d.c.id.type)
        many = among(d.c.id, dialect), among(d.c.task_id, dialect, name="b_tasks")
        return (
            update(d)
            .where(*(many if is_bulk else one))
            .values(
                state=bindparam("b_state", type_=d.c.state.type),
                attempts=bindparam("b_attempts", type_=d.c.attempts.type),
                status=bindparam("b_status", type_=d.c.status.type),
                error_class=bindparam("b_error_class", type_=d.c.error_class.type),
                attempted_at=now(),
                next_at=case((is_over, null()), else_=now(next_s)),
                ended_at=case((is_over, now()), else_=null()),
            )
        )

    def _recoveries(self, tx: Connection, outcomes: Sequence[Delivered]) -> list[NewNotice]:
        """What has arrived because a person has sent it again, and had failed before."""
        d = webhook_tables(self.database).delivery
        sent = {
            one.sent.delivery_id: one.sent
            for one in outcomes
            if one.sent.error_class is None and one.sent.cause != Cause.SCHEDULED
        }
        if not sent:
            return []
        had_failed = select(d.c.id).where(among(d.c.id, self.database.dialect), d.c.error_class.is_not(None))
        found = tx.execute(had_failed, {"b_ids": in_order(sent)}).scalars()
        return [_of_delivery(NoticeKind.RECOVERED, sent[str(one)]) for one in found]

    def _mark_health(self, tx: Connection, outcomes: Sequence[Delivered]) -> list[NewNotice]:
        """How many attempts have failed in a row at an endpoint, and since when. One that has arrived ends that.

        Where many have failed, nothing is sent for a while, and then one at a time until one arrives. The same where a
        receiver has asked for it, whatever arrives of what was under way then.
        """
        notices: list[NewNotice] = []
        arrived = {one.sent.endpoint_id for one in outcomes if one.sent.error_class is None}
        failed: Counter[str] = Counter()
        asked_s: dict[str, float] = {}
        for one in outcomes:
            if one.sent.endpoint_id not in arrived or one.sent.is_gone:
                failed[one.sent.endpoint_id] += 1
            if one.sent.rest_s > 0.0:
                asked_s[one.sent.endpoint_id] = max(one.sent.rest_s, asked_s.get(one.sent.endpoint_id, 0.0))
        if arrived:
            recovered = self.database.kept("recovered", self._recovered_statement)
            recovered.write(tx, {"b_ids": in_order(arrived)})
            closing.reopen(tx, self.database, [limit_key(one) for one in arrived])
        for endpoint_id in sorted(failed.keys() | asked_s.keys()):
            rest_s = asked_s.get(endpoint_id, 0.0)
            if endpoint_id in failed:
                gone = any(one.sent.is_gone for one in outcomes if one.sent.endpoint_id == endpoint_id)
                notices += self._mark_failing(tx, endpoint_id, failed[endpoint_id], rest_s=rest_s, is_gone=gone)
            else:
                closing.close(tx, self.database, limit_key(endpoint_id), for_s=rest_s)
        return notices

    def _recovered_statement(self) -> Update:
        e = webhook_tables(self.database).endpoint
        has_failed = or_(e.c.failures > 0, e.c.failing_since.is_not(None))
        among_these = among(e.c.id, self.database.dialect, item="TEXT")
        return update(e).where(among_these, has_failed).values(failures=0, failing_since=None, warned=0)

    def _mark_failing(
        self, tx: Connection, endpoint_id: str, count: int, *, rest_s: float, is_gone: bool
    ) -> list[NewNotice]:
        e, now = webhook_tables(self.database).endpoint, self.database.now
        more = {"failures": e.c.failures + count, "failing_since": func.coalesce(e.c.failing_since, now())}
        tx.execute(update(e).where(e.c.id == endpoint_id).values(more))
        look = select(e.c.failures, e.c.failing_since, e.c.warned, now().label("now")).where(e.c.id == endpoint_id)
        row = tx.execute(look).first()
        if row is None:  # it was removed meanwhile
            return []
        failing_s = (row.now - row.failing_since).total_seconds()
        if is_gone:
            return self.switch_off(tx, endpoint_id, who=BY_ITSELF, why="the receiver has answered 410 Gone")
        if row.failures >= DISABLED_AFTER and failing_s >= DISABLED_AFTER_S:
            why = f"nothing has arrived for {failing_s / 3600.0:.0f} hours, in {row.failures} attempts"
            return self.switch_off(tx, endpoint_id, who=BY_ITSELF, why=why)
        if row.failures >= RESTS_AFTER:
            rest_s = max(rest_s, min(REST_MAX_S, max(REST_MIN_S, failing_s / 2)))
        if rest_s > 0.0:
            closing.close(tx, self.database, limit_key(endpoint_id), for_s=rest_s)
        percent = 100.0 * min(failing_s / DISABLED_AFTER_S, row.failures / DISABLED_AFTER)
        reached = next((one for one in WARNED_AT if percent >= one), 0)
        if reached <= row.warned:
            return []
        tx.execute(update(e).where(e.c.id == endpoint_id).values(warned=reached))
        facts = {"percent": reached, "failures": row.failures, "failing_s": round(failing_s)}
        told = {"endpoint": endpoint_id, **facts}
        after_commit.note(tx, [after_commit.Decision("webhook.endpoint_failing", told, of=endpoint_id)])
        return [NewNotice(NoticeKind.FAILING, endpoint_id, facts)]

    def switch_off(self, tx: Connection, endpoint_id: str, *, who: str, why: str) -> list[NewNotice]:
        """Disable an endpoint, and close its limit; what operators are told, nothing when it was not enabled.

        What is open is held afterwards.
        """
        e = webhook_tables(self.database).endpoint
        said = who_and_why(who, why)
        values = {"state": EndpointState.DISABLED.value, "state_at": self.database.now(), **said}
        mine = update(e).where(e.c.id == endpoint_id, e.c.state == EndpointState.ENABLED.value)
        if tx.execute(mine.values(values)).rowcount != 1:
            return []
        closing.close(tx, self.database, limit_key(endpoint_id), for_s=NEVER_S)
        if who == BY_ITSELF:
            told = {"endpoint": endpoint_id, "why": said["why"]}
            after_commit.note(tx, [after_commit.Decision("webhook.endpoint_disabled", told, of=endpoint_id)])
        return [NewNotice(NoticeKind.DISABLED, endpoint_id, said)]

    def tend_deliveries(self, *, limit: int, dry_run: bool = False) -> int:
        """End deliveries whose tasks were ended by others than their handler, within a day; answers how many.

        Their worker died too often, they have expired, or a person has cancelled them. Repeatable.
        """
        d, t, now = webhook_tables(self.database).delivery, self.database.tables.task, self.database.now
        query = (
            select(d.c.id, d.c.endpoint_id, d.c.attempts, t.c.state, t.c.settled_at)
            .join(t, t.c.id == d.c.task_id)
            .where(
                guarded(t.c.state, State.DEAD, State.CANCELLED),
                t.c.settled_at > now(-TENDED_S),
                t.c.name == TASK_NAME,
                d.c.state.in_([one.value for one in DELIVERY_OPEN]),
            )
            .limit(limit)
        )

        def end(tx: Connection) -> int:
            found, lost = sorted(tx.execute(query).all()), []
            if not dry_run:
                for row in found:
                    is_dead = row.state == State.DEAD
                    values: dict[str, Any] = {
                        "state": (DeliveryState.EXHAUSTED if is_dead else DeliveryState.CANCELLED).value,
                        "ended_at": literal(row.settled_at, Instant()),
                        "next_at": None,
                    }
                    if is_dead:
                        values["error_class"] = WORKER_LOST
                    mine = update(d).where(d.c.id == row.id, d.c.state.in_([one.value for one in DELIVERY_OPEN]))
                    if tx.execute(mine.values(values)).rowcount and is_dead:
                        lost.append(row)
                self._notices.notice(tx, [_lost(row) for row in lost])
            return len(found)

        return self.database.run(end)


def _attempt(one: Settlement, outcome: Delivered, result: Settled) -> dict[str, Any]:
    sent = outcome.sent
    return {
        "b_task_id": one.claim.task_id,
        "b_attempt": one.claim.attempt,
        "b_delivery_id": sent.delivery_id,
        "b_number": sent.number,
        "b_cause": sent.cause,
        "b_url": sent.url,
        "b_status": sent.status,
        "b_error_class": sent.error_class,
        "b_error": None if sent.error is None else codec.storable(sent.error, characters_max=ERROR_MAX),
        "b_duration_ms": sent.duration_ms,
        "b_answer": codec.storable(sent.answer, characters_max=ANSWER_MAX) or None,
        "b_is_cut": int(sent.is_cut),
        "b_next_s": _next_s(outcome, result),
    }


def _state(outcome: Delivered, result: Settled) -> DeliveryState:
    if outcome.sent.is_gone and result.state is State.DEAD:
        return DeliveryState.GONE
    return _LED_TO[result.state or State.DEAD]


def _of_delivery(kind: NoticeKind, sent: Sent) -> NewNotice:
    facts = {"delivery": sent.delivery_id, "attempts": sent.number}
    more = {"status": sent.status, "error_class": sent.error_class}
    return NewNotice(kind, sent.endpoint_id, facts | {name: value for name, value in more.items() if value is not None})


def _lost(row: Any) -> NewNotice:
    facts = {"delivery": row.id, "attempts": row.attempts, "error_class": WORKER_LOST}
    return NewNotice(NoticeKind.EXHAUSTED, row.endpoint_id, facts)


_DELIVERY_COLUMNS: Final = ("b_state", "b_attempts", "b_status", "b_error_class", "b_next_s")


def _values(outcome: Delivered, result: Settled) -> tuple[Any, ...]:
    """What is written of a delivery: the values of these columns."""
    sent = outcome.sent
    return _state(outcome, result).value, sent.number, sent.status, sent.error_class, _next_s(outcome, result)


def _next_s(outcome: Delivered, result: Settled) -> float:
    """Seconds until it is tried again; less than none: it is not."""
    return outcome.then.delay_s if isinstance(outcome.then, Failed) and result.state is State.WAITING else -1.0
