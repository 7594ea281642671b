"""Several of each server, as docs/scale.md has them: who loses one waits alone, the others go on, and nothing is lost.

A shard is a namespace with an application of its own. Each has a fleet here, and a witness that belongs to it.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from sqlalchemy import text

from tests.conftest import Private
from tests.contract.sent import listen
from tests.system.fleet import Fleet, wait_until
from tests.system.legs import Leg
from tests.system.witness import tell
from workq import LedgerUnavailable, State
from workq.diagnose.audit import Audited, audit
from workq.diagnose.where import Misplacement, Place
from workq.lab.servers import PostgreSQL, RabbitMQ, Redis, start_postgres, start_rabbitmq
from workq.lab.servers.redis import RedisCluster, start_redis_cluster
from workq.ledger.sql import Ledger
from workq.slices import SLICES
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Settlement

T = TypeVar("T")
R = TypeVar("R")

DIVIDE = 10.0
SOMEBODY = Incarnation("somebody", "stage", 1)
"""Whoever claims in the place of a worker."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered here is left, last first, when the test ends."""
    with ExitStack() as stack:
        yield stack


def opened(
    stack: ExitStack, folder: Path, *, ledger: str, broker: str, inflight: str, namespace: str | None = None
) -> Leg:
    """A shard: a fresh namespace on these servers, with a folder of its own for its witness."""
    folder.mkdir()
    leg = Leg.open(
        "servers", folder, ledger=ledger, broker=broker, inflight=inflight, divide=DIVIDE, namespace=namespace
    )
    stack.callback(leg.close)
    return leg


def manned(stack: ExitStack, legs: Sequence[Leg]) -> list[Fleet]:
    """One worker process for each shard; killed all at once when the test ends."""
    fleets = [stack.enter_context(leg.fleet(processes=1, threads=4)) for leg in legs]
    stack.callback(at_once, Fleet.kill, fleets)
    return fleets


def at_once(do: Callable[[T], R], these: Sequence[T]) -> list[R]:
    with ThreadPoolExecutor(len(these)) as pool:
        return list(pool.map(do, these))


def enqueue(leg: Leg, first: int, count: int) -> None:
    """So many tasks of some milliseconds, numbered from `first`."""
    leg["note"].enqueue_many({"number": number, "seconds": 0.01} for number in range(first, first + count))


def succeeded(leg: Leg) -> int:
    return leg.states()[State.SUCCEEDED]


def check_each_ran_once(leg: Leg, count: int) -> None:
    """Nothing is lost, and no worker died: so nothing had a reason to start twice either."""
    assert leg.states() == {**dict.fromkeys(State, 0), State.SUCCEEDED: count}
    assert len(leg.starts()) == count
    assert set(leg.starts().values()) == {1}


# --------------------------------------------------------------------------------------------------------- two ledgers


def audited(leg: Leg) -> Audited:
    """With the ledger's clock moved on by more than a hint may be late: what is not there now is lost."""
    database: Any = leg.app.stores.ledger.database  # whose clock the test moves
    database.clock_offset_s += 3.0
    return audit(leg.app.stores, leg.app.settings, queues=["witness"])


def test_of_two_ledgers_one_stops_and_only_its_own_tasks_wait(
    private: Private,
    postgres_server: PostgreSQL,
    rabbitmq_server: RabbitMQ,
    redis_server: Redis,
    stack: ExitStack,
    tmp_path: Path,
) -> None:
    own = stack.enter_context(private(start_postgres))
    halted, other = (
        opened(stack, tmp_path / name, ledger=ledger, broker=rabbitmq_server.url, inflight=redis_server.url)
        for name, ledger in (("halted", own.url), ("other", postgres_server.url))
    )
    fleets = manned(stack, [halted, other])
    for leg in (halted, other):
        enqueue(leg, 0, 300)
        wait_until(lambda leg=leg: len(leg.starts()) > 20, timeout_s=30, what="work is under way")  # type: ignore[misc]

    own.kill()
    with pytest.raises(LedgerUnavailable):
        halted["note"].enqueue(300)
    enqueue(other, 300, 300)
    other.wait_settled(timeout_s=30)
    assert not own.is_running
    own.start()
    enqueue(halted, 300, 300)
    halted.wait_settled(timeout_s=30)

    check_each_ran_once(halted, 600)
    check_each_ran_once(other, 600)
    assert [fleet.process.poll() for fleet in fleets] == [None, None]
    for fleet in fleets:
        fleet.terminate()
    assert [fleet.wait(40) for fleet in fleets] == [0, 0]

    # With nobody to take them: what one of them loses now is found in that one, whole, and nothing in the other.
    for leg in (halted, other):
        enqueue(leg, 600, 40)
        assert leg.app.producer.relay.flush(timeout_s=20)
    assert halted.lose_hints() > 0
    broken, whole = at_once(audited, (halted, other))
    assert (len(broken.findings), broken.count(Misplacement.LOST), broken.tasks) == (40, 40, 40)
    assert (whole.is_ok, whole.places[Place.BROKER], whole.tasks) == (True, 40, 40)


