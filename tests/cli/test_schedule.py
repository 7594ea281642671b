"""`workq schedule`: what ticks is listed, told beforehand, run by hand, paused and resumed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.cli.conftest import BOUND_S, SHOP, Cli
from tests.system.fleet import wait_until
from workq.values.incarnation import this_person

SCHEDULES = """
wq.schedule("nightly", add, cron="30 2 * * *", tz="Europe/Berlin", args=(1,), kwargs={"b": 2})
wq.schedule("often", echo.options(queue="sums"), every_s=3600, args=("x",), missed="skip")
"""


@pytest.fixture
def shop(cli: Cli) -> Cli:
    """With schedules, which are in the ledger."""
    (cli.folder / "shop.py").write_text(SHOP + SCHEDULES)
    assert cli("schedule", "sync", app=True).status == 0
    return cli


def named(cli: Cli, name: str) -> dict[str, Any]:
    [found] = [one for one in cli.look("schedule", "ls")["schedules"] if one["name"] == name]
    return dict(found)


def test_the_applications_schedules_are_written_once_and_listed(shop: Cli) -> None:
    again = shop("schedule", "sync", "-o", "json", app=True).json()
    shown = " ".join(shop.here("schedule", "ls").out.split())
    nightly, often = named(shop, "nightly"), named(shop, "often")

    assert again == {"schedules": 2, "changed": [], "others": []}
    assert "30 2 * * *" in shown
    assert (nightly["handler"], nightly["queue"], nightly["payload"]) == ("shop.add", "sums", {"a": [1, 2], "k": {}})
    assert (often["rule"], often["missed"], often["queue"]) == ("every", "skip", "sums")
    assert often["next_at"] > often["next_at"][:4]


def test_workers_write_them_when_they_start(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(SHOP + SCHEDULES)
    cli.here("db", "migrate")
    with cli.start("worker", "-q") as worker:
        wait_until(
            lambda: len(cli.look("schedule", "ls")["schedules"]) == 2, timeout_s=BOUND_S, what="they are written"
        )
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=BOUND_S)


def test_the_next_ticks_are_told_in_both_times(shop: Cli) -> None:
    document = shop.look("schedule", "next", "nightly", "--count", "3")
    shown = shop.here("schedule", "next", "nightly", "--count", "3").out.splitlines()

    assert len(document["next"]) == len(shown) == 3
    assert all("T02:30:00+0" in line for line in shown)
    assert document["last"] == []


def test_one_is_run_by_hand_besides_its_ticks(shop: Cli) -> None:
    before = named(shop, "nightly")["next_at"]

    task_id = shop.look("schedule", "run", "nightly")["id"]
    shop("worker", "--drain", "-q", app=True)

    assert shop.look("task", "show", task_id)["result"] == 3
    assert named(shop, "nightly")["next_at"] == before


def test_it_is_paused_resumed_and_removed(shop: Cli) -> None:
    paused = shop.here("schedule", "pause", "nightly", "--why", "the disk is full")
    told = named(shop, "nightly")["paused"]
    resumed = [shop.here("schedule", "resume", "nightly").out for _ in range(2)]
    removed = shop.here("schedule", "rm", "nightly")
    again = shop.here("schedule", "rm", "nightly")

    assert (paused.status, paused.out) == (0, "paused until it is resumed\n")
    assert (told["who"], told["why"]) == (this_person(), "the disk is full")
    assert resumed == ["resumed\n", "it was not paused\n"]
    assert (removed.status, removed.out) == (0, "removed\n")
    assert again.status == 1
    assert "no schedule 'nightly'; list them with: workq schedule ls" in again.err


@pytest.mark.parametrize("command", [("next",), ("run",), ("resume",), ("pause", "--why", "?")])
def test_one_that_is_not_there_is_told(shop: Cli, command: tuple[str, ...]) -> None:
    ran = shop.here("schedule", command[0], "nobody", *command[1:])

    assert ran.status == 1
    assert "no schedule 'nobody'; list them with: workq schedule ls" in ran.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('wq.schedule("a", "shop.add", every_s=5)', "give the task itself"),
        ('wq.schedule("a", add, args=(1,))', "cron, every_s and at: give one of them"),
        ('wq.schedule("a", add, cron="* * * * *", every_s=5, args=(1,))', "cron, every_s and at: give one of them"),
        ('wq.schedule("a", add, cron="nonsense", args=(1,))', "five fields"),
        ('wq.schedule("a", add, every_s=5)', "missing a required argument: 'a'"),
        ('wq.schedule("no name", add, every_s=5, args=(1,))', "task's name must match"),
        ('wq.schedule("a", add, every_s=5, args=(1,), missed="never")', "missed: need one of skip, once, all"),
        ('wq.schedule("a", add.options(key="k"), every_s=5, args=(1,))', "cannot belong to each of its tasks"),
        ('wq.schedule("a", add.options(delay_s=5), every_s=5, args=(1,))', "cannot belong to each of its tasks"),
        ('wq.schedule("often", add, every_s=5, args=(1,))', "is there twice"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_opened(cli: Cli, line: str, said: str) -> None:
    (cli.folder / "shop.py").write_text(SHOP + SCHEDULES + line + "\n")

    ran = cli("schedule", "sync", app=True)

    assert ran.status == 2
    assert said in ran.err
    assert not (cli.folder / "shop.db").exists()
