"""`workq task cancel --all` and `workq queue purge`: counted, asked for, interrupted, resumed, recorded."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing

import pytest

from tests.cli.conftest import BOUND_S, Cli
from tests.system.fleet import wait_until

UNKNOWN = "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"


def states(cli: Cli) -> dict[str, int]:
    found: dict[str, int] = cli.look("status")["states"]
    return {state: count for state, count in found.items() if count}


def noted(cli: Cli) -> list[dict[str, object]]:
    """What was recorded of bulk operations."""
    with closing(sqlite3.connect(cli.folder / "shop.db")) as ledger:
        rows = ledger.execute("SELECT detail FROM workq_event WHERE kind = 'manual' ORDER BY id").fetchall()
    return [json.loads(detail) for (detail,) in rows]


class TestCancelAll:
    def test_it_shows_the_count_and_needs_a_confirmation(self, cli: Cli) -> None:
        ids = cli.record("shop.add", 1, count=3)
        running = cli.claim(cli.record("shop.add", 2))

        refused = cli("task", "cancel", "--all")
        counted = cli.look("task", "cancel", "--all", "--dry-run")
        elsewhere = cli.look("task", "cancel", "--all", "--queue", "other", "--yes")
        done = cli.look("task", "cancel", "--all", "--name", "shop.add", "--yes", "--why", "sent twice")
        again = cli.look("task", "cancel", "--all", "--yes")

        assert refused.status == 6
        assert "4 tasks (3 ready, 1 running) would be cancelled; refused without --yes" in refused.err
        assert (counted["tasks"], counted["dry_run"], len(counted["sample"])) == (4, True, 3)
        assert elsewhere == again == {"cancelled": 0, "asked": 0}
        assert done == {"cancelled": 3, "asked": 1}
        assert states(cli) == {"cancelled": 3, "running": 1}
        assert cli.look("task", "show", ids[0])["reason"] == "sent twice"
        assert cli.look("task", "show", *running)["cancel_requested"]
        [record] = noted(cli)
        assert (record["what"], record["tasks"], record["why"]) == ("task cancel", 4, "sent twice")
        assert record["which"] == {"states": ["ready", "waiting", "running"], "name": "shop.add"}
        assert record["who"]

    def test_the_former_name_of_why_works_for_one_version_with_a_warning(self, cli: Cli) -> None:
        [first, second] = cli.record("shop.add", 1, count=2)

        one = cli.here("task", "cancel", first, "--reason", "sent twice")
        rest = cli.here("queue", "purge", "sums", "--yes", "--reason", "withdrawn")

        assert (one.status, rest.status) == (0, 0)
        assert "--reason is --why now" in one.err
        assert "--reason is --why now" in rest.err
        assert cli.look("task", "show", first)["reason"] == "sent twice"
        assert cli.look("task", "show", second)["reason"] == "withdrawn"

    def test_on_a_terminal_it_asks_with_the_count(self, cli: Cli) -> None:
        cli.record("shop.add", 1, count=2)

        no = cli.on_a_terminal("task", "cancel", "--all", typed="n\n")
        yes = cli.on_a_terminal("task", "cancel", "--all", typed="y\n")

        assert (no.status, yes.status) == (6, 0)
        assert "2 tasks (2 ready) would be cancelled: do it? [y/N]" in no.out
        assert "2 cancelled" in yes.out

    def test_one_state_alone(self, cli: Cli) -> None:
        cli.record("shop.add", 1, count=2)
        cli.claim(cli.record("shop.add", 2))

        ran = cli.here("task", "cancel", "--all", "--state", "running", "--yes")

        assert (ran.status, ran.out) == (0, "0 cancelled, 1 that run were asked to stop\n")
        assert states(cli) == {"ready": 2, "running": 1}

    def test_interrupted_it_says_how_far_it_came_and_the_same_command_ends_it(self, cli: Cli) -> None:
        cli.record("shop.add", 1, count=60)
        with cli.start("task", "cancel", "--all", "--rate", "2/s", "--yes") as process:
            wait_until(lambda: states(cli).get("cancelled", 0) >= 5, timeout_s=BOUND_S, what="some are cancelled")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=BOUND_S)
        came = states(cli)["cancelled"]

        rest = cli.look("task", "cancel", "--all", "--yes")

        assert process.returncode == 130
        assert 5 <= came < 60
        assert f"{came} cancelled; the others are still open: the same command goes on with them" in err.decode()
        assert rest == {"cancelled": 60 - came, "asked": 0}
        assert [one["tasks"] for one in noted(cli)] == [came, 60 - came]

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            ((), "give ids, or --all"),
            (("--all", UNKNOWN), "give ids, or --all"),
            ((UNKNOWN, "--queue", "mail"), "belong to --all"),
            ((UNKNOWN, "--state", "ready"), "belong to --all"),
            ((UNKNOWN, "--dry-run"), "belong to --all"),
            (("--all", "--state", "dead"), "'dead' is not one of"),
        ],
    )
    def test_what_contradicts_itself_is_refused(self, shared_cli: Cli, args: tuple[str, ...], said: str) -> None:
        ran = shared_cli.here("task", "cancel", *args)

        assert ran.status == 2
        assert said in ran.err


class TestPurge:
    def test_what_waits_in_the_queue_is_cancelled_and_nothing_else(self, cli: Cli) -> None:
        cli.record("shop.add", 1, count=3)
        cli.claim(cli.record("shop.add", 2))
        cli.record("shop.fail")

        refused = cli("queue", "purge", "sums")
        counted = cli.look("queue", "purge", "sums", "--dry-run")
        done = cli.look("queue", "purge", "sums", "--yes")

        assert refused.status == 6
        assert "3 tasks (3 ready) would be cancelled; refused without --yes" in refused.err
        assert counted["tasks"] == 3
        assert done == {"cancelled": 3, "asked": 0}
        assert states(cli) == {"cancelled": 3, "ready": 1, "running": 1}
        assert noted(cli)[0]["which"] == {"states": ["ready", "waiting"], "queue": "sums"}

    def test_a_queue_that_is_empty_or_unknown_is_no_error(self, cli: Cli) -> None:
        cli.record("shop.add", 1)

        assert cli.look("queue", "purge", "nobody", "--yes") == {"cancelled": 0, "asked": 0}

    def test_the_name_of_a_queue_is_checked_first(self, shared_cli: Cli) -> None:
        assert shared_cli.here("queue", "purge", "no queue", "--yes").status == 2
