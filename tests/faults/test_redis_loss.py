"""Redis wiped, killed, stopped or full under workers that work: nothing is lost, and nobody is taken for dead.

A private Redis; the other servers are the run's. Times are a tenth of the default ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import redis

from tests.conftest import Private
from tests.system.conftest import OpenLeg
from tests.system.fleet import ROOM_S, wait_until
from tests.system.legs import Leg, check_once
from tests.system.witness import tell
from workq import State
from workq.diagnose.audit import audit
from workq.lab.servers import Redis, start_redis
from workq.values.incarnation import this_machine

ELSEWHERE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
"""A host of its own, as far as processes go."""


@pytest.fixture(scope="module")
def shared_redis(private: Private) -> Iterator[Redis]:
    with private(start_redis) as server:
        yield server


@pytest.fixture
def server(shared_redis: Redis) -> Redis:
    if not shared_redis.is_running:
        shared_redis.start()
    return shared_redis


@pytest.fixture
def admin(server: Redis) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def leg(server: Redis, open_leg: OpenLeg) -> Leg:
    return open_leg("servers", divide=10.0, inflight=server.url)


def notes(leg: Leg, count: int, seconds: float) -> None:
    leg["note"].enqueue_many({"number": number, "seconds": seconds} for number in range(count))


def held_open(leg: Leg, count: int) -> None:
    """Tasks that run until `tell`."""
    leg["until_told"].enqueue_many({"number": number} for number in range(count))


def wait_running(leg: Leg, count: int) -> None:
    wait_until(lambda: len(leg.starts()) >= count, timeout_s=40, what=f"{count} tasks run")


def reaped(leg: Leg) -> list[str]:
    return [row.id for row in leg.app.stores.ledger.questions.workers(live_only=False) if row.state == "reaped"]


def test_a_wipe_while_a_hundred_tasks_run_reaps_nobody_and_everything_is_held_again_in_time(
    leg: Leg, admin: Any
) -> None:
    """F45."""
    held_open(leg, 100)
    with leg.fleet(processes=2, threads=50) as fleet:
        wait_running(leg, 100)
        wait_until(lambda: len(leg.app.stores.inflight.holds("witness")) == 100, timeout_s=10, what="all are held")
        admin.flushall()
        began = time.monotonic()
        wait_until(lambda: len(leg.app.stores.inflight.holds("witness")) == 100, timeout_s=10, what="held again")
        took_s = time.monotonic() - began
        tell(leg.folder / "witness")
        leg.wait_settled(timeout_s=40)
        assert "child_died" not in fleet.text()
        assert reaped(leg) == []
    print(f"FLUSHALL under 100 tasks: all held again after {took_s:.2f} s")
    assert took_s < 2 * leg.app.settings.times.beat_s + ROOM_S
    check_once(leg, 100)


def test_keys_of_another_type_under_running_tasks_stop_nothing_and_everything_is_held_again_in_time(
    leg: Leg, admin: Any
) -> None:
    """By another hand, which wrote over the holds of a queue, and over the leases."""
    prefix = f"{{{leg.app.settings.namespace}}}:"
    inflight = leg.app.stores.inflight
    held_open(leg, 20)
    with leg.fleet(processes=1, threads=24) as fleet:
        wait_running(leg, 20)
        wait_until(lambda: len(inflight.holds("witness")) == 20, timeout_s=10, what="all are held")
        for name in ("inflight:witness", "leases"):
            admin.set(prefix + name, "theirs")
        began = time.monotonic()
        wait_until(lambda: len(inflight.holds("witness")) == 20, timeout_s=10, what="held again")
        took_s = time.monotonic() - began
        notes(leg, 5, 0.0)
        wait_until(lambda: len(leg.starts()) == 25, timeout_s=20, what="work goes on")
        tell(leg.folder / "witness")
        leg.wait_settled(timeout_s=40)
        assert "child_died" not in fleet.text()
        assert reaped(leg) == []
    assert took_s < 3 * leg.app.settings.times.beat_s + ROOM_S
    assert {admin.get(name) for name in admin.keys(f"{prefix}*:aside:*")} == {"theirs"}
    check_once(leg, 25)
    for name in ("inflight:witness", "leases"):
        admin.set(prefix + name, "theirs again")
    assert audit(leg.app.stores, leg.app.settings, queues=["witness"]).findings == (), "it stops no audit either"


def test_wipes_while_workers_fetch_end_no_process_and_start_nothing_twice(leg: Leg, admin: Any) -> None:
    """F45: a lease that vanished between two beats is no proof of anything: the next beat brings it back."""
    rng = Random(45)
    notes(leg, 150, 0.03)
    with leg.fleet(processes=2, threads=2) as fleet:
        for _ in range(8):
            wanted = min(len(leg.starts()) + rng.randint(2, 12), 150)
            wait_until(lambda wanted=wanted: len(leg.starts()) >= wanted, timeout_s=30, what="work goes on")  # type: ignore[misc]  # a lambda's default has no type
            admin.flushall()
        leg.wait_settled(timeout_s=60)
        assert "child_died" not in fleet.text()
        assert reaped(leg) == []
    check_once(leg, 150)


def test_a_wipe_and_a_death_in_the_same_moment_cost_only_what_the_dead_ran(leg: Leg, admin: Any) -> None:
    """F46: its lease is gone with all the others; the ledger's heartbeats tell it from the living.

    It dies on another host (a process namespace of its own): nobody here can see that its process is gone.
    """
    held_open(leg, 4)
    with (
        leg.fleet(processes=1, threads=2, prefix=ELSEWHERE) as dying,
        leg.fleet(processes=1, threads=2) as living,
    ):
        wait_running(leg, 4)
        workers = leg.app.stores.ledger.questions.workers()
        here = this_machine()
        (victim,) = [row for row in workers if row.machine != here]
        doomed = {task.id for task in leg.app.stores.ledger.questions.tasks(limit=10) if task.worker == victim.id}
        admin.flushall()
        dying.kill()
        tell(leg.folder / "witness")
        leg.wait_settled(timeout_s=60)
        assert "child_died" not in living.text()
        gone = [row for row in leg.app.stores.ledger.questions.workers(live_only=False) if row.state == "reaped"]
    assert len(doomed) == 2
    assert {task_id for task_id, starts in leg.starts().items() if starts > 1} == doomed
    assert leg.states()[State.SUCCEEDED] == 4
    assert [row.id for row in gone] == [victim.id]
    assert gone[0].ended_at is not None
    times = leg.app.settings.times
    took_s = (gone[0].ended_at - gone[0].beat_at).total_seconds()
    print(f"FLUSHALL and kill -9 together: reaped after {took_s:.1f} s")
    assert took_s < times.lease_s + 3 * times.beat_s + 3 * times.sweep_s + ROOM_S


def test_a_redis_that_was_killed_and_came_back_with_its_file_costs_nothing(leg: Leg, server: Redis) -> None:
    """F48."""
    notes(leg, 60, 0.6)
    with leg.fleet(processes=2, threads=4) as fleet:
        wait_running(leg, 8)
        server.kill()
        server.start()
        leg.wait_settled(timeout_s=60)
        assert "child_died" not in fleet.text()
        assert reaped(leg) == []
    check_once(leg, 60)


def test_a_redis_that_stops_for_two_leases_stops_new_work_and_nothing_else(leg: Leg, server: Redis) -> None:
    """F50, F49: what runs settles, nobody hangs, nobody is reaped afterwards."""
    notes(leg, 30, 0.5)
    with leg.fleet(processes=2, threads=2) as fleet:
        wait_running(leg, 4)
        pids = sorted(child.pid for child in fleet.children())
        server.pause()
        over = time.monotonic() + 2 * leg.app.settings.times.lease_s
        began = time.monotonic()
        late = leg["note"].enqueue(99)
        enqueued_s = time.monotonic() - began
        wait_until(lambda: time.monotonic() > over, timeout_s=20, what="two leases go by")
        held = len(leg.starts())
        assert leg.states()[State.RUNNING] == 0, "what ran has settled"
        cpu_s = sum(sum(child.cpu_times()[:2]) for child in fleet.children())
        server.resume()
        leg.wait_settled(timeout_s=60)
        assert sorted(child.pid for child in fleet.children()) == pids
        assert reaped(leg) == []
    print(f"Redis stopped for two leases: {held} had started, processor time of all workers so far {cpu_s:.1f} s")
    assert enqueued_s < 1.0 + ROOM_S
    assert held < 31
    assert leg.starts()[late.id] == 1
    check_once(leg, 31)


def test_a_redis_that_is_full_stops_fetching_and_never_costs_a_hint(leg: Leg, admin: Any) -> None:
    """F52: the alarm says why, and a hint that could not be held is not acked."""
    with leg.fleet(processes=1, threads=2) as fleet:
        notes(leg, 2, 0.0)
        leg.wait_settled(timeout_s=30)
        admin.config_set("maxmemory", "1")
        try:
            leg["note"].enqueue_many({"number": number} for number in range(2, 32))
            wait_until(lambda: "maxmemory" in fleet.text(), timeout_s=20, what="the alarm")
            assert leg.app.producer.relay.flush(timeout_s=20)
            assert len(leg.starts()) == 2
            assert leg.app.stores.inflight.holds("witness") == []
            fleet.kill()
            broker = leg.app.stores.broker
            wait_until(lambda: broker.depths(["witness"])["witness"].ready > 0, timeout_s=20, what="hints come back")
        finally:
            admin.config_set("maxmemory", "0")
    with leg.fleet(processes=1, threads=2):
        leg.wait_settled(timeout_s=40)
    check_once(leg, 32)


def test_a_worker_does_not_start_on_a_redis_that_evicts(leg: Leg, admin: Any) -> None:
    """F53."""
    admin.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with leg.fleet(processes=1, threads=1) as fleet:
            status = fleet.wait(30)
            said = fleet.text()
    finally:
        admin.config_set("maxmemory-policy", "noeviction")
    assert status == 2
    assert "allkeys-lru" in said
    assert "noeviction" in said
    assert "Traceback" not in said
