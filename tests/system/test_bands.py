"""Priorities: what is higher overtakes, nothing starves, each band keeps the promises of a queue. Tasks are counted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pika.adapters.blocking_connection import BlockingConnection
from pika.connection import URLParameters
from pika.exceptions import ChannelClosedByBroker

from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from tests.system.test_lost_hints import sent_again
from tests.system.test_pause import settled_down, stays
from workq import State
from workq.values.lane import all_of
from workq.values.task import Enqueued, Priority

WHO = "eve@host"
HIGHER_MAX = 20
RUN_S = 0.05
IN_HAND = 8
"""Of one process with one thread and tasks of `RUN_S`: what it runs and holds, about a quarter of a second of work."""
BOUND_S = 120.0


def enqueue(leg: Leg, priority: str, count: int, *, seconds: float = 0.0) -> list[Enqueued]:
    """One by one, each with a hint of its own: those of the same moment would share one, and be taken together."""
    call = leg["note"].options(priority=priority)
    made = []
    for number in range(count):
        made.append(call.enqueue(number=number, seconds=seconds))
        assert leg.app.producer.relay.flush(timeout_s=60)
    return made


def order(leg: Leg, priorities: Mapping[str, Sequence[Enqueued]]) -> list[str]:
    """The priorities of the tasks, in the order in which they have started."""
    of = {task.id: priority for priority, tasks in priorities.items() for task in tasks}
    return [of[line.task_id] for line in leg.testimony() if line.what == "start" and line.task_id in of]


def longest_wait(started: Sequence[str], of: str) -> int:
    """How many others started in a row before one of this priority, while some of it waited."""
    last = len(started) - list(reversed(started)).index(of)
    longest = run = 0
    for one in started[:last]:
        run = 0 if one == of else run + 1
        longest = max(longest, run)
    return longest


def test_high_ones_overtake_a_backlog_and_no_low_one_waits_for_more_than_its_bound(leg: Leg) -> None:
    tasks = {"low": enqueue(leg, "low", 5, seconds=RUN_S), "normal": enqueue(leg, "normal", 30, seconds=RUN_S)}
    tasks["high"] = enqueue(leg, "high", 77, seconds=RUN_S)  # all wait before the first starts, however slow we are
    with leg.fleet(processes=1, threads=1) as fleet:
        leg.wait_settled(timeout_s=BOUND_S)
        fleet.terminate()
        assert fleet.wait(60) == 0

    started = order(leg, tasks)
    assert len(started) == 5 + 30 + 77
    assert set(leg.starts().values()) == {1}
    shown = "".join(one[0] for one in started)
    assert longest_wait(started, "low") <= HIGHER_MAX + IN_HAND, shown
    assert longest_wait(started, "normal") <= 5 + IN_HAND, shown
    last_high = len(started) - started[::-1].index("high")
    while_all_wait = started[:last_high]
    assert while_all_wait.count("high") >= 0.7 * len(while_all_wait) - IN_HAND, f"16 of 21: {shown}"


def test_the_first_task_of_a_band_starts_while_a_worker_is_serving(leg: Leg) -> None:
    with leg.fleet(processes=2, threads=2) as fleet:
        enqueue(leg, "normal", 2)
        leg.wait_settled(timeout_s=BOUND_S)
        assert not leg.app.stores.ledger.lanes.bands()

        for priority in Priority:
            enqueue(leg, priority, 3)
            leg.wait_settled(timeout_s=BOUND_S)

        assert leg.states()[State.SUCCEEDED] == 2 + 9
        fleet.terminate()
        assert fleet.wait(60) == 0
    assert leg.app.stores.ledger.lanes.bands() == {"witness~high", "witness~low"}


def test_a_worker_that_drains_leaves_no_band_behind(fast_leg: Leg) -> None:
    leg = fast_leg
    for priority in Priority:
        leg["note"].options(priority=priority).enqueue_many({"number": number} for number in range(250))

    with leg.fleet(processes=2, threads=4, drain=True) as fleet:
        assert fleet.wait(BOUND_S) == 0

    assert leg.states()[State.SUCCEEDED] == 750
    assert sorted(leg.starts().values()) == [1] * 750


def test_a_pause_of_the_queue_pauses_all_of_its_bands_and_one_of_a_band_only_that(fast_leg: Leg) -> None:
    leg, ledger = fast_leg, fast_leg.app.stores.ledger
    tasks = {priority: enqueue(leg, priority, 40, seconds=0.01) for priority in Priority}
    with leg.fleet(processes=2, threads=2) as fleet:
        wait_until(lambda: len(leg.starts()) > 10, timeout_s=BOUND_S, what="some have started")
        ledger.pauses.pause("witness", who=WHO, why="?")
        started = settled_down(leg)
        tasks[Priority.LOW] += enqueue(leg, "low", 20)
        stays(leg, started)
        ledger.pauses.pause("witness~low", who=WHO, why="?")
        ledger.pauses.resume("witness~normal", who=WHO, why="?")
        ledger.pauses.resume("witness~high", who=WHO, why="?")
        others = {task.id for priority in ("high", "normal") for task in tasks[Priority(priority)]}
        wait_until(lambda: others <= leg.starts().keys(), timeout_s=BOUND_S, what="the others go on")
        settled_down(leg)
        low = [task.id for task in tasks[Priority.LOW]]
        held_back = [one for one in low if one not in leg.starts()]
        assert held_back

        ledger.pauses.resume("witness", who=WHO, why="?")
        leg.wait_settled(timeout_s=BOUND_S)
        fleet.terminate()
        assert fleet.wait(60) == 0
    assert sorted(leg.starts().values()) == [1] * 140


def test_lost_hints_of_one_band_are_proved_lost_and_sent_again_and_no_others(fast_leg: Leg) -> None:
    leg = fast_leg
    for priority in Priority:
        enqueue(leg, priority, 30)
    assert leg.lose_hints("witness~low") > 0

    with leg.fleet(processes=2, threads=2) as fleet:
        leg.wait_settled(timeout_s=BOUND_S)
        fleet.terminate()
        assert fleet.wait(60) == 0

    assert leg.states()[State.SUCCEEDED] == 90
    assert sorted(leg.starts().values()) == [1] * 90
    assert sent_again(leg) == 30


def test_a_ledger_whose_bands_were_forgotten_serves_them_again(fast_leg: Leg) -> None:
    """As after a restored backup, while producers live that remember the band."""
    leg = fast_leg
    enqueue(leg, "low", 1)
    database = leg.app.database()
    database.run(lambda tx: tx.execute(database.tables.band.delete()))
    database.close()
    enqueue(leg, "low", 5)

    with leg.fleet(processes=1) as fleet:
        leg.wait_settled(timeout_s=BOUND_S)
        fleet.terminate()
        assert fleet.wait(60) == 0

    assert leg.app.stores.ledger.lanes.bands() == {"witness~low"}


def test_rabbitmq_has_no_queue_of_a_band_that_nobody_has_used(open_leg: OpenLeg) -> None:
    leg = open_leg("servers", divide=10.0)
    with leg.fleet(processes=1) as fleet:
        enqueue(leg, "normal", 1)
        enqueue(leg, "low", 1)
        leg.wait_settled(timeout_s=BOUND_S)
        time.sleep(2.0)  # it looks for bands once more
        fleet.terminate()
        assert fleet.wait(60) == 0
    url = leg.app.settings.broker
    assert url is not None
    there = []
    for band in all_of("witness"):
        connection = BlockingConnection(URLParameters(url))
        try:
            connection.channel().queue_declare(f"{leg.app.settings.namespace}.q.{band}", passive=True)
            there.append(band)
        except ChannelClosedByBroker as error:
            assert error.reply_code == 404  # noqa: PT017 - anything else is no answer
        finally:
            connection.close()

    assert there == ["witness", "witness~low"]
