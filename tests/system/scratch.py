"""`workq certify` and `workq bench` as a user runs them, and what they may leave: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pika
import psutil
import redis
from sqlalchemy import create_engine, inspect, text

from tests.zygote import FORKED_WITH, NURSERY, ran
from workq.lab.fleet import FOLDER
from workq.lab.servers import RabbitMQ
from workq.ledger.engine.url import ledger_url


def environ(place: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKQ_")}
    return kept | FORKED_WITH | {"TMPDIR": str(place / "temporary")} | more


def run_workq(place: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    command = [sys.executable, "-m", "workq", *args]
    return ran(command, cwd=place / "here", env=environ(place, **more), timeout_s=150)


def what_is_left(place: Path) -> list[str]:
    """Files, and processes of any run below this place."""
    files = [str(path) for folder in ("here", "temporary") for path in (place / folder).rglob("*")]
    return files + [f"process {one.pid}" for one in workers(place)]


def workers(place: Path) -> list[psutil.Process]:
    """Processes of any run below this place, but for what the tests fork them with."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == NURSERY or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(FOLDER, "").startswith(str(place)):
                found.append(process)
        except psutil.Error:
            continue
    return found


@contextmanager
def somebody_elses(servers: dict[str, Any], namespace: str) -> Iterator[None]:
    """Tables, queues and keys of an application on the same servers; they must be there afterwards, untouched."""
    engine = create_engine(ledger_url(servers["ledger"]))
    with engine.begin() as tx:
        tx.execute(text(f"CREATE TABLE {namespace}_task (id int)"))
        tx.execute(text(f"INSERT INTO {namespace}_task VALUES (7)"))
    client = redis.Redis.from_url(servers["inflight"])
    client.set(f"{{{namespace}}}:epoch", "7")
    parameters = pika.URLParameters(servers["broker"])
    queue = f"{namespace}.q.mine"
    with closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"7")
    try:
        yield
        with engine.begin() as tx:
            assert tx.execute(text(f"SELECT id FROM {namespace}_task")).scalar_one() == 7
        assert client.get(f"{{{namespace}}}:epoch") == b"7"
        with closing(pika.BlockingConnection(parameters)) as connection:
            channel = connection.channel()
            assert channel.basic_get(queue, auto_ack=True)[2] == b"7"
    finally:
        with engine.begin() as tx:
            tx.execute(text(f"DROP TABLE {namespace}_task"))
        engine.dispose()
        client.delete(f"{{{namespace}}}:epoch")
        client.close()
        with closing(pika.BlockingConnection(parameters)) as connection:
            connection.channel().queue_delete(queue)


def left_on(servers: dict[str, Any], rabbitmq: RabbitMQ, namespace: str) -> list[str]:
    """What the servers still have of a namespace: tables, keys, queues and exchanges."""
    engine = create_engine(ledger_url(servers["ledger"]))
    found = [name for name in inspect(engine).get_table_names() if name.startswith(namespace)]
    engine.dispose()
    with closing(redis.Redis.from_url(servers["inflight"])) as client:
        found += [str(key) for key in client.scan_iter(match=f"*{namespace}*")]
    return [*found, *rabbitmq.operator.queues(namespace), *rabbitmq.operator.exchanges(namespace)]
