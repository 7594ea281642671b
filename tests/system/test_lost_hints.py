"""Hints that RabbitMQ had confirmed and lost: a marker proves it, and each is sent again, once. Otherwise none is."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pika
from sqlalchemy import select

from tests.stores import database_of
from tests.system.conftest import OpenLeg
from tests.system.fleet import ROOM_S, wait_until
from tests.system.legs import Leg
from workq import State
from workq.config import BINARY
from workq.diagnose.bounds import Bounds
from workq.lab.servers import PostgreSQL, RabbitMQ, Redis
from workq.values import codec


def sent_again(leg: Leg) -> int:
    """How many hints markers have proved lost so far."""
    database = database_of(leg.app)
    event = database.tables.event
    lost = select(event.c.detail).where(event.c.kind == "hints_lost")
    details = database.ask(lambda tx: tx.execute(lost).scalars().all())
    return sum(codec.decode(detail)["tasks"] for detail in details)


def record(leg: Leg, count: int, *, seconds: float = 0.0) -> None:
    """Tasks with confirmed hints in the broker, and no worker yet."""
    leg["note"].enqueue_many({"number": number, "seconds": seconds} for number in range(count))
    assert leg.app.producer.relay.flush(timeout_s=60)


def check_each_ran_once(leg: Leg, count: int) -> None:
    assert leg.states()[State.SUCCEEDED] == count
    assert len(leg.starts()) == count
    assert set(leg.starts().values()) == {1}


def purged(server: RabbitMQ, *queues: str) -> int:
    """Purge queues; answers how many messages there were."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    channel = connection.channel()
    messages = sum(int(channel.queue_purge(queue).method.message_count or 0) for queue in queues)
    connection.close()
    return messages


def test_purged_hints_are_sent_again_once_within_the_bound(open_leg: OpenLeg, long_run: bool) -> None:
    leg, lost = open_leg("servers", divide=1.0 if long_run else 10.0), 10_000 if long_run else 1_000
    times = leg.app.settings.times
    record(leg, lost)
    assert leg.lose_hints() > 0
    purged = time.monotonic()

    with leg.fleet(processes=2, threads=4) as fleet:
        leg.wait_settled(timeout_s=90)
        took = time.monotonic() - purged
        fleet.terminate()
        assert fleet.wait(60) == 0
    check_each_ran_once(leg, lost)
    published = sent_again(leg)
    print(f"purge of {lost} hints, lease {times.lease_s:g} s: all ran, {published} hints sent again, in {took:.1f} s")
    assert lost <= published <= 1.05 * lost
    assert took < Bounds.of(times).purge_s + ROOM_S, "and the time that the tasks take"


def test_a_purge_is_proved_even_though_new_hints_keep_the_queue_from_ever_being_empty(open_leg: OpenLeg) -> None:
    leg = open_leg("servers", divide=10.0)
    record(leg, 300)
    assert leg.lose_hints() > 0
    with leg.fleet(processes=1, threads=1) as fleet:  # 20 tasks a second, and 30 new ones: the queue only grows
        numbers = count(300)
        ends = time.monotonic() + 40

        def keep_it_full() -> bool:
            if sum(leg.states().values()) < 1200:
                leg["note"].enqueue_many({"number": next(numbers), "seconds": 0.05} for _ in range(2))
            return sent_again(leg) >= 300 or time.monotonic() > ends

        wait_until(keep_it_full, timeout_s=45, what="the purged hints are proved lost")
        assert sent_again(leg) == 300
        fleet.kill()
    starts = leg.starts()
    with leg.fleet(processes=2, threads=8) as fleet:
        fleet.wait_whole(2, timeout_s=30)
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(60) == 0
    assert sent_again(leg) == 300
    assert len(leg.starts()) == leg.states()[State.SUCCEEDED] == next(numbers)
    assert sum(leg.starts().values()) - len(leg.starts()) <= 1, f"the one that was killed: {starts.most_common(3)}"


def test_retries_lost_in_the_ladder_run_when_they_are_due(open_leg: OpenLeg, rabbitmq_server: RabbitMQ) -> None:
    leg = open_leg("servers", divide=10.0, ladder=BINARY)
    for number in range(50):
        leg["note"].options(delay_s=6.0).enqueue(number=number)
    assert leg.app.producer.relay.flush(timeout_s=60)
    ladder = [f"{leg.app.settings.namespace}.delay.{rung:02d}" for rung in range(13)]
    assert 0 < purged(rabbitmq_server, *ladder) <= 50, "of tasks that are due in the same 0.1 s, some share a hint"
    with leg.fleet(processes=1, threads=4) as fleet:
        leg.wait_settled(timeout_s=30)
        fleet.terminate()
        assert fleet.wait(60) == 0
    check_each_ran_once(leg, 50)
    for task in leg.app.stores.ledger.questions.tasks(limit=100):
        assert task.started_at is not None
        assert task.started_at >= task.due_at
    assert sent_again(leg) == 50


def test_a_rabbitmq_that_comes_back_empty_gets_its_hints_again(
    mortal_rabbitmq: RabbitMQ, postgres_server: PostgreSQL, redis_server: Redis, tmp_path: Path
) -> None:
    rabbitmq = mortal_rabbitmq
    leg = Leg.open(
        "servers",
        tmp_path,
        ledger=postgres_server.url,
        broker=rabbitmq.url,
        inflight=redis_server.url,
        divide=10.0,
    )
    record(leg, 200, seconds=0.05)
    for number in range(200, 220):
        leg["note"].options(delay_s=12.0).enqueue(number=number)
    assert leg.app.producer.relay.flush(timeout_s=60)
    with leg.fleet(processes=1, threads=2) as fleet:
        wait_until(lambda: len(leg.testimony()) > 10, timeout_s=30, what="they run")
        rabbitmq.kill()
        rabbitmq.wipe()
        rabbitmq.start()
        leg.wait_settled(timeout_s=90)
        fleet.terminate()
        assert fleet.wait(60) == 0
    check_each_ran_once(leg, 220)
    leg.close()


def test_a_deep_backlog_behind_a_slow_consumer_is_not_flooded(fast_leg: Leg, open_leg: OpenLeg, long_run: bool) -> None:
    leg, backlog, watched_s = (open_leg(fast_leg.name), 100_000, 600.0) if long_run else (fast_leg, 2_000, 9.0)
    record(leg, backlog, seconds=0.2)
    with leg.fleet(processes=1, threads=4) as fleet:  # they hand back what they cannot run, all the time
        wait_until(lambda: len(leg.testimony()) > 0, timeout_s=30, what="it works")
        time.sleep(watched_s)  # nothing is to happen in all that time
        assert sent_again(leg) == 0
        ran = leg.states()[State.SUCCEEDED]
        fleet.kill()
    print(f"{leg.name}: {backlog} waiting, {ran} run in {watched_s:.0f} s of sweeping: 0 sent again")
    assert ran > watched_s
    assert set(leg.starts().values()) == {1}
