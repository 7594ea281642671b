"""`workq db prune`: what has ended long ago goes, page by page, and a person sees before how much that is."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.contract.given import incarnation, new
from workq import WorkQueue
from workq.ledger.sql import Ledger
from workq.recovery import retention as pruning
from workq.recovery.sweep import PRUNE_EVERY, Passes
from workq.values.task import Dead, Delivered, Done, Outcome, Sent, Settlement
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.outbox import Outbox

DAY_S = 86_400.0
URL = "https://example.org/hooks"


def ledger_of(wq: WorkQueue, *, days_ago: float) -> Ledger:
    """Its ledger, whose clock shows that time."""
    ledger = wq.stores.ledger
    assert isinstance(ledger, Ledger)
    ledger.database.clock_offset_s = -days_ago * DAY_S
    return ledger


def settled(cli: Cli, outcome: Outcome, *, days_ago: float, count: int = 1) -> list[str]:
    """Tasks that a worker has run so long ago; their ids."""
    with cli.queue() as wq:
        ledger, worker = ledger_of(wq, days_ago=days_ago), incarnation()
        ledger.workers.join(worker, queues=["default"], threads=1)
        ids = [one.id for one in ledger.tasks.record(new(count))]
        claims = ledger.claims.claim(ids, by=worker.id)
        ledger.outcomes.settle([Settlement(claim, outcome) for claim in claims])
        ledger.workers.leave(worker.id)
    return ids


def delivered(cli: Cli, *, days_ago: float) -> str:
    """A webhook that has arrived so long ago; its id."""
    with cli.queue() as wq:
        ledger, worker, outbox = ledger_of(wq, days_ago=days_ago), incarnation(), Outbox(wq)
        if ledger.part(WebhookLedger).endpoints.endpoint("acme") is None:
            outbox.endpoints.add(URL, endpoint_id="acme")
        sent = outbox.send("invoice.paid", {"id": 17})
        ledger.workers.join(worker, queues=["webhooks"], threads=1)
        [claim] = ledger.claims.claim([sent.deliveries[0].delivery_id], by=worker.id)
        told = Sent(
            delivery_id=sent.deliveries[0].delivery_id,
            endpoint_id="acme",
            number=1,
            cause="scheduled",
            url=URL,
            status=200,
            error_class=None,
            error=None,
            duration_ms=5.0,
        )
        ledger.outcomes.settle([Settlement(claim, Delivered(told, Done()))])
        ledger.workers.leave(worker.id)
    return sent.id


def rows(cli: Cli, *more: str) -> dict[str, int]:
    """The counts of one run, without those that are nothing."""
    document: dict[str, Any] = cli.look("db", "prune", *more)
    return {name: count for name, count in document["rows"].items() if count}


def states(cli: Cli) -> dict[str, int]:
    with cli.queue() as wq:
        return {state.value: count for state, count in wq.stores.ledger.questions.counts().states.items() if count}


def test_what_is_beyond_the_settings_is_counted_removed_and_then_there_is_nothing_more(cli: Cli) -> None:
    settled(cli, Done(), days_ago=8, count=2)
    settled(cli, Done(), days_ago=6)
    settled(cli, Dead("no", "no"), days_ago=89)
    settled(cli, Dead("no", "no"), days_ago=91)
    delivered(cli, days_ago=31)
    young = delivered(cli, days_ago=8)

    foreseen = cli.here("db", "prune", "--dry-run")
    untouched = states(cli)
    counted = rows(cli, "--dry-run")
    removed = rows(cli)
    again, twice = cli.here("db", "prune", "--dry-run"), cli.here("db", "prune")

    assert (foreseen.status, foreseen.out.splitlines()[0].split()) == (3, ["table", "would", "be", "removed"])
    assert untouched == {"succeeded": 5, "dead": 2}
    assert counted == removed
    assert {name: removed[name] for name in removed if name not in ("event", "worker")} == {
        "task": 5,
        "webhook": 1,
        "webhook_body": 1,
        "delivery": 1,
        "delivery_attempt": 1,
    }
    assert states(cli) == {"succeeded": 1, "dead": 1}
    assert (again.status, again.out, "nothing is beyond its retention" in again.err) == (0, "", True)
    assert (twice.status, twice.out) == (0, "")
    [kept] = cli.look("webhook", "delivery", "ls")["deliveries"]
    assert kept["webhook_id"] == young
    assert cli.look("webhook", "delivery", "show", kept["id"], "--body")["body"] is None


def test_with_an_age_what_is_open_or_dead_stays(cli: Cli) -> None:
    settled(cli, Done(), days_ago=2)
    settled(cli, Dead("no", "no"), days_ago=2)
    settled(cli, Done(), days_ago=0.1)
    cli.record("shop.add", 1)
    delivered(cli, days_ago=2)

    nothing = rows(cli, "--dry-run", "--older-than", "3d")
    removed = rows(cli, "--older-than", "1d")

    assert nothing.get("task") is None
    assert {name: removed[name] for name in ("task", "webhook", "delivery", "delivery_attempt")} == {
        "task": 2,
        "webhook": 1,
        "delivery": 1,
        "delivery_attempt": 1,
    }
    assert states(cli) == {"ready": 1, "succeeded": 1, "dead": 1}


def test_an_age_that_is_longer_than_the_settings_keeps_more(cli: Cli) -> None:
    settled(cli, Done(), days_ago=8)

    assert rows(cli, "--dry-run", "--older-than", "9d").get("task") is None
    assert rows(cli, "--dry-run")["task"] == 1


def test_the_settings_of_the_environment_say_how_long(cli: Cli) -> None:
    settled(cli, Done(), days_ago=2)
    shorter = {"WORKQ_RETENTION_S": "86400"}
    wrong = cli("db", "prune", env={"WORKQ_RETENTION_S": "1d"})
    contradiction = cli("db", "prune", env={"WORKQ_WEBHOOK_RETENTION_S": "60"})

    removed = cli("db", "prune", "-o", "json", env=shorter)

    assert removed.json()["rows"]["task"] == 1
    assert (wrong.status, "WORKQ_RETENTION_S: need seconds, such as 604800, got '1d'" in wrong.err) == (2, True)
    assert (contradiction.status, "at least as long as their bodies" in contradiction.err) == (2, True)


@pytest.mark.parametrize("age", ["0s", "-1d", "soon", "7"])
def test_an_age_that_is_none_is_a_usage_error(cli: Cli, age: str) -> None:
    ran = cli.here("db", "prune", "--older-than", age)

    assert (ran.status, ran.out) == (2, "")


def test_interrupted_it_says_how_far_it_came_and_the_same_command_ends_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(cli, Done(), days_ago=8, count=1_200)
    pauses = []

    def interrupt(_: float) -> None:
        """Between two pages somebody presses Ctrl-C."""
        pauses.append(1)
        if len(pauses) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(pruning, "time", SimpleNamespace(sleep=interrupt))
    ran = cli.here("db", "prune")
    left = states(cli)
    rest = rows(cli)

    assert (ran.status, ran.out) == (130, "")
    assert "removed so far: 1000 task" in ran.err
    assert "the same command goes on with the others" in ran.err
    assert left == {"succeeded": 200}
    assert rest["task"] == 200
    with cli.queue() as wq:
        events = wq.stores.ledger.questions.happened(["manual"], within_s=DAY_S, limit=9)
    noted = [event.detail for event in events if event.detail.get("what") == "db prune"]
    assert sorted((one["task"], one["which"]["is_whole"]) for one in noted) == [(200, True), (1_000, False)]
    assert {one["why"] for one in noted} == {"pruned by an operator"}


def test_a_supervisor_prunes_seldom_and_at_each_pass_while_there_is_more(cli: Cli) -> None:
    settled(cli, Done(), days_ago=60, count=5)
    with cli.queue() as wq:
        passes = Passes()
        assert [passes.sweep(wq.stores, wq.settings, limit=2).pruned for _ in range(3)] == [2, 2, 1]

        settled(cli, Done(), days_ago=60)
        seldom = [passes.sweep(wq.stores, wq.settings, limit=2).pruned for _ in range(PRUNE_EVERY)]
        assert seldom == [0] * (PRUNE_EVERY - 1) + [1]
