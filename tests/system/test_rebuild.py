"""The whole broker from the ledger: what an empty RabbitMQ forgot is sent again, in order, and runs once."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.conftest import OpenLeg
from tests.system.fleet import REPOSITORY, wait_until
from tests.system.legs import Leg
from tests.system.test_sweep import clockwork, delivered, record_unpublished
from tests.zygote import FORKED_WITH, zygote
from workq import State
from workq.broker import Hint
from workq.config import BINARY, LEDGER
from workq.errors import BrokerUnavailable
from workq.lab.proxy import FaultProxy
from workq.lab.servers import RabbitMQ
from workq.recovery.rebuild import BATCH, Rebuilt, rebuild
from workq.recovery.sweep import sweep

BOUND_S = 120.0


def workq(leg: Leg, *args: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """The command on a leg, in a process of its own: how it ended, and what it printed."""
    environ = {**os.environ, **FORKED_WITH, **leg.environ, **(env or {})}
    status, out, err = zygote().run(args, cwd=REPOSITORY, env=environ, stdin=b"", timeout_s=BOUND_S)
    return status, out.decode(), err.decode()


@pytest.fixture
def own(mortal_rabbitmq: RabbitMQ) -> RabbitMQ:
    """A RabbitMQ that the test may wipe."""
    return mortal_rabbitmq


@pytest.fixture
def way(rabbitmq_server: RabbitMQ) -> Iterator[FaultProxy]:
    """The way to the run's RabbitMQ, which may be cut."""
    with FaultProxy.before(rabbitmq_server.url) as proxy:
        yield proxy


@pytest.mark.parametrize("ladder", [BINARY, LEDGER])
def test_a_wiped_rabbitmq_is_filled_again_and_every_task_runs_once(
    ladder: str, own: RabbitMQ, open_leg: OpenLeg
) -> None:
    leg = open_leg("servers", divide=5.0, ladder=ladder, broker=own.url)
    due, delayed, far = 1_500, 400, 50 if ladder == BINARY else 0
    leg["note"].enqueue_many({"number": number} for number in range(due))
    for start in range(0, delayed, 100):  # they stand in several queues of the ladder
        call = leg["note"].options(delay_s=20.0 + start / 50.0)
        call.enqueue_many({"number": number} for number in range(start, start + 100))
    if far:
        beyond = leg["note"].options(delay_s=leg.app.stores.broker.horizon_s + 3600.0)
        beyond.enqueue_many({"number": number} for number in range(far))
    assert leg.app.producer.relay.flush(timeout_s=60)
    own.wait_registered(f"{leg.app.settings.namespace}.q.witness")
    own.kill()
    own.wipe()
    own.start()
    assert leg.app.stores.broker.depths(["witness"])["witness"].ready == 0

    status, out, err = workq(leg, "rebuild", "--yes", "-o", "json")
    assert status == 0, err
    told = json.loads(out)
    print(f"rebuilt: {told}")
    with leg.fleet(processes=2, threads=8):
        wait_settled(leg, due + delayed)

    assert (told["tasks"], told["later"], told["held"]) == (due + delayed, far, 0)
    assert told["hints"] < due / 50 + delayed
    assert Counter(leg.starts().values()) == {1: due + delayed}
    assert leg.states()[State.WAITING] == far
    assert leg.app.stores.ledger.questions.happened(["hints_lost"], within_s=3600.0, limit=9) == [], (
        "no marker had to prove any"
    )


def wait_settled(leg: Leg, count: int) -> None:
    from tests.system.fleet import wait_until

    wait_until(lambda: leg.states()[State.SUCCEEDED] == count, timeout_s=BOUND_S, what=f"{count} tasks have succeeded")


def test_hints_are_sent_in_the_order_in_which_their_tasks_are_due(leg: Leg) -> None:
    stores = leg.app.stores
    groups: list[list[str]] = []
    for offset_s in (-100.0, -300.0, -200.0):
        clockwork(leg).clock_offset_s = offset_s
        groups.append(record_unpublished(stores.ledger, leg, 150))
    clockwork(leg).clock_offset_s = 0.0
    assert sweep(stores, leg.app.settings, only=["relay"]).relayed == 450
    leg.lose_hints()

    done = rebuild(stores, leg.app.settings)

    due_at = {
        one: fence.due_at for one, fence in stores.ledger.plans.fences(one for ids in groups for one in ids).items()
    }
    assert (done.tasks, done.hints, done.held) == (450, 5, 0)
    assert delivered(leg) == sorted(due_at, key=lambda one: (due_at[one], one))


