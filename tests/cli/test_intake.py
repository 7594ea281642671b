"""`workq intake`: added, looked at, forgotten; what is wrong with one is said, and no password is."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from tests.cli.conftest import Cli
from workq.messages.intake.values import CancelOf, OffsetMove
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import DestinationPolicy, NewDestination
from workq.values.incarnation import this_person

CANARY = "geheim-4711"
URL = f"amqp://app:{CANARY}@127.0.0.1:5672/"


def add(cli: Cli, name: str = "shop", *more: str) -> Any:
    return cli.here("intake", "add", name, "--kind", "kafka", "--url", "kafka://127.0.0.1", "--topic", "later", *more)


def test_a_way_in_is_added_shown_and_forgotten_and_its_password_is_never_shown(cli: Cli) -> None:
    (cli.folder / "url").write_text(f"{URL}\n")
    with cli.queue() as wq:
        orders = NewDestination("orders", "call", {}, None, DestinationPolicy())
        wq.stores.ledger.part(MessageLedger).destinations.add_destination(orders, who="eve@here", why="a test")

    made = cli.here(
        "intake",
        "add",
        "mail",
        "--kind",
        "amqp",
        "--url-file",
        "url",
        "--queue",
        "q",
        "--to",
        "orders",
        "--why",
        "mails",
    )
    other = add(cli, "shop", "--option", "group=g", "-o", "json")
    shown = [cli.here("intake", *one) for one in (("ls",), ("show", "mail"), ("ls", "-o", "json"))]
    refused = cli.here("intake", "rm", "mail")
    removed = cli.here("intake", "rm", "mail", "--yes")

    assert (made.status, other.status) == (0, 0)
    assert other.json()["options"] == {
        "url": "kafka://127.0.0.1:9092",
        "topic": "later",
        "protocol": "consumer",
        "group": "g",
        "quarantine": "later.quarantine",
    }
    assert all(ran.status == 0 and "mail" in ran.out for ran in shown)
    assert not any(CANARY in ran.out + ran.err for ran in (made, *shown))
    assert (refused.status, removed.status) == (6, 0)
    assert [one["name"] for one in cli.look("intake", "ls")["intakes"]] == ["shop"]
    with cli.queue() as wq:
        events = wq.stores.ledger.questions.happened(["manual"], within_s=600.0, limit=9)
    assert [event.detail for event in events[1:]] == [
        {"what": f"intake {what}", "who": this_person(), "why": why}
        for what, why in (
            ("mail added", "mails"),
            ("shop added", "added by an operator"),
            ("mail removed", "removed by an operator"),
        )
    ]
    assert CANARY not in str(events)


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        ("add x --kind pigeon", 2, "need one of amqp, kafka"),
        ("add x --kind kafka --topic t", 2, "url: is missing"),
        ("add x --kind kafka --url kafka://127.0.0.1", 2, "topic: is missing"),
        ("add x --kind kafka --url kafka://127.0.0.1 --topic t --queue q", 2, "queue: is no option of the kind kafka"),
        ("add x --kind amqp --url amqp://127.0.0.1 --queue q --option quarantine=q", 2, "need another queue"),
        ("add x --kind kafka --url kafka://127.0.0.1 --topic t --to nowhere", 1, "no destination 'nowhere'"),
        ("add shop --kind kafka --url kafka://127.0.0.1 --topic other", 1, "intake 'shop' is there already"),
        *(
            (f"add x --kind amqp --url amqp://127.0.0.1 --queue q --option {name}=d", 2, f"{name}: is no option")
            for name in ("name", "kind", "self", "to")
        ),
        ("show none", 1, "no intake 'none'"),
        ("run none", 1, "no intake 'none'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(cli: Cli, args: str, status: int, said: str) -> None:
    add(cli)

    ran = cli.here("intake", *args.split())

    assert (ran.status, said in ran.err, ran.err.count("\n")) == (status, True, 1), ran


def test_without_ways_in_there_is_nothing_to_run(cli: Cli) -> None:
    cli.here("db", "migrate")

    ran = cli.here("intake", "run")

    assert (ran.status, "no ways in; add one: workq intake add NAME" in ran.err) == (1, True)


def test_status_and_doctor_tell_of_ways_in_that_are_not_read_or_whose_records_cannot_be(cli: Cli) -> None:
    add(cli)
    before = cli.look("status")["intakes"]
    with cli.queue() as wq:
        part = wq.stores.ledger.part(MessageLedger)
        position = part.taken.take_partition("shop", "later", 0, owner="w")
        part.taken.record(
            "shop", [], owner="w", moves=[OffsetMove("later", 0, position.epoch, 1)], unreadable=["no time"]
        )
        part.intakes.failed("shop", "nothing listens")

    [told] = cli.look("status")["intakes"]
    seen = cli.here("status").out
    said = " ".join(cli.here("doctor").out.split())

    assert before == []
    assert (told["name"], told["error"], told["quarantined"]) == ("shop", "nothing listens", 1)
    assert "Ways in that cannot be read" in seen
    assert "no live process takes in from shop" in said
    assert "nothing listens" in said
    assert "has put 1 record into quarantine" in said


def test_the_urls_of_ways_in_are_sealed_with_the_first_key(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.fernet import Fernet

    cli.here("intake", "add", "mail", "--kind", "amqp", "--url", URL, "--queue", "q")
    before = cli.here("doctor").out
    monkeypatch.setenv("WORKQ_SECRET_KEY", Fernet.generate_key().decode())

    sealed = cli.look("message", "destination", "seal")

    with sqlite3.connect(cli.folder / "shop.db") as connection:
        assert CANARY not in "\n".join(connection.iterdump())
    assert sealed == {"destinations": 0, "intakes": 1, "encrypted": True}
    assert "workq message destination seal" in before
    assert "message destination seal" not in cli.here("doctor").out


def test_the_meters_and_the_lag_name_each_way_in(cli: Cli) -> None:
    add(cli)
    with cli.queue() as wq:
        part = wq.stores.ledger.part(MessageLedger)
        position = part.taken.take_partition("shop", "later", 0, owner="reader")
        move = OffsetMove("later", 0, position.epoch, 3)
        part.taken.record("shop", [CancelOf("a"), CancelOf("b")], owner="reader", moves=[move], unreadable=["why"])

    counts = {"recorded": 0, "duplicates": 0, "cancelled": 2, "quarantined": 1}
    assert cli.look("meters")["messages"]["intakes"] == [{"name": "shop", **counts}]
    assert [line.split() for line in cli.here("meters").out.splitlines()][-1] == ["shop", "0", "0", "2", "1"]
    for found in (cli.look("intake", "show", "shop"), *cli.look("intake", "ls")["intakes"]):
        assert (found["lag"], "127.0.0.1" in found["lag_unknown"]) == (None, True)
    assert "lag: unknown: " in " ".join(cli.here("intake", "show", "shop").out.split())
    assert "shop: what waits is unknown: " in cli.here("intake", "ls").err
    peeked = cli.here("intake", "peek", "shop")
    assert (peeked.status in (1, 4), "127.0.0.1" in peeked.err) == (True, True)
