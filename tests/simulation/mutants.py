"""Mutation of the protocol: bugs on purpose, each of which the simulation must see.

A mutant is put into the production code (or into its SQL, or into what a client sends), then seeds are run until one
of them violates an invariant. A mutant that survives would mean that the harness is blind there.

Not in the list, because nothing can see it: a hint published by a settlement that came late (a second hint is worth
nothing). Nor yet was seen: a process that forgets a claim when an older one of the same task is settled late; a hint
that is dropped without a look because another holds its task (`ThreeStores._held_elsewhere`); 600 seeds showed none.
Nor what becomes of a splitter that loses its page to an older attempt (its attempt is one step here, and whoever waits
in the middle of a step waits for those that began after it), nor the attempt by which a repeated settlement counts
nothing of its subtask (the fence sees it before).

    .venv/bin/python -m tests.simulation.mutants [NAME ...] [--seeds N]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import msgspec
from sqlalchemy import bindparam, insert, true, update
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BindParameter, ColumnElement

from tests.simulation import broker, inflight
from tests.simulation.ledger import SimDatabase
from tests.simulation.run import Result, database, run
from tests.simulation.world import Plan
from workq.broker.embedded.claiming_consumer import DirectConsumer
from workq.broker.later.due_rows import DueRows
from workq.broker.later.mover import Mover
from workq.enqueue import relay
from workq.enqueue.producer import Producer
from workq.errors import InFlightUnavailable
from workq.jobs.ledger.care import JobCare
from workq.jobs.ledger.changes import JobLock, Rest
from workq.jobs.ledger.counts import JobCounts
from workq.jobs.ledger.jobs import Jobs
from workq.jobs.values import JOB_ENDED
from workq.ledger import Unpublished, decisions
from workq.ledger.claims import Claims
from workq.ledger.decisions import Decisions
from workq.ledger.engine.id_lists import among
from workq.ledger.hints import Hints
from workq.ledger.markers import Markers
from workq.ledger.outcomes import Outcomes
from workq.ledger.upkeep import Upkeep
from workq.ledger.workers import Workers
from workq.limits.ledger import permits
from workq.limits.ledger.limits import Limits
from workq.order.ledger import positions
from workq.order.ledger.order import Order
from workq.recovery import lost_hints, reap, sweep
from workq.schedules.ledger import Schedules
from workq.values.task import SETTLED, Failed, State
from workq.worker.fetch.intake import ForeignMessages, ServedLanes
from workq.worker.fetch.refused import RefusedHints
from workq.worker.fetch.three_stores import ThreeStores
from workq.worker.holds import Holds
from workq.worker.settle import Settler

SEEDS_MAX = 10_000

MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(make: Callable[[], Any]) -> Callable[[], Any]:
    """Register one; its name is the bug, in words."""
    MUTANTS[make.__name__] = make
    return make


# -- how statements are changed


def without(statement: Any, *names: str) -> Any:
    """The statement without those conditions that mention a column or a parameter of these names."""
    kept = [one for one in statement._where_criteria if not _mentions(one, names)]
    changed = statement._generate()
    changed._where_criteria = tuple(kept)
    return changed


def _mentions(condition: ColumnElement[bool], names: tuple[str, ...]) -> bool:
    for part in visitors.iterate(condition):
        if getattr(part, "name", None) in names or (isinstance(part, BindParameter) and part.key in names):
            return True
    return False


@contextmanager
def changed_sql(method: tuple[type, str], *names: str, nth: int | None = None) -> Iterator[None]:
    """Every statement (or the nth) that is executed inside of a ledger's method loses some conditions."""
    owner, attribute = method
    original = getattr(owner, attribute)

    def mutated(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = {**vars(self)}
        self.database = _Changing(self.database, names, nth)
        if "floor" in before:  # its looks are statements of the method, too
            self.floor = copy(self.floor)
            self.floor._database = self.database
        try:
            return original(self, *args, **kwargs)
        finally:
            vars(self).update(before)

    with mock.patch.object(owner, attribute, mutated):
        yield


class _Changing:
    """A database whose transactions change statements on their way."""

    def __init__(self, inner: SimDatabase, names: tuple[str, ...], nth: int | None) -> None:
        self._inner, self._names, self._nth = inner, names, nth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, change: Callable[[Any], Any], **kwargs: Any) -> Any:
        return self._inner.run(lambda tx: change(_Tx(tx, self._names, self._nth)), **kwargs)

    def ask(self, question: Callable[[Any], Any]) -> Any:
        return self._inner.ask(lambda tx: question(_Tx(tx, self._names, self._nth)))


