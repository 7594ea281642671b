"""A running installation moves from RabbitMQ to Kafka, and back: producers and workers of both live on one ledger."""

from __future__ import annotations

from collections import Counter

from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State
from workq.lab.servers import Kafka
from workq.recovery.rebuild import rebuild

AWAY = "kafka://127.0.0.1:1"


def record(leg: Leg, *, begin: int) -> None:
    """70 tasks: at once, delayed, and such as fail once."""
    leg["note"].enqueue_many({"number": begin + number, "seconds": 0.005} for number in range(50))
    for number in range(50, 60):
        leg["note"].options(delay_s=(number - 49) / 3).enqueue(number=begin + number)
    leg["fail_until"].enqueue_many({"number": begin + number, "attempts": 2} for number in range(60, 70))


def only_hinted(leg: Leg, *, begin: int) -> None:
    """30 tasks whose hints wait in this leg's broker, with nobody there who takes them."""
    leg["note"].enqueue_many({"number": begin + number} for number in range(30))
    assert leg.app.producer.relay.flush(timeout_s=60)


def test_nothing_is_lost_or_ended_twice_on_the_way_from_rabbitmq_to_kafka_and_back(
    open_leg: OpenLeg, kafka_server: Kafka
) -> None:
    rabbitmq = open_leg("servers")
    settings = rabbitmq.app.settings

    def on(broker: str) -> Leg:
        return Leg.open(
            "moved",
            rabbitmq.folder,
            ledger=settings.ledger,
            inflight=settings.inflight,
            broker=broker,
            namespace=settings.namespace,
        )

    kafka, away = on(f"{kafka_server.url}?partitions=2"), on(AWAY)
    try:
        with rabbitmq.fleet(processes=1) as old:
            record(rabbitmq, begin=0)
            wait_until(lambda: bool(rabbitmq.testimony()), timeout_s=60, what="the old workers work")
            record(kafka, begin=100)
            away["note"].enqueue_many({"number": 200 + number} for number in range(30))
            away.app.close()  # these never got a hint
            with kafka.fleet(processes=1) as new:
                wait_until(lambda: len(rabbitmq.testimony()) > 200, timeout_s=60, what="both work")
                record(rabbitmq, begin=300)
                old.terminate()
                assert old.wait(60) == 0
                only_hinted(rabbitmq, begin=400)
                record(kafka, begin=500)
                kafka.wait_settled(timeout_s=60)
                new.terminate()
                assert new.wait(60) == 0
        only_hinted(kafka, begin=600)
        with rabbitmq.fleet(processes=1) as back:
            record(rabbitmq, begin=700)
            assert rebuild(rabbitmq.app.stores, settings).tasks >= 30, "without it, they are found a minute later"
            rabbitmq.wait_settled(timeout_s=60)
            back.terminate()
            assert back.wait(60) == 0
    finally:
        kafka.close()
        away.close()

    noted, failed = 5 * 60 + 3 * 30, 5 * 10
    assert rabbitmq.states()[State.SUCCEEDED] == noted + failed
    lines = rabbitmq.testimony()
    ends = Counter(line.task_id for line in lines if line.what == "end")
    assert (len(ends), set(ends.values())) == (noted, {1})
    starts = Counter(Counter(line.task_id for line in lines if line.what == "start").values())
    assert starts == {1: noted, 2: failed}, "once, and once more after a failure"
