"""Help, suggestions, and what is refused before anything is opened. One line says what, and the accepted form."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest

from tests.cli.conftest import REPOSITORY, Cli, Ran
from workq.cli.group import Command, CommandGroup
from workq.cli.root import root
from workq.cli.session import Session

Here = Callable[..., Ran]


def commands(
    group: click.Command = root, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its path, the root first."""
    yield path, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from commands(command, (*path, name))


def parse(words: list[str]) -> None:
    """Parse a command line as the real command does, without running it."""
    context = root.make_context("workq", list(words), obj=Session())
    while isinstance(context.command, CommandGroup):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


PATHS = [path for path, _ in commands()]


class TestHelp:
    def test_without_arguments_a_short_help_with_three_examples_and_exit_2(self, here: Here) -> None:
        ran = here()

        assert ran.status == 2
        assert ran.out == ""
        lines = ran.err.splitlines()
        assert 8 <= len(lines) <= 15
        assert sum(line.startswith("  workq ") for line in lines) == 3

    @pytest.mark.parametrize("path", PATHS, ids=" ".join)
    def test_every_command_has_examples_with_h_and_help(self, here: Here, path: tuple[str, ...]) -> None:
        short, long = here(*path, "-h"), here(*path, "--help")

        assert short.status == long.status == 0
        assert short.out == long.out
        assert f"Examples:\n  workq{''.join(f' {name}' for name in path[:1])}" in long.out
        assert long.err == ""

    @pytest.mark.parametrize("path", [path for path in PATHS if path[:1] != ("demo",)], ids=" ".join)
    def test_every_example_is_accepted(self, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "environ", dict(os.environ))  # --app and --url write into it
        found = dict(commands())[path]
        assert isinstance(found, Command | CommandGroup)

        examples = [line.strip() for line in found.examples.strip().splitlines()]

        assert examples
        for example in examples:
            words = shlex.split(re.split(r"  +| > | < ", example)[0])
            while "workq" in words:  # there may be one at each end of a pipe
                words = words[words.index("workq") + 1 :]
                end = words.index("|") if "|" in words else len(words)
                parse(words[:end])
                words = words[end:]

    def test_a_group_alone_prints_its_help_and_exits_2(self, here: Here) -> None:
        ran = here("task")

        assert ran.status == 2
        assert "Commands:" in ran.err
        assert ran.out == ""

    def test_help_explains_a_command_and_the_exit_codes(self, here: Here) -> None:
        assert "Usage: workq task cancel" in here("help", "task", "cancel").out
        table = here("help", "exit-codes").out
        assert [line.split()[0] for line in table.splitlines() if line.startswith("  ")] == [
            "0", "1", "2", "3", "4", "5", "6", "130", "143",
        ]  # fmt: skip

    def test_the_help_of_a_narrow_terminal_works(self, shared_cli: Cli) -> None:
        ran = shared_cli("sweep", "--help", env={"COLUMNS": "20", "LANG": "C"})

        assert ran.status == 0
        assert ran.out.isascii()

    def test_the_version_is_printed(self, here: Here) -> None:
        assert here("--version").out == here("version").out == "workq 0.1.0\n"


class TestSuggestions:
    @pytest.mark.parametrize(
        ("args", "suggested"),
        [
            (("statsu",), "'status'"),
            (("task", "lst"), "'ls'"),
            (("worker", "lss"), "'ls'"),
            (("sweep", "--dryrun"), "--dry-run"),
            (("--urll", "x"), "--url"),
            (("help", "exit-code"), "'exit-codes'"),
        ],
    )
    def test_a_typing_error_is_answered_with_the_nearest(
        self, here: Here, args: tuple[str, ...], suggested: str
    ) -> None:
        ran = here(*args)

        assert ran.status == 2
        assert ran.err.startswith("workq: error: ")
        assert f"did you mean {suggested}" in ran.err
        assert ran.err.count("\n") == 1

    def test_a_url_where_a_command_was_expected_does_not_show_its_password(self, here: Here) -> None:
        ran = here("postgresql://ann:canary-pw@host/db")

        assert ran.status == 2
        assert "canary-pw" not in ran.err


