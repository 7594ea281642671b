"""A fleet on PostgreSQL, Kafka and Redis: nothing is lost, also when a consumer process is killed."""

from __future__ import annotations

from collections import Counter

from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from workq import State
from workq.diagnose.doctor import examine
from workq.diagnose.doctor.check import Level
from workq.lab.servers import Kafka


def test_nothing_is_lost_on_kafka_while_tasks_are_retried_delayed_and_killed(
    open_leg: OpenLeg, kafka_server: Kafka, kafka_protocol: str
) -> None:
    """The partitions of the one that was killed wait until its session has ended; its tasks do not."""
    quick, delayed, retried = 1800, 100, 100
    leg = open_leg("servers", broker=f"{kafka_server.url}?partitions=4&protocol={kafka_protocol}")
    with leg.fleet(processes=2, threads=4) as fleet:
        leg["fail_until"].enqueue_many({"number": number, "attempts": 2} for number in range(retried))
        for number in range(delayed):
            leg["note"].options(delay_s=0.2 + number % 10 / 5).enqueue(number=number)
        leg["note"].enqueue_many({"number": number, "seconds": 0.003} for number in range(quick))
        wait_until(lambda: len(leg.testimony()) > 200, timeout_s=60, what="the first tasks start")

        killed = fleet.kill_one()
        leg.wait_settled(timeout_s=120)
        fleet.wait_whole(2, timeout_s=60)
        broker = [one for one in examine(leg.app.settings) if one.area == "broker"]

        fleet.terminate()
        assert fleet.wait(60) == 0
    assert killed is not None
    assert leg.untold() == []
    assert {one.level for one in broker} == {Level.OK}, broker
    assert "Kafka of 1 broker" in broker[0].message
    if kafka_protocol == "consumer":  # of a classic group Kafka's settings do not tell it
        assert "wait 6 s for another" in broker[1].message
    assert leg.states()[State.SUCCEEDED] == quick + delayed + retried
    lines = [line for line in leg.testimony() if line.what == "end"]
    assert len({line.task_id for line in lines}) == quick + delayed
    starts = [line for line in leg.testimony() if line.what == "start"]
    assert len({line.task_id for line in starts}) == quick + delayed + retried
    ended = {line.task_id for line in lines}
    again = Counter(line.task_id for line in starts if line.task_id in ended)
    in_killed = {line.task_id for line in starts if line.pid == killed}
    assert {task_id for task_id, count in again.items() if count > 1} <= in_killed
