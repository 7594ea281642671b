"""RabbitMQ purged, cut down, restarted, full or killed under workers that work: every hint that is lost is proved lost.

A private RabbitMQ; the other servers are the run's. Times are a tenth of the default ones, so a purge is to be repaired
within 7.5 seconds.
"""

from __future__ import annotations

import time
from operator import methodcaller
from pathlib import Path

import pytest

from tests.conftest import Private
from tests.faults.rabbitmq import ask
from tests.system.conftest import OpenLeg
from tests.system.fleet import ROOM_S, wait_until
from tests.system.legs import Leg, check_once
from tests.system.test_lost_hints import sent_again
from workq import State
from workq.lab.servers import PostgreSQL, RabbitMQ, start_redis


@pytest.fixture
def leg(server: RabbitMQ, open_leg: OpenLeg) -> Leg:
    return open_leg("servers", divide=10.0, broker=server.url)


def queues(server: RabbitMQ, leg: Leg, kind: str) -> list[str]:
    """The names of this leg's queues: `q` those of hints, `delay` those of delays."""
    prefix = f"{leg.app.settings.namespace}.{kind}."
    return [name for name in server.operator.queues(prefix) if name.startswith(prefix)]


def enqueue(leg: Leg, count: int, *, delay_s: float = 0.0) -> None:
    """Recorded, hinted, and confirmed by the broker."""
    leg["note"].options(delay_s=delay_s).enqueue_many({"number": number} for number in range(count))
    assert leg.app.producer.relay.flush(timeout_s=30)


def bound_s(leg: Leg) -> float:
    """Within which a purge is to be repaired: a marker, its grace, and three passes."""
    return 75.0 / 10.0 + ROOM_S


def test_queues_and_exchanges_deleted_under_their_consumers_come_back_and_lose_nothing(
    leg: Leg, server: RabbitMQ
) -> None:
    """F28."""
    with leg.fleet(processes=1, threads=2) as fleet:
        leg["until_told"].enqueue_many({"number": number} for number in range(2))
        wait_until(lambda: len(leg.starts()) == 2, timeout_s=30, what="both threads are busy")
        for _ in range(20):  # in as many deliveries: the consumer has few of them in its hands
            enqueue(leg, 5)
        enqueue(leg, 20, delay_s=2.0)
        names = [*queues(server, leg, "q"), *queues(server, leg, "delay")]
        namespace = leg.app.settings.namespace
        exchanges = [one for one in server.operator.exchanges(namespace) if one.startswith(namespace)]
        began = time.monotonic()
        for name in names:
            ask(server, methodcaller("queue_delete", name))
        for name in exchanges:
            ask(server, methodcaller("exchange_delete", name))
        (leg.folder / "witness.told").touch()
        wait_until(lambda: len(leg.starts()) == 122, timeout_s=60, what="all start")
        took_s = time.monotonic() - began
        enqueue(leg, 10, delay_s=0.3)
        leg.wait_settled(timeout_s=40)
        assert "child_died" not in fleet.text()
    print(f"all queues and {len(exchanges)} exchanges deleted: the last of 122 tasks started {took_s:.1f} s later")
    assert took_s < 2.0 + bound_s(leg)
    assert 50 < sent_again(leg) <= 120, "some may have been in the consumer's hands"
    check_once(leg, 132)


def test_a_broker_that_is_stopped_and_started_in_order_is_joined_again_by_itself(leg: Leg, server: RabbitMQ) -> None:
    """F29: what is held goes on meanwhile."""
    with leg.fleet(processes=2, threads=2) as fleet:
        leg["until_told"].enqueue_many({"number": number} for number in range(4))
        wait_until(lambda: len(leg.starts()) == 4, timeout_s=30, what="four run")
        pids = sorted(child.pid for child in fleet.children())
        server.ctl("stop_app")
        began = time.monotonic()
        leg["note"].enqueue_many({"number": number} for number in range(20))
        enqueued_s = time.monotonic() - began
        (leg.folder / "witness.told").touch()
        wait_until(lambda: leg.states()[State.SUCCEEDED] >= 4, timeout_s=20, what="what is held settles meanwhile")
        server.ctl("start_app")
        began = time.monotonic()
        leg.wait_settled(timeout_s=60)
        took_s = time.monotonic() - began
        assert sorted(child.pid for child in fleet.children()) == pids
    print(f"stop_app, start_app: everything had run {took_s:.1f} s after the start")
    assert enqueued_s < 1.0 + ROOM_S
    assert took_s < 20.0 + ROOM_S
    check_once(leg, 24)


