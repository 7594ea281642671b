"""What is said to a person in small things: names that are not known, what asks first, what cannot be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import pytest

from tests.cli.conftest import BOUND_S, Cli, Ran
from tests.cli.test_usage import commands
from tests.cli.test_webhook_endpoints import tried
from workq.app import WorkQueue
from workq.application import load_app
from workq.diagnose.doctor.check import line
from workq.errors import ConfigError, InFlightUnavailable
from workq.messages.intake.values import NewIntake
from workq.messages.ledger.sql import MessageLedger
from workq.messages.sender import MessageSender
from workq.messages.values import DestinationPolicy, NewDestination
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Settlement
from workq.webhooks.ledger.sql import WebhookLedger

URL: Final = "https://example.org/hooks"
APP: Final = "from workq import WorkQueue\nwq = WorkQueue(ledger='sqlite:///code.db')\n"


class TestUnknownQueue:
    def test_a_queue_that_nothing_uses_is_warned_of_and_the_nearest_is_proposed(self, cli: Cli) -> None:
        cli.record("shop.add", 1)

        for act in ("pause", "drain"):
            ran = cli.here("queue", act, "smus", "--why", "?")
            assert ran.status == 0
            assert "uses the queue 'smus'; did you mean 'sums'?" in ran.err
            cli.here("queue", "resume", "smus")
        for one in ("resume smus", "show sumz~low", "purge smus --yes"):
            assert "; did you mean 'sums'?" in cli.here("queue", *one.split()).err
        for one in ("pause sums --why ?", "show sums~low", "resume sums", "purge sums --dry-run"):
            assert "did you mean" not in cli.here("queue", *one.split()).err

    def test_a_task_for_another_queue_than_the_codes_is_recorded_and_a_near_one_proposed(self, cli: Cli) -> None:
        near = cli("enqueue", "shop.add", "a=1", "--queue", "smus", app=True)
        other = cli("enqueue", "shop.add", "a=1", "--queue", "reports", app=True)

        assert (near.status, "did you mean 'sums'?" in near.err) == (0, True)
        assert (other.status, other.err) == (0, "")


ASKS: Final[dict[str, tuple[str, Callable[[Cli], object]]]] = {
    "task cancel --all": ("1 task (1 ready) would be cancelled", lambda cli: cli.record("shop.add", 1)),
    "queue purge sums": ("1 task (1 ready) would be cancelled", lambda cli: cli.record("shop.add", 1)),
    "dead retry --all": ("1 dead task would be sent back", lambda cli: cli.kill()),
    "dead discard --all": ("1 dead task would be discarded", lambda cli: cli.kill()),
    "webhook endpoint rm acme": ("acme and its 0 deliveries would be forgotten", lambda _: None),
    "webhook endpoint discard acme": ("1 delivery would be discarded", lambda cli: hold(cli)),
    "webhook recover acme --since 1h": ("1 delivery would be sent again", lambda cli: exhaust(cli)),
    "webhook replay --since 1h": ("1 delivery would be sent again", lambda cli: exhaust(cli)),
    "message destination rm orders": ("destination orders would be forgotten", lambda cli: orders(cli)),
    "intake rm orders": ("intake orders, and how far it was read, would be forgotten", lambda cli: way_in(cli)),
    "message restore --to orders": ("1 message would be sent again", lambda cli: orders(cli, arrived=1)),
    "message clear --to orders": ("1 message would be cancelled", lambda cli: orders(cli, waiting=1)),
    "rebuild": ("hints for 1 task would be sent again", lambda cli: cli.record("shop.add", 1)),
    "sweep --apply": ("", lambda _: None),  # in tests/cli/test_sweep_plan.py
}
"""All that gives up or sends again what it was not told one by one, or forgets what cannot be made again."""


def way_in(cli: Cli) -> None:
    with cli.queue() as wq:
        wq.stores.ledger.part(MessageLedger).intakes.add_intake(
            NewIntake("orders", "amqp", {"queue": "q"}, None), who="eve@here", why="a test"
        )


def orders(cli: Cli, *, arrived: int = 0, waiting: int = 0) -> None:
    """A destination, and messages that have arrived there, or are to be sent in an hour."""
    me = Incarnation.of_this_process()
    with cli.queue() as wq:
        ledger = wq.stores.ledger
        new = NewDestination("orders", "call", {}, None, DestinationPolicy())
        ledger.part(MessageLedger).destinations.add_destination(new, who="eve@here", why="a test")
        sender = MessageSender(wq)
        for _ in range(waiting):
            sender.send("orders", "later", delay_s=3600.0)
        sent = [sender.send("orders", "now").task_id for _ in range(arrived)]
        ledger.workers.join(me, queues=["workq.messages"], threads=1)
        ledger.outcomes.settle([Settlement(claim, Done()) for claim in ledger.claims.claim(sent, by=me.id)])
        ledger.workers.leave(me.id)


def hold(cli: Cli) -> None:
    cli.here("webhook", "send", "a.b")
    cli.here("webhook", "endpoint", "disable", "acme", "--why", "?")
    cli.here("sweep")


def exhaust(cli: Cli) -> None:
    cli.here("webhook", "send", "a.b")
    [delivery] = cli.look("webhook", "delivery", "ls")["deliveries"]
    tried(cli, delivery["id"], error_class="server_error")


def standing(wq: WorkQueue) -> list[tuple[str, str]]:
    """All tasks and endpoints, with their states."""
    ledger = wq.stores.ledger
    return [(one.id, one.state) for one in ledger.questions.tasks()] + [
        (one.id, one.state) for one in ledger.part(WebhookLedger).endpoints.all()
    ]


class TestConfirmation:
    def test_every_command_with_yes_is_in_the_table_and_has_the_same_help(self) -> None:
        asking = {
            " ".join(path): option.help
            for path, command in commands()
            for option in command.params
            if isinstance(option, click.Option) and "--yes" in option.opts
        }

        paths = {
            one.partition(" --")[0].removesuffix(" sums").removesuffix(" acme").removesuffix(" orders") for one in ASKS
        }
        assert paths == set(asking)
        assert all("do not ask" in (text or "") for text in asking.values()), asking

    @pytest.mark.parametrize("command", [one for one in ASKS if not one.startswith("sweep")])
    def test_where_nobody_can_answer_it_changes_nothing_and_exits_with_6(self, cli: Cli, command: str) -> None:
        said, prepare = ASKS[command]
        cli.here("webhook", "endpoint", "add", URL, "--id", "acme")
        prepare(cli)
        with cli.queue() as wq:
            before = standing(wq)

        ran = cli(*command.split(), stdin="y\n")

        with cli.queue() as wq:
            after = standing(wq)
        assert (ran.status, ran.out) == (6, "")
        assert f"{said}; refused without --yes" in ran.err
        assert after == before
        answered = cli.here(*command.split(), "--yes")
        assert answered.status == 0, answered


class TestWhatCannotBeRead:
    @pytest.mark.parametrize(
        ("data", "said"), [("[", "--data: not JSON"), ("", "--data: nothing there"), ("1", "--data: give an object")]
    )
    def test_an_error_names_the_option_that_was_given(self, here: Callable[..., Ran], data: str, said: str) -> None:
        sent, enqueued = here("webhook", "send", "a.b", "--data", data), here("job", "run", "x", data)

        assert (sent.status, said in sent.err) == (2, True)
        assert "--data" not in enqueued.err

    def test_bytes_that_are_not_utf_8_are_refused_in_words(self, cli: Cli) -> None:
        for args, number in (
            ((b"enqueue", b"shop.add", b"a=\xff"), 3),
            ((b"queue", b"pause", b"mail", b"--why", b"caf\xe9"), 5),
            ((b"stat\xff",), 1),
            ((b"--url", b"sqlite:///\xff.db", b"status"), 2),
        ):
            ran = subprocess.run(
                [os.fsencode(sys.executable), b"-m", b"workq", *args],
                cwd=cli.folder,
                env=cli.env | {"WORKQ_APP": "shop:wq"},
                capture_output=True,
                timeout=BOUND_S,
                check=False,
            )

            assert ran.returncode == 2, ran
            assert re.fullmatch(
                rf"workq: error: argument {number} is not UTF-8 \(at character \d+\); write it in UTF-8.*\n",
                ran.stderr.decode(),
            ), ran
        assert not (cli.folder / "shop.db").exists()


class TestApplication:
    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))

    def test_a_module_alone_stands_for_its_only_workqueue(self, tmp_path: Path) -> None:
        (tmp_path / "one_wq.py").write_text(APP + "alias = wq\n")

        assert load_app("one_wq") is load_app("one_wq:wq") is load_app("one_wq:alias")

    def test_what_a_module_does_not_have_is_told_with_what_it_has(self, tmp_path: Path) -> None:
        (tmp_path / "two_wqs.py").write_text(APP + "other = WorkQueue()\nnumber = 1\n")
        (tmp_path / "no_wq.py").write_text("number = 1\n")

        has = "its WorkQueues: two_wqs:other, two_wqs:wq"
        for path, said in (
            ("two_wqs:w", f"'two_wqs:w' is not a WorkQueue: the module has no 'w'; {has}"),
            ("two_wqs:number", f"'two_wqs:number' is int, not a WorkQueue; {has}"),
            ("two_wqs", f"which WorkQueue of 'two_wqs'? Write module:attribute; {has}"),
            ("no_wq:wq", "'no_wq:wq' is not a WorkQueue: the module has no 'wq'; it has no WorkQueue"),
            ("no_wq", "it has no WorkQueue"),
        ):
            with pytest.raises(ConfigError) as told:
                load_app(path)
            assert said in str(told.value)

    def test_config_imports_an_application_only_when_it_is_named_there(self, cli: Cli) -> None:
        (cli.folder / "own.py").write_text(APP + "open('imported', 'w').close()\n")

        without = cli("config", "-o", "json", env={"WORKQ_APP": "own:wq"})
        was_imported = (cli.folder / "imported").exists()
        named = cli("config", "--app", "own:wq", "-o", "json")

        assert not was_imported
        assert without.json()["settings"][0]["value"] == "sqlite:///shop.db"
        assert "settings in the code of an application are not shown; see: workq config --app own:wq" in without.err
        assert named.json()["settings"][0] == {"name": "ledger", "value": "sqlite:///code.db", "origin": "argument"}
        assert named.err == ""


LISTS = [one for one, _ in commands() if one[-1:] == ("ls",) and one != ("handler", "ls")]  # that one asks no server
ASKING = [("config",), ("doctor",), ("db", "status"), ("status",), *LISTS]


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_no_command_that_asks_shows_the_password_or_the_query_of_a_url(cli: Cli, command: tuple[str, ...]) -> None:
    query = "?ssl_key=canary-of-a-query"
    urls = {
        "WORKQ_LEDGER_URL": f"postgresql://eve:canary-of-a-password@127.0.0.1:1/shop{query}",
        "WORKQ_BROKER_URL": f"amqp://eve:canary-of-a-password@127.0.0.1:1/{query}",
        "WORKQ_INFLIGHT_URL": f"redis://eve:canary-of-a-password@127.0.0.1:1/{query}",
    }

    told = cli(*command, env=urls)

    assert "127.0.0.1:1" in told.out + told.err
    assert "canary" not in told.out + told.err


def test_doctor_does_not_propose_doctor() -> None:
    assert line(InFlightUnavailable("cannot use redis://x. Is it healthy? Try: workq doctor")) == (
        "cannot use redis://x. Is it healthy?"
    )


def test_a_time_without_a_fraction_is_kept_without_one(cli: Cli) -> None:
    task_id = cli("enqueue", "shop.add", "a=1", "--at", "2030-01-02T03:00Z", "-o", "json", app=True).json()["id"]
    enqueued = cli.look("task", "show", task_id)["due_at"]
    cli.here("task", "reschedule", task_id, "--at", "2030-01-02T04:00:00+01:00")
    same = cli.look("task", "show", task_id)["due_at"]
    cli.here("task", "reschedule", task_id, "--at", "2030-02-03T05:06:07.25Z")

    assert enqueued == same == "2030-01-02T03:00:00.000Z"
    assert cli.look("task", "show", task_id)["due_at"] == "2030-02-03T05:06:07.250Z"


def test_a_reason_says_something_wherever_one_is_taken(cli: Cli) -> None:
    takers = [path for path, command in commands() if any(one.name == "why" for one in command.params)]
    assert len(takers) >= 30

    for path in takers:
        ran = cli.here(*path, "--why", " ")
        assert (ran.status, ran.out) == (2, ""), path
        assert "'--why': need some words: they are kept with what was decided" in ran.err, path
    assert not list(cli.folder.glob("*.db*"))