class _Tx:
    """A connection that executes something else than it was told."""

    def __init__(self, inner: Any, names: tuple[str, ...], nth: int | None) -> None:
        self._inner, self._names, self._nth, self._count = inner, names, nth, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, statement: Any, *args: Any) -> Any:
        self._count += 1
        if hasattr(statement, "_where_criteria") and self._nth in (None, self._count):
            statement = without(statement, *self._names)
        return self._inner.execute(statement, *args)


def replaced(owner: Any, name: str, by: Any) -> Any:
    """Another function in its place."""
    return mock.patch.object(owner, name, by)


# -- the fence


@mutant
def settle_without_the_fence() -> Any:
    """Neither attempt nor token: `state = 'running'` alone."""
    original = Outcomes.settle_statement

    def statement(self: Outcomes, kind: type, *, is_bulk: bool = False) -> Any:
        return without(original(self, kind, is_bulk=is_bulk), "b_token", "b_attempt")

    return replaced(Outcomes, "settle_statement", statement)


@mutant
def settle_without_the_token() -> Any:
    """The attempt alone: a ledger that was restored from a backup uses its numbers again."""
    original = Outcomes.settle_statement

    def statement(self: Outcomes, kind: type, *, is_bulk: bool = False) -> Any:
        return without(original(self, kind, is_bulk=is_bulk), "b_token")

    return replaced(Outcomes, "settle_statement", statement)


@mutant
def settle_without_the_state() -> Any:
    """A settlement that is repeated, or late, overwrites."""
    original = Outcomes.settle_statement

    def statement(self: Outcomes, kind: type, *, is_bulk: bool = False) -> Any:
        return without(original(self, kind, is_bulk=is_bulk), "state")

    return replaced(Outcomes, "settle_statement", statement)


@mutant
def the_token_is_made_once_for_a_process() -> Any:
    original = Claims.claim

    def claim(self: Claims, task_ids: Any, *, by: str) -> Any:
        with mock.patch("workq.ledger.claims.secrets.token_hex", return_value=by[:32].ljust(32, "0")):
            return original(self, task_ids, by=by)

    return replaced(Claims, "claim", claim)


# -- the claim


@mutant
def claim_without_looking_whether_it_is_due() -> Any:
    original = Claims._claim_statement
    return replaced(Claims, "_claim_statement", lambda *args, **kw: without(original(*args, **kw), "due_at"))


@mutant
def claim_without_looking_whether_it_has_expired() -> Any:
    original = Claims._claim_statement
    return replaced(Claims, "_claim_statement", lambda *args, **kw: without(original(*args, **kw), "expires_at"))


@mutant
def claim_without_looking_whether_its_queue_is_paused() -> Any:
    original = Claims._claim_statement
    return replaced(Claims, "_claim_statement", lambda *args, **kw: without(original(*args, **kw), "ends_at"))


@mutant
def a_worker_never_serves_a_queue_again_that_was_paused() -> Any:
    original = ServedLanes.has_changed

    def has_changed(self: ServedLanes) -> bool:
        before = self.open
        changed = original(self)
        self.open = tuple(queue for queue in self.open if queue in before)
        return changed

    return replaced(ServedLanes, "has_changed", has_changed)


@mutant
def the_hint_of_a_paused_task_is_dropped() -> Any:
    original = RefusedHints.judge

    def judge(self: RefusedHints, missed: Any, looks: Any) -> Any:
        missed = list(missed)
        judged = original(self, [one for one in missed if one[0] not in looks or not looks[one[0]].is_paused], looks)
        return judged if len(missed) == 0 else replace(judged, is_paused=any(one.is_paused for one in looks.values()))

    return replaced(RefusedHints, "judge", judge)


@mutant
def what_has_expired_is_never_cancelled() -> Any:
    return replaced(Upkeep, "expire", lambda self, *, limit, dry_run=False: 0)


