"""The comparison with the peers, as far as it goes without them: the driver, one contestant of ours, the figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from benchmarks import kafka
from benchmarks.arena import Arena
from benchmarks.crew import Crew
from benchmarks.roster import chosen
from tests.system.fleet import REPOSITORY
from tests.zygote import FORKED_WITH, ran
from workq.config.kafka import KafkaUrl


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    return started("benchmarks", *args)


def started(module: str, *args: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-m", module, *args], cwd=REPOSITORY, env=os.environ | FORKED_WITH, timeout_s=400)


def test_a_contestant_is_measured_and_its_figures_are_told_and_written(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"

    done = bench(
        "--quick", "--tasks", "400", "--only", "workq-sqlite", "--measure", "bulk,drain", "--output", str(output)
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "workq-sqlite" in done.stdout
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["machine"]["runs"] == 1
    assert found["contestants"]["workq-sqlite"]["survives"] == "yes"
    assert found["failures"] == []
    [figures] = found["runs"]["workq-sqlite"].values()
    assert figures["drain_tasks"] == figures["bulk_tasks"] == 400
    assert figures["drain_missing"] == 0
    for figure in ("bulk_rate", "bulk_published_rate", "drain_rate", "drain_mid90_rate", "calibration_ms"):
        assert figures[figure] > 0, figure


@pytest.mark.usefixtures("kafka_server", "postgres_server", "redis_server")
def test_a_contestant_on_kafka_has_topics_of_its_own_which_are_gone_with_its_place() -> None:
    [contestant] = chosen(["workq-kafka"])

    with Arena([contestant]) as arena:
        with arena.place(contestant) as place, Crew(contestant, Path(sys.executable), place) as crew:
            crew.call("prepare", limit_s=120.0)
            crew.call("fill", 100, limit_s=120.0)
            settings = KafkaUrl.parse(place.environment["WORKQ_BROKER_URL"]).settings()
            filled = topics(settings)
        left = topics(settings)

    assert {one.partition(".")[0] for one in filled} == {place.environment["WORKQ_NAMESPACE"]}
    assert left == set()


def topics(settings: dict[str, Any]) -> set[str]:
    """Those of users."""
    found = AdminClient(settings).list_topics(timeout=60.0).topics
    return {one for one in found if not one.startswith("__")}


@pytest.mark.usefixtures("postgres_server")  # it starts its own: this says what a missing one means
def test_growth_measures_claims_and_a_pinned_horizon(tmp_path: Path) -> None:
    output = tmp_path / "growth.json"
    done = started("benchmarks.growth", "--quick", "--output", str(output))

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text(encoding="utf-8"))
    assert [(one["axis"], one["value"]) for one in found["points"]] == [("backlog", 2_000), ("backlog", 5_000)]
    assert all(0 < one["p50_ms"] <= one["p99_ms"] and one["tasks_per_s"] > 0 for one in found["points"])
    assert [(one["contestant"], one["is_pinned"], one["minute"]) for one in found["horizon"]] == [
        ("workq-postgres", is_pinned, minute) for is_pinned in (False, True) for minute in (1, 2)
    ]
    assert min(one["tasks_per_s"] for one in found["horizon"]) > 0
    first, second = found["horizon"][2:]
    assert second["dead_rows"] > first["dead_rows"] > 0, "what is pinned is not removed"


@pytest.mark.usefixtures("postgres_server", "rabbitmq_server", "redis_server")
def test_steps_tells_what_each_layer_of_an_enqueue_adds_and_what_a_tasks_way_is_made_of(tmp_path: Path) -> None:
    output = tmp_path / "steps.json"
    done = started("benchmarks.steps", "--calls", "20", "--rounds", "1", "--output", str(output))

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text(encoding="utf-8"))
    assert len(found["enqueue"]) == 5
    assert all(one["wall_us"] > 0 and one["processor_us"] > 0 for one in found["enqueue"])
    *steps, whole = found["way"]
    assert [one["name"].partition(":")[0] for one in found["way"]] == [
        "record", "publish, until confirmed", "fetch", "hold", "ack", "claim", "all together",
    ]  # fmt: skip
    assert all(0 < one["p50_ms"] <= one["p99_ms"] <= whole["p99_ms"] for one in steps)


def test_jobs_are_measured_beside_a_plain_loop_and_under_kills(tmp_path: Path) -> None:
    output = tmp_path / "jobs.json"
    done = started("benchmarks.jobs", "--quick", "--leg", "sqlite", "--output", str(output))

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text(encoding="utf-8"))["sqlite"]
    assert list(found) == ["overhead", "kills", "split"]
    assert found["overhead"]["rows"] > 0
    assert found["overhead"]["job_s"]["median"] > 0 < found["overhead"]["plain_s"]["median"]
    assert found["kills"]["kills"] > 0 < found["kills"]["killed_to_undisturbed"]
    assert found["split"]["subtasks"] == 40
    assert 0 < found["split"]["status_p50_ms"] <= found["split"]["status_most_ms"]


def test_webhooks_are_measured_beside_a_plain_loop_a_slow_receiver_and_a_dead_one(tmp_path: Path) -> None:
    output = tmp_path / "webhooks.json"
    done = started("benchmarks.webhooks", "--quick", "--leg", "sqlite", "--output", str(output))

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text(encoding="utf-8"))["sqlite"]
    assert list(found) == ["throughput", "slow", "dead"]
    assert found["throughput"]["plain_per_s"]["median"] > 0 < found["throughput"]["worker_per_s"]["median"]
    slow = found["slow"]
    assert 0 < slow["p50_ms"] <= slow["p99_ms"] < 1e3 * slow["slow_s"], "it waits for nobody who sleeps"
    assert found["dead"]["p99_dead_to_alive"] > 0


@pytest.mark.usefixtures("rabbitmq_server")
def test_many_messages_are_counted_where_they_arrive() -> None:
    done = started("benchmarks.volume", "--quick", "--leg", "sqlite", "--only", "moment", "--kind", "amqp")

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["sent"], found["arrived"], found["missing"], found["early"]) == (500, 500, 0, 0)
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["most_ms"]


def test_names_that_do_not_exist_are_usage_errors() -> None:
    for args in (("--only", "workq-oracle"), ("--measure", "speed"), ("--runs", "0")):
        done = bench(*args)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr


def test_a_ratio_of_two_brokers_is_above_1_where_kafka_is_better_whatever_is_measured() -> None:
    found = {
        "rabbitmq": {
            "drain_per_s": [1000.0, 1100.0, 900.0],
            "latency_p50_ms": [8.0],
            "started_twice_after_kill": [0.0],
        },
        "kafka": {"drain_per_s": [800.0], "latency_p50_ms": [4.0], "started_twice_after_kill": [0.0]},
    }

    _, drain, latency, twice = kafka.page(found)

    assert drain.split() == ["drain_per_s", "1000", "(900-1100)", "800", "(800-800)", "0.80"]
    assert latency.split()[-1] == "2.00"
    assert twice.split()[-1] == "-"
