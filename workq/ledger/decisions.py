"""What people decide about one task: cancel, reschedule, revive. Each is one conditional update, with an event.

Whoever comes second (a claim, a sweep, another person) finds the state changed, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from workq.errors import NotFound, Refused
from workq.ledger import CancelAnswer, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, guarded, unexpired
from workq.ledger.entry import EntryRules, KeyedTask
from workq.ledger.hint_rows import Waiting, drop_hints, drop_hints_of
from workq.ledger.history import ERROR_MAX, History, who_and_why
from workq.ledger.keys import live_key
from workq.ledger.named_instants import left_s, then_or_now
from workq.ledger.waiting import NEVER_S, is_behind, parked
from workq.values import codec
from workq.values.task import State


class Decisions:
    """Decisions of a person about one task: cancel, reschedule, revive."""

    def __init__(self, database: Database, *, history: History, reserved_s: float, rules: EntryRules) -> None:
        self.database = database
        self._history = history
        self._reserved = timedelta(seconds=reserved_s)
        self._rules = rules

    def cancel(self, task_id: str, *, who: str, why: str, kills: bool = False) -> CancelAnswer:
        """Cancel at once what does not run; ask it of what runs. NotFound when there is no such task.

        `kills`: the process of an attempt that runs is to be killed (see `kills`). Repeatable.
        """
        if not codec.is_task_id(task_id):
            raise _unknown(task_id)
        while (
            answer := self.database.run(lambda tx: self.cancel_in(tx, task_id, who=who, why=why, kills=kills))
        ) is None:
            continue  # it was handed back or reaped between two of our statements: it can be cancelled at once now
        return answer

    def cancel_in(
        self, tx: Connection, task_id: str, *, who: str, why: str, kills: bool = False
    ) -> CancelAnswer | None:
        """`cancel`, in a transaction that is open; None: it was handed back or reaped just now, so ask again."""
        t, now = self.database.tables.task, self.database.now
        by, kept = who_and_why(who, why).values()
        at_once = tx.execute(
            update(t)
            .where(t.c.id == task_id, guarded(t.c.state, *CLAIMABLE))
            .values(state=State.CANCELLED, reason=kept, settled_at=now(), live_key=None)
        ).rowcount
        if at_once:
            drop_hints_of(tx, self.database, [task_id])
            self._history.append(tx, "cancelled", {"reason": kept, "who": by}, task_ids=[task_id])
            return CancelAnswer.CANCELLED
        asked = tx.execute(
            update(t)
            .where(t.c.id == task_id, guarded(t.c.state, State.RUNNING), t.c.cancel_requested_at.is_(None))
            .values(cancel_requested_at=now(), reason=kept)
        ).rowcount
        is_killed = kills and self._condemn(tx, task_id)
        if asked or is_killed:
            by_force = {"kill": True} if is_killed else {}
            self._history.append(
                tx, "cancelled", {"reason": kept, "who": by, "asked": True, **by_force}, task_ids=[task_id]
            )
            return CancelAnswer.REQUESTED
        state = tx.execute(select(t.c.state).where(t.c.id == task_id)).scalar()
        if state is None:
            raise _unknown(task_id)
        if state in CLAIMABLE:
            return None
        if state == State.RUNNING:
            return CancelAnswer.REQUESTED
        return CancelAnswer.ALREADY_CANCELLED if state == State.CANCELLED else CancelAnswer.ALREADY_FINISHED

    def _condemn(self, tx: Connection, task_id: str) -> bool:
        """Note that the attempt which runs is to be ended by force; False when none runs, or it is noted already."""
        t, k = self.database.tables.task, self.database.tables.kill
        runs = select(t.c.id, t.c.attempt, t.c.worker).where(t.c.id == task_id, guarded(t.c.state, State.RUNNING))
        row = tx.execute(runs.with_for_update()).first()
        if row is None:
            return False
        noted = select(k.c.task_id).where(k.c.task_id == task_id, k.c.attempt == row.attempt)
        if tx.execute(noted).first() is not None:
            return False
        made = insert(k).values(task_id=task_id, attempt=row.attempt, worker=row.worker, asked_at=self.database.now())
        tx.execute(made)
        return True

    def kills(self, workers: Sequence[str]) -> dict[str, int]:
        """The attempts of these incarnations that a person wants ended by force, by task, until they have ended."""
        if not workers:
            return {}
        k = self.database.tables.kill
        query = select(k.c.task_id, k.c.attempt).where(k.c.worker.in_(workers)).order_by(k.c.attempt)
        return {row.task_id: row.attempt for row in self.database.ask(lambda tx: tx.execute(query).all())}

    def reschedule(
        self,
        task_id: str,
        *,
        delay_s: float = 0.0,
        who: str,
        why: str,
        at: datetime | None = None,
        along: Callable[[Connection], object] = lambda _: None,
    ) -> Unpublished:
        """Let a task that does not run be due in `delay_s` seconds, whatever it waited for. Answers its new hint.

        `at`: an instant that a person has named. It decides then by the ledger's clock, and not the seconds; the past
        means now. `along`: what a slice writes in the same transaction, if it is moved.

        The hint that it had is worth nothing when it comes: too early, the claim refuses it; too late, it is done. It
        is dropped where it is a row. A task that expires before is refused. Raises NotFound or Refused.
        """
        if not codec.is_task_id(task_id):
            raise _unknown(task_id)
        t, now = self.database.tables.task, self.database.now
        due_at = now(delay_s) if at is None else then_or_now(self.database, at)
        is_too_late = ~unexpired(t.c.expires_at, due_at)
        where_it_stands = select(t.c.state, t.c.queue, t.c.attempt, t.c.expires_at, is_too_late.label("is_too_late"))
        in_line = select(
            t.c.state, t.c.queue, t.c.order_key, t.c.limit_key, t.c.job_id, t.c.due_at, now().label("now")
        ).where(t.c.id == task_id)

        def move(tx: Connection) -> Unpublished | None:
            before = row = tx.execute(in_line).first()
            if row is not None and is_behind(row.due_at, row.now):
                task = KeyedTask(task_id, row.order_key, row.limit_key, row.job_id, State(row.state))
                if (why_not := self._rules.keeps_its_time(tx, task)) is not None:
                    raise Refused(why_not)
            wait_s = delay_s if at is None or before is None else left_s(at, before.now)
            until = None if before is None else self.reserved_from(before.now)
            moved = tx.execute(
                update(t)
                .where(t.c.id == task_id, guarded(t.c.state, *CLAIMABLE), unexpired(t.c.expires_at, due_at))
                .values(
                    state=State.WAITING if wait_s > 0.0 else State.READY,
                    due_at=due_at,
                    waits_for=None,
                    queued_at=now(),
                    published_at=None,
                    relay_until=until,
                )
            ).rowcount
            row = tx.execute(where_it_stands.where(t.c.id == task_id)).first()
            if row is None:
                raise _unknown(task_id)
            if not moved:
                if row.state in CLAIMABLE:
                    if row.is_too_late:
                        raise Refused(f"task {task_id} expires before, at {row.expires_at:%Y-%m-%dT%H:%M:%SZ}")
                    return None
                raise Refused(f"task {task_id} is {row.state}; only ready and waiting tasks are rescheduled")
            if before is not None and before.due_at > before.now:
                drop_hints(tx, self.database, [Waiting(task_id, before.queue, before.due_at)])
            said = who_and_why(who, why, characters_max=ERROR_MAX)
            self._history.append(tx, "rescheduled", {**said, "delay_s": wait_s}, task_ids=[task_id])
            along(tx)
            return Unpublished(task_id, row.queue, row.attempt, wait_s, reserved_until=until)

        while (moved := self.database.run(move)) is None:
            continue  # it was handed back or reaped between two of our statements
        return moved

    def revive(self, task_id: str, *, who: str, why: str, at: datetime | None = None) -> Unpublished:
        """Send a dead or cancelled task back with fresh budgets; it does not expire any more. Answers its hint.

        It is due now, whatever time it had; or `at` an instant, if that is still to come. Raises NotFound or Refused.
        """
        return self.revive_from(task_id, State.DEAD, State.CANCELLED, who=who, why=why, at=at)

    def revive_from(self, task_id: str, *states: State, who: str, why: str, at: datetime | None = None) -> Unpublished:
        """As `revive`, of a task that is in one of these states."""
        if not codec.is_task_id(task_id):
            raise _unknown(task_id)
        t = self.database.tables.task
        is_barred = self._rules.barred().label("is_barred")
        tries = 0

        def send_back(tx: Connection) -> Unpublished:
            nonlocal tries
            tries += 1
            row = tx.execute(
                select(
                    t.c.state,
                    t.c.name,
                    t.c.queue,
                    t.c.attempt,
                    t.c.task_key,
                    t.c.order_key,
                    t.c.limit_key,
                    t.c.job_id,
                    t.c.relay_until,
                    is_barred,
                    self.database.now().label("now"),
                ).where(t.c.id == task_id)
            ).first()
            if row is None:
                raise _unknown(task_id)
            task = KeyedTask(task_id, row.order_key, row.limit_key, row.job_id, State(row.state))
            if row.is_barred and row.state in states:
                raise Refused(self._rules.why_barred(task))
            wait_s = 0.0 if at is None else left_s(at, row.now)
            until = self.reserved_from(row.now)
            back = self.revived(until) | {"live_key": live_key(row.name, row.task_key)}
            if at is not None and wait_s:
                back |= {"state": State.WAITING, "due_at": then_or_now(self.database, at)}
            revived = tx.execute(update(t).where(t.c.id == task_id, guarded(t.c.state, *states)).values(back)).rowcount
            if not revived:
                if tries > 1 and row.state in CLAIMABLE:  # the answer of our first try was lost: it stands
                    return Unpublished(task_id, row.queue, row.attempt, wait_s, reserved_until=row.relay_until)
                raise Refused(f"task {task_id} is {row.state}; only {' and '.join(states)} tasks are revived")
            self._history.append(tx, "revived", who_and_why(who, why, characters_max=ERROR_MAX), task_ids=[task_id])
            delay_s = self.come_back(tx, task) or wait_s
            return Unpublished(task_id, row.queue, row.attempt, delay_s, reserved_until=until)

        try:
            return self.database.run(send_back)
        except IntegrityError as error:
            raise Refused(f"task {task_id}: its key is held by a live task; cancel that one first") from error

    def come_back(self, tx: Connection, task: KeyedTask) -> float:
        """A task that was sent back waits for others, if it has to; answers in how many seconds it is due."""
        if (waits_for := self._rules.waits_again(tx, task)) is None:
            return 0.0
        t = self.database.tables.task
        tx.execute(update(t).where(t.c.id == task.id).values(**parked(self.database, waits_for)))
        return NEVER_S

    def reserved_from(self, now: datetime) -> datetime:
        """Until when a task is reserved that is sent back now."""
        until: datetime = now + self._reserved
        return until

    def revived(self, reserved_until: datetime) -> dict[str, Any]:
        """What a row gets whose task is sent back, apart from its key; who writes this sends its hint."""
        now = self.database.now
        return {
            "state": State.READY,
            "settled_at": None,
            "due_at": now(),
            "waits_for": None,
            "queued_at": now(),
            "published_at": None,
            "relay_until": reserved_until,
            "cancel_requested_at": None,
            "expires_at": None,
            "fingerprint": None,
            "reason": None,
            "failures": 0,
            "crashes": 0,
            "is_suspect": 0,
        }


def _unknown(task_id: str) -> NotFound:
    return NotFound(f"no task {task_id[:100]}; list them with: workq task ls")