@mutant
def people_decide_about_what_runs() -> Any:
    return replaced(decisions, "CLAIMABLE", (State.READY, State.WAITING, State.RUNNING))


@mutant
def reschedule_leaves_the_hint_that_it_has() -> Any:
    original = Decisions.reschedule

    def reschedule(self: Decisions, task_id: str, **given: Any) -> Any:
        hint = original(self, task_id, **given)
        t = self.database.tables.task
        stays = update(t).where(t.c.id == task_id, t.c.published_at.is_(None)).values(published_at=t.c.created_at)
        self.database.run(lambda tx: tx.execute(stays))
        return hint

    return replaced(Decisions, "reschedule", reschedule)


@mutant
def claim_without_looking_at_the_state() -> Any:
    def statement(self: Claims, **_has_permit: Any) -> Any:
        t, now = self.database.tables.task, self.database.now
        claimed = {"token": bindparam("b_token"), "worker": bindparam("b_by"), "started_at": now()}
        return (
            update(t)
            .where(among(t.c.id, self.database.dialect), t.c.due_at <= now())
            .values(state="running", attempt=t.c.attempt + 1, **claimed)
        )

    return replaced(Claims, "_claim_statement", statement)


@mutant
def claim_for_an_incarnation_that_is_not_live() -> Any:
    original = Claims._claim_statement

    def statement(self: Claims, **has_permit: Any) -> Any:
        return _without_exists(original(self, **has_permit))

    return replaced(Claims, "_claim_statement", statement)


def _without_exists(statement: Any) -> Any:
    changed = statement._generate()
    changed._where_criteria = tuple(one for one in statement._where_criteria if "EXISTS" not in str(one))
    return changed


@mutant
def claim_by_the_clock_of_the_host() -> Any:
    return _host_clock("claim")


@mutant
def sweep_by_the_clock_of_the_host() -> Any:
    return _host_clock("suspect", "reap", "promote", "take_unpublished")


@contextmanager
def _host_clock(*ops: str) -> Iterator[None]:
    def offset_s(self: SimDatabase) -> float:
        world = self.world
        if world.op is None or world.op[0] not in ops or world.acting is None:
            return 0.0
        return world.acting.process.wall_s

    original = SimDatabase._instant

    def instant(self: SimDatabase, plus_s: float) -> str:
        return original(self, plus_s + offset_s(self))

    with mock.patch.object(SimDatabase, "_instant", instant):
        made = database()
        made.raw.create_function("sim_now", 1, made._instant)
        try:
            yield
        finally:
            mock.patch.object(SimDatabase, "_instant", original)
    made.raw.create_function("sim_now", 1, made._instant)


# -- custody


@mutant
def ack_before_the_hold() -> Any:
    original = ThreeStores._hold

    def hold(self: ThreeStores) -> None:
        self._consumer.ack(self._unheld)
        original(self)

    return replaced(ThreeStores, "_hold", hold)


@mutant
def ack_although_the_hold_failed() -> Any:
    original = ThreeStores._hold

    def hold(self: ThreeStores) -> None:
        deliveries = self._unheld
        try:
            original(self)
        except InFlightUnavailable:
            self._consumer.ack(deliveries)
            self._unheld = []

    return replaced(ThreeStores, "_hold", hold)


@mutant
def a_split_page_loses_its_rest() -> Any:
    original = ThreeStores._split

    def split(self: ThreeStores, deliveries: Any, room: int) -> Any:
        with mock.patch.object(self, "_publish", return_value=True):
            return original(self, deliveries, room)

    return replaced(ThreeStores, "_split", split)


@mutant
def what_is_given_back_is_released_without_a_hint() -> Any:
    def give_back(self: ThreeStores, rows: Any) -> bool:
        self._let_go(rows)
        return True

    return replaced(ThreeStores, "_give_back", give_back)


# -- direct


@mutant
def directly_a_page_that_is_cut_loses_its_rest() -> Any:
    original = DirectConsumer.conclude

    def conclude(self: DirectConsumer, *args: Any) -> Any:
        self._step.rows += list(self._step.rests)
        self._step.rests = {}
        return original(self, *args)

    return replaced(DirectConsumer, "conclude", conclude)