def test_what_runs_or_is_held_or_is_of_another_queue_gets_no_hint(leg: Leg) -> None:
    from tests.system.test_sweep import stale_worker

    stores = leg.app.stores
    _, claimed, held = stale_worker(leg)
    free = record_unpublished(stores.ledger, leg, 5)
    assert stores.ledger.markers.sent("witness", 0, free[0], spacing_s=0.0, depth=1)

    elsewhere = rebuild(stores, leg.app.settings, queues=["other"])
    done = rebuild(stores, leg.app.settings, queues=["witness"])

    assert (elsewhere.tasks, elsewhere.markers) == (0, 0)
    assert (done.tasks, done.held, done.markers) == (5, len(held), 1)
    assert sorted(delivered(leg)) == sorted(free)
    assert stores.ledger.questions.counts().states[State.RUNNING] == len(claimed)


def test_a_rebuild_that_dies_is_finished_by_the_sweep_and_by_another_one(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    clockwork(leg).clock_offset_s = -600.0
    ids = record_unpublished(stores.ledger, leg, 2 * BATCH + BATCH // 2)
    clockwork(leg).clock_offset_s = -500.0
    while sweep(stores, settings, only=["relay"]).relayed:
        continue
    clockwork(leg).clock_offset_s = 0.0
    leg.lose_hints()

    died, _, _ = workq(leg, "rebuild", "--yes", env={"WORKQ_FAILPOINT": "sweep.before_relay:exit137@2"})
    clockwork(leg).clock_offset_s = 60.0
    swept = sweep(stores, settings, only=["relay"], limit=10 * BATCH)
    first = delivered(leg)
    _, again, _ = workq(leg, "rebuild", "--yes", "-o", "json")
    second = delivered(leg)

    assert died == 137
    assert swept.relayed == BATCH, "what it had in hand"
    assert sorted(first) == sorted(first_of(leg, ids, 2 * BATCH))
    assert json.loads(again)["tasks"] == len(ids)
    assert sorted(second) == sorted(ids)


def first_of(leg: Leg, ids: list[str], count: int) -> list[str]:
    """Those that are due first."""
    fences = leg.app.stores.ledger.plans.fences(ids)
    return sorted(ids, key=lambda one: (fences[one].due_at, one))[:count]


def test_what_is_published_meanwhile_is_not_sent_again(leg: Leg) -> None:
    stores, settings = leg.app.stores, leg.app.settings
    clockwork(leg).clock_offset_s = -600.0
    ids = record_unpublished(stores.ledger, leg, BATCH + 200)
    clockwork(leg).clock_offset_s = 0.0
    new: list[str] = []

    def told(_so_far: Rebuilt) -> None:
        if not new:  # after the first batch: a sweep relays the rest, and a producer comes along
            assert sweep(stores, settings, only=["relay"]).relayed == 200
            new.extend(leg["note"].enqueue(number).id for number in range(50))
            assert leg.app.producer.relay.flush(timeout_s=20)

    done = rebuild(stores, settings, told=told)

    assert done.tasks == BATCH
    assert Counter(delivered(leg)) == Counter([*ids, *new])


def takes_hints(leg: Leg, task_id: str) -> bool:
    """Whether the broker confirms a hint of a queue: it may have a leader, and be busy coming back."""
    return all(leg.app.stores.broker.publish([Hint("witness", (task_id,))], deadline_s=2.0))


def test_a_broker_that_goes_away_in_the_middle_is_told_and_another_rebuild_ends_it(
    way: FaultProxy, rabbitmq_server: RabbitMQ, open_leg: OpenLeg
) -> None:
    # a machine may stand still for longer than a fifth of the timeouts
    own_leg = open_leg("servers", broker=way.url(rabbitmq_server.url))
    stores, settings = own_leg.app.stores, own_leg.app.settings
    clockwork(own_leg).clock_offset_s = -600.0
    ids = record_unpublished(stores.ledger, own_leg, 3 * BATCH)
    clockwork(own_leg).clock_offset_s = 0.0
    done = Rebuilt()

    def told(so_far: Rebuilt) -> None:
        way.refuse()
        way.reset()

    with pytest.raises(BrokerUnavailable, match="workq rebuild"):
        rebuild(stores, settings, told=told, done=done)
    way.heal()
    wait_until(lambda: takes_hints(own_leg, ids[0]), timeout_s=60, what="the queue takes hints again")
    first: dict[str, Any] = {"tasks": done.tasks}
    clockwork(own_leg).clock_offset_s = 60.0  # the reservation of what it had in hand is over
    again = rebuild(stores, settings)

    assert first == {"tasks": BATCH}
    assert again.tasks == 3 * BATCH
    assert set(delivered(own_leg)) == set(ids)
