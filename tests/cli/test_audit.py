"""workq audit: what it prints, and how it ends."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, update

from tests.cli.conftest import Cli
from tests.stores import database_of
from workq.app import WorkQueue
from workq.broker import Hint
from workq.messages.intake.values import NewIntake
from workq.messages.ledger.sql import MessageLedger
from workq.messages.ledger.tables import message_tables
from workq.messages.sender import MessageSender
from workq.messages.values import DestinationPolicy, NewDestination
from workq.values.incarnation import this_person

QUICK = """
from workq import Times, WorkQueue

wq = WorkQueue(times=Times().divided_by(20))

@wq.task(name="shop.add", queue="sums")
def add(a: int, b: int = 0) -> int:
    return a + b
"""
"""The shop with fast times: the second look is a third of a second after the first."""
KEYS = ["ok", "tasks", "lost", "ghosts", "twins", "orphans", "miscounts", "overdue", "findings"]
"""What monitoring reads: these come first, and in this order."""


@pytest.fixture
def quick(cli: Cli) -> Cli:
    (cli.folder / "quick.py").write_text(QUICK)
    cli.env["WORKQ_APP"] = "quick:wq"
    return cli


def purge(wq: WorkQueue) -> None:
    """The embedded broker loses every hint."""
    database = database_of(wq)
    database.run(lambda tx: tx.execute(delete(database.tables.hint)))


def lose(cli: Cli, count: int) -> list[str]:
    """So many tasks whose hints are lost. They are due for longer than a hint may be on its way."""
    with cli.queue() as wq:
        database = database_of(wq)
        database.clock_offset_s = -10.0
        ids = [wq.handler("shop.add").enqueue(1).id for _ in range(count)]
        purge(wq)
    return ids


def test_a_healthy_queue_is_ok_and_exits_0(quick: Cli) -> None:
    quick.record("shop.add", 1, count=3)

    ran = quick("audit", "-o", "json")

    assert ran.status == 0
    document = ran.json()
    assert list(document)[: len(KEYS)] == KEYS
    assert {name: document[name] for name in KEYS} == {
        "ok": True, "tasks": 3, "lost": 0, "ghosts": 0, "twins": 0, "orphans": 0, "miscounts": 0, "overdue": 0,
        "findings": [],
    }  # fmt: skip
    nowhere = dict.fromkeys(("unpublished", "waiting", "held", "running", "expired"), 0)
    assert document["places"] == nowhere | {"broker": 3}


def test_messages_and_ways_in_that_do_not_match_are_findings(quick: Cli) -> None:
    with quick.queue() as wq:
        part, database = wq.stores.ledger.part(MessageLedger), database_of(wq)
        part.destinations.add_destination(
            NewDestination("orders", "call", {}, None, DestinationPolicy()), who="eve@here", why="a test"
        )
        part.intakes.add_intake(NewIntake("in", "kafka", {"topic": "t"}, None, "orders"), who="eve@here", why="a test")
        sent = MessageSender(wq).send_many("orders", [{"body": "a", "delay_s": 60}, {"body": "b", "delay_s": 60}])
        healthy = quick("audit", "-o", "json").json()
        t, m, i = database.tables.task, message_tables(database).message, message_tables(database).intake
        database.written(delete(t).where(t.c.id == sent[0].task_id))
        database.written(delete(m).where(m.c.id == sent[1].id))
        database.written(update(i).values(kept=3))

    ran, other = quick("audit", "-o", "json"), quick("audit", "--queue", "sums", "-o", "json")
    mended = quick("audit", "--repair", "-o", "json").json()

    assert (healthy["mismatches"], other.json()["mismatches"], ran.status) == (0, 0, 3)
    found = ran.json()
    assert (found["mismatches"], {one["kind"] for one in found["findings"]}) == (3, {"mismatch"})
    assert [one["task"] for one in found["findings"]] == [sent[0].task_id, sent[1].task_id, "in"]
    assert found["findings"][2]["proof"] == "of way in in, 3 messages should be there, and there are 0"
    assert mended["repaired"] == {}


def test_findings_are_told_with_their_proof_and_exit_3_and_nothing_is_changed(quick: Cli) -> None:
    ids = lose(quick, 2)

    first, second = quick("audit", "-o", "json"), quick("audit", "-o", "json")

    assert (first.status, second.status) == (3, 3)
    document = first.json()
    assert (document["ok"], document["tasks"], document["lost"]) == (False, 2, 2)
    assert {one["task"] for one in document["findings"]} == set(ids)
    [one, _] = document["findings"]
    assert (one["kind"], one["queue"], one["repair"]) == ("lost", "sums", "publish its hint again")
    assert "its hint was confirmed at" in one["proof"]
    assert "none of the 0 hints in queue sums is its own" in one["proof"]
    assert second.json()["lost"] == 2
    assert "repaired" not in document


def test_a_repair_says_what_it_did_and_a_second_one_finds_nothing_to_do(quick: Cli) -> None:
    ids = lose(quick, 2)

    first, second = quick("audit", "--repair", "-o", "json"), quick("audit", "--repair", "-o", "json")

    assert (first.status, second.status) == (3, 0)
    assert first.json()["repaired"] == {"lost": 2}
    assert (second.json()["ok"], second.json()["repaired"], second.json()["places"]["broker"]) == (True, {}, 2)
    [event] = quick.look("task", "show", ids[0])["history"]
    assert (event["kind"], event["detail"]["by"], event["detail"]["audit"]) == ("manual", this_person(), "lost")


def test_the_table_shows_places_then_twenty_findings_then_what_to_do(quick: Cli) -> None:
    ids = lose(quick, 23)
    quick.record("shop.add", 1)

    ran = quick("audit", env={"COLUMNS": "400"})

    lines = ran.out.splitlines()
    assert ran.status == 3
    assert lines[0].split() == ["place", "tasks"]
    assert ["broker", "1"] in [line.split() for line in lines]
    assert ["lost", "23"] in [line.split() for line in lines]
    assert sum(task_id in ran.out for task_id in ids) == 20
    assert "... and 3 more: -o json lists them all" in lines
    assert lines[-1].startswith("mend it: workq audit --repair")
    assert ran.err in {f"suspicious: 23 things; looking again in {seconds} s\n" for seconds in (0, 1)}


def test_what_cannot_be_proved_in_time_exits_5_and_says_what_to_do(quick: Cli) -> None:
    lose(quick, 2)
    with quick.queue() as wq:
        stale = wq.handler("shop.add").enqueue(1).id
        wq.cancel(stale)
        wq.stores.broker.publish([Hint("sums", (stale,))] * 600, deadline_s=20)

    ran = quick("audit", "--wait", "0.001s")
    document = quick("audit", "--wait", "0.001s", "-o", "json").json()

    assert ran.status == 5
    assert ran.out.splitlines()[-1].startswith("unproven: ")
    assert "workq audit --scan --queue sums" in ran.out
    assert not document["ok"]
    assert document["unproven"] == {"sums": 2}
    assert document["findings"] == []


def test_one_queue_alone(quick: Cli) -> None:
    lose(quick, 1)

    other, sums = quick("audit", "--queue", "other"), quick("audit", "--queue", "sums", "-o", "json")

    assert other.status == 0
    assert sums.status == 3
    assert list(sums.json()["queues"]) == ["sums"]
    assert quick("audit", "--queue", "no such name").status == 2


@pytest.mark.parametrize(
    ("name", "url"),
    [("WORKQ_BROKER_URL", "amqp://u:canary-pw@127.0.0.1:1/"), ("WORKQ_INFLIGHT_URL", "redis://127.0.0.1:1")],
)
def test_a_store_that_is_away_exits_4_with_one_line(cli: Cli, name: str, url: str) -> None:
    cli.record("shop.add", 1)

    ran = cli("audit", "-o", "json", env={name: url})

    assert ran.status == 4
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1
    assert "canary-pw" not in ran.err
