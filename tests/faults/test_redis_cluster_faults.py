"""What happens to the in-flight store when a node of its Redis Cluster stops or dies, or its slot moves to another one.

One private cluster of three masters for all tests; each finds it whole. "Ours" is the namespace that a test works in,
"home" the node that serves it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.contract.inflight import LONG_S, ids, until
from tests.faults import silence
from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import check_once
from workq.config import Settings
from workq.diagnose.doctor import examine
from workq.diagnose.doctor.check import Level
from workq.errors import ConfigError, InFlightUnavailable
from workq.inflight import Entry
from workq.inflight.redis import RedisInFlight
from workq.lab.namespace import redis_client
from workq.lab.servers import Redis
from workq.lab.servers.redis import RedisCluster, RedisNode, slot_of, start_redis_cluster
from workq.lab.servers.server import free_port

SOCKET_S = 0.5
HANG_S = 5.0
"""Much more than any call may take: some times `SOCKET_S`."""


@dataclass
class World:
    """A namespace, the node that serves it, and one worker there."""

    cluster: RedisCluster
    namespace: str
    store: RedisInFlight
    entries: list[Entry] = field(default_factory=list)

    @property
    def home(self) -> RedisNode:
        return self.cluster.node_of(self.namespace)

    @property
    def away(self) -> RedisNode:
        return next(node for node in self.cluster.nodes if node is not self.home)

    @property
    def slot(self) -> int:
        return slot_of(self.namespace)

    def keys(self, node: RedisNode) -> list[str]:
        return node.tell("KEYS", f"{{{self.namespace}}}:*").split()

    def held(self) -> set[str]:
        return {hold.task_id for hold in self.store.held_by("ada")}


def opened(cluster: RedisCluster, url: str | None = None) -> World:
    namespace = f"t{secrets.token_hex(6)}"
    return World(cluster, namespace, RedisInFlight(url or cluster.url, namespace=namespace, socket_s=SOCKET_S))


@pytest.fixture(scope="module")
def shared(redis_server: Redis) -> Iterator[RedisCluster]:  # where Redis is missing, that one says so
    with start_redis_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: RedisCluster) -> RedisCluster:
    for node in shared.nodes:
        if not node.is_running:
            node.start()
    shared.wait_whole()
    return shared


@pytest.fixture
def world(cluster: RedisCluster) -> Iterator[World]:
    """Ada holds ten tasks."""
    world = opened(cluster)
    world.entries = [Entry(secrets.token_hex(18), "mail", 1) for _ in range(10)]
    world.store.join("ada", lease_s=LONG_S)
    assert world.store.hold(world.entries, by="ada") == ids(world.entries)
    yield world
    world.store.close()


fails = partial(silence.fails, within_s=HANG_S)


def is_answered(world: World) -> bool:
    try:
        world.store.leases()
    except InFlightUnavailable:
        return False
    return True


# A node is gone.


def test_a_node_that_dies_fails_its_namespaces_in_time_and_they_go_on_when_it_is_back(world: World) -> None:
    world.home.kill()

    messages = [fails(world.held) for _ in range(3)]

    for message in messages:
        assert f"nothing listens at redis://127.0.0.1:{world.home.port}/0, a node of the cluster" in message
    world.home.start()
    until(lambda: is_answered(world), "its namespace is served again")
    world.store.beat("ada", lease_s=LONG_S, entries=world.entries)  # Redis may not have written its last second
    assert world.held() == ids(world.entries)


def test_a_node_that_dies_is_not_missed_by_the_namespaces_of_the_others(world: World) -> None:
    """Neither by those who know where they are served, nor by those who begin now, whatever node they ask first."""
    world.away.kill()

    assert world.held() == ids(world.entries)
    for first in range(3):
        nodes = [f"127.0.0.1:{node.port}" for node in world.cluster.nodes]
        url = "redis+cluster://" + ",".join(nodes[first:] + nodes[:first])
        with closing(RedisInFlight(url, namespace=world.namespace, socket_s=SOCKET_S)) as fresh:
            assert set(fresh.leases()) == {"ada"}
            assert (
                fresh.check()
                == f"{world.home.name} {world.home.version}, a cluster of 3 nodes, 1 of which did not answer"
            )


def test_a_node_that_stops_answering_fails_a_call_in_time_and_runs_it_at_most_once(world: World) -> None:
    world.home.tell("CONFIG", "RESETSTAT")
    world.home.pause()
    try:
        message = fails(lambda: world.store.extend("ada", lease_s=LONG_S))
    finally:
        world.home.resume()

    assert f"did not answer within {SOCKET_S:g} s" in message
    until(lambda: is_answered(world), "its namespace is served again")
    assert extended(world) <= 1
    assert world.held() == ids(world.entries)


def extended(world: World) -> int:
    """How often a lease was extended since the statistics began, with what the node did since it was resumed."""
    stats = dict(line.split(":", 1) for line in world.home.tell("INFO", "commandstats").splitlines() if ":" in line)
    calls = dict(one.split("=", 1) for one in stats.get("cmdstat_zremrangebyscore", "calls=0").split(","))
    return int(calls["calls"])


def test_a_node_that_comes_back_empty_gets_everything_again_with_the_next_beat(world: World) -> None:
    world.home.kill()
    world.home.wipe()
    world.home.start()
    until(lambda: is_answered(world), "the empty node serves its slots")
    assert world.held() == set()

    assert world.store.beat("ada", lease_s=LONG_S, entries=world.entries).restored == 10

    assert world.held() == ids(world.entries)
    assert world.store.epoch_age_s() < HANG_S


def test_a_replica_that_takes_over_for_a_dead_node_is_followed(redis_server: Redis) -> None:
    with start_redis_cluster(3, replicas=1) as cluster:
        world = opened(cluster)
        while world.home is not cluster.nodes[0]:
            world.store.close()
            world = opened(cluster)
        entries = [Entry(secrets.token_hex(18), "mail", 1) for _ in range(10)]
        with closing(world.store) as store:
            store.join("ada", lease_s=LONG_S)
            store.hold(entries, by="ada")
            cluster.nodes[0].kill()

            assert "nothing listens" in fails(store.leases)
            until(lambda: is_answered(world), "the replica serves its slots")
            store.beat("ada", lease_s=LONG_S, entries=entries)  # the newest writes may not have reached the replica

            assert world.held() == ids(entries)
            assert sorted(world.keys(cluster.replicas[0])) == [
                f"{{{world.namespace}}}:{name}" for name in ("epoch", "held:ada", "inflight:mail", "leases")
            ]


# A slot moves.


def begin_to_move(slot: int, source: RedisNode, target: RedisNode) -> None:
    target.tell("CLUSTER", "SETSLOT", slot, "IMPORTING", source.tell("CLUSTER", "MYID"))
    source.tell("CLUSTER", "SETSLOT", slot, "MIGRATING", target.tell("CLUSTER", "MYID"))


def move_keys(world: World, source: RedisNode, target: RedisNode) -> None:
    if keys := world.keys(source):
        assert source.tell("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys) == "OK"


def move(world: World, source: RedisNode, target: RedisNode) -> None:
    """The whole of it, as redis-cli --cluster reshard does it."""
    begin_to_move(world.slot, source, target)
    while world.keys(source):  # who works meanwhile may make another one
        move_keys(world, source, target)
    for node in (target, *(node for node in world.cluster.nodes if node is not target)):
        node.tell("CLUSTER", "SETSLOT", world.slot, "NODE", target.tell("CLUSTER", "MYID"))


@contextmanager
def moving(world: World) -> Iterator[tuple[RedisNode, RedisNode]]:
    """The slot is on its way from its home to another node; afterwards it stays at home with all its keys."""
    home, away, slot = world.home, world.away, world.slot
    begin_to_move(slot, home, away)
    try:
        yield home, away
    finally:
        home.tell("CLUSTER", "SETSLOT", slot, "STABLE")  # first: a slot that moves away takes no keys back
        move_keys(world, away, home)
        away.tell("CLUSTER", "SETSLOT", slot, "STABLE")


def test_a_slot_that_has_moved_is_followed(world: World) -> None:
    home, away = world.home, world.away
    move(world, home, away)
    try:
        assert world.held() == ids(world.entries)
        assert world.store.beat("ada", lease_s=LONG_S, entries=world.entries).restored == 0
        assert world.keys(home) == []
    finally:
        move(world, away, home)
    assert world.held() == ids(world.entries)


def test_a_slot_that_is_moving_is_refused_in_time_until_it_is_there(world: World) -> None:
    """Some of what a script needs is here and some there: it is asked again for a while, and nothing is done."""
    with moving(world):
        message = fails(world.store.leases)

    assert "still moving the slot of this namespace" in message
    assert world.held() == ids(world.entries)


def test_a_slot_whose_keys_are_all_there_already_is_asked_for_there(world: World) -> None:
    world.store.forget("bob")  # so that all three keys that a script names exist
    with moving(world) as (home, away):
        move_keys(world, home, away)
        away.tell("SCRIPT", "FLUSH")

        assert set(world.store.leases()) == {"ada"}
        assert world.held() == ids(world.entries)
        assert world.keys(home) == []


def test_a_slot_that_moves_under_a_fleet_and_a_replica_that_takes_over_cost_no_task_and_start_none_twice(
    redis_server: Redis, open_leg: OpenLeg
) -> None:
    """The slot moves to the one node that has a replica, or there and back, and that node dies."""
    with start_redis_cluster(3, replicas=1) as cluster:
        leg = open_leg("servers", divide=10.0, inflight=cluster.url)
        world = World(cluster, leg.app.settings.namespace, RedisInFlight(cluster.url, socket_s=SOCKET_S))
        first, second, _ = cluster.nodes

        def late() -> str:
            """One that is enqueued behind all that wait."""
            leg["note"].enqueue_many({"number": number, "seconds": 0.1} for number in range(19))
            return leg["note"].enqueue(19).id

        with leg.fleet(processes=2, threads=2) as fleet, closing(world.store):
            task_id = late()
            wait_until(lambda: len(leg.starts()) >= 4, timeout_s=60, what="work goes on")
            for source, target in [(first, second), (second, first)] if world.home is first else [(world.home, first)]:
                move(world, source, target)
            wait_until(lambda: leg.starts()[task_id] == 1, timeout_s=60, what="the slot has moved, and work goes on")
            assert world.keys(first) != []
            before = late()
            first.kill()
            after = late()
            wait_until(lambda: leg.starts()[after] == 1, timeout_s=60, what="the replica serves, and work goes on")
            leg.wait_settled(timeout_s=120)
            assert "child_died" not in fleet.text()
            assert leg.starts()[before] == 1
    check_once(leg, 60)


# What is not fit for it.


def test_a_node_that_may_evict_is_refused_though_it_serves_others_today(world: World) -> None:
    world.away.tell("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(
            ConfigError, match=f":{world.away.port}/0, a node of the cluster may drop what workers hold"
        ):
            world.store.check()
    finally:
        world.away.tell("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_a_server_that_is_no_cluster_is_refused(redis_server: Redis) -> None:
    """Two of them would be taken for one store, and each know half of what is held."""
    url = redis_server.url.replace("redis://", "redis+cluster://")
    with (
        closing(RedisInFlight(url, namespace="t", socket_s=SOCKET_S)) as store,
        pytest.raises(ConfigError, match="is no cluster"),
    ):
        store.check()


def test_a_node_that_is_named_as_a_server_tells_how_to_name_it(world: World) -> None:
    with closing(RedisInFlight(world.away.url, namespace=world.namespace, socket_s=SOCKET_S)) as store:
        assert "write redis+cluster://host:6379,host:6379" in fails(store.leases)


def test_no_password_is_told(world: World) -> None:
    url = world.cluster.url.replace("://", "://nobody:c4n4ry@")
    with closing(RedisInFlight(url, namespace=world.namespace, socket_s=SOCKET_S)) as store:
        message = fails(store.leases)
    assert "c4n4ry" not in message
    assert "refused the user name or password" in message


def test_the_doctor_looks_at_each_node(world: World, tmp_path: Path) -> None:
    settings = Settings(ledger=f"sqlite:///{tmp_path}/none.db", inflight=world.cluster.url, namespace=world.namespace)
    world.home.tell("CONFIG", "SET", "cluster-require-full-coverage", "yes")
    well = findings(settings)
    world.home.tell("CONFIG", "SET", "cluster-require-full-coverage", "no")
    world.away.kill()
    ill = findings(settings)

    assert len(well) == 1
    assert f":{world.home.port}: cluster-require-full-coverage is on" in well[0]
    assert len(ill) == 1
    assert f":{world.away.port}: it does not answer" in ill[0]


def findings(settings: Settings) -> list[str]:
    levels = (Level.WARNING, Level.ERROR, Level.UNREACHABLE)
    return [one.message for one in examine(settings) if one.area == "inflight" and one.level in levels]


def test_a_scratch_namespace_is_removed_from_the_node_that_has_it(world: World) -> None:
    with redis_client(world.cluster.url) as client:
        found = sorted(key.decode() for key in client.scan_iter(match=f"{{{world.namespace}}}:*", count=1000))
        assert found == sorted(world.keys(world.home))
        client.delete(*found)

    assert world.keys(world.home) == []


# Another hand writes there.


def test_in_a_cluster_too_keys_of_another_type_are_moved_aside_and_what_is_held_is_written_again(world: World) -> None:
    for name in ("leases", "inflight:mail"):
        key = f"{{{world.namespace}}}:{name}"
        world.home.tell("DEL", key)
        world.home.tell("RPUSH", key, "theirs")

    restored = world.store.beat("ada", lease_s=LONG_S, entries=world.entries).restored

    assert restored == len(world.entries)
    assert world.held() == ids(world.entries)
    wrong, aside = world.store.of_another_type()
    assert wrong == []
    assert sorted(name.partition(":aside:")[0] for name in aside) == [
        f"{{{world.namespace}}}:inflight:mail",
        f"{{{world.namespace}}}:leases",
    ]


@pytest.fixture
def own(redis_server: Redis) -> Iterator[RedisCluster]:
    """For what a cluster does not forget at once."""
    with start_redis_cluster(3) as cluster:
        yield cluster


def test_a_cluster_that_speaks_tls_is_verified_node_by_node(own: RedisCluster, authority: Path) -> None:
    def show(certificate: str, ports: list[int]) -> None:
        files = {"cert": certificate, "key": "server.key", "ca-cert": "ca.pem"}
        settings = [word for name, file in files.items() for word in (f"tls-{name}-file", str(authority / file))]
        for node, port in zip(own.nodes, ports, strict=True):
            among_nodes = ("tls-cluster", "yes")  # only then do they tell each other's TLS ports
            node.tell("CONFIG", "SET", *settings, "tls-auth-clients", "no", "tls-port", port, *among_nodes)

    def held_at(place: str, trusted: str, namespace: str) -> set[str]:
        url = f"rediss+cluster://{place}?ssl_ca_certs={authority / trusted}"
        with closing(RedisInFlight(url, namespace=namespace, socket_s=HANG_S)) as store:
            store.join("ada", lease_s=LONG_S)
            store.hold([Entry("t", "mail", 1)], by="ada")
            return {hold.task_id for hold in store.held_by("ada")}

    served = {own.node_of(name): name for name in (f"t{secrets.token_hex(6)}" for _ in range(60))}
    ports = [free_port() for _ in own.nodes]
    place = f"127.0.0.1:{ports[0]}"

    def is_told() -> bool:
        try:
            return all(held_at(place, "ca.pem", namespace) == {"t"} for namespace in served.values())
        except InFlightUnavailable:
            return False

    show("server.pem", ports)
    until(is_told, "each node tells the TLS ports of the others", limit_s=60.0)
    assert len(served) == len(own.nodes)
    for where, trusted in ((place, "other.pem"), (f"localhost:{ports[0]}", "ca.pem")):
        with pytest.raises(InFlightUnavailable, match="certificate"):
            held_at(where, trusted, "t")
    show("expired.pem", ports)
    with pytest.raises(InFlightUnavailable, match=r"certificate.*expired"):
        held_at(place, "ca.pem", "t")
