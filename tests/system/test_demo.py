"""`workq demo reindex`, as a newcomer runs it: in a process of its own, on real data, with a real SIGKILL."""

from __future__ import annotations

import json
import signal
import sys
import unicodedata
from functools import cache
from typing import Any

import pytest

from tests.system.stage import Stage, report_of, told
from workq.demo.index import NEW, OLD, UNREADABLE

WHY = "its text cannot be read"


@cache
def names() -> int:
    """How many characters have one: all that there are is a million, so it is not asked before a test runs."""
    return sum(unicodedata.name(chr(one), None) is not None for one in range(sys.maxunicode + 1))


def subtasks() -> int:
    """The last is of those that were mended."""
    return -(-names() // 500) + 1


def assert_complete_after_a_kill(report: dict[str, Any], documents: int, subtasks: int) -> None:
    """Every document once, and the subtasks of a killed process done by others."""
    assert report["is_proved"] is True
    found = report["documents"]
    assert (found["expected"], found["found"]) == (documents, documents)
    assert (found["lost"], found["twice"], found["foreign"]) == (0, 0, 0)
    assert report["subtasks"]["total"] == subtasks
    assert report["failed"] == {"documents": UNREADABLE, "error": WHY}
    assert report["mended"] == UNREADABLE
    assert report["searched"] == {"before": OLD, "after": NEW}
    assert report["killed"]["subtasks"] >= 1
    assert report["subtasks"]["run_again"] >= report["recovered"]["subtasks"]
    assert report["recovered"]["subtasks"] >= 1, "it was killed at work"
    assert report["recovered"]["subtasks"] + report["recovered"]["had_ended"] == report["killed"]["subtasks"]
    assert report["recovered"]["seconds"] > 0.0


def test_a_newcomer_sees_a_kill_and_a_complete_index(stage: Stage) -> None:
    stage.is_afresh = True

    done = stage.demo("reindex")

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"{names():,} Unicode character names, by a job in subtasks of 500" in done.stderr.splitlines()[0]
    assert "SIGKILL   process" in done.stderr
    assert "of the dead process's subtasks " in done.stderr
    assert "paused    at" in done.stderr
    assert "throttled to 5,000 documents a second: " in done.stderr
    assert f"{UNREADABLE} documents: {WHY}" in done.stderr
    assert f"{UNREADABLE} documents run again, and nothing else" in done.stderr
    assert f"documents {names():,} of {names():,}" in done.stdout
    assert "lost      0\n" in done.stdout
    assert "twice     0\n" in done.stdout
    assert "\N{SMILING CAT FACE WITH OPEN MOUTH} U+1F63A  SMILING CAT FACE WITH OPEN MOUTH" in done.stdout
    assert "Proved: nothing is missing" in done.stdout
    assert len(told(done)) <= 36
    stage.assert_nothing_is_left()


@pytest.mark.usefixtures("kafka_server", "redis_server", "postgres_server")  # they skip where one is not installed
def test_the_same_on_servers_that_it_starts_itself(open_stage: Stage) -> None:
    """On Kafka; `workq demo webhooks` is run on RabbitMQ so."""
    done = open_stage.demo("reindex", "--kafka", "-o", "json")

    report = report_of(done)
    assert_complete_after_a_kill(report, names(), subtasks())
    assert [word.partition(" ")[0] for word in report["stores"].split(", ")] == ["Kafka", "Redis", "PostgreSQL"]
    open_stage.assert_nothing_is_left()


def test_tantivy_loses_nothing_either(stage: Stage) -> None:
    pytest.importorskip("tantivy")

    report = report_of(stage.demo("reindex", "--engine", "tantivy", "-o", "json"))

    assert_complete_after_a_kill(report, names(), subtasks())
    stage.assert_nothing_is_left()


THIEF = """
import sqlite3, sys
from workq.cli.session import Session
from workq.demo import tell
from workq.demo.command import ended
from workq.demo.play import ReindexWishes, play
from workq.demo.voice import Silence

class Thief(tell.Story):
    def begins(self, scene):
        self.folder = scene.folder
        super().begins(scene)

    def counting(self):
        with sqlite3.connect(self.folder / "catalog_v2" / "index.db") as connection:
            connection.execute("DELETE FROM document WHERE number = 65")
        connection.close()

sys.exit(ended(Session(), play(ReindexWishes(kill=False), Thief(Silence()))))
"""


def test_a_document_that_vanishes_from_the_index_is_missed(stage: Stage) -> None:
    done = stage.run("-c", THIEF)

    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    assert f"documents {names() - 1:,} of {names():,}" in done.stdout
    assert "lost      1: 65\n" in done.stdout
    assert "FAILED" in done.stdout
    stage.assert_nothing_is_left()


FREEZER = """
import sys
import psutil
from workq.cli.session import Session
from workq.demo import tell
from workq.demo.command import ended
from workq.demo.play import ReindexWishes, play
from workq.demo.voice import Silence

class Freezer(tell.Story):
    is_done = False

    def progress(self, done, total):
        if done and not self.is_done:
            self.is_done = True
            for process in psutil.Process().children(recursive=True):
                process.{act}()

sys.exit(ended(Session(), play(ReindexWishes(kill=False, stall_s=15.0), Freezer(Silence()))))
"""


@pytest.mark.parametrize(
    ("act", "said"),
    [("suspend", "Not finished: no progress for 15 s"), ("kill", "Not finished: the worker ended by itself")],
)
def test_a_worker_that_does_nothing_more_ends_the_run(stage: Stage, act: str, said: str) -> None:
    done = stage.run("-c", FREEZER.replace("{act}", act))

    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    assert said in done.stdout
    assert f"of {names():,} documents are done" in done.stdout
    assert f" 0 of {names():,} documents" not in done.stdout
    stage.assert_nothing_is_left()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_everything(stage: Stage, number: signal.Signals, status: int) -> None:
    """The third that there is, SIGTERM, ends the demo of webhooks."""
    assert stage.interrupt("reindex", by=number) == status
    stage.assert_nothing_is_left()


def test_what_is_kept_can_be_looked_at(stage: Stage) -> None:
    kept = stage.folder / "kept"

    done = stage.demo("reindex", "--no-kill", "--keep", str(kept), "-o", "json")

    assert report_of(done)["killed"] is None
    assert f"kept in {kept}" in done.stderr
    assert {OLD, NEW, "alias", "workq.db", "worker.log", "workq.toml"} <= {one.name for one in kept.iterdir()}
    assert [one for one in [kept, *kept.rglob("*")] if one.stat().st_mode & 0o077] == []
    stage.environment |= {"WORKQ_CONFIG": str(kept / "workq.toml"), "WORKQ_BROKER_URL": ""}
    jobs = stage.run("-m", "workq", "job", "ls", "-o", "json")
    assert [(one["state"], one["succeeded"]) for one in json.loads(jobs.stdout)["jobs"]] == [
        ("succeeded", UNREADABLE),
        ("completed_with_failures", names() - UNREADABLE),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--keep", "."], "not empty"),
        (["--engine", "moon"], "moon"),
        (["--corpus", "moon"], "moon"),
        (["--processes", "0"], "--processes"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(stage: Stage, options: list[str], said: str) -> None:
    (stage.folder / "occupied").touch()

    done = stage.demo("reindex", *options)

    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    (stage.folder / "occupied").unlink()
    stage.assert_nothing_is_left()
