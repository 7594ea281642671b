"""`workq bench` as a user runs it: every figure is there, on both legs, and nothing is left behind."""

from __future__ import annotations

import itertools
import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.system.fleet import wait_until
from tests.system.scratch import left_on, run_workq, somebody_elses, what_is_left
from workq.config import Settings
from workq.lab.bench import trial
from workq.lab.bench.tasks import Records
from workq.lab.fleet import Host
from workq.lab.servers import PostgreSQL, RabbitMQ, Redis

ONCE = ("bench", "--tasks", "500", "--runs", "1", "--seconds", "1")
FIGURES = {
    "drain_one_by_one_per_s",
    "drain_per_s",
    "enqueue_many_per_s",
    "enqueue_one_per_s",
    "first_start_s",
    "last_completion_after_kill_s",
    "latency_p50_ms",
    "latency_p99_ms",
    "published_per_s",
    "started_twice_after_kill",
    "sustained_per_s",
    "workers_cpu_us",
    "workers_memory_bytes",
}


def check(found: dict[str, Any]) -> None:
    assert found["ok"] is True
    assert found["missing_after_kill"] == 0
    assert set(found["figures"]) == FIGURES
    for name, figure in found["figures"].items():
        assert 0 < figure["least"] <= figure["median"] <= figure["most"] or name == "started_twice_after_kill", name
    # what had started is all that may run twice
    assert found["figures"]["started_twice_after_kill"]["most"] <= found["processes"] * found["threads"]
    assert {"claim", "settle"} <= set(found["steps_cpu_us"])
    assert {"intake", "run", "settle", "whole process"} <= set(found["threads_cpu_us"])
    assert all(spent > 0 for spent in found["steps_cpu_us"].values())


def test_the_page_names_the_figures_of_the_embedded_queue_and_a_kept_run_can_be_removed_later(place: Path) -> None:
    ran = run_workq(place, *ONCE, "--keep")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    [database] = (place / "here").glob("bench_*.db")

    removed = run_workq(place, "bench", "--remove", database.stem)

    assert "run, enqueued in bulk" in ran.stdout
    assert "missing after it" in ran.stdout
    assert removed.returncode == 0, removed.stderr
    assert list((place / "here").iterdir()) == []


def test_what_it_keeps_on_servers_certify_removes_whole_and_what_is_somebody_elses_stays(
    place: Path, rabbitmq_server: RabbitMQ, redis_server: Redis, postgres_server: PostgreSQL
) -> None:
    urls = {
        "ledger": postgres_server.create_database(),
        "broker": rabbitmq_server.url,
        "inflight": redis_server.url,
    }
    variables = {f"WORKQ_{name.upper()}_URL": url for name, url in urls.items()}

    with somebody_elses(urls, f"shop_{secrets.token_hex(4)}"):
        ran = run_workq(place, *ONCE, "--keep", "-o", "json", **variables)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        found = json.loads(ran.stdout)
        assert any("bench" in one for one in left_on(urls, rabbitmq_server, found["namespace"]))
        removed = run_workq(place, "certify", "--remove", found["namespace"], **variables)

    check(found)
    assert {"fetch", "hold", "release"} <= set(found["steps_cpu_us"])
    assert removed.returncode == 0, removed.stderr
    assert left_on(urls, rabbitmq_server, found["namespace"]) == []


def test_without_servers_nothing_is_left_either(place: Path) -> None:
    ran = run_workq(place, "bench", "--tasks", "100", "--runs", "1", "--seconds", "1", "-o", "json")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    check(json.loads(ran.stdout))
    assert what_is_left(place) == []


@pytest.mark.usefixtures("forked")
def test_a_kill_that_came_when_all_tasks_had_ended_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred of them last no longer than a look at them, on a machine that is busy with something else."""
    kill, kills = Host.kill, itertools.count()

    def late(host: Host) -> list[int]:
        records = Records(host.log.parent)

        def have_ended() -> bool:
            records.refresh()
            return len(records.ends(range(100))) == 100

        if next(kills) == 0:
            wait_until(have_ended, timeout_s=60, what="all have ended")
        return kill(host)

    monkeypatch.setattr(Host, "kill", late)

    report = trial.run(Settings(ledger=f"sqlite:///{place}/shop.db"), trial.BenchWishes(tasks=100, runs=0))

    assert report.missing == 0
    assert report.figures["last_completion_after_kill_s"].least > 0


@pytest.mark.parametrize("name", ["workq", "bench_", "bench_0a1b2c3d_task", "shop"])
def test_nothing_else_than_a_scratch_namespace_can_be_removed(place: Path, name: str) -> None:
    ran = run_workq(place, "bench", "--remove", name)

    assert ran.returncode == 2
    assert "is no scratch namespace" in ran.stderr


def test_a_server_that_is_away_is_one_line_and_exit_4(place: Path) -> None:
    ran = run_workq(place, *ONCE, WORKQ_LEDGER_URL="postgresql://workq:canary@127.0.0.1:9/none")

    assert ran.returncode == 4
    assert ran.stderr.startswith("workq: error: ")
    assert "Traceback" not in ran.stderr
    assert "canary" not in ran.stderr
    assert what_is_left(place) == []
