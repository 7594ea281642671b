"""What makes the ledger or Redis lose things silently is found by `workq doctor`, on real ones configured so."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis as redis_library
from sqlalchemy import create_engine, insert, update

from tests.conftest import Private
from workq import WorkQueue
from workq.config import Settings
from workq.diagnose.doctor import examine, ledger, work
from workq.diagnose.doctor.check import Check, Level
from workq.lab.servers import (
    MariaDB,
    PostgreSQL,
    Redis,
    start_mariadb,
    start_postgres,
    start_redis,
)
from workq.ledger.engine import migrate
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES
from workq.values.incarnation import Incarnation
from workq.values.task import NewTask

ID = "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"


def told(checks: list[Check], area: str, *levels: Level) -> list[str]:
    return [check.message for check in checks if check.area == area and check.level in levels]


def findings(checks: list[Check], area: str) -> list[str]:
    return told(checks, area, Level.WARNING, Level.ERROR, Level.UNREACHABLE)


# --------------------------------------------------------------------------------------------------------------- Redis


def test_a_redis_that_saves_nothing_forgets_all_and_one_with_snapshots_goes_back(
    private: Private, redis_server: Redis, tmp_path: Path
) -> None:
    with private(start_redis, options=("--appendonly", "no")) as redis:
        settings = Settings(ledger=f"sqlite:///{tmp_path}/none.db", inflight=redis.url)
        (nothing,) = findings(examine(settings), "inflight")
        with redis_library.Redis.from_url(redis.url) as client:
            client.config_set("save", "60 1")
        (snapshots,) = findings(examine(settings), "inflight")
    well = examine(Settings(ledger=f"sqlite:///{tmp_path}/none.db", inflight=redis_server.url))

    assert "a restart of Redis is a wipe" in nothing
    assert "goes back to its last snapshot" in snapshots
    assert findings(well, "inflight") == []


def test_a_replica_a_node_of_a_cluster_and_a_redis_that_is_nearly_full_are_findings(
    private: Private, tmp_path: Path
) -> None:
    ledger = f"sqlite:///{tmp_path}/none.db"
    with private(start_redis) as redis, redis_library.Redis.from_url(redis.url) as client:
        for number in range(1_000):  # in small pieces, and many: buffers that are given back meanwhile do not count
            client.set(f"theirs:{number}", "x" * 10_000)
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", used + used // 20)
        (full,) = findings(examine(Settings(ledger=ledger, inflight=redis.url)), "inflight")
        client.config_set("maxmemory", 0)
        client.replicaof("127.0.0.1", "1")
        (replica,) = findings(examine(Settings(ledger=ledger, inflight=redis.url)), "inflight")
    with private(start_redis, options=("--cluster-enabled", "yes")) as redis:
        (cluster,) = findings(examine(Settings(ledger=ledger, inflight=redis.url)), "inflight")

    assert "of maxmemory" in full
    assert "read-only replica" in replica
    assert "a node of a cluster" in cluster


def test_a_user_who_may_not_ask_redis_is_told_that_it_was_not_looked_at(private: Private, tmp_path: Path) -> None:
    with private(start_redis) as redis, redis_library.Redis.from_url(redis.url) as client:
        client.acl_setuser(
            "blind",
            enabled=True,
            passwords=["+secret-pw"],
            keys=["*"],
            categories=["+@read", "+@write", "+@scripting", "+@connection", "-@dangerous"],
            commands=["+time"],
        )
        url = redis.url.replace("//", "//blind:secret-pw@")
        checks = examine(Settings(ledger=f"sqlite:///{tmp_path}/none.db", inflight=url))

    (unchecked,) = told(checks, "inflight", Level.UNCHECKED)
    assert "allow this user INFO" in unchecked
    assert findings(checks, "inflight") == []


# ---------------------------------------------------------------------------------------------------------- PostgreSQL


def migrated(url: str) -> str:
    database = Database(url)
    migrate.migrate(database)
    database.close()
    return url


def on_ledger(url: str) -> list[str]:
    return findings(examine(Settings(ledger=url)), "ledger")


def test_a_postgresql_that_forgets_commits_or_refuses_writes_is_found(private: Private) -> None:
    unsafe = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off")
    with private(start_postgres, options=unsafe) as server:
        url = migrated(server.url)
        found = on_ledger(url)
        server.kill()
        standby = server.folder / "data" / "standby.signal"
        standby.touch()
        shutil.chown(standby, standby.parent.owner())
        server.start()
        in_recovery = on_ledger(url)

    assert [one.split(":")[0] for one in found] == [
        "fsync is off",
        "full_page_writes is off",
        "synchronous_commit is off",
    ]
    assert "read-only standby" in in_recovery[0]


def test_the_defaults_of_a_database_that_hurt_are_found(postgres_server: PostgreSQL) -> None:
    url = migrated(postgres_server.create_database())
    assert on_ledger(url) == []
    engine = create_engine(Database(url).url, isolation_level="AUTOCOMMIT")
    change = f"ALTER DATABASE {url.rpartition('/')[2]}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"{change} SET default_transaction_isolation = 'serializable'")
        serializable = on_ledger(url)
        connection.exec_driver_sql(f"{change} RESET default_transaction_isolation")
        connection.exec_driver_sql(f"{change} SET default_transaction_read_only = on")
        read_only = on_ledger(url)
    engine.dispose()

    (one,) = serializable
    assert "default_transaction_isolation is serializable" in one
    assert "default_transaction_read_only is on" in read_only[0]


def test_what_keeps_vacuum_from_its_work_is_found(private: Private, monkeypatch: pytest.MonkeyPatch) -> None:
    with private(start_postgres, options=("-c", "max_prepared_transactions=2")) as server:
        url = migrated(server.url)
        engine = create_engine(Database(url).url)
        with engine.connect() as forgotten, engine.connect() as other:
            forgotten.exec_driver_sql("CREATE TABLE theirs (id int)")
            assert on_ledger(url) == [], "it is young"
            monkeypatch.setattr(ledger, "OPEN_MAX_S", 0.0)
            (idle,) = on_ledger(url)
            forgotten.rollback()
            other.exec_driver_sql("CREATE TABLE others (id int)")
            other.exec_driver_sql("PREPARE TRANSACTION 'half'")
            other.rollback()
            (prepared,) = on_ledger(url)
            other.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("ROLLBACK PREPARED 'half'")
            other.exec_driver_sql("SELECT pg_create_physical_replication_slot('unread', true)")
            (slot,) = on_ledger(url)
        engine.dispose()

    assert "has a transaction open for" in idle
    assert "idle in transaction" in idle
    assert re.search(r"SELECT pg_terminate_backend\(\d+\)", idle)
    assert "1 prepared transactions are open" in prepared
    assert "ROLLBACK PREPARED 'half'" in prepared
    assert "nobody reads replication slot unread" in slot
    assert "SELECT pg_drop_replication_slot('unread')" in slot


# ------------------------------------------------------------------------------------------------------ MySQL, MariaDB


def test_a_mariadb_that_forgets_commits_or_cuts_text_is_found(private: Private) -> None:
    unsafe = (
        "--innodb-flush-log-at-trx-commit=2",
        "--log-bin",
        "--sync-binlog=0",
        "--skip-innodb-doublewrite",
        "--sql-mode=",
    )
    with private(start_mariadb, options=unsafe) as server:
        found = on_ledger(migrated(server.url))

    for words in (
        "innodb_flush_log_at_trx_commit is not 1",
        "sync_binlog is 0, not 1",
        "innodb_doublewrite is off",
        "sql_mode is not strict",
    ):
        assert [one for one in found if words in one], words
    assert len(found) == 4


def test_a_mariadb_that_is_closed_for_writes_is_found(private: Private) -> None:
    with private(start_mariadb) as server:
        url = migrated(server.url)
        assert on_ledger(url) == []
        set_global(server, "read_only = 1")
        closed = on_ledger(url)
        set_global(server, "read_only = 0")

    (one,) = closed
    assert "read_only is on" in one


def set_global(server: MariaDB, setting: str) -> None:
    engine = create_engine(Database(server.url).url)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"SET GLOBAL {setting}")
    engine.dispose()


# -------------------------------------------------------------------------------------------------------------- SQLite


def test_a_disk_that_is_almost_full_and_a_network_filesystem_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = migrated(f"sqlite:///{tmp_path}/shop.db")
    assert on_ledger(url) == []

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "FREE_MIN_BYTES", shutil.disk_usage(tmp_path).free * 2)
        (full,) = on_ledger(url)
    with monkeypatch.context() as patched:
        mount = type("Mount", (), {"mountpoint": str(tmp_path.resolve()), "fstype": "nfs4"})
        patched.setattr(psutil, "disk_partitions", lambda **_: [mount])
        (network,) = on_ledger(url)

    assert "MiB are free on the disk" in full
    assert "network filesystem (nfs4)" in network


def test_a_file_without_a_write_ahead_log_is_found(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "old.db") as file:
        file.execute("CREATE TABLE theirs (id INTEGER)")
    file.close()
    engine = create_engine(f"sqlite:///{tmp_path}/old.db")  # workq's own connections would set it
    with engine.connect() as connection:
        (check,) = ledger.sqlite_checks(connection, Database(f"sqlite:///{tmp_path}/old.db"))
    engine.dispose()

    assert check.level is Level.WARNING
    assert "journal mode is delete, not WAL" in check.message


# -------------------------------------------------------------------------------------------------- a ledger left alone


@dataclass
class Alone:
    """A ledger whose clock the test moves."""

    wq: WorkQueue
    database: Database
    ledger: Ledger

    def found(self) -> list[str]:
        return [check.message for check in work.examine(self.ledger, self.wq.settings)]

    def record(self) -> str:
        """A task of a producer that died before it published."""
        from workq.values import codec

        task = NewTask(codec.new_task_id(), "index", "mail", '{"a":[],"k":{}}')
        self.ledger.tasks.record([task])
        return task.id


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    url = migrated(f"sqlite:///{tmp_path}/alone.db")
    database = Database(url)
    yield Alone(WorkQueue(ledger=url), database, Ledger(database, SLICES))
    database.close()


def test_tasks_that_no_sweep_publishes_are_found(alone: Alone) -> None:
    alone.ledger.workers.join(Incarnation("w", "host", 1), queues=["mail"], threads=1)
    alone.record()
    assert alone.found() == []

    alone.database.clock_offset_s = 20.0

    (one,) = alone.found()
    assert "1 task is due and has no confirmed hint for more than 17 s" in one


def test_a_queue_without_a_live_worker_and_a_worker_that_nobody_reaped_are_found(alone: Alone) -> None:
    task_id = alone.record()
    alone.ledger.hints.mark_published(alone.ledger.hints.take_unpublished(limit=1, grace_s=0.0, horizon_s=0.0))
    alone.ledger.workers.join(Incarnation("silent.worker", "host", 1), queues=["mail"], threads=1)
    alone.database.clock_offset_s = 35.0
    (unserved,) = alone.found()
    alone.database.clock_offset_s = 50.0
    both = alone.found()
    alone.ledger.workers.leave("silent.worker")
    alone.ledger.workers.join(Incarnation("new.worker", "host", 2), queues=["mail"], threads=1)
    served = alone.found()

    assert served == []
    assert "no live worker serves mail (1 ready)" in unserved
    assert len(both) == 2
    assert "1 worker has not beaten for more than 45 s" in both[0]
    assert "silent.worker" in both[0]
    assert task_id


def test_a_ledger_with_work_that_was_not_swept_for_a_minute_is_found_and_an_idle_one_is_not(alone: Alone) -> None:
    meta, now = alone.database.tables.meta, alone.database.now
    alone.database.run(lambda tx: tx.execute(insert(meta).values(name="swept", value="{}", at=now())))
    alone.database.clock_offset_s = 61.0
    assert alone.found() == [], "nothing is there to be lost"
    alone.database.clock_offset_s = 0.0
    alone.ledger.workers.join(Incarnation("w", "host", 1), queues=["mail"], threads=1)
    alone.record()
    alone.ledger.hints.mark_published(alone.ledger.hints.take_unpublished(limit=1, grace_s=0.0, horizon_s=0.0))

    alone.database.clock_offset_s = 61.0
    alone.ledger.workers.beat("w")
    (one,) = alone.found()
    alone.database.run(lambda tx: tx.execute(update(meta).where(meta.c.name == "swept").values(at=now())))

    assert "no sweep ran for 6" in one
    assert alone.found() == []