# --------------------------------------------------------------------------------------------------------- some brokers


def test_of_some_brokers_one_is_killed_and_only_its_own_tasks_wait(
    private: Private,
    postgres_server: PostgreSQL,
    mortal_rabbitmq: RabbitMQ,
    rabbitmq_server: RabbitMQ,
    redis_server: Redis,
    stack: ExitStack,
    tmp_path: Path,
    long_run: bool,
) -> None:
    """The last one is the run's: nobody kills it."""
    began, more = time.monotonic(), 2 if long_run else 0
    with ThreadPoolExecutor(2) as pool:
        starting = [pool.submit(private, start_rabbitmq) for _ in range(more)]
    for one in starting:
        if one.exception() is None:
            stack.enter_context(one.result())
            stack.callback(one.result().kill)  # an orderly end of each takes seconds, for nothing
    brokers = [mortal_rabbitmq, *(one.result() for one in starting), rabbitmq_server]
    count = len(brokers)
    memory = sum(psutil.Process(one.pid).memory_info().rss for one in brokers) >> 20
    print(f"{count} RabbitMQ nodes: {time.monotonic() - began:.1f} s to start, {memory} MiB resident")
    legs = [
        opened(stack, tmp_path / f"on-{number}", ledger=postgres_server.url, broker=one.url, inflight=redis_server.url)
        for number, one in enumerate(brokers)
    ]
    fleets = manned(stack, legs)
    for leg in legs:
        enqueue(leg, 0, 100)
    for leg in legs:
        leg.wait_settled(timeout_s=40)

    brokers[0].wait_registered(f"{legs[0].app.settings.namespace}.q.witness")
    brokers[0].kill()
    for leg in legs:
        enqueue(leg, 100, 100)
    for leg in legs[1:]:
        leg.wait_settled(timeout_s=40)
    assert sum(legs[0].states().values()) == 200, "they are recorded; the ledger is asked for some of them meanwhile"
    assert not brokers[0].is_running
    brokers[0].start()
    legs[0].wait_settled(timeout_s=60)

    for leg in legs:
        check_each_ran_once(leg, 200)
    assert [fleet.process.poll() for fleet in fleets] == [None] * count


# ------------------------------------------------------------------------------------------------------ a Redis Cluster


def one_on_each_node(cluster: RedisCluster) -> list[str]:
    """A namespace for each node, in the order of the nodes."""
    found: dict[int, str] = {}
    while len(found) < len(cluster.nodes):
        namespace = f"t{secrets.token_hex(4)}"
        found.setdefault(cluster.node_of(namespace).port, namespace)
    return [found[node.port] for node in cluster.nodes]


def test_of_three_nodes_of_a_redis_cluster_one_dies_and_comes_back_empty_and_only_its_own_tasks_wait(
    postgres_server: PostgreSQL,
    rabbitmq_server: RabbitMQ,
    redis_server: Redis,  # where Redis is missing, this skips or fails as `--require` says
    stack: ExitStack,
    tmp_path: Path,
) -> None:
    cluster = stack.enter_context(start_redis_cluster(3))
    legs = [
        opened(
            stack,
            tmp_path / namespace,
            ledger=postgres_server.url,
            broker=rabbitmq_server.url,
            inflight=cluster.url,
            namespace=namespace,
        )
        for namespace in one_on_each_node(cluster)
    ]
    for leg in legs:
        assert leg.app.stores.inflight.check() == f"{cluster.nodes[0].name} {cluster.version}, a cluster of 3 nodes"
    fleets = manned(stack, legs)
    for leg in legs:
        enqueue(leg, 0, 200)
    for leg in legs:
        leg.wait_settled(timeout_s=40)

    legs[0]["until_told"].enqueue_many({"number": number} for number in range(200, 204))
    wait_until(lambda: len(legs[0].starts()) == 204, timeout_s=20, what="four run, and are held")
    cluster.nodes[0].kill()
    cluster.nodes[0].wipe()
    for leg in legs:
        enqueue(leg, 204, 196)
    tell(legs[0].folder / "witness")
    for leg in legs[1:]:
        leg.wait_settled(timeout_s=40)
    wait_until(lambda: succeeded(legs[0]) >= 204, timeout_s=20, what="what ran has settled without its holds")
    started_without_node = len(legs[0].starts())
    cluster.nodes[0].start()
    legs[0].wait_settled(timeout_s=60)

    assert started_without_node == 204, "nothing could be held, so nothing more could start"
    check_each_ran_once(legs[0], 400)
    for leg in legs[1:]:
        check_each_ran_once(leg, 396)
    assert [fleet.process.poll() for fleet in fleets] == [None] * 3


# ------------------------------------------------------------------------------------------------ a partitioned ledger

DAY_MS = 86_400_000


def first_id_of(at_ms: int) -> str:
    """The least UUIDv7 of an instant: ids begin with their time."""
    return str(uuid.UUID(int=at_ms << 80))


