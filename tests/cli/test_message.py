"""`workq message`: destinations, what is sent to them, and what people decide; no password is shown."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import select

from tests.cli.conftest import Cli
from tests.system.box import Box
from workq.config.urls import masked
from workq.messages.destinations import Destinations
from workq.messages.kinds import registry
from workq.messages.ledger.sql import MessageLedger
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Done, Outcome, Settlement

CANARY = "swordfish-4711"
URL = f"amqp://app:{CANARY}@127.0.0.1:5672/"


class Known(Box):
    """A box that has a URL, too."""

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in super().check(options).items() if name != "url"}
        return given | ({"url": masked(options["url"])} if "url" in options else {})


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KINDS", {**registry.KINDS, "box": Known})


def add(cli: Cli, name: str = "orders", *more: str) -> Any:
    ran = cli.here(
        *("message", "destination", "add", name, "--kind", "box", "--option", f"folder={cli.folder}", "-o", "json"),
        *more,
    )
    assert ran.status == 0, ran
    return ran.json()


def send(cli: Cli, *more: str) -> Any:
    ran = cli.here("message", "send", "orders", *more, "-o", "json")
    assert ran.status == 0, ran
    return ran.json()


def settle(cli: Cli, message_ids: list[str], outcome: Outcome) -> None:
    """A worker has sent these, to this outcome."""
    me = Incarnation.of_this_process()
    with cli.queue() as wq:
        ledger = wq.stores.ledger
        ledger.workers.join(me, queues=["workq.messages"], threads=1)
        rows = [ledger.part(MessageLedger).letters.message(one) for one in message_ids]
        claims = ledger.claims.claim([row.task_id for row in rows if row is not None], by=me.id)
        ledger.outcomes.settle([Settlement(claim, outcome) for claim in claims])
        ledger.workers.leave(me.id)


def test_a_destination_is_added_shown_tried_and_removed_and_its_password_is_never_shown(cli: Cli) -> None:
    (cli.folder / "url").write_text(f"{URL}\n")

    made = add(cli, "orders", "--url-file", "url", "--rate", "10/s", "--levels", "5s,1m")
    shown = [cli.here("message", "destination", *one) for one in (("ls",), ("show", "orders"))]
    shown += [cli.here("message", "destination", "ls", "-o", "json")]
    tried = cli.here("message", "destination", "test", "orders")
    again = cli.here("message", "destination", "add", "orders", "--kind", "box", "--option", "folder=/else")
    unknown = cli.here("message", "destination", "add", "x", "--kind", "pigeon")
    both = cli.here("message", "destination", "add", "x", "--kind", "box", "--url", URL, "--url-file", "url")
    refused = cli.here("message", "destination", "rm", "orders")
    removed = cli.here("message", "destination", "rm", "orders", "--yes")

    assert (made["options"]["url"], made["rate"], made["levels"]) == (
        "amqp://app:***@127.0.0.1:5672/",
        "10/s",
        [5.0, 60.0],
    )
    assert all(ran.status == 0 and "orders" in ran.out for ran in shown)
    assert not any(CANARY in ran.out + ran.err for ran in (*shown, tried, again, both))
    assert (tried.status, tried.out) == (0, "a message would arrive\n")
    assert (again.status, "is there already" in again.err) == (1, True)
    assert (unknown.status, "need one of amqp, box" in unknown.err, both.status) == (2, True, 2)
    assert (refused.status, removed.status) == (6, 0)
    assert cli.look("message", "destination", "ls") == {"destinations": []}


def test_an_edit_changes_what_is_given_alone_and_says_who_and_why(cli: Cli) -> None:
    made = add(cli, "orders", "--url", URL, "--rate", "5/s", "--levels", "5s,30s")
    edit = ("message", "destination", "edit", "orders")
    cli.here(
        "message",
        "destination",
        "add",
        "mail",
        "--kind",
        "call",
        "--handler",
        "shop.send",
        "--why",
        "mails go out again",
    )

    changed = cli.look(*edit, "--rate", "9/s", "--timeout", "3", "--without", "levels", "--why", "they are slow")
    moved = cli.look(*edit, "--option", "folder=/else")
    refused = [
        cli.here(*edit, *one)
        for one in ((), ("--rate", "5"), ("--rate", "5/s", "--without", "rate"), ("--option", "colour=red"))
    ]
    refused += [
        cli.here(*edit, "--option", "kind=amqp"),
        cli.here("message", "destination", "edit", "x", "--rate", "1/s"),
        cli.here(*edit[:-1], "mail", "--without", "concurency"),
        cli.here(*edit, "--without", "why"),
        cli.here(*edit, "--option", "why=x"),
    ]

    wanted = made | {"rate": "9/s", "timeout_s": 3.0, "levels": []}
    assert changed == wanted
    assert moved == wanted | {"options": made["options"] | {"folder": "/else"}}
    assert [one.status for one in refused] == [2, 2, 2, 2, 2, 1, 2, 2, 2]
    assert "concurency: is no option of the kind call" in refused[6].err
    assert all("why: is no option" in one.err for one in refused[7:])
    assert "kind: that of a destination stays" in refused[4].err
    assert CANARY not in str((changed, moved, [one.err for one in refused]))
    with cli.queue() as wq:
        row = wq.stores.ledger.part(MessageLedger).destinations.required("orders")
        assert Destinations(wq).vault.open_url(row.sealed or "") == URL
        e = wq.stores.ledger.database.tables.event
        found = wq.stores.ledger.database.ask(
            lambda tx: tx.execute(select(e.c.detail).where(e.c.kind == "manual")).all()
        )
    details = [json.loads(row.detail) for row in found]
    assert [(one["what"], one["why"]) for one in details] == [
        ("destination orders added", "added by an operator"),
        ("destination mail added", "mails go out again"),
        ("destination orders edited: levels, rate, timeout_s", "they are slow"),
        ("destination orders edited: folder", "edited by an operator"),
    ]


def test_a_destination_that_would_not_take_a_message_says_why(cli: Cli) -> None:
    ran = cli.here("message", "destination", "add", "orders", "--kind", "box", "--option", "folder=/not/there")
    tried = cli.here("message", "destination", "test", "orders", "-o", "json")

    assert ran.status == 0
    assert tried.status == 1
    assert tried.json() == {"name": "orders", "ok": False, "problems": ["/not/there is not there"]}


def test_urls_are_sealed_anew_with_the_first_key_and_doctor_tells_of_those_that_are_not(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cryptography.fernet import Fernet

    add(cli, "orders", "--url", URL)
    before = cli.here("doctor")
    monkeypatch.setenv("WORKQ_SECRET_KEY", Fernet.generate_key().decode())

    sealed = cli.look("message", "destination", "seal")

    with sqlite3.connect(cli.folder / "shop.db") as connection:
        stored = "\n".join(connection.iterdump())
    assert sealed == {"destinations": 1, "intakes": 0, "encrypted": True}
    assert CANARY not in stored
    assert "workq message destination seal" in before.out
    assert "message destination seal" not in cli.here("doctor").out


def test_messages_are_sent_listed_and_shown(cli: Cli) -> None:
    add(cli)
    first = send(cli, "hello", "--key", "k", "--header", "trace=1", "--id", "first")
    again = send(cli, "other", "--id", "first")
    later = send(cli, '{"id": 17}', "--json", "--in", "1h")

    listed = cli.look("message", "ls", "--to", "orders")
    waiting = cli.look("message", "ls", "--state", "waiting")
    shown = cli.look("message", "show", "first", "--body")
    table = cli.here("message", "ls")

    assert (first["created"], again["created"], again["task_id"]) == (True, False, first["task_id"])
    assert [one["id"] for one in listed["messages"]] == [later["id"], "first"]
    assert listed["counts"] == {"ready": 1, "waiting": 1}
    assert [one["id"] for one in waiting["messages"]] == [later["id"]]
    assert (shown["body"], shown["key"], shown["headers"], shown["state"]) == ("hello", "k", {"trace": "1"}, "ready")
    assert "first" in table.out
    assert cli.here("message", "show", "none").status == 1
    assert cli.here("message", "ls", "--to", "nowhere").status == 1
    assert cli.here("message", "send", "nowhere", "x").status == 1


def test_lines_are_sent_all_or_none(cli: Cli) -> None:
    add(cli)
    good = [{"body": "a"}, {"body": {"n": 1}, "delay_s": 60, "key": "k"}, {"body": "c", "at": "2030-01-01T00:00:00Z"}]
    (cli.folder / "good").write_text("\n".join(json.dumps(one) for one in good) + "\n\n")
    wrong = {
        "none": "x",
        "list": "[]",
        "no_body": "{}",
        "unknown": '{"body": 1, "to": "x"}',
        "at": '{"body":1,"at":"tomorrow"}',
    }
    for name, line in wrong.items():
        (cli.folder / name).write_text(f'{{"body": "fine"}}\n{line}\n')

    refused = {name: cli.here("message", "send", "orders", "--lines", name) for name in (*wrong, "missing")}
    sent = send(cli, "--lines", "good")
    (cli.folder / "known").write_text('{"body": "a", "message_id": "a"}\n{"body": "b", "message_id": "b"}\n')
    first, again = (cli.here("message", "send", "orders", "--lines", "known").out for _ in range(2))
    piped = cli("message", "send", "orders", "--lines", "-", "-o", "json", stdin='{"body": "d"}\n')

    assert {name: ran.status for name, ran in refused.items()} == dict.fromkeys(refused, 2)
    assert all("2" in ran.err for name, ran in refused.items() if name != "missing")
    assert len(sent["messages"]) == 3
    assert len(piped.json()["messages"]) == 1
    assert (first.strip(), again.strip()) == ("2 messages recorded", "0 messages recorded; sent before: 2")
    assert len(cli.look("message", "ls")["messages"]) == 6


def test_what_is_too_large_or_no_json_is_refused(cli: Cli) -> None:
    add(cli)
    (cli.folder / "big").write_text(json.dumps({"body": "x" * (256 * 1024 + 1)}))

    assert cli.here("message", "send", "orders", "--lines", "big").status == 2
    assert cli.here("message", "send", "orders", "{", "--json").status == 2
    assert cli.here("message", "send", "orders").status == 2
    assert cli.here("message", "send", "orders", "x", "--header", "workq-id=1").status == 2
    assert cli.look("message", "ls")["messages"] == []


def test_people_decide_about_single_messages_with_who_and_why(cli: Cli) -> None:
    add(cli)
    ids = [send(cli, str(number), "--in", "1h")["id"] for number in range(3)]

    cancelled = cli.look("message", "cancel", ids[0], "none", "--why", "sent twice")
    moved = cli.look("message", "reschedule", ids[1], "--at", "2030-01-01T00:00Z")
    hastened = cli.look("message", "reschedule", ids[2], "--in", "1ms")
    retried = cli.look("message", "retry", ids[0])

    assert [(one["id"], one["ok"]) for one in cancelled["results"]] == [(ids[0], True), ("none", False)]
    assert moved["results"][0]["result"] == "waiting"
    assert hastened["results"][0]["ok"]
    assert retried["results"] == [{"id": ids[0], "ok": True, "result": "waiting"}], "its time is still to come"
    history = cli.look("message", "show", ids[0])["history"]
    assert [(one["kind"], one["detail"].get("reason") or one["detail"].get("why")) for one in history] == [
        ("cancelled", "sent twice"),
        ("revived", "retried by an operator"),
    ]
    assert cli.look("message", "show", ids[1])["due_at"] == "2030-01-01T00:00:00.000Z"
    cli.here("message", "cancel", ids[1])
    refused = cli.here("message", "reschedule", ids[1], "--in", "1h")
    assert ids[1] in refused.err + refused.out
    assert "workq message restore" in refused.err + refused.out


def test_a_restore_counts_asks_and_sends_again_what_has_arrived_or_is_dead(cli: Cli) -> None:
    add(cli)
    ids = [send(cli, str(number))["id"] for number in range(4)]
    settle(cli, ids[:2], Done())
    settle(cli, ids[2:3], Dead("not retried: NotTaken", "too large"))

    counted = cli.here("message", "restore", "--to", "orders", "--dry-run", "-o", "json")
    expired = cli.here("message", "restore", "--to", "orders", "--expired", "--dry-run", "-o", "json")
    refused = cli.here("message", "restore", "--to", "orders")
    none = cli.look("message", "restore", "--to", "orders", "--until", "1h", "--yes")
    done = cli.look("message", "restore", "--to", "orders", "--since", "1h", "--yes", "--why", "their disk is gone")

    assert (counted.status, counted.json()) == (3, {"sent_again": 3, "made_due": 0, "dry_run": True})
    assert expired.json()["sent_again"] == 1
    assert (refused.status, "3 messages would be sent again" in refused.err) == (6, True)
    assert (none["sent_again"], done["sent_again"]) == (0, 3)
    rows = {one["id"]: one for one in cli.look("message", "ls")["messages"]}
    assert [(rows[one]["state"], rows[one]["sending"]) for one in ids] == [("ready", 2)] * 3 + [("ready", 1)]


def test_the_meters_tell_how_messages_ended_and_how_late(cli: Cli) -> None:
    add(cli)
    ids = [send(cli, str(number))["id"] for number in range(4)]
    settle(cli, ids[:2], Done())
    settle(cli, ids[2:3], Dead("not retried: NotTaken", "too large"))

    found, table = cli.look("meters")["messages"], cli.here("meters")

    assert (found["outcomes"], found["attempts"], found["complete"]) == ({"succeeded": 2, "dead": 1}, {"1": 2}, True)
    assert (found["late"]["count"], found["late"]["p50_s"] < 60.0) == (2, True)
    assert "2 in 1 attempt" in table.out


def test_clear_wants_its_count_confirmed(cli: Cli) -> None:
    add(cli)
    for number in range(3):
        send(cli, str(number), "--in", "1h")

    counted = cli.here("message", "clear", "--to", "orders", "--dry-run", "-o", "json")
    refused = [
        cli.here("message", "clear", "--to", "orders"),
        cli.here("message", "clear", "--to", "orders", "--yes", "--confirm", "2"),
    ]
    done = cli.look("message", "clear", "--to", "orders", "--yes", "--confirm", "3", "--why", "obsolete")

    assert (counted.status, counted.json()) == (3, {"to": "orders", "cancelled": 3, "dry_run": True})
    assert (refused[0].status, "3 messages would be cancelled" in refused[0].err) == (6, True)
    assert (refused[1].status, "2 were confirmed" in refused[1].err) == (6, True)
    assert done["cancelled"] == 3
    assert cli.look("message", "ls")["counts"] == {"cancelled": 3}


def test_disabled_and_enabled_is_said_where_people_look(cli: Cli) -> None:
    add(cli)
    sent = send(cli, "x")
    cli.here("message", "destination", "disable", "orders", "--why", "they are moving")
    settle(cli, [sent["id"]], Done())  # nothing is claimed

    waits, text = cli.look("message", "show", sent["id"]), cli.here("message", "show", sent["id"]).out
    task = cli.look("task", "show", sent["task_id"])
    shown, status, doctor = cli.look("message", "destination", "show", "orders"), cli.look("status"), cli.here("doctor")
    why = cli.here("why", cli.look("message", "ls")["messages"][0]["task_id"])
    enabled = cli.look("message", "destination", "enable", "orders")

    assert (shown["state"], shown["why"], shown["messages"], shown["overdue"]) == (
        "disabled",
        "they are moving",
        {"waiting": 1},
        1,
    )
    assert (shown["in_line"], waits["waits_for"], waits["next_at"], task["waits_for"]) == (
        1,
        "destination",
        None,
        "destination",
    )
    assert re.search(r"waits_for: +destination", text)
    told = [(one["name"], one["state"], one["in_line"]) for one in status["destinations"]]
    assert told == [("orders", "disabled", 1)]
    assert "destination 'orders' is disabled" in doctor.out
    assert "destination 'orders'" in why.out
    assert enabled == {"name": "orders", "state": "enabled", "due": 1}
    assert cli.look("status")["destinations"] == []
