"""A server goes away and comes back: enqueue still answers, nothing is acked unheld, and work resumes by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Private
from tests.system.fleet import ROOM_S, Fleet, wait_until
from tests.system.legs import Leg
from tests.system.witness import tell
from workq import LedgerUnavailable, State
from workq.lab.servers import PostgreSQL, RabbitMQ, Redis, Server, start_postgres, start_redis
from workq.lab.servers.server import free_port


@dataclass
class Own:
    """Servers that this module may kill, and a leg on them."""

    rabbitmq: RabbitMQ
    redis: Redis
    postgres: PostgreSQL

    def settle_queues(self, leg: Leg) -> None:
        """RabbitMQ 3.10 loses the leader of a quorum queue that was declared within a second before a SIGKILL."""
        self.rabbitmq.wait_registered(f"{leg.app.settings.namespace}.q.witness")

    def leg(self, folder: Path) -> Leg:
        return leg_on(self.rabbitmq.url, folder, self.redis, self.postgres)


def leg_on(broker: str, folder: Path, redis: Redis, postgres: PostgreSQL) -> Leg:
    return Leg.open("servers", folder, ledger=postgres.url, broker=broker, inflight=redis.url, divide=5.0)


@pytest.fixture(scope="module")
def stores(private: Private) -> Iterator[tuple[Redis, PostgreSQL]]:
    with private(start_redis) as redis, private(start_postgres) as postgres:
        yield redis, postgres


@pytest.fixture
def own(mortal_rabbitmq: RabbitMQ, stores: tuple[Redis, PostgreSQL]) -> Own:
    return Own(mortal_rabbitmq, *stores)


@pytest.fixture
def leg(own: Own, tmp_path: Path) -> Iterator[Leg]:
    leg = own.leg(tmp_path)
    yield leg
    leg.close()


def test_while_rabbitmq_is_down_tasks_are_enqueued_and_run_and_none_runs_twice_when_it_is_back(
    own: Own, leg: Leg
) -> None:
    with leg.fleet(processes=2, threads=2) as fleet:
        leg["note"].enqueue(0)
        leg.wait_settled(timeout_s=30)
        own.settle_queues(leg)
        own.rabbitmq.kill()

        began = time.monotonic()
        leg["note"].enqueue(1)
        answered_s = time.monotonic() - began
        leg["fail_until"].enqueue(2, attempts=2)
        leg["note"].options(order_key="k").enqueue_many({"number": number} for number in range(3, 23))
        leg.wait_settled(timeout_s=120)
        own.rabbitmq.start()
        leg["note"].enqueue(23)
        leg.wait_settled(timeout_s=60)
        wait_until(lambda: polled(leg) >= 4, timeout_s=120, what="the ledger is told how many were found without hints")

        assert fleet.process.poll() is None
        assert "worker.polls" in fleet.text()
    assert answered_s < 1.0 + ROOM_S
    assert leg.states()[State.SUCCEEDED] == 24
    assert sorted(leg.starts().values()) == [1] * 23 + [2], "the failure was tried again; nothing else ran twice"


def polled(leg: Leg) -> int:
    """Those of an order key may be handed on by whoever settles the one before, so that they need no hint."""
    found = leg.app.stores.ledger.questions.happened(("polled",), within_s=3600.0, limit=100)
    return sum(int(event.detail["tasks"]) for event in found)


def test_running_tasks_settle_while_redis_is_down_and_fetching_resumes_by_itself(own: Own, leg: Leg) -> None:
    with leg.fleet(processes=1, threads=2) as fleet:
        leg["until_told"].enqueue_many({"number": number} for number in range(2))
        wait_until(lambda: len(leg.starts()) == 2, timeout_s=30, what="both run")
        pids = [child.pid for child in fleet.children()]
        own.redis.kill()

        tell(leg.folder / "witness")
        leg["note"].enqueue_many({"number": number} for number in range(2, 12))
        wait_until(lambda: leg.states()[State.SUCCEEDED] == 2, timeout_s=20, what="what ran has settled")
        started_without_redis = len(leg.starts())
        own.redis.start()
        leg.wait_settled(timeout_s=60)

        assert [child.pid for child in fleet.children()] == pids, "no worker process died of it"
    assert started_without_redis <= 4, "only what was held before could start"
    assert leg.states()[State.SUCCEEDED] == 12
    assert set(leg.starts().values()) == {1}


def test_enqueue_says_when_the_database_is_down_and_results_are_settled_when_it_is_back(own: Own, leg: Leg) -> None:
    with leg.fleet(processes=1, threads=2) as fleet:
        leg["until_told"].enqueue_many({"number": number} for number in range(2))
        wait_until(lambda: len(leg.starts()) == 2, timeout_s=30, what="both run")
        pids = [child.pid for child in fleet.children()]
        own.postgres.kill()

        with pytest.raises(LedgerUnavailable, match="workq doctor"):
            leg["note"].enqueue(2)
        tell(leg.folder / "witness")
        wait_until(
            lambda: sum(line.what == "end" for line in leg.testimony()) == 2, timeout_s=20, what="the handlers end"
        )
        own.postgres.start()
        leg.wait_settled(timeout_s=60)

        assert [child.pid for child in fleet.children()] == pids, "no worker process died of it"
    assert leg.states()[State.SUCCEEDED] == 2
    assert set(leg.starts().values()) == {1}


def test_everything_killed_and_started_again_finishes_everything(own: Own, leg: Leg) -> None:
    with leg.fleet(processes=2, threads=2) as first:
        leg["note"].enqueue_many({"number": number, "seconds": 0.05} for number in range(200))
        wait_until(lambda: len(leg.starts()) > 20, timeout_s=30, what="work is under way")
        own.settle_queues(leg)
        first.kill()
    for server in (own.rabbitmq, own.redis, own.postgres):
        server.kill()
    for server in (own.rabbitmq, own.redis, own.postgres):
        server.start()
    with leg.fleet(processes=2, threads=2):
        leg.wait_settled(timeout_s=90)
    assert leg.states()[State.SUCCEEDED] == 200
    assert max(leg.starts().values()) <= 2


def test_a_worker_that_starts_while_its_servers_are_down_waits_for_all_but_rabbitmq(own: Own, leg: Leg) -> None:
    servers: tuple[Server, ...] = (own.postgres, own.redis, own.rabbitmq)
    for server in servers:
        server.kill()
    with leg.fleet(processes=1, threads=2) as fleet:
        for named, server in zip(("cannot use the ledger", "nothing listens"), servers, strict=False):
            wait_until(
                lambda named=named: any(  # type: ignore[misc]  # a lambda's default has no type
                    "worker.waits" in line and named in line for line in fleet.text().splitlines()
                ),
                timeout_s=30,
                what=f"it waits: {named}",
            )
            assert fleet.children() == []
            server.start()
        leg["note"].enqueue(0)
        leg.wait_settled(timeout_s=60)
        assert "worker.without_broker" in fleet.text()
        own.rabbitmq.start()

        own.postgres.kill()
        fleet.kill_one()
        pid = wait_for_successor(fleet)
        wait_until(lambda: f"WARNING {pid} worker.waits" in fleet.text(), timeout_s=30, what="its successor waits")
        own.postgres.start()
        leg["note"].enqueue(1)
        leg.wait_settled(timeout_s=60)

        assert [child.pid for child in fleet.children()] == [pid]
    assert leg.states()[State.SUCCEEDED] == 2


def test_a_drain_while_rabbitmq_is_down_runs_what_is_due_and_ends(
    stores: tuple[Redis, PostgreSQL], tmp_path: Path
) -> None:
    leg = leg_on(f"amqp://guest:guest@127.0.0.1:{free_port()}/", tmp_path, *stores)  # where nothing listens
    leg["note"].enqueue_many({"number": number} for number in range(10))
    with leg.fleet(processes=1, threads=2, drain=True) as fleet:
        assert fleet.wait(60) == 0
    assert leg.states()[State.SUCCEEDED] == 10
    assert set(leg.starts().values()) == {1}
    leg.close()


def wait_for_successor(fleet: Fleet) -> int:
    """The process that was started for one that was killed."""
    wait_until(lambda: fleet.text().count("supervisor.started") > 1, timeout_s=30, what="a successor was started")
    [child] = fleet.children()
    return child.pid
