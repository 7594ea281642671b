"""`workq certify` as a user runs it: nothing is found where nothing is wrong, and nothing is left behind."""

from __future__ import annotations

import json
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.system.fleet import wait_until
from tests.system.scratch import environ, left_on, run_workq, somebody_elses, what_is_left, workers
from workq import Times, WorkQueue
from workq.config import Settings
from workq.lab.certify.stage import Scratch
from workq.lab.servers import PostgreSQL, RabbitMQ, Redis

SHORT = ("certify", "--minutes", "0.1", "--seed", "3")


def test_the_embedded_queue_is_certified_without_servers_and_nothing_is_left(place: Path) -> None:
    ran = run_workq(place, *SHORT, "-o", "json")

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


def test_on_servers_what_is_somebody_elses_stays_and_what_was_made_is_removed(
    place: Path, rabbitmq_server: RabbitMQ, redis_server: Redis, postgres_server: PostgreSQL
) -> None:
    """Also the queues in which hints wait, with levels of delays."""
    ledger = postgres_server.create_database()
    urls = {"ledger": ledger, "broker": rabbitmq_server.url, "inflight": redis_server.url}
    variables = {f"WORKQ_{name.upper()}_URL": url for name, url in urls.items()} | {"WORKQ_LADDER": "levels:0.3s,1s,4s"}
    faults = "kill-everything,wipe-inflight,broker-cut,inflight-cut,ledger-cut,lock-rows,purge-delays,purge-queue"

    with somebody_elses(urls, f"shop_{secrets.token_hex(4)}"):
        certify = ("certify", "--minutes", "0.2", "--rate", "60", "--only", faults, "-o", "json")
        ran = run_workq(place, *certify, **variables)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert found["ok"] is True
    assert found["faults"]["struck"] >= 1
    assert "RabbitMQ" in found["versions"]["broker"]
    assert left_on(urls, rabbitmq_server, found["namespace"]) == []
    assert what_is_left(place) == []


def test_rows_can_be_locked_for_longer_than_a_transaction_of_ours_may_be_idle(postgres_server: PostgreSQL) -> None:
    times = Times().divided_by(20)
    ledger, name = postgres_server.create_database(), "certify_0a1b2c3d"
    scratch = Scratch(Settings(ledger=ledger, namespace=name, times=times), WorkQueue(ledger=ledger, namespace=name))
    scratch.create()
    with scratch.locked_rows():
        time.sleep(times.statement_s + 1.0)  # the server's own clock decides: there is nothing to wait for

    assert scratch.remove() == []
    scratch.close()


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


def test_the_page_tells_the_seed_and_the_bound_and_a_kept_run_can_be_removed_later(place: Path) -> None:
    ran = run_workq(place, *SHORT, "--only", "kill-consumer", "--keep")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "tasks lost: with 95 % confidence fewer than 1 in " in ran.stdout
    assert "\nclean; the same again: workq certify --minutes 0.1 --seed 3 " in ran.stdout
    assert "kill-consumer: pid " in ran.stderr
    [database] = (place / "here").glob("certify_*.db")
    namespace = database.stem
    [kept] = (place / "temporary").iterdir()
    assert {"witness", "journal", "worker-0.log", "worker-1.log"} <= {one.name for one in kept.iterdir()}
    with closing(sqlite3.connect(place / "here" / f"{namespace}.db")) as ledger:
        [(count,)] = ledger.execute(f"SELECT count(*) FROM {namespace}_task").fetchall()
    assert count > 100

    removed = run_workq(place, "certify", "--remove", namespace)

    assert removed.returncode == 0, removed.stderr
    assert list((place / "here").iterdir()) == []


@pytest.mark.parametrize("name", ["workq", "certify_", "certify_0a1b2c3", "certify_0a1b2c3d_task", "shop"])
def test_nothing_else_than_a_scratch_namespace_can_be_removed(place: Path, name: str) -> None:
    ran = run_workq(place, "certify", "--remove", name)

    assert ran.returncode == 2
    assert "is no scratch namespace" in ran.stderr


def test_an_unknown_fault_is_answered_with_those_that_there_are(place: Path) -> None:
    ran = run_workq(place, *SHORT, "--only", "kill-consumer,earthquake")

    assert ran.returncode == 2
    assert "no fault here is called earthquake; there are kill-consumer, " in ran.stderr
    assert what_is_left(place) == []


def test_a_server_that_is_away_is_one_line_and_exit_4(place: Path) -> None:
    began = time.monotonic()
    ran = run_workq(place, *SHORT, WORKQ_LEDGER_URL="postgresql://workq:canary@127.0.0.1:9/none")

    assert ran.returncode == 4
    assert ran.stderr.startswith("workq: error: ")
    assert "Traceback" not in ran.stderr
    assert "canary" not in ran.stderr
    assert time.monotonic() - began < 30
    assert what_is_left(place) == []
