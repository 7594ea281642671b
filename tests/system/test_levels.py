"""Delays by levels, on servers: late by less than a gap, never early, and no marker takes what is late for lost."""

from __future__ import annotations

import random
from bisect import bisect_left
from contextlib import nullcontext

from tests.system.conftest import OpenLeg
from tests.system.fleet import Fleet, wait_until
from tests.system.legs import Leg
from tests.system.test_delays import EARLY_S, due, record
from tests.system.test_lost_hints import purged, sent_again
from workq import State
from workq.broker.rabbitmq.delays import delays_of
from workq.config import BINARY, LEDGER
from workq.lab.servers import RabbitMQ

LADDER = "levels:1s,3s,9s"
LEVELS_S = (1.0, 3.0, 9.0)
NOISE_S = 30.0
"""How much later a busy machine may start something, and no more than that."""
SEED = 5


def serve(leg: Leg, fleet: Fleet) -> None:
    wait_until(lambda: bool(leg.app.stores.ledger.questions.workers()), timeout_s=30, what="the workers serve")
    assert fleet.process.poll() is None


def end(leg: Leg, fleet: Fleet, *, timeout_s: float = 120.0) -> None:
    """All is settled; the fleet leaves."""
    leg.wait_settled(timeout_s=timeout_s)
    fleet.terminate()
    assert fleet.wait(30) == 0


def gap_s(delay_s: float) -> float:
    """How far the level of a delay is above the one below; the largest level, for what waits in the ledger first."""
    place = bisect_left(LEVELS_S, min(delay_s, LEVELS_S[-1]))
    return LEVELS_S[place] - (LEVELS_S[place - 1] if place else 0.0)


def level_queues(leg: Leg) -> list[str]:
    return [level.name for level in delays_of(LADDER).queues(leg.app.settings.namespace)]


def test_every_delay_is_kept_none_is_early_and_what_is_late_by_its_level_is_never_taken_for_lost(
    open_leg: OpenLeg,
) -> None:
    """With a tenth of the times, a task that is due after 3.1 s and comes after 9 s sees markers pass by meanwhile."""
    leg = open_leg("servers", divide=10.0, ladder=LADDER)
    rng = random.Random(SEED)
    delays = [0.0, 0.1, 1.0, 1.001, 3.1, 3.2, 9.0, 9.5, 14.0, *(rng.uniform(0.1, 9.0) for _ in range(60))]
    with leg.fleet(processes=2, threads=4) as fleet:
        serve(leg, fleet)
        for delay_s in delays:
            leg["note"].options(delay_s=delay_s).enqueue(number=round(delay_s * 1000))
        end(leg, fleet)

    wanted = due(leg)
    starts = [line for line in leg.testimony() if line.what == "start"]
    late = [(line.at - wanted[line.task_id], int(line.number) / 1000) for line in starts]
    print(f"{len(delays)} delays by {LADDER}: late by {min(late)[0]:.3f} to {max(late)[0]:.3f} s")
    assert leg.states()[State.SUCCEEDED] == len(starts) == len(delays)
    assert min(late)[0] > -EARLY_S
    assert [one for one in late if one[0] > (gap_s(one[1]) if one[1] else 0.0) + NOISE_S] == []
    assert max(one[0] for one in late if 3.0 < one[1] < 4.0) > 4.0, "the level of 9 s was among them"
    assert sent_again(leg) == 0


def test_retries_and_snoozes_wait_in_levels_too(open_leg: OpenLeg) -> None:
    leg = open_leg("servers", divide=10.0, ladder=LADDER)
    with leg.fleet(processes=1, threads=4) as fleet:
        serve(leg, fleet)
        for number, how in enumerate(("snooze", "retry")):
            leg["later"].enqueue(number, how, 1, 3.1)
        leg["fail"].enqueue(2)
        end(leg, fleet)

    starts: dict[str, list[float]] = {}
    for line in leg.testimony():
        if line.what == "start":
            starts.setdefault(line.number, []).append(line.at)
    assert (leg.states()[State.SUCCEEDED], leg.states()[State.DEAD]) == (2, 1)
    assert {number: len(found) for number, found in starts.items()} == {"0": 2, "1": 2, "2": 3}
    assert all(second - first > 3.1 - EARLY_S for first, second in (starts["0"], starts["1"]))
    assert sent_again(leg) == 0


def test_hints_that_are_lost_in_a_level_are_proved_lost_after_they_should_have_come_and_sent_once(
    open_leg: OpenLeg, rabbitmq_server: RabbitMQ
) -> None:
    leg = open_leg("servers", divide=10.0, ladder=LADDER)
    for number in range(50):
        leg["note"].options(delay_s=4.0).enqueue(number=number)
    assert leg.app.producer.relay.flush(timeout_s=60)
    assert 0 < purged(rabbitmq_server, *level_queues(leg)) <= 50, "those of one level may share a hint"

    with leg.fleet(processes=1, threads=4) as fleet:
        serve(leg, fleet)
        end(leg, fleet)

    assert leg.states()[State.SUCCEEDED] == 50
    assert set(leg.starts().values()) == {1}
    assert sent_again(leg) == 50


def test_what_waits_in_one_ladder_runs_under_workers_with_another_and_both_may_live_together(
    open_leg: OpenLeg,
) -> None:
    """Each ladder is the old one once, and the new one once."""
    for old, new in ((BINARY, LADDER), (LADDER, LEDGER), (LEDGER, BINARY)):
        leg = open_leg("servers", divide=10.0, ladder=old)
        before = len(leg.testimony())
        record(leg, [0.5, 1.2, 2.5, 4.0])
        assert leg.app.producer.relay.flush(timeout_s=60)

        with leg.fleet(processes=1, threads=4, environ={"WORKQ_LADDER": new}) as fleet:
            serve(leg, fleet)
            leg["fail"].enqueue(1)
            with leg.fleet(processes=1, threads=4) if old == LEDGER else nullcontext():
                end(leg, fleet)

        assert (leg.states()[State.SUCCEEDED], leg.states()[State.DEAD]) == (4, 1)
        assert sum(line.what == "start" for line in leg.testimony()[before:]) == 4 + 3
        assert sent_again(leg) == 0