@mutant
def directly_hints_that_were_not_granted_are_removed_without_a_look() -> Any:
    original = DirectConsumer.conclude

    def conclude(self: DirectConsumer, *args: Any) -> Any:
        self._step.judge = lambda missed, looks: ()
        return original(self, *args)

    return replaced(DirectConsumer, "conclude", conclude)


@mutant
def directly_hints_stay_although_their_tasks_were_claimed() -> Any:
    original = DirectConsumer.conclude

    def conclude(self: DirectConsumer, *args: Any) -> Any:
        self._step.rows = []
        return original(self, *args)

    return replaced(DirectConsumer, "conclude", conclude)


@mutant
def directly_a_claim_is_repeated_without_looking_whether_it_stands() -> Any:
    return replaced(Claims, "standing_claims", lambda self, tx, call: ())


@mutant
def what_is_claimed_and_unknown_is_never_returned() -> Any:
    return replaced(Workers, "return_forgotten", lambda self, tokens, *, by: [])


@mutant
def what_is_being_claimed_is_taken_for_forgotten() -> Any:
    """Two looks alone: the answer to a claim may take longer."""
    return replaced(Holds, "claiming", nullcontext)


@mutant
def what_was_unknown_once_is_forgotten() -> Any:
    """The first look decides."""
    original = Holds.return_forgotten

    def return_forgotten(self: Holds) -> Any:
        self._calls_then = frozenset()
        self._forgotten = frozenset(self._ledger.workers.claimed_by(self._by).items())
        return original(self)

    return replaced(Holds, "return_forgotten", return_forgotten)


@mutant
def what_is_handed_back_is_not_stamped() -> Any:
    """A marker that was sent before proves the new hint lost."""
    return replaced(Hints, "rehinted", lambda self, task_ids, *, delay_s=0.0: None)


