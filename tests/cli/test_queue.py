"""`workq queue pause`, `resume` and `drain`: who may start nothing, since when, and why."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from tests.cli.conftest import BOUND_S, Cli
from tests.system.fleet import wait_until
from workq.values.incarnation import this_person

DRAINED = (
    "queue 'sums' is drained: nothing of it runs; it stays paused, and 1 task waits in it; "
    "to let it go on: workq queue resume sums\n"
)


def paused(cli: Cli, queue: str = "sums") -> dict[str, Any] | None:
    found: dict[str, Any] | None = cli.look("queue", "show", queue)["paused"]
    return found


def test_a_paused_queue_starts_nothing_until_it_is_resumed(cli: Cli) -> None:
    (task_id,) = cli.record("shop.add", 1)

    said = cli.here("queue", "pause", "sums", "--why", "the bank is closed")
    told = paused(cli)
    listed = cli.here("queue", "ls").out
    drained = cli("worker", "--drain", "-q", app=True)
    why = cli.look("why", task_id)
    resumed = [cli.here("queue", "resume", "sums") for _ in range(2)]
    cli("worker", "--drain", "-q", app=True)

    assert (said.status, said.out) == (0, "paused until it is resumed; nothing of it runs\n")
    assert told is not None
    assert (told["who"], told["why"], told["ends_at"]) == (this_person(), "the bank is closed", None)
    assert f"by {this_person()}: the bank is closed" in " ".join(listed.split())
    assert drained.status == 0
    assert why["code"] == "paused"
    assert [(one.status, one.out) for one in resumed] == [(0, "resumed\n"), (0, "it was not paused\n")]
    assert cli.look("task", "show", task_id)["state"] == "succeeded"
    assert paused(cli) is None


def test_it_can_have_an_end_and_says_what_still_runs(cli: Cli) -> None:
    cli.claim(cli.record("shop.add", 1, count=2))

    made = cli.look("queue", "pause", "sums", "--why", "?", "--for", "2h")
    said = cli.here("queue", "pause", "sums", "--why", "?", "--for", "2h").out

    assert made["ends_at"] > made["paused_at"]
    assert (made["queue"], made["running"]) == ("sums", 2)
    assert said.startswith("paused until 20")
    assert said.endswith("; 2 of its tasks still run\n")


def test_drain_looks_twice_for_a_claim_that_was_under_way_when_it_paused(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.record("shop.add", 1)
    seen = iter([0, 1, 1, 0, 0])  # at the first look, that claim has not been committed yet
    monkeypatch.setattr("workq.cli.queue._running", lambda *_: next(seen))

    drained = cli.here("queue", "drain", "sums", "--why", "?", "--wait", "60s")

    assert (drained.status, drained.out) == (0, DRAINED)
    assert list(seen) == []


def test_drain_waits_for_what_runs_and_the_queue_stays_paused(cli: Cli) -> None:
    (task_id,) = cli.claim(cli.record("shop.add", 1))

    too_long = cli.here("queue", "drain", "sums", "--why", "?", "--wait", "0.3s")
    with cli.queue() as wq:
        worker = cli.look("task", "show", task_id)["worker"]
        release = threading.Timer(
            0.5,
            lambda: wq.stores.ledger.workers.return_forgotten(wq.stores.ledger.workers.claimed_by(worker), by=worker),
        )
        release.start()
        drained = cli.here("queue", "drain", "sums", "--why", "?", "--wait", "60s")
        release.join(BOUND_S)

    assert too_long.status == 5
    assert too_long.out == (
        "queue 'sums' is not drained: after 0.3 s 1 task of it still runs; it stays paused, and 0 tasks wait in it; "
        "which run: workq task ls --queue sums --state running; to let it go on: workq queue resume sums\n"
    )
    assert too_long.err == "queue 'sums' is paused; waiting for 1 task that still runs, 0 s at most\n"
    assert (drained.status, drained.out) == (0, DRAINED)
    assert paused(cli) is not None
    assert cli.look("task", "show", task_id)["state"] == "ready"


def test_drain_says_what_waits_in_the_queue_and_until_when_it_stays_paused(cli: Cli) -> None:
    cli.record("shop.add", 1, count=2)

    drained = cli.here("queue", "drain", "sums", "--why", "?", "--for", "2h")
    document = cli.look("queue", "drain", "sums", "--why", "?")

    assert drained.out.startswith("queue 'sums' is drained: nothing of it runs; it stays paused until 20")
    assert drained.out.endswith(", and 2 tasks wait in it; to let it go on: workq queue resume sums\n")
    assert drained.err == ""
    assert (document["queue"], document["running"], document["backlog"]) == ("sums", 0, 2)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("pause", "sums"), "missing option '--why'"),
        (("drain", "sums"), "missing option '--why'"),
        (("pause", "no queue", "--why", "?"), "no queue"),
        (("pause", "sums", "--why", "?", "--for", "0s"), "is not a duration above 0"),
        (("pause", "sums", "--why", "?", "--for", "9999999d"), "--for: need seconds from 0 to 316224000 (ten years)"),
        (("drain", "sums", "--why", "?", "--for", "9999999d"), "--for: need seconds from 0 to 316224000 (ten years)"),
        (("resume",), "missing argument 'QUEUE'"),
    ],
)
def test_what_is_missing_or_wrong_is_refused_first(shared_cli: Cli, args: tuple[str, ...], said: str) -> None:
    ran = shared_cli.here("queue", *args)

    assert ran.status == 2
    assert said in ran.err


def test_running_workers_notice_both(cli: Cli) -> None:
    cli.here("db", "migrate")
    cli.look("queue", "pause", "sums", "--why", "?")
    cli.record("shop.add", 1, count=5)
    with cli.start("worker", "--threads", "2") as worker:
        wait_until(lambda: cli.look("worker", "ls")["workers"] != [], timeout_s=BOUND_S, what="it has joined")
        cli.look("queue", "resume", "sums")
        wait_until(
            lambda: cli.look("status")["states"]["succeeded"] == 5, timeout_s=BOUND_S, what="all of them have run"
        )
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=BOUND_S)
