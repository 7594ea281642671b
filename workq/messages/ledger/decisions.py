"""What people decide about messages: at another time, not at all, once more; and whether a destination gets any.

Each is a conditional statement about the tasks that send the messages, with an event that names the person and the
reason. So whoever comes second (a claim, another person) finds the state changed, and changes nothing. What is about
many goes page by page, each page a transaction: whoever is interrupted begins again, and what was done stays done.

Locks: tasks first, then messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Select, delete, func, literal, or_, select, update

from workq.errors import NotFound, Refused
from workq.ledger import CancelAnswer, HintRows, Unpublished, waiting
from workq.ledger.answers import BEHIND_S
from workq.ledger.decisions import Decisions
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.ledger.hint_rows import drop_hints_of
from workq.ledger.history import History, who_and_why
from workq.ledger.tasks import Tasks
from workq.messages.ledger.known_destinations import WELL, policy_in, unknown_destination
from workq.messages.ledger.letters import Letters, behind
from workq.messages.ledger.line import forget_line
from workq.messages.ledger.tables import message_tables
from workq.messages.rests import REST_MAX_S
from workq.messages.values import (
    DestinationState,
    MessagePosition,
    Restorable,
    WhichMessages,
    task_of_message,
)
from workq.values.codec import new_task_id
from workq.values.plural import counted
from workq.values.task import State

_OPEN: Final = (State.READY, State.WAITING, State.RUNNING)
AT_ONCE: Final = 500
"""Messages that are dealt with in one transaction."""
COUNTED_MAX: Final = 10_000_000
ENABLED_LATELY_S: Final = 300.0
"""For so long after a destination was enabled, sweeps look for what was put off in that moment."""
_SENT_AGAIN: Final = (State.SUCCEEDED, State.DEAD)
"""What a restore sends again: what a person has cancelled is not among it."""


class MessageDecisions:
    """Decisions of a person about messages and their destinations."""

    def __init__(
        self,
        database: Database,
        *,
        tasks: Tasks,
        history: History,
        letters: Letters,
        decisions: Decisions,
        reserved_s: float,
    ) -> None:
        self.database = database
        self._tasks = tasks
        self._history = history
        self._letters = letters
        self._decisions = decisions
        self._reserved = timedelta(seconds=reserved_s)

    # -- one message

    def cancel(self, message_id: str, *, who: str, why: str) -> CancelAnswer:
        """Do not send it: at once, if it is not on its way. What is on its way may arrive, and is not tried again.

        Raises:
            NotFound: there is no such message.
        """
        return self._decisions.cancel(self._task_of(message_id), who=who, why=why)

    def reschedule(
        self, message_id: str, *, delay_s: float, who: str, why: str, at: datetime | None = None
    ) -> Unpublished:
        """Send it at another time: in `delay_s` seconds, or `at` an instant. Answers its hint.

        Raises:
            NotFound: there is no such message. Refused: it is on its way or has ended, or waits for its turn.
        """
        m, t = message_tables(self.database).message, self.database.tables.task
        task_id = self._task_of(message_id)
        moved_to = select(t.c.due_at).where(t.c.id == task_id).scalar_subquery()
        mine = update(m).where(m.c.id == message_id).values(due_at=moved_to)
        try:
            return self._decisions.reschedule(
                task_id, delay_s=delay_s, at=at, who=who, why=why, along=lambda tx: tx.execute(mine)
            )
        except Refused as error:
            raise Refused(
                f"message {message_id!r}: {error}; what has arrived is sent once more by: workq message restore"
            ) from None

    def retry(self, message_id: str, *, who: str, why: str) -> Unpublished:
        """Send what is dead or cancelled after all, as the same sending: with fresh budgets, and not before its time.

        Raises:
            NotFound: there is no such message. Refused: it is neither dead nor cancelled.
        """
        task_id, due_at = self._kept(message_id)
        return self._decisions.revive(task_id, who=who, why=why, at=due_at)

    def _task_of(self, message_id: str) -> str:
        return self._kept(message_id)[0]

    def _kept(self, message_id: str) -> tuple[str, datetime]:
        """The task of a message, which is kept, and the time of the message."""
        m, t = message_tables(self.database).message, self.database.tables.task
        query = select(m.c.task_id, m.c.due_at, t.c.id).outerjoin(t, t.c.id == m.c.task_id).where(m.c.id == message_id)
        row = self.database.ask(lambda tx: tx.execute(query).first())
        if row is None:
            raise NotFound(f"no message {message_id[:100]!r}; see: workq message ls")
        if row.id is None:
            raise NotFound(f"message {message_id[:100]!r} has ended, and is kept no longer")
        return str(row.task_id), row.due_at

    # -- many

    def restorable(self, which: WhichMessages, *, is_expired: bool) -> Restorable:
        """What a restore would send again and make due; and what it would send if retention had not removed it."""
        counts, removed = self._letters.counts(which), self._letters.removed(which)
        states = _again(is_expired=is_expired)
        late = 0
        if is_expired:
            query = select(func.count()).select_from(self._late(which, limit=COUNTED_MAX).subquery())
            late = self.database.ask(lambda tx: int(tx.execute(query).scalar_one()))
        return Restorable(
            again=sum(counts.get(state, 0) for state in states),
            late=late,
            gone=sum(removed.get(state, 0) for state in states),
            unknown=removed.get(None, 0),
        )

    def restore(
        self,
        which: WhichMessages,
        *,
        is_expired: bool,
        before: datetime,
        who: str,
        why: str,
        hints: HintRows | None = None,
        after: MessagePosition | None = None,
    ) -> tuple[int, list[Unpublished], MessagePosition | None]:
        """Send a page of what has ended once more, each by a task of its own; answers how many, and hints to send.

        `before`: what was sent again since then is not sent again: a restore comes to its end. `is_expired`: only what
        was never confirmed. The body and the id stay, and `sending` grows. `after`: the end of the page before, which
        is answered; None: that was the last one.
        """
        tables, t = message_tables(self.database), self.database.tables.task
        m, d = tables.message, tables.destination
        made: dict[str, str] = {}
        states = _again(is_expired=is_expired)
        page = (
            select(m.c.id, m.c.task_id, m.c.created_at)
            .join(t, t.c.id == m.c.task_id)
            .where(
                *self._letters.which_messages(which),
                *behind(self.database, after),
                guarded(t.c.state, *states),
                t.c.created_at < literal(before, t.c.created_at.type),
                m.c.body.is_not(None),
            )
            .order_by(m.c.created_at, m.c.id)
            .limit(AT_ONCE)
        )

        def write(tx: Connection) -> tuple[int, list[Unpublished], MessagePosition | None]:
            policy = tx.execute(select(d.c.policy).where(d.c.name == which.destination)).scalar()
            if policy is None:
                raise unknown_destination(which.destination or "")
            chosen = tx.execute(page).all()
            ids = {"b_ids": in_order(str(row.task_id) for row in chosen)}
            ended = select(t.c.id).where(among(t.c.id, self.database.dialect), guarded(t.c.state, *states))
            still = {str(one) for one in tx.execute(ended.order_by(t.c.id).with_for_update(), ids).scalars()}
            of = {row.id for row in chosen if str(row.task_id) in still}
            rows = [row for row in tx.execute(self._locked(), {"b_ids": in_order(of)}).all() if row.id in of]
            rows.sort(key=lambda row: (row.created_at, row.id))
            tasks = [
                task_of_message(
                    made.setdefault(row.id, new_task_id()),
                    row.id,
                    row.destination,
                    policy_in(policy),
                    sending=row.sending + 1,
                    order_key=row.order_key,
                )
                for row in rows
                if str(row.task_id) in still
            ]
            if not tasks:
                return 0, [], _end_of(chosen)
            inserted = self._tasks.insert(tx, tasks, hints)
            mine = update(m)
            for row in rows:
                again = {"task_id": made[row.id], "sending": row.sending + 1}
                tx.execute(mine.where(m.c.id == row.id, m.c.sending == row.sending).values(again))
            self._history.append(tx, "revived", who_and_why(who, why), task_ids=[one.id for one in tasks])
            turn = [one for one in inserted if one.waits_for is None]
            fresh = [] if hints is not None else [Unpublished(one.id, one.queue, 0, 0.0) for one in turn]
            return len(tasks), fresh, _end_of(chosen)

        return self.database.run(write)

    def _locked(self) -> Select[Any]:
        m = message_tables(self.database).message
        columns = select(m.c.id, m.c.task_id, m.c.sending, m.c.destination, m.c.order_key, m.c.created_at)
        return columns.where(among(m.c.id, self.database.dialect, item="TEXT")).order_by(m.c.id).with_for_update()

    def now(self) -> datetime:
        """The ledger's clock."""
        found: datetime = self.database.ask(lambda tx: tx.execute(select(self.database.now())).scalar_one())
        return found

    def waiting(self, destination: str, *, before: datetime | None = None) -> int:
        """How many messages to a destination could be cleared: they are not sent yet, and not on their way.

        `before`: only those that were recorded until then.
        """
        counts = self._letters.counts(WhichMessages(destination=destination), before=before)
        return sum(counts.get(state, 0) for state in CLAIMABLE)

    def clear(
        self,
        destination: str,
        *,
        before: datetime,
        limit: int,
        who: str,
        why: str,
        after: MessagePosition | None = None,
    ) -> tuple[int, MessagePosition | None]:
        """Cancel a page of what is not sent yet and was recorded until `before`; answers how many. Repeatable.

        `after`: the end of the page before, which is answered; None: that was the last one.

        Raises:
            NotFound: there is no such destination.
        """
        m, t, now = message_tables(self.database).message, self.database.tables.task, self.database.now
        page = (
            select(m.c.created_at, m.c.id, m.c.task_id)
            .join_from(m, t, t.c.id == m.c.task_id)
            .where(
                m.c.destination == destination,
                m.c.created_at <= literal(before, m.c.created_at.type),
                *behind(self.database, after),
                guarded(t.c.state, *CLAIMABLE),
            )
            .order_by(m.c.created_at, m.c.id)
            .limit(min(limit, AT_ONCE))
        )
        said = who_and_why(who, why)

        def cancel(tx: Connection) -> tuple[int, MessagePosition | None]:
            self._require(tx, destination)
            chosen = tx.execute(page).all()
            given = {"b_ids": in_order(str(row.task_id) for row in chosen)}
            mine = among(t.c.id, self.database.dialect), guarded(t.c.state, *CLAIMABLE)
            ids = [str(one) for one in tx.execute(select(t.c.id).where(*mine).with_for_update(), given).scalars()]
            reason = said["why"]
            ended = {"state": State.CANCELLED, "reason": reason, "settled_at": now(), "live_key": None}
            if ids:
                tx.execute(update(t).where(*mine).values(ended), {"b_ids": in_order(ids)})
                drop_hints_of(tx, self.database, ids)
                self._history.append(tx, "cancelled", {"reason": reason, "who": said["who"]}, task_ids=ids)
            return len(ids), _end_of(chosen)

        return self.database.run(cancel)

    def make_due(
        self,
        which: WhichMessages,
        *,
        who: str,
        why: str,
        longer_s: float = 0.0,
        limit: int = AT_ONCE,
        after: MessagePosition | None = None,
    ) -> tuple[list[Unpublished], MessagePosition | None]:
        """Let a page of what is overdue and waits for another try be due now; answers its hints.

        `longer_s`: only what would wait for longer than that. `after`: the end of the page before, which is answered;
        None: that was the last one.
        """
        t, now, dialect = self.database.tables.task, self.database.now, self.database.dialect
        m = message_tables(self.database).message
        page = self._late(which, longer_s=longer_s, limit=limit, after=after)
        still = among(t.c.id, dialect), guarded(t.c.state, State.WAITING), t.c.due_at > now()
        waits = (
            select(t.c.id, t.c.queue, t.c.attempt, now().label("now")).where(*still).order_by(t.c.id).with_for_update()
        )
        overdue = select(m.c.task_id).where(among(m.c.task_id, dialect), m.c.due_at <= now()).with_for_update()

        def make(tx: Connection) -> tuple[list[Unpublished], MessagePosition | None]:
            late = tx.execute(page).all()
            if not late:
                return [], None
            last = MessagePosition(late[-1].created_at, late[-1].message_id)
            rows = tx.execute(waits, {"b_ids": in_order(str(row.id) for row in late)}).all()
            # once they are locked, no message is moved any more; one that was, since the page was read, keeps its time
            given = {"b_ids": in_order(str(row.id) for row in rows)}
            due = {str(one) for one in tx.execute(overdue, given).scalars()} if rows else set()
            rows = [row for row in rows if str(row.id) in due]
            if not rows:
                return [], last
            until = rows[0].now + self._reserved
            let_go = update(t).where(among(t.c.id, dialect)).values(**waiting.let_go(self.database, until))
            tx.execute(let_go, {"b_ids": in_order(due)})
            said = {**who_and_why(who, why), "delay_s": 0.0}
            self._history.append(tx, "rescheduled", said, task_ids=[str(row.id) for row in rows])
            hints = [Unpublished(str(row.id), row.queue, row.attempt, 0.0, reserved_until=until) for row in rows]
            return hints, last

        return self.database.run(make)

    def wake(self, *, limit: int, dry_run: bool = False) -> list[Unpublished]:
        """Let be due what was put off in the moment in which its destination was enabled; answers its hints.

        A worker that has read `disabled` before that moment puts off its messages after it, for long: whoever enabled
        the destination could not find them. With `dry_run`, the hints of what would be due. Repeatable.
        """
        d, now = message_tables(self.database).destination, self.database.now
        lately = (
            d.c.state == DestinationState.ENABLED.value,
            d.c.who.is_not(None),
            d.c.state_at > now(-ENABLED_LATELY_S),
        )
        query = select(d.c.name, d.c.who, d.c.why).where(*lately).order_by(d.c.name)
        found: list[Unpublished] = []
        for row in self.database.ask(lambda tx: tx.execute(query).all()):
            if (room := limit - len(found)) <= 0:
                break
            which = WhichMessages(destination=row.name)
            if dry_run:
                page = self._late(which, longer_s=REST_MAX_S, limit=room)
                rows = self.database.ask(lambda tx, page=page: tx.execute(page).all())  # type: ignore[misc]
                found += [Unpublished(str(one.id), one.queue, one.attempt, 0.0) for one in rows]
            else:
                found += self.make_due(which, who=row.who, why=row.why or "", longer_s=REST_MAX_S, limit=room)[0]
        return found

    def _late(
        self, which: WhichMessages, *, longer_s: float = 0.0, limit: int = AT_ONCE, after: MessagePosition | None = None
    ) -> Select[Any]:
        """A page of tasks whose messages are overdue, and wait for another try: while their destination rests, was
        disabled, or after one that was not confirmed. What waits in a line of its order key or its limit does not
        count."""
        m, t, now = message_tables(self.database).message, self.database.tables.task, self.database.now
        waits = guarded(t.c.state, State.WAITING), t.c.due_at > now(longer_s), t.c.due_at < now(BEHIND_S)
        is_late = m.c.due_at <= now(), t.c.attempt > 0, *waits
        place = m.c.created_at, m.c.id.label("message_id")
        query = select(t.c.id, t.c.queue, t.c.attempt, *place).join_from(m, t, t.c.id == m.c.task_id)
        mine = *self._letters.which_messages(which), *behind(self.database, after)
        return query.where(*mine, *is_late).order_by(m.c.created_at, m.c.id).limit(limit)

    # -- destinations

    def disable(self, name: str, *, who: str, why: str) -> None:
        """Send nothing there any more, from now on; what is on its way ends. Repeatable.

        Raises:
            NotFound: there is no such destination.
        """
        self._switch(name, DestinationState.DISABLED, {}, who=who, why=why)

    def enable(self, name: str, *, who: str, why: str) -> None:
        """Send there again, and at once: a rest has ended, too. Repeatable.

        What waits in its line comes by itself (line.py), sooner by who lets it; what waits for another try has to be
        made due (`make_due`).

        Raises:
            NotFound: there is no such destination.
        """
        self._switch(name, DestinationState.ENABLED, WELL, who=who, why=why)

    def remove(self, name: str, *, who: str, why: str) -> None:
        """Forget a destination, of whose messages none is open any more. Its messages stay until retention takes them.

        Raises:
            NotFound: there is none of that name. Refused: messages to it are open.
        """
        tables, t = message_tables(self.database), self.database.tables.task
        d, m = tables.destination, tables.message
        opened = (
            select(func.count())
            .select_from(m.join(t, t.c.id == m.c.task_id))
            .where(m.c.destination == name, guarded(t.c.state, *_OPEN))
        )

        def forget(tx: Connection) -> None:
            if tx.execute(select(d.c.name).where(d.c.name == name).with_for_update()).first() is None:
                raise unknown_destination(name)
            if count := tx.execute(opened).scalar_one():
                raise Refused(
                    f"{counted(count, 'message')} to {name!r} {'is' if count == 1 else 'are'} open; "
                    f"cancel {'it' if count == 1 else 'them'}: workq message clear --to {name}"
                )
            tx.execute(delete(d).where(d.c.name == name))
            forget_line(tx, self.database, name)
            self._history.decided(tx, f"destination {name} removed", who=who, why=why)

        self.database.run(forget)

    def _switch(self, name: str, state: DestinationState, also: dict[str, Any], *, who: str, why: str) -> None:
        d = message_tables(self.database).destination
        values = {"state": state.value, "state_at": self.database.now(), **who_and_why(who, why), **also}
        is_other = or_(d.c.state != state.value, d.c.rests_until.is_not(None)) if also else d.c.state != state.value

        def write(tx: Connection) -> None:
            if not tx.execute(update(d).where(d.c.name == name, is_other).values(values)).rowcount:
                self._require(tx, name)
                return
            self._history.decided(tx, f"destination {name} {state}", who=who, why=why)

        self.database.run(write)

    def _require(self, tx: Connection, name: str) -> None:
        d = message_tables(self.database).destination
        if tx.execute(select(d.c.name).where(d.c.name == name)).first() is None:
            raise unknown_destination(name)


def _end_of(page: Sequence[Any]) -> MessagePosition | None:
    """Where the next page begins; None: nothing is there."""
    return MessagePosition(page[-1].created_at, page[-1].id) if page else None


def _again(*, is_expired: bool) -> tuple[State, ...]:
    return (State.DEAD,) if is_expired else _SENT_AGAIN


def removed(found: Restorable, destination: str) -> Refused:
    """A restore that retention has made impossible."""
    count = found.gone + found.unknown
    unknown = f" (how {found.unknown} of them had ended, schema 16 did not record)" if found.unknown else ""
    return Refused(
        f"{counted(count, 'message')} to {destination!r} cannot be restored: retention has removed "
        f"{'it' if count == 1 else 'them'}{unknown}; choose those that are kept, with --since"
    )