@mutant
def inbound_headers_are_copied() -> Any:
    """What was dead-lettered once is published with that header, and is dropped when it is delayed again."""

    @contextmanager
    def patched() -> Iterator[None]:
        passed: dict[str, int] = {}
        delivery, init = broker._delivery, broker.SimBroker.__init__

        def seen(message: broker.Message) -> Any:
            passed.update(dict.fromkeys(message.ids, message.passes))
            return delivery(message)

        def begin(self: broker.SimBroker, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            self.inherited = lambda hint: max([passed.get(one, 0) for one in hint.task_ids], default=0)

        with mock.patch.object(broker, "_delivery", seen), mock.patch.object(broker.SimBroker, "__init__", begin):
            yield

    return patched()


# -- produce and relay


@mutant
def publish_before_the_commit() -> Any:
    original = Producer.record

    def record(self: Producer, tasks: Any, *, connection: Any = None) -> Any:
        self.relay.offer([Unpublished(task.id, task.queue, 0, task.delay_s) for task in tasks])
        self.relay.relay_once()
        return original(self, tasks, connection=connection)

    return replaced(Producer, "record", record)


@mutant
def publish_in_a_transaction_of_the_caller_at_once() -> Any:
    def offer(self: Producer, connection: Any, rows: Any) -> None:
        self.relay.offer(rows)
        self.relay.relay_once()

    return replaced(Producer, "_offer_after_commit", offer)


@mutant
def the_relay_marks_what_was_not_confirmed() -> Any:
    def send(stores: Any, rows: Any, *, deadline_s: float) -> list[Any]:
        pages = relay.hints_of([row for row in rows if row.delay_s <= stores.broker.horizon_s], unit_s=0.0)
        if pages:
            stores.broker.publish([hint for hint, _ in pages], deadline_s=deadline_s)
        return [row for _, page in pages for row in page]

    return replaced(relay, "send", send)


@mutant
def mark_published_without_the_attempt() -> Any:
    original = Hints._mark_statement

    def mark(self: Hints, *, is_reserved: bool) -> Any:
        return without(original(self, is_reserved=is_reserved), "attempt")

    return replaced(Hints, "_mark_statement", mark)


@mutant
def the_sweep_does_not_relay() -> Any:
    return mock.patch.dict(sweep.IN_ORDER, relay=lambda one: None)


# -- settle


@mutant
def the_hint_of_a_retry_before_the_ledger() -> Any:
    original = Settler.settle_once

    def settle_once(self: Settler) -> float:
        rows = [
            Unpublished(one.claim.task_id, one.claim.queue, one.claim.attempt, one.outcome.delay_s)
            for one in [*self._waiting, *(one for batch in self._in_hand for one in batch)]
            if isinstance(one.outcome, Failed)
        ]
        offer = self._relay.offer
        offer(rows)
        self._relay.relay_once()
        with mock.patch.object(self._relay, "offer", return_value=None):
            return original(self)

    return replaced(Settler, "settle_once", settle_once)


@mutant
def every_settlement_publishes_a_hint() -> Any:
    original = Settler._finish

    def finish(self: Settler, batch: Any, settled: Any, began: Any) -> None:
        original(self, batch, [msgspec.structs.replace(one, state=State.READY) for one in settled], began)

    return replaced(Settler, "_finish", finish)


# -- the dead


@mutant
def reap_at_the_first_look() -> Any:
    original = Workers.suspect

    def suspect(self: Workers, missing: Any, *, beat_s: float, **kwargs: Any) -> Any:
        gone = list(missing)
        original(self, gone, beat_s=-1.0, **kwargs)
        return original(self, gone, beat_s=-1.0, **kwargs)

    reap = Workers.reap

    def reap_now(
        self: Workers, worker: str, evidence: Any, *, suspected_for_s: float | None = None, **kwargs: Any
    ) -> Any:
        return reap(self, worker, evidence, suspected_for_s=None if suspected_for_s is None else -1.0, **kwargs)

    return _both(replaced(Workers, "suspect", suspect), replaced(Workers, "reap", reap_now))


@mutant
def reap_without_the_heartbeat_in_the_ledger() -> Any:
    return _both(changed_sql((Workers, "suspect"), "beat_at"), changed_sql((Workers, "reap"), "beat_at"))


@mutant
def orphans_are_never_returned() -> Any:
    return replaced(Workers, "orphans", lambda self, *, limit, dry_run=False: [])


@mutant
def what_the_dead_held_is_not_hinted_again() -> Any:
    return replaced(Hints, "unhint", lambda self, task_ids, *, dry_run=False: [])


@mutant
def reaping_ends_at_the_ledger() -> Any:
    """Claims end, but entries and hints of the dead stay as they are."""
    return replaced(reap, "free", lambda *args, **kwargs: None)


@mutant
def a_beat_gives_the_forgotten_a_lease_again() -> Any:
    def grant(self: inflight.SimInFlight, worker: str, lease_s: float) -> None:
        self._begin()
        self._server.state.leases[worker] = self._server.now() + lease_s

    return replaced(inflight.SimInFlight, "_grant", grant)


@mutant
def release_drops_what_others_hold() -> Any:
    def release(self: inflight.SimInFlight, task_ids: Any, *, by: str) -> int:
        with self._call("release"):
            own = [(queue, task_id) for task_id, queue in task_ids if (queue, task_id) in self._server.state.holds]
            for where in own:
                self._server.state.holds.pop(where, None)
            return len(own)

    return replaced(inflight.SimInFlight, "release", release)


@mutant
def hold_takes_what_a_live_other_holds() -> Any:
    def take(self: inflight.SimInFlight, entries: Any, worker: str, *, exact: bool) -> tuple[set[str], int]:
        for entry in entries:
            self._server.state.holds[entry.queue, entry.task_id] = (worker, entry.attempt, self._server.now())
        return {entry.task_id for entry in entries}, 0

    return replaced(inflight.SimInFlight, "_take", take)


# -- the marker


@mutant
def the_marker_proves_without_a_grace() -> Any:
    original = lost_hints._proof

    def proof(markers: Any, times: Any) -> Any:
        return original(markers, replace(times, marker_grace_s=1e-6))

    return replaced(lost_hints, "_proof", proof)


@mutant
def the_marker_overtakes_hints_that_came_later() -> Any:
    """Without `published_at <= sent_at`."""
    return changed_sql((Markers, "lost"), "published_at")


@mutant
def a_marker_is_returned_before_the_hints_ahead_of_it_are_held() -> Any:
    original = ForeignMessages.sort

    def sort(self: ForeignMessages, deliveries: Any) -> Any:
        ours = original(self, deliveries)
        return [one for one in ours if not self._markers] if len(ours) > 1 else ours

    return replaced(ForeignMessages, "sort", sort)


@mutant
def a_hint_that_comes_late_is_marked_as_if_it_came_in_time() -> Any:
    """Its level keeps it beyond its due time, and a marker that was sent meanwhile overtakes it."""

    def kept(row: Any, late: Any) -> Any:
        return msgspec.structs.replace(row, delay_s=late.waits_s(row.delay_s))

    return replaced(relay, "_kept", kept)


@mutant
def no_marker_is_ever_sent() -> Any:
    return replaced(lost_hints, "_noted", lambda *args, **kwargs: None)


# -- delays in the ledger


@mutant
def the_mover_deletes_before_the_confirm() -> Any:
    original = Mover._sent

    def sent(self: Mover, pages: Any) -> Any:
        self._rows.drop([row for page in pages for row in page.rows])
        return original(self, pages)

    return replaced(Mover, "_sent", sent)


@mutant
def the_mover_skips_rows() -> Any:
    """It begins where it left off, and what another mover gave back is behind that."""
    original = DueRows.first

    def first(self: DueRows, *, within_s: float) -> Any:
        self._whole_at = self._clock() + 1.0 if self._queues else self._whole_at
        return original(self, within_s=within_s)

    return replaced(DueRows, "first", first)


@mutant
def what_a_dead_mover_had_taken_stays_so() -> Any:
    original = DueRows._ahead

    def ahead(self: DueRows) -> Any:
        hint = self._database.tables.hint
        return [*original(self)[:-1], hint.c.delivered_at.is_(None)]

    return replaced(DueRows, "_ahead", ahead)


@mutant
def a_marker_overtakes_hints_that_are_still_rows() -> Any:
    return replaced(lost_hints, "overdue_row_s", lambda *_: None)


@contextmanager
def _both(*changes: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


# -- schedules


@mutant
def a_schedule_moves_on_before_its_tick_is_recorded() -> Any:
    """In two transactions: whoever dies between them has left a tick out."""
    original = Schedules.tick

    def tick(self: Schedules, row: Any, ticks: Any, *, next_at: Any, hints: Any = None) -> bool:
        if not original(self, row, [], next_at=next_at):
            return False
        self._tasks.record([task for _, task in ticks], hints=hints)
        ids = [{"schedule": row.name, "at": at, "task_id": task.id} for at, task in ticks]
        made = insert(self.database.tables.tick).values(made_at=self.database.now())
        self.database.run(lambda tx: tx.execute(made, ids)) if ids else None
        return True

    return replaced(Schedules, "tick", tick)


@mutant
def a_schedule_that_has_moved_on_ticks_again() -> Any:
    """Whoever looked before another had moved it records the same ticks: only their own rows stand against it."""
    original = Schedules.tick

    def tick(self: Schedules, row: Any, ticks: Any, *, next_at: Any, hints: Any = None) -> bool:
        if not original(self, row, ticks, next_at=next_at, hints=hints):
            self._tasks.record([task for _, task in ticks], hints=hints)
        return True

    return replaced(Schedules, "tick", tick)


# -- order


@mutant
def a_line_moves_up_though_its_first_waits_for_a_retry() -> Any:
    """What does not run at the moment counts as ended."""
    return mock.patch("workq.order.ledger.order.SETTLED", SETTLED | {State.WAITING})


@mutant
def the_second_of_a_line_is_ready_at_once() -> Any:
    def enter(tx: Any, database: Any, tasks: Any) -> Any:
        entered(tx, database, tasks)
        return tasks

    entered = positions.enter
    return mock.patch.object(positions, "enter", enter)


@mutant
def a_sweep_never_moves_a_line_up() -> Any:
    """Whoever settles its first, and dies, leaves it as it is for ever."""
    return replaced(Order, "ended_heads", lambda self, *, limit: [])


# -- limits


@mutant
def a_claim_asks_for_no_permit() -> Any:
    """What shares a limit is claimed as anything else."""
    original = Claims._claim_statement
    return replaced(Claims, "_claim_statement", lambda self, **_kw: original(self, has_permit=True))


@mutant
def what_is_promised_does_not_count() -> Any:
    def has_room(self: permits._Limit, most: int | None) -> bool:
        return bool(most is None or self.running < most)

    return replaced(permits._Limit, "has_room", has_room)


@mutant
def a_place_comes_free_when_its_task_is_claimed_again() -> Any:
    """Of a permit, the attempt is not compared: those of earlier attempts stay for ever, beside the new one."""
    original = permits._counts

    def counts(limit: Any, permit: Any) -> bool:
        if permit.attempt is not None and permit.state not in (None, *SETTLED):
            limit.running += int(permit.in_use) or 1
            return True
        return original(limit, permit)

    return replaced(permits, "_counts", counts)


@mutant
def a_sweep_never_looks_at_limits() -> Any:
    """Whoever settles, and dies before it lets the next one start, leaves the others parked for ever."""
    return replaced(Limits, "limits_to_look_at", lambda self, *, limit: [])


# -- jobs


@mutant
def a_splitter_does_not_look_where_the_job_stands() -> Any:
    """Two of them, one after a long pause, make the same page."""
    original = Jobs.split_job

    def split_job(self: Jobs, job_id: str, subtasks: Any, *, after: int, **facts: Any) -> Any:
        row = self._job_questions.job(job_id)
        return original(self, job_id, subtasks, after=after if row is None else row.read_subtasks, **facts)

    return replaced(Jobs, "split_job", split_job)


@mutant
def a_page_is_recorded_without_its_cursor() -> Any:
    original = Jobs.split_job

    def split_job(self: Jobs, job_id: str, subtasks: Any, *, cursor: Any, **facts: Any) -> Any:
        row = self._job_questions.job(job_id)
        return original(self, job_id, subtasks, cursor=None if row is None else row.cursor, **facts)

    return replaced(Jobs, "split_job", split_job)


@mutant
def a_window_has_always_room() -> Any:
    original = Jobs.split_job
    return replaced(Jobs, "split_job", lambda self, *args, **facts: _with_room(original(self, *args, **facts)))


def _with_room(split: Any) -> Any:
    return split if split.room is None else msgspec.structs.replace(split, room=20)


@mutant
def a_subtask_that_has_ended_is_counted_again() -> Any:
    original = JobCounts.count_locked

    def count_locked(self: JobCounts, tx: Any, row: Any, changes: Any, wishes: Any) -> None:
        original(self, tx, row, changes, wishes)
        row.succeeded += sum(change.rest is Rest.SUCCEEDED and row.succeeded > 3 for change in changes)
        self.write_job(tx, row)

    return replaced(JobCounts, "count_locked", count_locked)


@mutant
def a_job_ends_with_each_settlement_after_its_end() -> Any:
    """Its state is looked at, and not whether it has ended before: what follows it is recorded again."""
    return mock.patch.object(JobLock, "has_ended", property(lambda self: self.state in JOB_ENDED))


@mutant
def a_claim_does_not_look_at_the_job() -> Any:
    stack = ExitStack()
    stack.enter_context(mock.patch("workq.jobs.ledger.gate.is_open", return_value=true()))
    stack.enter_context(mock.patch("workq.jobs.ledger.gate.ask", lambda _tx, _database, rows: rows))
    return stack


@mutant
def what_was_parked_of_a_job_stays_so() -> Any:
    return replaced(JobCare, "_let_go", lambda self, *_: [])


@mutant
def a_sweep_lets_go_nothing_that_is_parked() -> Any:
    """Whoever resumes a job, and dies before it lets go what is parked, leaves it so for ever."""
    return replaced(JobCare, "_unpark_left", lambda self, _: [])


@mutant
def a_sweep_never_tends_a_job() -> Any:
    """What was settled without its handler is never counted, and its job never ends."""
    return replaced(JobCare, "open_jobs", lambda self, *, limit: [])


# -- the hunt


ANYWHERE = ("healthy", "losing", "any")
KINDS = {
    "settle_without_the_fence": ("any",),
    "settle_without_the_token": ("any",),
    "what_is_claimed_and_unknown_is_never_returned": ("any",),
    "what_is_being_claimed_is_taken_for_forgotten": ("any",),
    "what_was_unknown_once_is_forgotten": ("any",),
    "settle_without_the_state": ("any",),
    "ack_before_the_hold": ("any",),
    "ack_although_the_hold_failed": ("any",),
    "claim_for_an_incarnation_that_is_not_live": ("any",),
    "the_relay_marks_what_was_not_confirmed": ("any",),
    "mark_published_without_the_attempt": ("any",),
    "reap_without_the_heartbeat_in_the_ledger": ("any",),
    "orphans_are_never_returned": ("any",),
    "what_the_dead_held_is_not_hinted_again": ("any",),
    "release_drops_what_others_hold": ("any",),
    "the_marker_proves_without_a_grace": ("healthy", "losing"),
    "the_marker_overtakes_hints_that_came_later": ("healthy", "losing"),
    "a_marker_is_returned_before_the_hints_ahead_of_it_are_held": ("healthy", "losing"),
    "what_is_handed_back_is_not_stamped": ("healthy", "losing"),
    "no_marker_is_ever_sent": ("losing",),
    "the_mover_deletes_before_the_confirm": ("any",),
    "what_a_dead_mover_had_taken_stays_so": ("any",),
}
"""Where a mutant can be seen at all: other seeds count, and are not run."""


WORLDS = {
    "a_line_moves_up_though_its_first_waits_for_a_retry": "is_ordered",
    "the_second_of_a_line_is_ready_at_once": "is_ordered",
    "a_sweep_never_moves_a_line_up": "is_ordered",
    "a_claim_asks_for_no_permit": "is_limited",
    "what_is_promised_does_not_count": "is_limited",
    "a_place_comes_free_when_its_task_is_claimed_again": "is_limited",
    "a_sweep_never_looks_at_limits": "is_limited",
    "a_splitter_does_not_look_where_the_job_stands": "is_job",
    "a_page_is_recorded_without_its_cursor": "is_job",
    "a_window_has_always_room": "is_job",
    "a_subtask_that_has_ended_is_counted_again": "is_job",
    "a_job_ends_with_each_settlement_after_its_end": "is_job",
    "a_claim_does_not_look_at_the_job": "is_job",
    "what_was_parked_of_a_job_stays_so": "is_job",
    "a_sweep_lets_go_nothing_that_is_parked": "is_job",
    "a_sweep_never_tends_a_job": "is_job",
    "the_mover_deletes_before_the_confirm": "is_moved",
    "the_mover_skips_rows": "is_moved",
    "what_a_dead_mover_had_taken_stays_so": "is_moved",
    "a_marker_overtakes_hints_that_are_still_rows": "is_moved",
}
"""What a world must have, for a mutant to live there at all: other seeds count, and are not run."""


DIRECTLY = "directly_"
"""Mutants of this name live where all three stores are one database."""


@dataclass(frozen=True)
class Caught:
    """The first seed that shows a mutant, and by which invariant; None when it survived."""

    name: str
    seeds: int
    result: Result | None


BROKEN = ("TypeError(", "AttributeError(", "NameError(", "KeyError(", "ImportError(")


def hunt(name: str, *, first: int = 1, seeds_max: int = SEEDS_MAX) -> Caught:
    """Run seeds, from the first on, until one sees the mutant.

    Raises:
        RuntimeError: it does not run: an error of its own code is no bug of the protocol, and would be seen by anybody.
    """
    for seed in range(first, seeds_max + 1):
        plan = Plan.of(seed)
        if plan.kind not in KINDS.get(name, ANYWHERE) or (name.startswith(DIRECTLY) and not plan.is_direct):
            continue
        if (needed := WORLDS.get(name)) is not None and not getattr(plan, needed):
            continue
        with MUTANTS[name]():
            result = run(seed, database())
        if any(error in violation for violation in result.violations for error in BROKEN):
            raise RuntimeError(f"the mutant {name} is broken: {result.violations[0]}")
        if result.violations:
            return Caught(name, seed, result)
    return Caught(name, seeds_max, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MUTANTS))
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    options = parser.parse_args()
    survivors = 0
    for name in options.names:
        began = time.monotonic()
        caught = hunt(name, seeds_max=options.seeds)
        shown = "SURVIVED" if caught.result is None else caught.result.violations[0][:110]
        survivors += caught.result is None
        print(f"{name:62} {caught.seeds:5} seeds {time.monotonic() - began:6.1f} s  {shown}", flush=True)
    print(f"{len(options.names) - survivors} of {len(options.names)} mutants caught")
    return 3 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