class TestNumbersAndNames:
    @pytest.mark.parametrize("value", ["0", "-1", "1e3", "abc", "999999999", "NaN", "", "1.5", "\u0661"])
    @pytest.mark.parametrize(("option", "bounds"), [("--threads", "1 to 1000"), ("--processes", "1 to 64")])
    def test_a_number_out_of_range_states_the_range(self, here: Here, option: str, bounds: str, value: str) -> None:
        ran = here("worker", option, value)

        assert ran.status == 2
        assert option in ran.err
        assert bounds in ran.err

    @pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 300, "amq.x", "caf\u00e9", "*", ".a", "a..b"])
    def test_the_name_of_a_queue_has_a_pattern(self, here: Here, name: str) -> None:
        for args in (
            ("worker", f"--queues={name}"),
            ("task", "ls", f"--queue={name}"),
            ("enqueue", "x", f"--queue={name}"),
        ):
            ran = here(*args)

            assert ran.status == 2
            assert "[A-Za-z0-9_.-]{1,100}" in ran.err
            assert ran.err.count("\n") == 1

    @pytest.mark.parametrize(
        "value", ["10", "m", "-5m", "0s", "1e3s", "10 m", "tomorrow", "1h30m", "nans", "9" * 12 + "s"]
    )
    def test_a_duration_has_one_form(self, here: Here, value: str) -> None:
        for args in (("enqueue", "x", f"--in={value}"), ("sweep", f"--every={value}")):
            ran = here(*args)

            assert ran.status == 2
            assert "90s, 10m, 2h or 1d" in ran.err

    @pytest.mark.parametrize(
        "value",
        ["tomorrow 03:00", "2026-11-21", "2026-11-21T03:00", "03:00Z", "2026-13-21T03:00Z", "2026-11-21 03:00Z"],
    )
    def test_a_time_needs_its_offset(self, here: Here, value: str) -> None:
        ran = here("enqueue", "x", "--at", value)

        assert ran.status == 2
        assert "2026-11-21T03:00Z" in ran.err

    def test_the_steps_of_a_sweep_are_named(self, here: Here) -> None:
        ran = here("sweep", "--only", "relay,rep")

        assert ran.status == 2
        assert (
            "'rep' is not one of tick, expire, relay, reap, orphans, advance, admit, tend, promote, mark, prune"
            in ran.err
        )

    @pytest.mark.parametrize("value", ["abc", "01932c07-a0b1", "x" * 5000, "../../etc/passwd", "' OR 1=1 --"])
    def test_an_id_is_checked_by_its_form_first(self, here: Here, value: str) -> None:
        ran = here("task", "show", value)

        assert ran.status == 2
        assert "not a task id" in ran.err
        assert len(ran.err) < 300

    @pytest.mark.parametrize(
        "args",
        [
            ("enqueue", "x", "--in", "1m", "--at", "2026-11-21T03:00Z"),
            ("enqueue", "x", "a=1", "--json", "-"),
            ("task", "reschedule", "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"),
            ("task", "reschedule", "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f", "--now", "--in", "1m"),
            ("task", "reschedule", "--now"),
            ("sweep", "--dry-run", "--every", "5s"),
            ("dead", "retry"),
            ("dead", "retry", "--all", "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"),
            ("completion", "tcsh"),
            ("task", "cancel"),
            ("status", "surplus"),
            ("status", "-o", "yaml"),
        ],
        ids=" ".join,
    )
    def test_what_does_not_fit_together_is_refused(self, here: Here, args: tuple[str, ...]) -> None:
        ran = here(*args)

        assert ran.status == 2
        assert ran.err.startswith("workq: error: ")
        assert ran.out == ""


