"""`workq order`: whose turn it is, and which keys a dead task blocks."""

from __future__ import annotations

from tests.cli.conftest import Cli
from workq.values.task import Dead


def record(cli: Cli, key: str, count: int) -> list[str]:
    with cli.queue() as wq:
        return [wq.handler("shop.add").options(order_key=key).enqueue(1).id for _ in range(count)]


def test_keys_are_listed_with_whose_turn_it_is_and_the_blocked_alone(cli: Cli) -> None:
    first, second = record(cli, "a", 3), record(cli, "b", 1)
    cli.settle(first[:1], Dead("no", "no"))

    every, blocked = cli.look("order", "ls")["keys"], cli.look("order", "ls", "--blocked")["keys"]
    shown = cli("order", "show", "a")
    unknown = cli("order", "show", "c")

    assert [(one["key"], one["turn_of"], one["state"], one["behind"]) for one in every] == [
        ("a", first[0], "dead", 2),
        ("b", second[0], "ready", 0),
    ]
    assert [one["key"] for one in blocked] == ["a"]
    assert blocked[0]["blocked_since"] is not None
    assert every[1]["blocked_since"] is None
    assert shown.status == 0
    assert unknown.status == 1
    assert "no open task has the order key 'c'" in unknown.err


def test_why_says_whom_it_waits_for_and_what_to_do(cli: Cli) -> None:
    [first, second] = record(cli, "a", 2)

    waits = cli.look("why", second)
    cli.settle([first], Dead("no", "no"))
    blocked = cli.look("why", second)

    assert waits["code"] == blocked["code"] == "in_line"
    assert f"it is the turn of task {first}" in waits["reason"]
    assert f"workq task retry {first}" in blocked["do"]


def test_nothing_in_order_is_said_in_words(cli: Cli) -> None:
    cli.here("db", "migrate")
    assert cli("order", "ls").err == "no order key has open tasks\n"
    assert cli("order", "ls", "--blocked").err == "no order key is blocked\n"


def test_the_advice_after_a_death_leads_step_by_step_to_the_next_one_of_the_key(cli: Cli) -> None:
    [first, second] = record(cli, "a", 2)
    cli.settle([first], Dead("no", "no"))

    blocked = cli.look("why", second)
    assert f"workq dead discard {first}" in blocked["do"]
    assert cli.here("dead", "discard", first).status == 0

    given_up, listed = cli.look("why", second), cli.here("order", "ls")
    assert given_up["code"] == "in_line"
    assert f"task {first}, which came before it in order key 'a', has ended (cancelled)" in given_up["reason"]
    assert first not in given_up["do"], "why it is cancelled, and how to bring it back, helps nobody here"
    assert "workq sweep" in given_up["do"]
    assert "1 key goes on with the next sweep" in listed.err
    assert [one["moves_on"] for one in cli.look("order", "ls")["keys"]] == [True]
    assert cli.here("sweep").status == 0

    swept, moved = cli.look("why", second), cli.look("order", "show", "a")
    assert swept["code"] == "no_worker"
    assert (moved["turn_of"], moved["state"], moved["moves_on"]) == (second, "ready", False)
    assert cli("worker", "--drain", app=True).status == 0
    assert cli.look("why", second)["reason"].startswith("it succeeded")
