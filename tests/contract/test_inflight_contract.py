"""Every in-flight store keeps the promises of tests/contract/inflight.py, on a real server. The rest is Redis's own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from sqlalchemy import Table, delete

from tests.contract.inflight import LONG_S, InFlightContract, World
from workq.errors import LeaseLost, SchemaMismatch
from workq.inflight import Entry
from workq.inflight.embedded import REAPED_KEPT_S, EmbeddedInFlight
from workq.inflight.redis import RedisInFlight
from workq.lab.servers import MariaDB, PostgreSQL, Redis
from workq.lab.servers.programs import is_chosen
from workq.lab.servers.redis import RedisCluster, start_redis_cluster
from workq.ledger.engine.database import Database

RIGHTS = "+@read +@write +@scripting +@connection +time -@dangerous +info"
"""What workq needs of Redis, as workq/inflight/redis/__init__.py says."""
CLUSTER_RIGHTS = "+asking +cluster|slots"
"""And on the nodes of a cluster."""


class TestRedis(InFlightContract):
    """As a user that may do no more than the documentation asks for, and sees nothing but its own namespaces."""

    @pytest.fixture
    def admin(self, redis_server: Redis) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(redis_server.url, decode_responses=True) as admin:
            yield admin

    @pytest.fixture
    def world(self, redis_server: Redis, admin: redis.Redis) -> Iterator[World]:
        namespace, user, password = f"t{secrets.token_hex(6)}", f"u{secrets.token_hex(6)}", secrets.token_hex(16)
        patterns = [f"~{{{namespace}}}:*", f"~{{{namespace}-2}}:*"]
        admin.execute_command("ACL", "SETUSER", user, "on", f">{password}", *patterns, *RIGHTS.split())  # type: ignore[no-untyped-call]  # redis-py has no types here
        url = redis_server.url.replace("redis://", f"redis://{user}:{password}@")
        inflight = RedisInFlight(url, namespace=namespace)
        neighbour = RedisInFlight(url, namespace=f"{namespace}-2")
        yield World(
            inflight,
            neighbour,
            wipe=lambda: wipe_redis(admin, namespace),
            disagreements=lambda: disagreements(admin, namespace),
            product=redis_server.name,
        )
        inflight.close()
        neighbour.close()
        wipe_redis(admin, namespace)
        wipe_redis(admin, f"{namespace}-2")
        admin.execute_command("ACL", "DELUSER", user)  # type: ignore[no-untyped-call]  # as above

    def test_whatever_text_an_id_or_a_worker_is_comes_back_as_it_was(self, world: World) -> None:
        """Values travel as values: nothing of them becomes a part of a script, a key pattern or a separator."""
        strange = ["a|b", "it's", 'a "b"', "two\nlines", "nul\x00", "ümläut", "]]--", "%d%s", "", " ", "\\", "{x}"]
        entries = [Entry(text, "mail", 1) for text in strange]
        ada, bob = world.worker("ada|1|'\n"), world.worker("bob\x00|")
        world.inflight.hold(entries, by=ada)
        assert world.held(ada) == dict.fromkeys(strange, 1)
        world.expire(ada)

        assert world.inflight.hold(entries, by=bob) == set(strange)

        assert world.held(ada) == {}
        assert world.inflight.release([(text, "mail") for text in strange], by=bob) == len(strange)
        assert world.inflight.holds("mail") == []
        assert world.disagreements() == []

    def test_what_a_stranger_wrote_into_the_hash_is_nobodys_and_is_overwritten(
        self, world: World, admin: redis.Redis
    ) -> None:
        ada = world.worker("ada")
        entries = world.entries(3)
        hash_name = next(iter(admin.scan_iter("*:leases"))).replace("leases", "inflight:mail")
        for entry, value in zip(entries, ["", b"\xff\xfe\x00", "1|x|ada"], strict=True):
            admin.hset(hash_name, entry.task_id, value)  # type: ignore[arg-type]  # bytes are as good as text to Redis

        assert world.inflight.holds("mail") == []
        assert len(world.inflight.hold(entries, by=ada)) == 3

        assert len(world.held(ada)) == 3

    def test_those_who_were_forgotten_are_bounded(self, world: World, admin: redis.Redis) -> None:
        """Else a fleet that restarts every minute would fill Redis with its dead."""
        world.inflight.forget("first")
        lost = next(key for key in admin.scan_iter("*:lost") if admin.zscore(key, "first"))  # other tests leave theirs
        now_ms = admin.zscore(lost, "first")
        assert isinstance(now_ms, float)
        admin.zadd(lost, {f"older-{number}": now_ms - 1000 for number in range(10_050)})
        admin.zadd(lost, {"eight days ago": now_ms - 8 * 24 * 3600 * 1000})

        world.inflight.forget("last")

        assert admin.zcard(lost) == 10_000
        assert admin.zscore(lost, "eight days ago") is None
        assert admin.zscore(lost, "last") is not None

    def test_at_rest_only_the_epoch_is_left(self, world: World, admin: redis.Redis) -> None:
        """Nothing accumulates, key by key."""
        ada, bob = world.worker("ada"), world.worker("bob")
        namespace = next(key for key in admin.scan_iter("*:leases") if admin.zscore(key, "ada")).removesuffix("leases")
        entries = world.entries(5)
        world.inflight.hold(entries, by=ada)
        world.expire(ada)
        world.inflight.hold(entries[:3], by=bob)
        world.inflight.beat(ada, lease_s=LONG_S, entries=entries)

        world.inflight.release([(entry.task_id, entry.queue) for entry in entries], by=bob)
        world.inflight.leave(ada)
        world.inflight.leave(bob)

        assert list(admin.scan_iter(f"{namespace}*")) == [f"{namespace}epoch"]


class TestRedisCluster(InFlightContract):
    """On three nodes, again as a user who may do no more than the documentation asks for."""

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, redis_server: Redis) -> Iterator[RedisCluster]:  # where Redis is missing, that one says so
        with start_redis_cluster(3) as cluster:
            yield cluster

    @pytest.fixture
    def world(self, cluster: RedisCluster) -> Iterator[World]:
        namespace, user, password = f"t{secrets.token_hex(6)}", f"u{secrets.token_hex(6)}", secrets.token_hex(16)
        patterns = [f"~{{{namespace}}}:*", f"~{{{namespace}-2}}:*"]
        for node in cluster.nodes:
            node.tell("ACL", "SETUSER", user, "on", f">{password}", *patterns, *RIGHTS.split(), *CLUSTER_RIGHTS.split())
        url = cluster.url.replace("://", f"://{user}:{password}@")
        inflight, neighbour = RedisInFlight(url, namespace=namespace), RedisInFlight(url, namespace=f"{namespace}-2")
        with redis.Redis.from_url(cluster.node_of(namespace).url, decode_responses=True) as admin:
            yield World(
                inflight,
                neighbour,
                wipe=lambda: wipe_redis(admin, namespace),
                disagreements=lambda: disagreements(admin, namespace),
                product=cluster.nodes[0].name,
            )
            wipe_redis(admin, namespace)
        inflight.close()
        neighbour.close()
        for node in cluster.nodes:
            node.tell("ACL", "DELUSER", user)

    def test_all_keys_of_a_namespace_are_on_one_node(self, world: World, cluster: RedisCluster) -> None:
        """One slot: no script could touch two."""
        ada = world.worker("ada")
        world.inflight.hold(world.entries(5) + world.entries(5, queue="index"), by=ada)
        world.inflight.forget("bob")

        namespace = str(world.inflight._prefix)  # type: ignore[attr-defined]  # nothing public says its name
        found = [node.tell("KEYS", f"{namespace}*").split() for node in cluster.nodes]
        [keys] = filter(None, found)
        names = ("epoch", "leases", "lost", "held:ada", "inflight:mail", "inflight:index")
        assert sorted(keys) == sorted(f"{namespace}{name}" for name in names)


def wipe_redis(admin: Any, namespace: str) -> None:
    keys = list(admin.scan_iter(f"{{{namespace}}}:*", count=1000))
    if keys:
        admin.delete(*keys)


def disagreements(admin: Any, namespace: str) -> list[str]:
    """Each entry of a hash is in the index of its holder, and each entry of an index is in its hash."""
    in_hashes: set[tuple[str, str]] = set()
    in_indexes: set[tuple[str, str]] = set()
    for key in admin.scan_iter(f"{{{namespace}}}:*", count=1000):
        _, kind, *name = key.split(":", 2)
        if kind == "inflight":
            for task_id, value in admin.hgetall(key).items():
                in_hashes.add((value.split("|", 2)[2], f"{name[0]}|{task_id}"))
        elif kind == "held":
            in_indexes.update((name[0], member) for member in admin.smembers(key))
    return [
        *(f"only in the hash: {entry}" for entry in sorted(in_hashes - in_indexes)),
        *(f"only in the index: {entry}" for entry in sorted(in_indexes - in_hashes)),
    ]


class EmbeddedContract(InFlightContract):
    """The embedded store: two namespaces in one database, made once, and emptied before each test."""

    product: str

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls) -> str:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def databases(cls, url: str) -> Iterator[tuple[Database, Database]]:
        namespace = f"t{secrets.token_hex(6)}"
        databases = Database(url, namespace=namespace), Database(url, namespace=f"{namespace}n")
        for one in databases:
            for table in store_tables(one):
                table.create(one.engine)
        yield databases
        for one in databases:
            for table in store_tables(one):
                table.drop(one.engine)
            one.close()

    @pytest.fixture
    def world(self, databases: tuple[Database, Database]) -> World:
        for one in databases:
            wipe_rows(one)
        inflight = EmbeddedInFlight(databases[0])

        def disagreements() -> list[str]:
            """There is one table; that both ways to look at it agree is all that can be asked."""
            workers = {"ada", "bob", "cyd", "dan", *inflight.leases()}
            by_worker = {(hold.worker, hold.task_id) for worker in workers for hold in inflight.held_by(worker)}
            by_queue = {(hold.worker, hold.task_id) for queue in ("mail", "index") for hold in inflight.holds(queue)}
            return [f"only one way: {entry}" for entry in sorted(by_worker ^ by_queue)]

        return World(
            inflight, EmbeddedInFlight(databases[1]), lambda: wipe_rows(databases[0]), disagreements, self.product
        )

    def test_the_dead_are_forgotten_after_a_week(self, world: World, databases: tuple[Database, Database]) -> None:
        database = databases[0]
        world.inflight.forget(world.worker("ada"))
        database.clock_offset_s = REAPED_KEPT_S + 60
        try:
            world.inflight.forget("bob")

            world.inflight.beat("ada", lease_s=LONG_S, entries=[])
            with pytest.raises(LeaseLost):
                world.inflight.beat("bob", lease_s=LONG_S, entries=[])
        finally:
            database.clock_offset_s = 0.0

    def test_a_missing_table_is_said_to_be_missing(self, url: str) -> None:
        database = Database(url, namespace=f"t{secrets.token_hex(6)}")
        inflight = EmbeddedInFlight(database)

        with pytest.raises(SchemaMismatch, match="workq db migrate"):
            inflight.check()
        with pytest.raises(SchemaMismatch, match="workq db migrate"):
            inflight.join("ada", lease_s=LONG_S)

        database.close()


def store_tables(database: Database) -> list[Table]:
    return [database.tables.hold, database.tables.lease, database.tables.meta]


def wipe_rows(database: Database) -> None:
    with database.engine.begin() as connection:
        for table in store_tables(database):
            connection.execute(delete(table))


class TestSQLite(EmbeddedContract):
    product = "SQLite"

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        return f"sqlite:///{tmp_path_factory.mktemp('ledger')}/workq.db"


class TestPostgreSQL(EmbeddedContract):
    product = "PostgreSQL"

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, postgres_server: PostgreSQL) -> str:
        return postgres_server.url


class TestMariaDB(EmbeddedContract):
    product = "MySQL" if is_chosen("mysql") else "MariaDB"

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, mariadb_server: MariaDB) -> str:
        return mariadb_server.url