def test_a_disk_alarm_stops_the_relay_and_nothing_else(leg: Leg, server: RabbitMQ) -> None:
    """F35: producers are answered, what is in the queues runs, and the rest follows when there is room again."""
    enqueue(leg, 20)
    server.operator.set_disk_limit(10**12)
    try:
        began = time.monotonic()
        leg["note"].enqueue_many({"number": number} for number in range(20, 40))
        enqueued_s = time.monotonic() - began
        assert not leg.app.producer.relay.flush(timeout_s=0.5), "the broker takes nothing"
        with leg.fleet(processes=1, threads=2) as fleet:
            wait_until(lambda: len(leg.starts()) >= 20, timeout_s=40, what="what the broker has runs")
            server.operator.set_disk_limit(50 * 10**6)
            began = time.monotonic()
            leg.wait_settled(timeout_s=60)
            took_s = time.monotonic() - began
            assert "child_died" not in fleet.text()
    finally:
        server.operator.set_disk_limit(50 * 10**6)
    print(f"disk alarm: all settled {took_s:.1f} s after its end")
    assert enqueued_s < 1.0 + ROOM_S
    assert took_s < 17.0 + ROOM_S
    check_once(leg, 40)


def test_a_worker_that_may_not_hold_for_longer_than_the_consumer_timeout_goes_on_afterwards(
    postgres_server: PostgreSQL, private: Private, server: RabbitMQ, tmp_path: Path
) -> None:
    """F40: Redis is stopped, so nothing can be held, and the broker takes the channel away; then all goes on."""
    limits = "[application:set_env(rabbit, Key, {}) || Key <- [channel_tick_interval, consumer_timeout]]."
    with private(start_redis) as redis:
        leg = Leg.open(
            "servers", tmp_path, ledger=postgres_server.url, broker=server.url, inflight=redis.url, divide=10.0
        )
        server.evaluate(limits.format(1000))
        try:
            with leg.fleet(processes=1, threads=2) as fleet:
                enqueue(leg, 1)
                leg.wait_settled(timeout_s=30)
                seen = server.log.read_text(errors="replace").count("timed out")
                redis.pause()
                enqueue(leg, 10)
                wait_until(
                    lambda: server.log.read_text(errors="replace").count("timed out") > seen,
                    timeout_s=40,
                    what="the channel is closed by the broker",
                )
                redis.resume()
                leg.wait_settled(timeout_s=60)
                assert "child_died" not in fleet.text()
            check_once(leg, 11)
        finally:
            server.evaluate(limits.format(1_800_000))
            leg.close()


def test_hints_that_a_killed_broker_lost_between_two_queues_of_the_delays_run_all_the_same(
    leg: Leg, server: RabbitMQ
) -> None:
    """F41: it dies while hundreds expire; what was under way from one queue to the next is not promised by it."""
    count = 400
    with leg.fleet(processes=2, threads=4):
        enqueue(leg, 1)
        leg.wait_settled(timeout_s=30)
        for name in queues(server, leg, "q"):
            server.wait_registered(name)
        enqueue(leg, count, delay_s=3.0)
        wait_until(lambda: len(leg.starts()) > 20, timeout_s=40, what="the first are due")
        server.kill()
        server.start()
        began = time.monotonic()
        wait_until(lambda: len(leg.starts()) == count + 1, timeout_s=60, what="all start")
        took_s = time.monotonic() - began
        leg.wait_settled(timeout_s=40)
    print(f"killed while {count} delayed hints expired: the last one started {took_s:.1f} s after the restart")
    assert took_s < 20.0 + bound_s(leg)
    check_once(leg, count + 1)


def test_a_worker_whose_queue_exists_with_other_arguments_says_so_and_leaves_with_2(leg: Leg, server: RabbitMQ) -> None:
    """F43: it is somebody's queue; it is neither deleted nor changed."""
    name = f"{leg.app.settings.namespace}.q.witness"
    ask(server, lambda channel: channel.queue_declare(name, durable=True, arguments={"x-max-length": 7}))
    ask(server, lambda channel: channel.basic_publish("", name, b"kept"))
    with leg.fleet(processes=1, threads=1) as fleet:  # one that only drains may find nothing to do, and leave before
        wait_until(lambda: "exists with different arguments" in fleet.text(), timeout_s=60, what="it says so")
        wait_until(lambda: "exit status 2" in fleet.text(), timeout_s=60, what="the process leaves")
    assert "Traceback" not in fleet.text()
    kept = ask(server, lambda channel: channel.queue_declare(name, passive=True))
    assert kept.method.message_count == 1
