"""workq why, beside real workers and on real servers: the reasons that look different there, or exist only there."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from tests.conftest import Private
from tests.stores import database_of
from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq.diagnose.why import why
from workq.diagnose.why.look import Code, Why
from workq.inflight import Entry
from workq.lab.proxy import FaultProxy
from workq.lab.servers import RabbitMQ, Redis, start_redis
from workq.values.codec import new_task_id
from workq.values.incarnation import Incarnation
from workq.values.task import NewTask


def reason(leg: Leg, task_id: str) -> Why:
    found = why(leg.app.stores, leg.app.settings, task_id)
    assert found is not None
    return found


def wait_for(leg: Leg, task_id: str, code: Code, *, timeout_s: float = 30.0) -> Why:
    wait_until(lambda: reason(leg, task_id).code is code, timeout_s=timeout_s, what=f"the reason is {code}")
    return reason(leg, task_id)


def join(leg: Leg) -> Incarnation:
    """A live worker of the queue that does nothing."""
    worker = Incarnation("idle.worker", "host", 1)
    leg.app.stores.inflight.join(worker.id, lease_s=60.0)
    leg.app.stores.ledger.workers.join(worker, queues=["witness"], threads=4)
    return worker


# -- beside real workers, on both legs


def test_beside_a_busy_worker_one_task_runs_and_the_last_is_behind_the_others(leg: Leg) -> None:
    nobody = leg["note"].enqueue(0, 60.0).id
    assert reason(leg, nobody).code is Code.NO_WORKER

    with leg.fleet(processes=1, threads=1):
        running = wait_for(leg, nobody, Code.RUNNING)
        later = [leg["note"].enqueue(number).id for number in range(1, 4)]
        wait_for(leg, later[-1], Code.BEHIND)
        first, last = reason(leg, later[0]), reason(leg, later[-1])

        (worker,) = leg.app.stores.ledger.questions.workers()
        assert worker.id in running.reason
        assert "attempt 1" in running.reason
        assert first.code in (Code.NEXT, Code.HELD)
        assert "it is behind 2 older tasks of queue 'witness'" in last.reason
        assert "which 1 process with 1 thread serve" in last.reason


def test_a_task_whose_worker_was_killed_with_its_supervisor_is_known_to_be_orphaned_at_once(leg: Leg) -> None:
    task_id = leg["note"].enqueue(0, 60.0).id
    with leg.fleet(processes=1, threads=1) as fleet:
        wait_for(leg, task_id, Code.RUNNING)
        fleet.kill()

        found = reason(leg, task_id)

    assert found.code is Code.WORKER_GONE
    assert "gone from its host" in found.reason


def test_a_worker_that_does_not_know_the_handler_is_the_reason(leg: Leg) -> None:
    task = NewTask(new_task_id(), "nobody.knows", "witness", '{"a":[],"k":{}}', failures_max=1)
    leg.app.stores.ledger.tasks.record([task])
    with leg.fleet(processes=1, threads=1):
        found = wait_for(leg, task.id, Code.NO_HANDLER)

    assert "'nobody.knows'" in found.reason
    assert "costs it nothing" in found.reason


def test_a_held_task_and_a_task_that_ended_are_told_alike_on_both_legs(leg: Leg) -> None:
    worker = join(leg)
    task_id = leg["note"].enqueue(0).id
    leg.app.stores.inflight.hold([Entry(task_id, "witness")], by=worker.id)
    held = reason(leg, task_id)
    leg.app.cancel(task_id)

    assert held.code is Code.HELD
    assert worker.id in held.reason
    assert reason(leg, task_id).code is Code.CANCELLED


# -- what exists on servers only


@pytest.fixture(scope="module")
def mortal_redis(private: Private) -> Iterator[Redis]:
    """One that this module may kill."""
    with private(start_redis) as server:
        yield server


@pytest.fixture
def way(rabbitmq_server: RabbitMQ) -> Iterator[FaultProxy]:
    """The way to the run's RabbitMQ, which may end."""
    with FaultProxy.before(rabbitmq_server.url) as proxy:
        yield proxy


@pytest.fixture
def servers(way: FaultProxy, rabbitmq_server: RabbitMQ, mortal_redis: Redis, open_leg: OpenLeg) -> Leg:
    return open_leg("servers", divide=5.0, broker=way.url(rabbitmq_server.url), inflight=mortal_redis.url)


def published(leg: Leg) -> str:
    """A task whose hint RabbitMQ has confirmed."""
    task_id = str(leg["note"].enqueue(0).id)
    ledger = leg.app.stores.ledger
    wait_until(
        lambda: ledger.questions.standings([task_id])[task_id].published_at is not None,
        timeout_s=30,
        what="the hint is confirmed",
    )
    return task_id


def test_while_rabbitmq_is_away_the_reason_says_so_for_hints_inside_and_outside(way: FaultProxy, servers: Leg) -> None:
    join(servers)
    inside = published(servers)
    way.stop()  # nothing listens there any more
    outside = str(servers["note"].enqueue(1).id)

    in_there, out_here = reason(servers, inside), reason(servers, outside)

    assert in_there.code is Code.BROKER_AWAY
    assert "nothing listens" in in_there.reason
    assert out_here.code is Code.UNPUBLISHED
    assert "the broker does not answer from here" in out_here.reason


def test_while_redis_is_away_nothing_starts_and_the_reason_says_so(mortal_redis: Redis, servers: Leg) -> None:
    join(servers)
    task_id = published(servers)
    later = servers["note"].options(delay_s=600.0).enqueue(1).id
    mortal_redis.kill()
    try:
        found, still_early = reason(servers, task_id), reason(servers, later)
    finally:
        mortal_redis.start()

    assert found.code is Code.INFLIGHT_AWAY
    assert "nothing listens" in found.reason
    assert still_early.code is Code.NOT_DUE, "that is true, whoever is away"


def test_a_purged_queue_makes_its_tasks_seem_lost_and_the_depth_tells_what_is_before_a_task(servers: Leg) -> None:
    worker = join(servers)
    first, last = published(servers), published(servers)
    behind = reason(servers, last)

    with pika.BlockingConnection(pika.URLParameters(servers.environ["WORKQ_BROKER_URL"])) as connection:
        purge = connection.channel().queue_purge
        purge(f"{servers.app.settings.namespace}.q.witness")
    database_of(servers.app).clock_offset_s = 5.0  # longer than a beat
    servers.app.stores.ledger.workers.beat(worker.id)
    lost = reason(servers, first)

    assert behind.code is Code.BEHIND
    assert "1 older task of queue 'witness' (2 hints of 'witness' in the broker)" in behind.reason
    assert lost.code is Code.LOST
    assert "not proved yet" in lost.reason
