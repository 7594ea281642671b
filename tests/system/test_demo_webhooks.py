"""`workq demo webhooks`, as a newcomer runs it: real requests to five receivers, and a real SIGKILL."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from tests.system.stage import Stage, report_of, told

SOME = ("--events", "300")
EACH = 60
"""Of them go to each receiver."""
NAMES = ["steady", "flaky", "slow", "limited", "leaving"]


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each receiver got."""
    return {one["name"]: one for one in report["receivers"]}


def assert_all_arrived(report: dict[str, Any]) -> None:
    """Everything, and nothing else, past all that went wrong on the way."""
    found = by_name(report)
    assert list(found) == NAMES
    for one in found.values():
        assert (one["sent"], one["arrived"]) == (EACH, EACH)
        assert [one[what] for what in ("lost", "foreign", "unsigned", "unexcused", "early", "unfinished")] == [0] * 6
        assert one["unrecorded"] == 0
    assert report["rolled_back"] == 20
    assert found["steady"]["refused"] == found["slow"]["refused"] == {}
    assert found["flaky"]["refused"].keys() == {"503"}
    assert found["limited"]["refused"].keys() == {"429"}
    assert found["leaving"]["refused"].keys() == {"410"}
    assert report["returned"]["released"] > 0
    assert report["returned"]["recovered"] >= 1
    assert report["is_unhindered"] is True
    assert found["steady"]["waits"]["most_undisturbed_s"] < found["slow"]["span_s"]


def test_a_newcomer_sees_every_event_arrive_past_a_kill_and_five_receivers(stage: Stage) -> None:
    done = stage.demo("webhooks", "--events", "500")

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "500 events to five receivers" in done.stderr.splitlines()[0]
    assert "After 429 a receiver is left alone for 1 s at least, to save time: by default it is 60 s." in done.stderr
    assert re.search(r"SIGKILL   process \d+, which had \d+ deliver(y|ies) in its hands", done.stderr)
    assert re.search(r"freed     \d+\.\d\d s after the kill others may send them", done.stderr)
    assert "rollback  of a transaction with 20 events" in done.stderr
    assert "410       leaving is disabled" in done.stderr
    assert "released  leaving is back" in done.stderr
    assert re.search(r"^  flaky        100 +\d+  \d+ after 503 ", done.stdout, flags=re.MULTILINE)
    assert re.search(r"^  limited      100 +\d+  \d+ after 429 ", done.stdout, flags=re.MULTILINE)
    assert "arrived   500 of 500" in done.stdout
    assert "lost      0\n" in done.stdout
    assert "foreign   0 (of 20 events rolled back, too)\n" in done.stdout
    assert "unsigned  0\n" in done.stdout
    assert "500 deliveries succeeded" in done.stdout
    assert "steady waited for nobody" in done.stdout
    assert "Proved: every event that should have arrived did" in done.stdout
    assert len(told(done)) <= 48
    stage.assert_nothing_is_left()


@pytest.mark.usefixtures("rabbitmq_server", "redis_server", "postgres_server")  # they skip where one is not installed
def test_the_same_on_servers_that_it_starts_itself(open_stage: Stage) -> None:
    done = open_stage.demo("webhooks", "--servers", *SOME, "-o", "json")

    report = report_of(done)
    assert_all_arrived(report)
    assert report["killed"]["deliveries"] >= 1
    assert report["freed"]["deliveries"] == report["killed"]["deliveries"]
    assert [word.partition(" ")[0] for word in report["stores"].split(", ")] == ["RabbitMQ", "Redis", "PostgreSQL"]
    open_stage.assert_nothing_is_left()


def test_without_a_kill_nothing_comes_twice_and_what_is_kept_can_be_looked_at(stage: Stage) -> None:
    kept = stage.folder / "kept"

    done = stage.demo("webhooks", "--no-kill", *SOME, "--keep", str(kept), "-o", "json")

    report = report_of(done)
    assert_all_arrived(report)
    assert report["killed"] is None
    assert [one["twice"] for one in report["receivers"]] == [0] * 5
    assert [one["attempts"] for one in report["receivers"]] == [one["requests"] for one in report["receivers"]]
    assert f"kept in {kept}" in done.stderr
    assert {"workq.db", "worker.log", "workq.toml"} <= {one.name for one in kept.iterdir()}
    stage.environment |= {"WORKQ_CONFIG": str(kept / "workq.toml"), "WORKQ_BROKER_URL": ""}
    listed = stage.run("-m", "workq", "webhook", "endpoint", "ls", "-o", "json")
    assert [one["state"] for one in json.loads(listed.stdout)["endpoints"]] == ["enabled"] * 5


