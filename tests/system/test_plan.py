"""Plan and apply on both legs: exactly the planned rows move, each once, and each of their hints is sent once."""

from __future__ import annotations

import threading
from collections import Counter

from tests.system.legs import Leg
from tests.system.test_sweep import (
    age_epoch,
    clockwork,
    delivered,
    record_unpublished,
    stale_worker,
    wait_for_lease_to_end,
)
from workq import State
from workq.ledger import Unpublished
from workq.recovery.apply import AppliedPlan, apply
from workq.recovery.plan import Plan, Reap, decode, digest, encode, make
from workq.recovery.sweep import sweep
from workq.values.incarnation import Incarnation


def look(leg: Leg) -> tuple[Plan, str]:
    """A plan that went through its document, and its digest."""
    body = encode(make(leg.app.stores, leg.app.settings))
    return decode(body), digest(body)


def suspected_worker(leg: Leg) -> tuple[Incarnation, list[str], list[str]]:
    """A worker that held eight tasks, had claimed five, and was looked at twice: who, the claimed, the held."""
    stores, settings = leg.app.stores, leg.app.settings
    worker, claimed, held = stale_worker(leg)
    stores.ledger.hints.mark_published([Unpublished(one, "witness", 0, 0.0) for one in held])
    age_epoch(leg)
    wait_for_lease_to_end(leg, worker)
    clockwork(leg).clock_offset_s = 31.0
    assert sweep(stores, settings, only=["reap"]).suspected_workers == 1
    clockwork(leg).clock_offset_s = 36.0
    return worker, claimed, held


def test_a_plan_moves_exactly_its_rows_however_many_apply_it_at_once(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    worker, claimed, held = suspected_worker(leg)
    clockwork(leg).clock_offset_s = 6.0
    unpublished = record_unpublished(stores.ledger, leg, 300)
    clockwork(leg).clock_offset_s = 36.0
    plan, its_digest = look(leg)
    clockwork(leg).clock_offset_s = 6.0
    later = record_unpublished(stores.ledger, leg, 20)
    clockwork(leg).clock_offset_s = 36.0
    done: list[AppliedPlan] = []
    threads = [
        threading.Thread(target=lambda: done.append(apply(stores, settings, plan, plan_digest=its_digest)))
        for _ in range(10)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)

    applied: Counter[str] = Counter()
    for each in done:
        applied.update(each.applied)
    assert len(done) == 10
    assert +applied == Counter(relay=300, reap=1, rehint=len(held))
    assert [each.unconfirmed for each in done] == [0] * 10
    assert stores.inflight.held_by(worker.id) == []
    assert sorted(delivered(leg)) == sorted([*unpublished, *claimed, *held])
    assert sweep(stores, settings, only=["relay"]).relayed == len(later), "what was not in the plan was left alone"


def test_a_worker_that_beats_again_between_plan_and_apply_keeps_its_tasks(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    worker, claimed, _ = suspected_worker(leg)
    plan, its_digest = look(leg)
    assert [row.foresight.worker for row in plan.rows if isinstance(row, Reap)] == [worker.id]

    assert stores.ledger.workers.beat(worker.id)
    stores.inflight.beat(worker.id, lease_s=40.0, entries=[])
    done = apply(stores, settings, plan, plan_digest=its_digest)

    assert not +done.applied
    assert Counter(kind for kind, _, _ in done.refused) == Counter(reap=1, rehint=3)
    assert stores.ledger.questions.counts().states[State.RUNNING] == len(claimed)
    assert len(stores.inflight.held_by(worker.id)) == 8


def test_what_a_dead_worker_held_without_a_confirmed_hint_gets_one_hint_not_two(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    worker, claimed, held = suspected_worker(leg)
    assert {one.task_id for one in stores.ledger.hints.unhint(held[:2])} == set(held[:2])
    clockwork(leg).clock_offset_s = 66.0  # whoever had them in hand has let go
    plan, its_digest = look(leg)

    done = apply(stores, settings, plan, plan_digest=its_digest)

    assert (+done.applied, done.refused) == (Counter(relay=2, reap=1, rehint=1), [])
    assert stores.inflight.held_by(worker.id) == []
    assert sorted(delivered(leg)) == sorted([*claimed, *held])


def test_a_plan_sees_what_a_sweep_would_do(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    suspected_worker(leg)
    clockwork(leg).clock_offset_s = 6.0
    record_unpublished(stores.ledger, leg, 7)
    clockwork(leg).clock_offset_s = 36.0

    plan, _ = look(leg)
    done = sweep(stores, settings)

    counts = Counter(type(row).__struct_config__.tag for row in plan.rows)
    assert counts == Counter(relay=done.relayed, reap=done.reaped_workers, rehint=done.rehinted)
    [reap] = [row.foresight for row in plan.rows if isinstance(row, Reap)]
    assert Counter(one.becomes for one in reap.claims) == Counter({State.READY: done.returned, State.DEAD: done.dead})
