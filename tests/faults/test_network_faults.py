"""The network between workq and one of its servers: half-open, one-way, slow, or cut again and again.

The servers are the run's own and stay well: what breaks is a proxy before one of them, for the producer and for the
worker processes alike. Times are a tenth of the default ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.system.fleet import ROOM_S, wait_until
from tests.system.legs import Leg
from workq import LedgerUnavailable, State
from workq.lab.proxy import FaultProxy
from workq.lab.proxy.link import Direction
from workq.lab.servers import MariaDB, PostgreSQL, RabbitMQ, Redis


@dataclass
class Wired:
    """A leg that reaches one of its servers through a proxy."""

    leg: Leg
    proxy: FaultProxy
    where: str

    def check(self, count: int) -> None:
        """All succeeded, each started once and settled once: what broke was the network, and nobody died.

        A claim whose COMMIT nobody could see the end of is claimed again: a new attempt, but the first that starts.
        """
        ledger = self.leg.app.stores.ledger
        tasks = ledger.questions.tasks(limit=10 * count)
        assert [task.state for task in tasks] == [State.SUCCEEDED] * count
        assert set(self.leg.starts().values()) == {1}
        assert len(self.leg.starts()) == count
        assert all((task.failures, task.crashes) == (0, 0) for task in tasks)
        kinds = [event.kind for task in tasks for event in ledger.questions.history(task.id)]
        assert [kind for kind in kinds if kind in ("reaped", "late_result")] == []


Wire = Callable[[str], Wired]


@pytest.fixture
def wire(
    rabbitmq_server: RabbitMQ, redis_server: Redis, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Wire]:
    """Call it with `broker`, `inflight`, `ledger` (PostgreSQL) or `mariadb` (the same on MariaDB)."""
    ends: list[Callable[[], None]] = []

    def one(where: str) -> Wired:
        database: PostgreSQL | MariaDB = request.getfixturevalue(
            "mariadb_server" if where == "mariadb" else "postgres_server"
        )
        urls = {"ledger": database.url, "broker": rabbitmq_server.url, "inflight": redis_server.url}
        name = "ledger" if where == "mariadb" else where
        proxy = FaultProxy.before(urls[name]).start()
        urls[name] = proxy.url(urls[name])
        leg = Leg.open("servers", tmp_path, divide=10.0, asked_at=database.url, **urls)
        ends.extend([leg.close, proxy.stop])
        return Wired(leg, proxy, name)

    yield one
    for end in ends:
        end()


def test_a_broker_that_is_half_open_is_noticed_in_time_and_nothing_starts_twice(wire: Wire) -> None:
    """F38. Nobody is told; only the heartbeat can find out."""
    wired = wire("broker")
    leg, proxy = wired.leg, wired.proxy
    with leg.fleet(processes=1, threads=2) as fleet:
        leg["note"].enqueue_many({"number": number, "seconds": 3.0} for number in range(2))
        wait_until(lambda: len(leg.starts()) == 2, timeout_s=30, what="two run")
        pids = [child.pid for child in fleet.children()]
        proxy.blackhole()
        before = proxy.accepted
        began = time.monotonic()

        leg["note"].enqueue_many({"number": number} for number in range(2, 12))
        enqueued_s = time.monotonic() - began
        wait_until(lambda: leg.states()[State.SUCCEEDED] == 2, timeout_s=20, what="what ran settles meanwhile")
        wait_until(lambda: "no heartbeat in time" in fleet.text(), timeout_s=40, what="the consumer notices")
        noticed_s = time.monotonic() - began
        wait_until(lambda: proxy.accepted > before, timeout_s=20, what="somebody tries to connect again")
        proxy.heal()
        leg.wait_settled(timeout_s=40)
        assert [child.pid for child in fleet.children()] == pids, "no worker process died of it"
    print(f"half-open broker: noticed after {noticed_s:.1f} s")
    assert enqueued_s < 1.0 + ROOM_S
    assert noticed_s < leg.app.settings.times.amqp_heartbeat_s + 5.0 + 2 * ROOM_S
    wired.check(12)


def test_confirmations_that_never_arrive_cost_a_second_hint_and_no_second_start(wire: Wire) -> None:
    """F38, one way: the broker gets every hint, and its answers are lost."""
    wired = wire("broker")
    leg, proxy = wired.leg, wired.proxy
    leg["note"].enqueue(0)
    assert leg.app.producer.relay.flush(timeout_s=20)
    proxy.blackhole(Direction.TO_CLIENT)
    leg["note"].enqueue_many({"number": number} for number in range(1, 21))
    assert not leg.app.producer.relay.flush(timeout_s=0.5)
    proxy.heal()

    with leg.fleet(processes=1, threads=2):
        leg.wait_settled(timeout_s=40)
    wired.check(21)


def test_a_redis_that_is_half_open_costs_nobody_his_lease(wire: Wire) -> None:
    """F38. Longer than a lease: what runs goes on and settles, nothing new starts, and nobody is reaped afterwards."""
    wired = wire("inflight")
    leg, proxy = wired.leg, wired.proxy
    with leg.fleet(processes=2, threads=1) as fleet:
        leg["note"].enqueue_many({"number": number, "seconds": 2.0} for number in range(2))
        wait_until(lambda: len(leg.starts()) == 2, timeout_s=30, what="two run")
        pids = sorted(child.pid for child in fleet.children())
        proxy.blackhole()
        began = time.monotonic()
        leg["note"].enqueue_many({"number": number} for number in range(2, 12))
        enqueued_s = time.monotonic() - began
        wait_until(lambda: leg.states()[State.SUCCEEDED] >= 2, timeout_s=20, what="what ran settles meanwhile")
        lease_over = began + 1.5 * leg.app.settings.times.lease_s
        wait_until(lambda: time.monotonic() > lease_over, timeout_s=20, what="every lease is over")
        started_meanwhile = len(leg.starts())
        proxy.heal()
        leg.wait_settled(timeout_s=40)
        assert sorted(child.pid for child in fleet.children()) == pids, "no worker process died of it"
    assert enqueued_s < 1.0 + ROOM_S
    assert started_meanwhile < 12, "only what was held before could start"
    wired.check(12)


@pytest.mark.parametrize("where", ["ledger", "mariadb"])
def test_a_database_that_is_half_open_is_an_error_in_time_and_results_are_settled_afterwards(
    where: str, wire: Wire
) -> None:
    """F59, F38."""
    wired = wire(where)
    leg, proxy = wired.leg, wired.proxy
    with leg.fleet(processes=1, threads=2) as fleet:
        leg["note"].enqueue_many({"number": number, "seconds": 2.0} for number in range(2))
        wait_until(lambda: len(leg.starts()) == 2, timeout_s=30, what="two run")
        pids = [child.pid for child in fleet.children()]
        proxy.blackhole()
        began = time.monotonic()

        with pytest.raises(LedgerUnavailable):
            leg["note"].enqueue(2)
        refused_s = time.monotonic() - began
        wait_until(
            lambda: sum(line.what == "end" for line in leg.testimony()) == 2, timeout_s=20, what="the handlers end"
        )
        proxy.heal()
        leg.wait_settled(timeout_s=60)
        assert [child.pid for child in fleet.children()] == pids, "no worker process died of it"
    print(f"half-open {where}: enqueue() said so after {refused_s:.1f} s")
    assert refused_s < 1.5 * leg.app.settings.times.statement_s + 3.0 + ROOM_S
    wired.check(2)


@pytest.mark.parametrize("where", ["broker", "inflight", "ledger"])
def test_a_slow_server_costs_speed_and_nobody_is_taken_for_dead(where: str, wire: Wire) -> None:
    """F39."""
    wired = wire(where)
    leg, proxy = wired.leg, wired.proxy
    with leg.fleet(processes=2, threads=2) as fleet:
        leg["note"].enqueue(0)
        leg.wait_settled(timeout_s=30)
        late_s = {"broker": 0.5, "inflight": 0.1, "ledger": 0.04}[where]  # what such a server may have, and more
        proxy.delay(late_s, late_s / 2, Random(39))
        began = time.monotonic()
        leg["note"].enqueue_many({"number": number, "seconds": 0.1} for number in range(1, 31))
        leg.wait_settled(timeout_s=60)
        took_s = time.monotonic() - began
        assert "sweep.reaped" not in fleet.text()
        assert "child_died" not in fleet.text()
    print(f"{where} {late_s} s late: 30 tasks of 0.1 s in {took_s:.1f} s")
    wired.check(31)


@pytest.mark.parametrize("where", ["broker", "inflight", "ledger"])
def test_connections_that_are_cut_again_and_again_lose_nothing_and_start_nothing_twice(where: str, wire: Wire) -> None:
    """F33, F58: at any moment, also between a request and its answer."""
    wired = wire(where)
    leg, proxy = wired.leg, wired.proxy
    rng = Random(33)
    count = 400
    with leg.fleet(processes=2, threads=2) as fleet:
        leg["note"].enqueue_many({"number": number, "seconds": 0.02} for number in range(count))
        wait_until(lambda: len(leg.starts()) > 2, timeout_s=30, what="it serves")  # at the start, exit 4 is right
        cuts = 0
        while leg.unsettled() and cuts < 12:
            done = len(leg.starts())
            match rng.choice(["cut", "reset", "answer"]):
                case "cut":
                    proxy.cut()
                case "reset":
                    proxy.reset()
                case "answer":
                    proxy.cut_after(rng.randint(0, 400), Direction.TO_CLIENT)
            cuts += 1
            wait_until(
                lambda done=done: len(leg.starts()) > done or leg.unsettled() == 0,  # type: ignore[misc]  # a lambda's default has no type
                timeout_s=40,
                what="work goes on",
            )
        proxy.heal()
        leg.wait_settled(timeout_s=60)
        assert "child_died" not in fleet.text()
    assert cuts >= 3
    wired.check(count)
