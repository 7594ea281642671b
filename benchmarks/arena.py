"""The private servers of one run, and a fresh place on them for each measure.

All contestants use the same servers, one after the other: a new database, a new virtual host, an emptied Redis, a new
folder each time. What the one before left is removed first, so that nobody pays for another's backlog.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import redis
from confluent_kafka.admin import AdminClient

from benchmarks import usage
from benchmarks.roster import Contestant
from workq.lab.servers import (
    Artemis,
    Kafka,
    PostgreSQL,
    RabbitMQ,
    Redis,
    start_artemis,
    start_kafka,
    start_postgres,
    start_rabbitmq,
    start_redis,
)

POSTGRES_OPTIONS = ("-c", "shared_buffers=512MB", "-c", "fsync=on", "-c", "synchronous_commit=on")
REDIS_OPTIONS = ("--appendonly", "yes", "--appendfsync", "everysec")
KAFKA_OPTIONS = (
    "group.initial.rebalance.delay.ms=3000",
    "group.consumer.min.session.timeout.ms=45000",
    "group.consumer.session.timeout.ms=45000",
    "group.consumer.min.heartbeat.interval.ms=5000",
    "group.consumer.heartbeat.interval.ms=5000",
)
"""Kafka's defaults: how late a group misses a member that died. The lab's own are quicker."""
SETTINGS = {
    "postgres": "shared_buffers=512MB fsync=on synchronous_commit=on",
    "redis": "appendonly=yes appendfsync=everysec",
    "rabbitmq": "one node, no plugins, two schedulers",
    "kafka": "one node, 320 MB of heap; acks do not wait for the disk; groups miss a dead member as late as by default",
    "artemis": "one node, a journal of NIO, 256 MB of heap",
}
OURS = ("workq", "message")
"""Modules of contestants whose settings are `WORKQ_...`."""
_REWRITE_LIMIT_S = 10.0
_KAFKA_S = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where one measure of one contestant happens: nothing is there yet.

    Attributes:
        folder: for files of the contestant and its logs; its TMPDIR too.
        records: what tasks append to.
        environment: all that its processes get.
    """

    folder: Path
    records: Path
    environment: dict[str, str]