def partition_by_time(leg: Leg) -> list[str]:
    """Put a table in place of the empty table of tasks, with partitions by id, as ids begin with their time: for the
    days before now, for those around it, and for those after it.

    The unique index of keys cannot stand on such a table: it would have to contain the id.
    """
    database = leg.app.database()
    task = database.tables.task.name
    now_ms = int(time.time() * 1000)
    names = [f"{task}_{when}" for when in ("before", "around", "after")]
    ends = [first_id_of(now_ms + days * DAY_MS) for days in (-9, -1, 1, 9)]
    with database.engine.begin() as tx:
        indexes = tx.execute(
            text("SELECT indexdef FROM pg_indexes WHERE tablename = :task AND indexdef NOT LIKE 'CREATE UNIQUE%'"),
            {"task": task},
        ).scalars()
        statements = [
            f"CREATE TABLE {task}_new (LIKE {task} INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (id)",
            f"DROP TABLE {task}",
            f"ALTER TABLE {task}_new RENAME TO {task}",
            f"ALTER TABLE {task} ADD PRIMARY KEY (id)",
            *indexes,
            *(
                f"CREATE TABLE {name} PARTITION OF {task} FOR VALUES FROM ('{first}') TO ('{end}')"
                for name, (first, end) in zip(names, pairwise(ends), strict=True)
            ),
        ]
        for statement in statements:
            tx.execute(text(statement))
    database.close()
    return names


def relations(plan: Any) -> set[str]:
    """The tables that a plan reads."""
    found = {plan["Relation Name"]} if plan["Node Type"] != "ModifyTable" and "Relation Name" in plan else set()
    return found.union(*map(relations, plan.get("Plans", [])))


def test_a_ledger_partitioned_by_time_runs_and_a_claim_reads_the_partition_of_its_ids_alone(
    postgres_server: PostgreSQL, stack: ExitStack, tmp_path: Path
) -> None:
    leg = Leg.open("postgres", tmp_path, ledger=postgres_server.create_database())
    stack.callback(leg.close)
    _, around, _ = partition_by_time(leg)
    enqueue(leg, 0, 100)
    ids = [task.id for task in leg.app.stores.ledger.questions.tasks(limit=100)]
    database = leg.app.database()
    stack.callback(database.close)
    sent: list[tuple[str, Any]] = []

    listen(database, lambda statement, parameters: sent.append((statement, parameters)))
    ledger = Ledger(database, SLICES)
    ledger.workers.join(SOMEBODY, queues=["witness"], threads=1)
    assert len(ledger.claims.claim(ids[:50], by=SOMEBODY.id)) == 50
    [claim] = [one for one in sent if one[0].startswith("UPDATE")]
    with database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {claim[0]}", claim[1]).scalar_one()[0]["Plan"]

    small = {f"{leg.app.settings.namespace}_{of}" for of in ("worker", "pause", "message", "destination")}
    assert relations(plan) == {around, *small}, (
        "whether the worker lives, which queues are paused; a message's destination"
    )
    with leg.fleet(processes=1, threads=4):
        wait_until(lambda: succeeded(leg) == 50, timeout_s=30, what="those that nobody has claimed run")


# ---------------------------------------------------------------------------------------------------------- no hot row


def test_the_life_of_a_task_writes_no_row_but_its_own(
    postgres_server: PostgreSQL, rabbitmq_server: RabbitMQ, redis_server: Redis, stack: ExitStack, tmp_path: Path
) -> None:
    """From its record to its end, beside RabbitMQ and Redis: a row that all wrote would have them wait in line."""
    leg = opened(
        stack,
        tmp_path / "shard",
        ledger=postgres_server.url,
        broker=rabbitmq_server.url,
        inflight=redis_server.url,
    )
    stores, settings = leg.app.stores, leg.app.settings
    database: Any = stores.ledger.database  # whose statements are listened to
    written: list[str] = []

    def note(statement: str, _parameters: Any) -> None:
        if not statement.lstrip().upper().startswith(("SELECT", "SET", "SHOW")):
            written.append(statement)

    listen(database, note)
    stores.ledger.workers.join(SOMEBODY, queues=["witness"], threads=1)
    written.clear()
    enqueue(leg, 0, 100)
    assert leg.app.producer.relay.flush(timeout_s=20)
    ids = [task.id for task in stores.ledger.questions.tasks(limit=100)]
    claims = stores.ledger.claims.claim(ids, by=SOMEBODY.id)
    stores.ledger.outcomes.settle([Settlement(claim, Done()) for claim in claims])

    assert leg.states()[State.SUCCEEDED] == 100
    task = f"{settings.namespace}_task"
    assert {statement.split()[0] for statement in written} == {"INSERT", "UPDATE"}
    assert [one for one in written if not one.startswith((f"INSERT INTO {task} ", f"UPDATE {task} "))] == []
    updates = [one for one in written if one.startswith("UPDATE")]
    assert len(updates) == 3, "published, claimed, settled"
    assert [one for one in updates if f"{task}.id = " not in one] == []
