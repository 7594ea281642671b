"""Holding: endpoints that are disabled, and what becomes of what was sent to them; deliveries that people send again.

A disabled endpoint's limit is closed, in the transaction that disables it: from then on nothing is sent there, and what
is claimed is parked. Page by page its open deliveries become held, due never, and stay so when it is enabled again: a
person releases them, or discards them. Whoever dies in between leaves the rest to the next sweep.

What is sent again gets a task of its own, and the delivery goes on counting its attempts. Where its endpoint keeps an
order, that task comes last.

What is held keeps its place in an order: those behind it wait. Whoever moves a line up and finds the next one held
leaves that to whoever releases it (see order/ledger/order.py): both lock its task first, and so see what the other has
done.

Locks: tasks first, then deliveries, then endpoints, then limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, func, select, update

from workq.errors import NotFound, Refused
from workq.ledger import HintRows, Unpublished, waiting
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.ledger.history import History, who_and_why
from workq.ledger.tasks import Tasks
from workq.limits.ledger import closing, parked
from workq.order.ledger.positions import heads
from workq.values.codec import new_task_id
from workq.values.task import NewTask, State
from workq.webhooks.ledger.deliveries import Deliveries
from workq.webhooks.ledger.held import WAITS
from workq.webhooks.ledger.known_endpoints import options_in
from workq.webhooks.ledger.notices import Notices
from workq.webhooks.ledger.settle import DeliveryCounter
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.values import (
    DELIVERY_OPEN,
    Cause,
    DeliveryState,
    EndpointState,
    WhichDeliveries,
    limit_key,
    task_of,
)

AT_ONCE: Final = 500
"""Deliveries that are dealt with in one transaction."""


class WebhookDecisions:
    """Decisions of a person about endpoints and deliveries."""

    def __init__(
        self,
        database: Database,
        *,
        deliveries: Deliveries,
        counter: DeliveryCounter,
        notices: Notices,
        tasks: Tasks,
        history: History,
        reserved_s: float,
    ) -> None:
        self.database = database
        self._history = history
        self._deliveries = deliveries
        self._counter = counter
        self._notices = notices
        self._tasks = tasks
        self._reserved = timedelta(seconds=reserved_s)

    def disable_endpoint(self, endpoint_id: str, *, who: str, why: str) -> None:
        """Send nothing to an endpoint any more, from now on, and hold what waits; what is under way ends. Repeatable.

        Raises:
            NotFound: there is no such endpoint.
        """

        def write(tx: Connection) -> None:
            notices = self._counter.switch_off(tx, endpoint_id, who=who, why=why)
            if notices:
                self._history.decided(tx, f"endpoint {endpoint_id} disabled", who=who, why=why)
            else:
                self._require(tx, endpoint_id)
            self._notices.notice(tx, notices)

        self.database.run(write)
        while self._hold_page(endpoint_id):  # a sweep would do it, too
            continue

    def enable_endpoint(self, endpoint_id: str, *, who: str, why: str) -> int:
        """Send to an endpoint again what is sent from now on; answers how many deliveries are held. Repeatable.

        Raises:
            NotFound: there is no such endpoint.
        """
        tables = webhook_tables(self.database)
        e, d, now = tables.endpoint, tables.delivery, self.database.now
        while self._hold_page(endpoint_id):  # what a sweep would still have held
            continue
        held = select(func.count()).where(d.c.endpoint_id == endpoint_id, d.c.state == DeliveryState.HELD.value)

        def write(tx: Connection) -> int:
            values = {
                "state": EndpointState.ENABLED.value,
                "state_at": now(),
                **who_and_why(who, why),
                "failures": 0,
                "failing_since": None,
                "warned": 0,
            }
            mine = update(e).where(e.c.id == endpoint_id, e.c.state == EndpointState.DISABLED.value)
            if tx.execute(mine.values(values)).rowcount:
                self._history.decided(tx, f"endpoint {endpoint_id} enabled", who=who, why=why)
            else:
                self._require(tx, endpoint_id)
            closing.reopen(tx, self.database, [limit_key(endpoint_id)], at_once=True)
            count: int = tx.execute(held).scalar_one()
            return count

        return self.database.run(write)

    def hold_deliveries(self, *, limit: int, dry_run: bool = False) -> int:
        """Hold what is open of endpoints that are disabled; answers how many. Repeatable."""
        tables = webhook_tables(self.database)
        e, d, t = tables.endpoint, tables.delivery, self.database.tables.task
        query = (
            select(d.c.endpoint_id)
            .join(e, e.c.id == d.c.endpoint_id)
            .join(t, t.c.id == d.c.task_id)
            .where(
                e.c.state == EndpointState.DISABLED.value,
                d.c.state == DeliveryState.PENDING.value,
                guarded(t.c.state, *CLAIMABLE),
            )
            .limit(limit)
        )
        found = [str(one) for one in self.database.ask(lambda tx: tx.execute(query).scalars().all())]
        if dry_run:
            return len(found)
        count = 0
        for endpoint_id in sorted(set(found)):
            while count < limit and (held := self._hold_page(endpoint_id)):
                count += held
        return count

    def _hold_page(self, endpoint_id: str) -> int:
        """Hold some of what is open of a disabled endpoint; answers how many."""
        tables, t = webhook_tables(self.database), self.database.tables.task
        e, d = tables.endpoint, tables.delivery
        query = (
            select(d.c.id, d.c.task_id)
            .join(e, e.c.id == d.c.endpoint_id)
            .join(t, t.c.id == d.c.task_id)
            .where(
                d.c.endpoint_id == endpoint_id,
                e.c.state == EndpointState.DISABLED.value,
                d.c.state == DeliveryState.PENDING.value,
                guarded(t.c.state, *CLAIMABLE),
            )
            .order_by(d.c.id)
            .limit(AT_ONCE)
        )

        def hold(tx: Connection) -> int:
            rows = tx.execute(query).all()
            if not rows:
                return 0
            tasks = {"b_ids": in_order(row.task_id for row in rows)}
            mine = update(t).where(among(t.c.id, self.database.dialect), guarded(t.c.state, *CLAIMABLE))
            tx.execute(mine.values(**waiting.parked(self.database, WAITS)), tasks)
            far = select(t.c.id).where(
                among(t.c.id, self.database.dialect),
                guarded(t.c.state, State.WAITING),
                waiting.waits(t, self.database),
            )
            waits = set(tx.execute(far, tasks).scalars())
            ids = [row.id for row in rows if row.task_id in waits]
            tx.execute(
                update(d)
                .where(among(d.c.id, self.database.dialect), d.c.state == DeliveryState.PENDING.value)
                .values(state=DeliveryState.HELD.value, next_at=None),
                {"b_ids": in_order(ids)},
            )
            parked.forget(tx, self.database, limit_key(endpoint_id), waits)
            return len(ids)

        return self.database.run(hold)

    def release_held(
        self, endpoint_id: str, *, who: str, why: str, limit: int = AT_ONCE
    ) -> tuple[int, list[Unpublished]]:
        """Send what is held of an endpoint, the oldest first, a page at a time; answers how many that were, and hints.

        What stands behind another one of its order has no hint: it follows when its turn has come.

        Raises:
            NotFound: there is no such endpoint. Refused: it is disabled.
        """
        t = self.database.tables.task

        def release(tx: Connection) -> tuple[int, list[Unpublished]]:
            if self._require(tx, endpoint_id) == EndpointState.DISABLED.value:
                raise Refused(
                    f"endpoint {endpoint_id!r} is disabled; first: workq webhook endpoint enable {endpoint_id}"
                )
            rows = self._held(tx, endpoint_id, limit)
            locks = select(t.c.id, t.c.order_key, self.database.now().label("now")).order_by(t.c.id).with_for_update()
            locks = locks.where(among(t.c.id, self.database.dialect))
            held = tx.execute(locks, {"b_ids": in_order(row.task_id for row in rows)}).all()
            first = heads(tx, self.database, {one.order_key for one in held if one.order_key is not None})
            tasks = {"b_ids": in_order(one.id for one in held if one.order_key is None or one.id in first)}
            mine = update(t).where(among(t.c.id, self.database.dialect), guarded(t.c.state, *CLAIMABLE))
            until = held[0].now + self._reserved if held else None
            if until is not None:
                tx.execute(mine.values(**waiting.let_go(self.database, until)), tasks)
            wanted = {"state": DeliveryState.PENDING.value, "cause": Cause.MANUAL.value}
            self._set(tx, [row.id for row in rows], wanted)
            self._note(tx, "rescheduled", [row.task_id for row in rows], {**who_and_why(who, why), "delay_s": 0.0})
            ready = select(t.c.id, t.c.queue, t.c.attempt).where(
                among(t.c.id, self.database.dialect), guarded(t.c.state, State.READY)
            )
            hints = [
                Unpublished(row.id, row.queue, row.attempt, 0.0, reserved_until=until)
                for row in tx.execute(ready, tasks)
            ]
            found = {one.task_id: one for one in hints}
            return len(rows), [found[row.task_id] for row in rows if row.task_id in found]

        return self.database.run(release)

    def discard_held(self, endpoint_id: str, *, who: str, why: str, limit: int = AT_ONCE) -> int:
        """Give up what is held of an endpoint, a page at a time; answers how many that were. Repeatable.

        Raises:
            NotFound: there is no such endpoint.
        """
        t, now = self.database.tables.task, self.database.now
        said = who_and_why(who, why)

        def discard(tx: Connection) -> int:
            self._require(tx, endpoint_id)
            rows = self._held(tx, endpoint_id, limit)
            tasks = {"b_ids": in_order(row.task_id for row in rows)}
            mine = update(t).where(among(t.c.id, self.database.dialect), guarded(t.c.state, *CLAIMABLE))
            tx.execute(mine.values(state=State.CANCELLED, reason=said["why"], settled_at=now(), live_key=None), tasks)
            self._set(tx, [row.id for row in rows], {"state": DeliveryState.CANCELLED.value, "ended_at": now()})
            self._note(tx, "cancelled", [row.task_id for row in rows], said)
            return len(rows)

        return self.database.run(discard)

    def want_delivery(self, delivery_id: str) -> None:
        """A person wants a delivery that is open, however old it is. Repeatable; nothing when it has ended."""
        d = webhook_tables(self.database).delivery
        mine = update(d).where(d.c.id == delivery_id, d.c.state == DeliveryState.PENDING.value)
        self.database.run(lambda tx: tx.execute(mine.values(cause=Cause.MANUAL.value)))

    def resend(
        self, delivery_ids: Sequence[str], *, cause: Cause, who: str, why: str, hints: HintRows | None = None
    ) -> tuple[list[str], list[Unpublished]]:
        """Send deliveries that have ended once more, each by a task of its own; answers which, and hints to send.

        Those are left out that are open, whose endpoint is gone or disabled, and whose body is kept no longer. Where
        the endpoint keeps an order, they come last in it, in the order of their ids.
        """
        tables = webhook_tables(self.database)
        d, w, e = tables.delivery, tables.webhook, tables.endpoint
        made = {one: new_task_id() for one in delivery_ids}
        ended = [one.value for one in DeliveryState if one not in DELIVERY_OPEN]
        query = (
            select(d.c.id, d.c.endpoint_id, d.c.task_id, d.c.state, e.c.options, w.c.order_key)
            .join(w, w.c.id == d.c.webhook_id)
            .join(e, e.c.id == d.c.endpoint_id)
            .where(
                among(d.c.id, self.database.dialect), w.c.body.is_not(None), e.c.state == EndpointState.ENABLED.value
            )
            .order_by(d.c.id)
        )

        def write(tx: Connection) -> tuple[list[str], list[Unpublished]]:
            locked = select(d.c.id).where(among(d.c.id, self.database.dialect)).order_by(d.c.id).with_for_update()
            tx.execute(locked, {"b_ids": in_order(delivery_ids)}).all()
            rows = tx.execute(query, {"b_ids": in_order(delivery_ids)}).all()
            stands = [row.id for row in rows if row.task_id == made[row.id]]  # an earlier try, whose commit was lost
            again = [row for row in rows if row.state in ended]
            tasks: Sequence[NewTask] = [
                task_of(
                    made[row.id], row.id, row.endpoint_id, options_in(row.options), order_key=row.order_key, delay_s=0.0
                )
                for row in again
            ]
            if tasks:
                tasks = self._tasks.insert(tx, tasks, hints)
            for row in again:
                self._set(
                    tx,
                    [row.id],
                    {
                        "state": DeliveryState.PENDING.value,
                        "task_id": made[row.id],
                        "cause": cause.value,
                        "ended_at": None,
                        "next_at": None,
                    },
                )
            self._note(tx, "revived", [made[row.id] for row in again], {**who_and_why(who, why), "cause": cause.value})
            turn = [task for task in tasks if task.waits_for is None]
            fresh = [] if hints is not None else [Unpublished(task.id, task.queue, 0, 0.0) for task in turn]
            return [*stands, *(row.id for row in again)], fresh

        return self.database.run(write)

    def resendable(self, which: WhichDeliveries, *, limit: int = AT_ONCE, after: str | None = None) -> list[str]:
        """Deliveries that have ended, by id from the oldest, a page at a time: `after` is the last one before."""
        tables = webhook_tables(self.database)
        d, w, e = tables.delivery, tables.webhook, tables.endpoint
        query = (
            select(d.c.id)
            .join(w, w.c.id == d.c.webhook_id)
            .join(e, e.c.id == d.c.endpoint_id)
            .where(
                *self._deliveries.which_deliveries(which),
                d.c.state.in_([one.value for one in DeliveryState if one not in DELIVERY_OPEN]),
                w.c.body.is_not(None),
                e.c.state == EndpointState.ENABLED.value,
            )
            .order_by(d.c.id)
            .limit(limit)
        )
        if after is not None:
            query = query.where(d.c.id > after)
        return self.database.ask(lambda tx: list(tx.execute(query).scalars()))

    def _held(self, tx: Connection, endpoint_id: str, limit: int) -> Sequence[Any]:
        d = webhook_tables(self.database).delivery
        query = (
            select(d.c.id, d.c.task_id)
            .where(d.c.endpoint_id == endpoint_id, d.c.state == DeliveryState.HELD.value)
            .order_by(d.c.id)
            .limit(limit)
        )
        return tx.execute(query).all()

    def _note(self, tx: Connection, kind: str, task_ids: Sequence[str], detail: Mapping[str, Any]) -> None:
        """What a person has decided, in the history of the task of each delivery."""
        if task_ids:
            self._history.append(tx, kind, detail, task_ids=task_ids)

    def _set(self, tx: Connection, delivery_ids: Sequence[str], values: dict[str, Any]) -> None:
        d = webhook_tables(self.database).delivery
        mine = update(d).where(among(d.c.id, self.database.dialect))
        tx.execute(mine.values(values), {"b_ids": in_order(delivery_ids)})

    def _require(self, tx: Connection, endpoint_id: str) -> str:
        """The state of an endpoint that has to be there."""
        e = webhook_tables(self.database).endpoint
        found: str | None = tx.execute(select(e.c.state).where(e.c.id == endpoint_id)).scalar()
        if found is None:
            raise NotFound(f"no endpoint {endpoint_id!r}; see: workq webhook endpoint ls")
        return found
