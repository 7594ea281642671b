"""The sweep repairs what producers and workers left; ten at once do what one does; a dry run changes nothing."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

import redis

from tests.stores import database_of
from tests.system.legs import Leg
from workq import State
from workq.ledger.sql import Ledger
from workq.recovery.sweep import sweep
from workq.recovery.swept import Swept
from workq.values.incarnation import Incarnation
from workq.values.task import NewTask


def clockwork(leg: Leg) -> Any:
    """The database whose clock the test moves."""
    return database_of(leg.app)


def record_unpublished(ledger: Ledger, leg: Leg, count: int) -> list[str]:
    """Tasks of a producer that died between its commit and its hints."""
    from workq.values import codec

    tasks = [NewTask(codec.new_task_id(), "witness.note", "witness", '{"a":[1],"k":{}}') for _ in range(count)]
    return [one.id for one in ledger.tasks.record(tasks)]


def delivered(leg: Leg) -> list[str]:
    """Every id that hints in the broker carry, taken out of it."""
    consumer = leg.app.stores.broker.consumer(["witness"], name="test", prefetch=200)
    found: list[str] = []
    try:
        while True:
            deliveries = consumer.fetch(ids_max=1000, wait_s=1.5)
            if not deliveries:
                return found
            found.extend(task_id for one in deliveries for task_id in one.task_ids)
            consumer.ack(deliveries)
    finally:
        consumer.close()


def test_ten_sweeps_at_once_publish_each_unpublished_task_once(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    ids = record_unpublished(stores.ledger, leg, 500)
    clockwork(leg).clock_offset_s = 60.0
    ledger: Any = stores.ledger
    ledger.reserved_s = 600.0  # else, where the machine stands still for long, they look like relays that died
    done: list[Swept] = []
    sweeps = [
        threading.Thread(target=lambda: done.append(sweep(stores, settings, only=["relay"], limit=100)))
        for _ in range(10)
    ]
    for one in sweeps:
        one.start()
    for one in sweeps:
        one.join(60)

    while (again := sweep(stores, settings, only=["relay"])).relayed:  # who came second at some rows left others
        done.append(again)

    assert len(done) >= 10
    assert sum(one.relayed for one in done) == 500
    assert sorted(delivered(leg)) == sorted(ids)


def test_a_fresh_row_is_left_to_its_producer_for_the_grace(leg: Leg) -> None:
    record_unpublished(leg.app.stores.ledger, leg, 1)
    assert sweep(leg.app.stores, leg.app.settings, only=["relay"]).relayed == 0


def stale_worker(leg: Leg) -> tuple[Incarnation, list[str], list[str]]:
    """A worker that held eight tasks, had claimed five of them, and was never heard of again."""
    stores, settings = leg.app.stores, leg.app.settings
    from workq.inflight import Entry

    worker = Incarnation("gone.host.1", "gone.host", 1)
    ids = record_unpublished(stores.ledger, leg, 8)
    stores.inflight.join(worker.id, lease_s=30.0)
    stores.ledger.workers.join(worker, queues=["witness"], threads=5)
    assert stores.inflight.hold([Entry(one, "witness") for one in ids], by=worker.id) == set(ids)
    claimed = [claim.task_id for claim in stores.ledger.claims.claim(ids[:5], by=worker.id)]
    assert settings.times.lease_s == 30.0
    stores.inflight.beat(worker.id, lease_s=0.2, entries=[])  # the last that was heard of it
    return worker, claimed, ids[5:]


def age_epoch(leg: Leg) -> None:
    """The in-flight store is not young any more; a heartbeat of now is 16 s old, which is less than a lease."""
    clockwork(leg).clock_offset_s = 16.0
    if leg.name == "servers":  # there, the epoch goes by the clock of Redis
        with redis.Redis.from_url(leg.environ["WORKQ_INFLIGHT_URL"]) as client:
            client.set(f"{{{leg.app.settings.namespace}}}:epoch", 1)
    assert leg.app.stores.inflight.epoch_age_s() > 3 * leg.app.settings.times.beat_s


def test_a_vanished_worker_is_reaped_after_two_looks_and_everything_it_held_runs_again(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    worker, claimed, held = stale_worker(leg)
    age_epoch(leg)
    clock = clockwork(leg)
    steps = ["reap"]
    assert sweep(stores, settings, only=steps).changes == 0, "its heartbeat in the ledger is fresh"
    wait_for_lease_to_end(leg, worker)

    clock.clock_offset_s = 31.0
    first = sweep(stores, settings, only=steps)
    too_soon = sweep(stores, settings, only=steps)
    clock.clock_offset_s = 36.0
    planned = sweep(stores, settings, only=steps, dry_run=True)
    second = sweep(stores, settings, only=steps)
    third = sweep(stores, settings, only=steps)

    assert (first.suspected_workers, first.reaped_workers) == (1, 0)
    assert too_soon.reaped_workers == 0
    assert (second.reaped_workers, second.returned, second.rehinted) == (1, len(claimed), len(held))
    assert (planned.reaped_workers, planned.returned, planned.rehinted) == (1, len(claimed), len(held))
    assert third.changes == 0
    assert stores.ledger.questions.counts().states[State.RUNNING] == 0
    assert stores.inflight.held_by(worker.id) == []
    assert sorted(delivered(leg)) == sorted(claimed + held)


def wait_for_lease_to_end(leg: Leg, worker: Incarnation) -> None:
    """The store's clock is its own: wait for the short lease to pass."""
    from tests.system.fleet import wait_until

    def is_over() -> bool:
        lease = leg.app.stores.inflight.leases().get(worker.id)
        return lease is None or lease.left_s < 0

    wait_until(is_over, timeout_s=10, what="the lease ends")


def test_a_worker_that_beats_again_between_the_looks_keeps_its_tasks(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    worker, claimed, _ = stale_worker(leg)
    age_epoch(leg)
    wait_for_lease_to_end(leg, worker)
    clock = clockwork(leg)
    clock.clock_offset_s = 31.0
    assert sweep(stores, settings, only=["reap"]).suspected_workers == 1

    stores.inflight.beat(worker.id, lease_s=40.0, entries=[])
    clock.clock_offset_s = 36.0
    done = sweep(stores, settings, only=["reap"])

    assert done.reaped_workers == 0
    assert stores.ledger.questions.counts().states[State.RUNNING] == len(claimed)


def test_nobody_is_reaped_while_the_in_flight_store_is_young(leg: Leg) -> None:
    worker, _, _ = stale_worker(leg)
    wait_for_lease_to_end(leg, worker)
    clockwork(leg).clock_offset_s = 100.0 if leg.name == "servers" else 0.0

    done = sweep(leg.app.stores, leg.app.settings, only=["reap"])

    assert done.is_quiet
    assert done.suspected_workers == 0


def test_a_dry_run_counts_what_the_pass_then_does_and_changes_nothing(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    record_unpublished(stores.ledger, leg, 7)
    leg["note"].options(delay_s=30.0).enqueue(1)
    assert leg.app.producer.relay.flush(timeout_s=20)
    clockwork(leg).clock_offset_s = 60.0
    steps = ["relay", "orphans", "promote", "prune"]

    planned = sweep(stores, settings, only=steps, dry_run=True)
    planned_again = sweep(stores, settings, only=steps, dry_run=True)
    done = sweep(stores, settings, only=steps)

    assert asdict(planned) == asdict(planned_again) == asdict(done)
    assert (done.relayed, done.promoted) == (7, 1)
    assert sweep(stores, settings, only=steps).changes == 0