class TestSettings:
    @pytest.mark.parametrize(
        "url",
        ["", "shop.db", "http://host/db", "mongodb://host/db", "postgresql://u:canary-pw@host:0/db",
         "postgresql://u:canary-pw@host:70000/db", "postgresql://u:canary-pw@host:abc/db",
         "postgresql://u:canary-pw@::1/db", "sqlite:///:memory:"],
    )  # fmt: skip
    def test_a_wrong_ledger_url_is_refused_with_the_right_form(self, here: Here, url: str) -> None:
        ran = here("status", "--url", url)

        assert ran.status == 2
        assert "sqlite:///" in ran.err or "port" in ran.err or "[::1]" in ran.err
        assert "canary-pw" not in ran.err

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("WORKQ_BROKER_URL", "http://u:canary-pw@host"),
            ("WORKQ_BROKER_URL", "amqp://u:canary-pw@host:70000/"),
            ("WORKQ_INFLIGHT_URL", "redis://:canary-pw@host/x"),
            ("WORKQ_NAMESPACE", "Not Good"),
            ("WORKQ_APP", "no colon"),
            ("WORKQ_CONFIG", "missing.toml"),
        ],
    )
    def test_a_wrong_variable_is_named_before_anything_is_contacted(
        self, here: Here, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(name, value)

        for args in (("status",), ("config",), ("doctor",)):
            ran = here(*args)

            assert ran.status == 2
            assert name in ran.err or "missing.toml" in ran.err
            assert "canary-pw" not in ran.err

    def test_contradictory_times_in_the_settings_file_are_refused_with_the_rule(self, cli: Cli) -> None:
        (cli.folder / "workq.toml").write_text("[times]\nbeat_s = 10\nlease_s = 15\n")

        ran = cli("status")

        assert ran.status == 2
        assert "lease_s" in ran.err
        assert "workq.toml" in ran.err

    def test_an_application_is_needed_for_enqueue_and_worker(self, here: Here) -> None:
        for command in (("enqueue", "x"), ("worker",)):
            ran = here(*command)

            assert ran.status == 2
            assert "WORKQ_APP" in ran.err

    def test_global_options_stand_before_or_after_the_command(self, cli: Cli) -> None:
        url = "sqlite:///other.db"

        before = cli("-o", "json", "--url", url, "config")
        after = cli("config", "-o", "json", "--ledger", url)

        assert before.json() == after.json()
        ledger = before.json()["settings"][0]
        assert ledger == {"name": "ledger", "value": url, "origin": "option --url"}

    def test_completion_scripts_are_printed_for_three_shells(self, here: Here) -> None:
        for shell in ("bash", "zsh", "fish"):
            ran = here("completion", shell)

            assert ran.status == 0
            assert "_WORKQ_COMPLETE" in ran.out

    def test_the_bash_script_is_one_and_completes_the_names_of_commands(self, shared_cli: Cli) -> None:
        script = shared_cli("completion", "bash").out
        checked = subprocess.run(["bash", "-n"], input=script.encode(), capture_output=True, timeout=30, check=False)

        asked = shared_cli(env={"_WORKQ_COMPLETE": "bash_complete", "COMP_WORDS": "workq st", "COMP_CWORD": "1"})

        assert checked.returncode == 0, checked.stderr
        assert asked.out == "plain,status\n"


class TestImports:
    """Loading is what makes a command slow: what is not needed is not imported."""

    @staticmethod
    def imported(*arguments: str) -> set[str]:
        told = subprocess.run(
            [sys.executable, "-X", "importtime", *arguments],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return {line.rpartition("|")[2].strip() for line in told.stderr.splitlines() if line.startswith("import time:")}

    def test_importing_workq_loads_no_client_library(self) -> None:
        found = self.imported("-c", "import workq")

        assert "workq" in found
        assert not found & {"pika", "redis", "sqlalchemy", "aiohttp", "rich", "msgspec", "click", "asyncio"}

    def test_the_help_loads_no_client_library(self) -> None:
        found = self.imported("-m", "workq", "--help")

        assert "workq.cli.root" in found
        assert not found & {"pika", "redis", "sqlalchemy", "aiohttp", "rich", "apscheduler", "psutil", "asyncio"}
