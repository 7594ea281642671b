"""`workq certify` as a user runs it: nothing is found where nothing is wrong, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pika
import psutil
import pytest
import redis
from sqlalchemy import create_engine, inspect, text

from tests.system.fleet import REPOSITORY, wait_until
from workq.certify.witness import FOLDER
from workq.ledger.database import ledger_url
from workq.testing.servers import PostgreSQL, RabbitMQ, Redis

SHORT = ("certify", "--minutes", "0.1", "--seed", "3")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and one for temporary files, so that what is left is seen."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def environ(place: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKQ_")}
    return kept | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(place / "temporary")} | more


def certify(place: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-m", "workq", *args],
        cwd=place / "here",
        env=environ(place, **more),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def what_is_left(place: Path) -> list[str]:
    """Files, and processes of any run below this place."""
    files = [str(path) for folder in ("here", "temporary") for path in (place / folder).rglob("*")]
    return files + [f"process {one.pid}" for one in workers(place)]


def workers(place: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(FOLDER, "").startswith(str(place)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_the_embedded_queue_is_certified_without_servers_and_nothing_is_left(place: Path) -> None:
    ran = certify(place, *SHORT, "-o", "json")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert found["ok"] is True
    assert found["findings"] == []
    assert found["tasks"]["lost"] == 0
    assert found["tasks"]["acknowledged"] > 100
    assert found["tasks"]["bound_95"] == pytest.approx(3 / found["tasks"]["acknowledged"])
    assert found["faults"]["struck"] >= 1
    assert found["command"].startswith("workq certify --minutes 0.1 --seed 3 ")
    assert {"workq", "Python", "ledger", "broker", "inflight"} <= set(found["versions"])
    assert what_is_left(place) == []


def test_the_page_for_a_person_tells_the_seed_and_the_bound(place: Path) -> None:
    ran = certify(place, *SHORT, "--only", "kill-consumer")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "tasks lost: with 95 % confidence fewer than 1 in " in ran.stdout
    assert "\nclean; the same again: workq certify --minutes 0.1 --seed 3 " in ran.stdout
    assert "kill-consumer: pid " in ran.stderr


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


def test_on_servers_what_is_somebody_elses_stays_and_what_was_made_is_removed(
    place: Path, rabbitmq_server: RabbitMQ, redis_server: Redis, postgres_server: PostgreSQL
) -> None:
    ledger = postgres_server.create_database()
    urls = {"ledger": ledger, "broker": rabbitmq_server.url, "inflight": redis_server.url}
    variables = {f"WORKQ_{name.upper()}_URL": url for name, url in urls.items()}
    faults = "kill-everything,wipe-inflight,broker-cut,inflight-cut,ledger-cut,lock-rows"

    with somebody_elses(urls, "shop"):
        ran = certify(place, "certify", "--minutes", "0.2", "--only", faults, "-o", "json", **variables)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert found["ok"] is True
    assert "RabbitMQ" in found["versions"]["broker"]
    namespace = found["namespace"]
    engine = create_engine(ledger_url(ledger))
    assert [name for name in inspect(engine).get_table_names() if name.startswith(namespace)] == []
    engine.dispose()
    with closing(redis.Redis.from_url(redis_server.url)) as client:
        assert list(client.scan_iter(match=f"*{namespace}*")) == []
    for kind in ("list_queues", "list_exchanges"):
        assert namespace not in rabbitmq_server.ctl(kind, "name")
    assert what_is_left(place) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_leaves_nothing(place: Path, number: signal.Signals, status: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "workq", "certify", "--minutes", "5"],
        cwd=place / "here",
        env=environ(place),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        wait_until(lambda: len(workers(place)) >= 4, timeout_s=60, what="the workers run")
        assert list((place / "here").glob("certify_*.db"))

        run.send_signal(number)
        _, err = run.communicate(timeout=60)

    assert run.returncode == status
    assert "Traceback" not in err
    assert what_is_left(place) == []


def test_a_kept_run_can_be_looked_at_and_removed_later(place: Path) -> None:
    ran = certify(place, *SHORT, "--only", "kill-consumer", "--keep", "-o", "json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    namespace = json.loads(ran.stdout)["namespace"]
    [kept] = (place / "temporary").iterdir()
    assert {"witness", "journal", "worker-0.log", "worker-1.log"} <= {one.name for one in kept.iterdir()}
    with closing(sqlite3.connect(place / "here" / f"{namespace}.db")) as ledger:
        [(count,)] = ledger.execute(f"SELECT count(*) FROM {namespace}_task").fetchall()
    assert count > 100

    removed = certify(place, "certify", "--remove", namespace)

    assert removed.returncode == 0, removed.stderr
    assert list((place / "here").iterdir()) == []


@pytest.mark.parametrize("name", ["workq", "certify_", "certify_0a1b2c3", "certify_0a1b2c3d_task", "shop"])
def test_nothing_else_than_a_scratch_namespace_can_be_removed(place: Path, name: str) -> None:
    ran = certify(place, "certify", "--remove", name)

    assert ran.returncode == 2
    assert "is not a namespace of `workq certify`" in ran.stderr


def test_an_unknown_fault_is_answered_with_those_that_there_are(place: Path) -> None:
    ran = certify(place, *SHORT, "--only", "kill-consumer,earthquake")

    assert ran.returncode == 2
    assert "no fault here is called earthquake; there are kill-consumer, " in ran.stderr
    assert what_is_left(place) == []


def test_a_server_that_is_away_is_one_line_and_exit_4(place: Path) -> None:
    began = time.monotonic()
    ran = certify(place, *SHORT, WORKQ_LEDGER_URL="postgresql://workq:canary@127.0.0.1:9/none")

    assert ran.returncode == 4
    assert ran.stderr.startswith("workq: error: ")
    assert "Traceback" not in ran.stderr
    assert "canary" not in ran.stderr
    assert time.monotonic() - began < 30
    assert not list(Path(tempfile.gettempdir()).glob("certify_*"))
    assert what_is_left(place) == []