FORGETFUL = """
import sys
from workq.cli.session import Session
from workq.demo.voice import Silence
from workq.demo.webhooks import tell
from workq.demo.command import webhooks_ended
from workq.demo.webhooks.play import WebhookWishes, play
from workq.demo.webhooks.receivers import Receivers

note = Receivers.note

def forget(self, name, request):
    if request.webhook_id != "order_paid_7":
        note(self, name, request)

Receivers.note = forget
sys.exit(webhooks_ended(Session(), play(WebhookWishes(events=100, kill=False), tell.WebhookStory(Silence()))))
"""


def test_an_event_that_a_receiver_takes_and_forgets_is_missed(stage: Stage) -> None:
    done = stage.run("-c", FORGETFUL)

    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    assert "arrived   99 of 100" in done.stdout
    assert "lost      1: order_paid_7\n" in done.stdout
    assert "100 deliveries succeeded" in done.stdout
    assert "FAILED" in done.stdout
    stage.assert_nothing_is_left()


CARELESS = """
import sys
from workq.cli.session import Session
from workq.demo.voice import Silence
from workq.demo.webhooks import tell
from workq.demo.command import webhooks_ended
from workq.demo.webhooks.play import WebhookWishes, play
from workq.demo.webhooks.shop import Shop

def send_and_forget(self, moves):
    for one in moves:
        self._outbox.send(one.event_type, {"order": one.order_number}, event_id=one.event_id)

Shop.record_and_roll_back = send_and_forget
sys.exit(webhooks_ended(Session(), play(WebhookWishes(events=100, kill=False), tell.WebhookStory(Silence()))))
"""


def test_an_event_that_arrives_without_its_row_is_foreign(stage: Stage) -> None:
    done = stage.run("-c", CARELESS)

    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    assert "arrived   100 of 100" in done.stdout
    assert re.search(r"foreign   [1-9]\d*: order_", done.stdout)
    assert "FAILED" in done.stdout
    stage.assert_nothing_is_left()


MURDERER = """
import sys
import psutil
from workq.cli.session import Session
from workq.demo.voice import Silence
from workq.demo.webhooks import tell
from workq.demo.command import webhooks_ended
from workq.demo.webhooks.play import WebhookWishes, play

class Murderer(tell.WebhookStory):
    def progress(self, done, total):
        if done:
            for process in psutil.Process().children(recursive=True):
                process.kill()

sys.exit(webhooks_ended(Session(), play(WebhookWishes(events=100, kill=False), Murderer(Silence()))))
"""


def test_a_worker_that_is_gone_ends_the_run_and_what_has_arrived_is_told(stage: Stage) -> None:
    done = stage.run("-c", MURDERER)

    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    assert "Not finished: the worker ended by itself" in done.stdout
    assert re.search(r"; [1-9]\d* of 100 deliveries have succeeded", done.stdout)
    stage.assert_nothing_is_left()


def test_a_signal_ends_everything(stage: Stage) -> None:
    assert stage.interrupt("webhooks", *SOME, by=signal.SIGTERM) == 143
    stage.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("options", "said"), [(["--keep", "."], "not empty"), (["--events", "99"], "--events"), (["--threads", "0"], "")]
)
def test_what_cannot_be_is_one_line_and_status_2(stage: Stage, options: list[str], said: str) -> None:
    (stage.folder / "occupied").touch()

    done = stage.demo("webhooks", *options)

    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) == 1
    (stage.folder / "occupied").unlink()
    stage.assert_nothing_is_left()


@pytest.mark.parametrize("missing", ["aiohttp", "standardwebhooks"])
def test_without_the_extra_it_says_what_to_install(stage: Stage, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from workq.cli.root import run; sys.exit(run(sys.argv[1:]))"

    done = stage.run("-c", code, "demo", "webhooks")

    assert done.returncode == 2, f"{done.stdout}\n{done.stderr}"
    [line] = done.stderr.splitlines()
    assert "install the extra [webhooks]" in line
    stage.assert_nothing_is_left()