class Arena:
    """The servers that the chosen contestants need, as a context manager. Not for use from several threads."""

    def __init__(self, contestants: Sequence[Contestant]) -> None:
        self._needed = {server for contestant in contestants for server in contestant.servers}
        self._stack = ExitStack()
        self._numbers = count(1)
        self._postgres: PostgreSQL | None = None
        self._rabbitmq: RabbitMQ | None = None
        self._redis: Redis | None = None
        self._kafka: Kafka | None = None
        self._artemis: Artemis | None = None

    def __enter__(self) -> Self:
        try:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="workq-bench-")))
            if "postgres" in self._needed:
                self._postgres = self._stack.enter_context(start_postgres(options=POSTGRES_OPTIONS))
            if "rabbitmq" in self._needed:
                self._rabbitmq = self._stack.enter_context(start_rabbitmq())
            if "redis" in self._needed:
                self._redis = self._stack.enter_context(start_redis(options=REDIS_OPTIONS))
            if "kafka" in self._needed:
                self._kafka = self._stack.enter_context(start_kafka(options=KAFKA_OPTIONS))
            if "artemis" in self._needed:
                self._artemis = self._stack.enter_context(start_artemis())
        except BaseException:  # an interrupt too: no server is left behind
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    @property
    def versions(self) -> dict[str, str]:
        """Server to version."""
        servers = {
            "postgres": self._postgres,
            "rabbitmq": self._rabbitmq,
            "redis": self._redis,
            "kafka": self._kafka,
            "artemis": self._artemis,
        }
        return {name: server.version for name, server in servers.items() if server is not None}

    def cpu_s(self, contestant: Contestant) -> dict[str, float]:
        """CPU seconds so far of each server that the contestant uses, the server's children included."""
        pids = {
            "postgres": self._postgres and self._postgres.pid,
            "rabbitmq": self._rabbitmq and self._rabbitmq.pid,
            "redis": self._redis and self._redis.pid,
            "kafka": self._kafka and self._kafka.pid,
            "artemis": self._artemis and self._artemis.pid,
        }
        return {name: usage.cpu_s(pid) for name, pid in pids.items() if pid and name in contestant.servers}

    @contextmanager
    def place(self, contestant: Contestant, *, body_s: float = 0.0) -> Iterator[Place]:
        """A fresh place for one measure; removed afterwards. `body_s`: how long a task takes, in seconds."""
        name = f"bench_{next(self._numbers)}"
        folder = self._folder / name
        folder.mkdir()
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "TMPDIR": str(folder),
            "PYTHONPATH": str(Path(__file__).parent.parent),
            "BENCH_FOLDER": str(folder),
            "BENCH_RECORDS": str(folder / "records"),
            "BENCH_BODY_S": str(body_s),
            **{f"BENCH_{key}": value for key, value in contestant.settings.items()},
        }
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            environment |= self._on_servers(contestant, name, stack)
            if contestant.module in OURS:
                environment |= _for_workq(environment)
            yield Place(folder, folder / "records", environment)

    def _on_servers(self, contestant: Contestant, name: str, stack: ExitStack) -> dict[str, str]:
        urls: dict[str, str] = {}
        if self._postgres is not None and "postgres" in contestant.servers:
            urls["BENCH_POSTGRES_URL"] = self._postgres.create_database(name)
            stack.callback(_drop, self._postgres, name)
        if self._rabbitmq is not None and "rabbitmq" in contestant.servers:
            operator = self._rabbitmq.operator
            operator.add_vhost(name)
            stack.callback(operator.delete_vhost, name)
            operator.set_permissions("guest", ".*", ".*", ".*", vhost=name)
            urls["BENCH_RABBITMQ_URL"] = self._rabbitmq.url + name
        if self._redis is not None and "redis" in contestant.servers:
            _empty(self._redis)
            stack.callback(_empty, self._redis)
            urls["BENCH_REDIS_URL"] = self._redis.url
        if self._kafka is not None and "kafka" in contestant.servers:
            stack.callback(_remove_topics, self._kafka, f"{name}.")
            urls |= {"BENCH_KAFKA_URL": self._kafka.url, "BENCH_NAMESPACE": name}
        if self._artemis is not None and "artemis" in contestant.servers:
            urls |= {"BENCH_ARTEMIS_URL": self._artemis.url, "BENCH_ADDRESS": name}
        return urls


def _for_workq(given: dict[str, str]) -> dict[str, str]:
    names = {
        "BENCH_POSTGRES_URL": "WORKQ_LEDGER_URL",
        "BENCH_RABBITMQ_URL": "WORKQ_BROKER_URL",
        "BENCH_KAFKA_URL": "WORKQ_BROKER_URL",
        "BENCH_NAMESPACE": "WORKQ_NAMESPACE",
        "BENCH_REDIS_URL": "WORKQ_INFLIGHT_URL",
    }
    found = {workq: given[bench] for bench, workq in names.items() if bench in given}
    return {"WORKQ_LEDGER_URL": f"sqlite:///{given['BENCH_FOLDER']}/workq.db", **found}


def _drop(server: PostgreSQL, name: str) -> None:
    """Remove a database with whoever is still connected, and write out what is dirty now, not in the next measure."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())
        connection.execute("CHECKPOINT")


def _remove_topics(server: Kafka, prefix: str) -> None:
    """Remove the topics whose names begin so. Their groups stay: no other place has their names."""
    admin = AdminClient(server.admin_conf)
    topics = [one for one in admin.list_topics(timeout=_KAFKA_S).topics if one.startswith(prefix)]
    for removed in admin.delete_topics(topics, operation_timeout=_KAFKA_S).values() if topics else ():
        removed.result(2 * _KAFKA_S)


def _empty(server: Redis) -> None:
    """Remove all keys, and shrink the append-only file now, so that no rewrite starts by itself in a measure."""
    client = redis.Redis.from_url(server.url)
    client.flushall()
    with suppress(redis.ResponseError):  # one is going on already
        client.bgrewriteaof()
    deadline = time.monotonic() + _REWRITE_LIMIT_S
    while time.monotonic() < deadline:
        info = client.info("persistence")
        assert isinstance(info, dict)
        if not (info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]):
            break
        time.sleep(0.05)
    client.close()
