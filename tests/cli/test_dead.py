"""`workq dead`: what a person does with hundreds of tasks that died: groups, canaries, a rate, a way to stop."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.cli.conftest import BOUND_S, Cli
from tests.system.fleet import wait_until
from workq.values.task import Dead, State

UNKNOWN = "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"
REASON = "failures_max reached: ValueError"


def states(cli: Cli) -> dict[str, int]:
    found: dict[str, int] = cli.look("status")["states"]
    return {state: count for state, count in found.items() if count}


@contextmanager
def working(cli: Cli) -> Iterator[None]:
    """A worker beside the test."""
    with cli.start("worker", "--threads", "2") as worker:
        try:
            yield
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=BOUND_S)


def killed_sums(cli: Cli, count: int) -> list[str]:
    """Tasks that died, and would succeed now."""
    return cli.settle(cli.record("shop.add", 1, count=count), Dead(REASON, "ValueError: the bank is closed"))


class TestGroups:
    def test_they_are_told_with_their_counts_and_can_be_listed_and_sent_back_one_by_one(self, cli: Cli) -> None:
        odd = cli.kill(2, "ValueError: order 17 is odd") + cli.kill(1, "ValueError: order 4 is odd")
        cli.kill(2, "ValueError: no money")

        [first, second] = cli.look("dead", "groups")["groups"]
        page = cli.here("dead", "groups").out
        [alone] = cli.look("dead", "groups", "--group", second["group"])["groups"]
        done = cli.look("dead", "retry", "--group", first["group"], "--yes")

        assert (first["name"], first["tasks"], first["reason"]) == ("shop.fail", 3, REASON)
        assert first["sample"] == min(odd)
        assert alone == second
        assert first["group"] in page
        assert "shop.fail" in page
        assert done == {"tasks": 3, "refused": {}, "stopped": []}
        assert states(cli) == {"ready": 3, "dead": 2}

    def test_nothing_is_said_where_nobody_is_dead(self, cli: Cli) -> None:
        cli.here("db", "migrate")
        assert cli.look("dead", "groups") == {"groups": []}
        assert cli.here("dead", "groups").err == "no dead tasks\n"

    @pytest.mark.parametrize("group", ["5d41402abc4b2a7", "no group at all", "5d41402abc4b2a7g", "--"])
    def test_a_group_that_cannot_be_one_is_refused(self, cli: Cli, group: str) -> None:
        ran = cli.here("dead", "groups", f"--group={group}")

        assert ran.status == 2
        assert "is not a group; `workq dead groups` lists them" in ran.err


class TestRetry:
    def test_of_all_it_needs_a_confirmation_and_shows_the_count(self, cli: Cli) -> None:
        ids = cli.kill(3)

        refused = cli("dead", "retry", "--all")
        counted = cli.look("dead", "retry", "--all", "--dry-run")
        filtered = cli.look("dead", "retry", "--all", "--queue", "other", "--yes")
        named = cli.look("dead", "retry", ids[0], UNKNOWN, "--dry-run")
        done = cli.look("dead", "retry", "--all", "--name", "shop.fail", "--yes")
        nothing = cli.look("dead", "retry", "--all", "--yes")

        assert refused.status == 6
        assert "3 dead tasks would be sent back; refused without --yes" in refused.err
        assert counted == {"dry_run": True, "tasks": 3, "sample": ids}
        assert filtered == nothing == {"tasks": 0, "refused": {}, "stopped": []}
        assert named == {"dry_run": True, "tasks": 1}
        assert done["tasks"] == 3
        assert states(cli) == {"ready": 3}

    def test_on_a_terminal_it_asks_with_the_count(self, cli: Cli) -> None:
        cli.kill(2)

        no = cli.on_a_terminal("dead", "retry", "--all", typed="n\n")
        end = cli.on_a_terminal("dead", "retry", "--all", typed="\x04")
        yes = cli.on_a_terminal("dead", "retry", "--all", typed="y\n")

        assert (no.status, end.status, yes.status) == (6, 6, 0)
        assert "2 dead tasks would be sent back: do it? [y/N]" in no.out
        assert "2 sent back" in yes.out

    def test_it_leaves_other_tasks_alone(self, cli: Cli) -> None:
        (cancelled,) = cli.record("shop.add", 1)
        cli.look("task", "cancel", cancelled)

        ran = cli("dead", "retry", cancelled)

        assert ran.status == 1
        assert "is cancelled, not dead" in ran.out

    def test_one_whose_key_is_held_is_named_and_exit_3(self, cli: Cli) -> None:
        with cli.queue() as wq:
            first = wq.handler("shop.fail").options(key="k").enqueue()
        cli.settle([first.id], Dead(REASON, "ValueError: no"))
        with cli.queue() as wq:
            wq.handler("shop.fail").options(key="k").enqueue()

        ran = cli("dead", "retry", "--all", "--yes")

        assert ran.status == 3
        assert f"{first.id}: " in ran.err
        assert "key" in ran.err
        assert states(cli) == {"ready": 1, "dead": 1}

    def test_a_group_whose_canary_fails_stops_after_the_canary(self, cli: Cli) -> None:
        cli.kill(5)
        with working(cli):
            ran = cli("dead", "retry", "--all", "--canary", "2", "--yes", "-o", "json")

        document = ran.json()
        assert ran.status == 3
        assert document["tasks"] == 2
        [stopped] = document["stopped"]
        assert (stopped["name"], stopped["tasks"]) == ("shop.fail", 5)
        assert "of 2 canaries failed again: ValueError: no" in stopped["why"]
        assert stopped["group"] in ran.err
        assert states(cli) == {"dead": 5}
        with cli.queue() as wq:
            history = [
                event.kind
                for one in wq.stores.ledger.questions.tasks(limit=9)
                for event in wq.stores.ledger.questions.history(one.id)
            ]
        assert history.count("revived") == 2

    def test_a_group_whose_canaries_do_well_goes_back_whole_and_the_others_are_not_stopped_by_it(
        self, cli: Cli
    ) -> None:
        good = killed_sums(cli, 4)
        cli.kill(3)
        with working(cli):
            ran = cli("dead", "retry", "--all", "--canary", "1", "--yes", "-o", "json")
            wait_until(lambda: states(cli).get("succeeded") == 4, timeout_s=BOUND_S, what="the good ones succeed")

        assert ran.status == 3
        assert ran.json()["tasks"] == len(good) + 1
        assert [one["name"] for one in ran.json()["stopped"]] == ["shop.fail"]
        assert states(cli) == {"succeeded": 4, "dead": 3}

    def test_a_canary_that_nobody_runs_stops_its_group_as_well(self, cli: Cli) -> None:
        cli.kill(3)

        ran = cli("dead", "retry", "--all", "--canary", "1", "--canary-wait", "1s", "--yes")

        assert ran.status == 3
        assert "1 of 1 canaries have not ended within 1 s" in ran.err
        assert states(cli) == {"dead": 2, "ready": 1}

    def test_interrupted_it_says_how_far_it_came_and_the_same_command_ends_it(self, cli: Cli) -> None:
        ids = killed_sums(cli, 100)  # at this rate they take 100 s: it is in the middle, on a slow machine too
        command = ("dead", "retry", "--all", "--rate", "1/s", "--yes")
        with cli.start(*command) as process:
            wait_until(lambda: states(cli).get("ready", 0) >= 5, timeout_s=BOUND_S, what="some are sent back")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=BOUND_S)
        came = states(cli)

        rest = cli.look("dead", "retry", "--all", "--yes")

        assert process.returncode == 130
        assert 5 <= came["ready"] < 100
        assert (
            f"{came['ready']} sent back; the others are still dead: the same command goes on with them" in err.decode()
        )
        assert rest["tasks"] == 100 - came["ready"]
        assert states(cli) == {"ready": 100}
        with cli.queue() as wq:
            kinds = [[event.kind for event in wq.stores.ledger.questions.history(one)].count("revived") for one in ids]
            assert kinds == [1] * 100
        with closing(sqlite3.connect(cli.folder / "shop.db")) as ledger:
            rows = ledger.execute("SELECT detail FROM workq_event WHERE kind = 'manual' ORDER BY id").fetchall()
        noted = [json.loads(detail) for (detail,) in rows]
        assert [(one["what"], one["tasks"]) for one in noted] == [
            ("dead retry", came["ready"]),
            ("dead retry", rest["tasks"]),
        ]
        assert all(one["who"] for one in noted)

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            ((), "give ids, or --all or --group"),
            (("--all", UNKNOWN), "give ids, or --all or --group"),
            ((UNKNOWN, "--queue", "mail"), "filters belong to --all or --group"),
            ((UNKNOWN, "--rate", "5/s"), "--rate and --canary belong to --all or --group"),
            (("--all", "--rate", "0/s"), "is not a rate above 0; write 100/s"),
            (("--all", "--rate", "fast"), "is not a rate above 0; write 100/s"),
        ],
    )
    def test_what_contradicts_itself_is_refused(self, shared_cli: Cli, args: tuple[str, ...], said: str) -> None:
        ran = shared_cli.here("dead", "retry", *args)

        assert ran.status == 2
        assert said in ran.err


class TestDiscard:
    def test_what_is_given_up_is_cancelled_and_can_still_be_brought_back(self, cli: Cli) -> None:
        ids = cli.kill(3)

        one = cli("dead", "discard", ids[0], "--why", "the order was withdrawn")
        refused = cli("dead", "discard", "--all")
        all_others = cli.look("dead", "discard", "--all", "--yes")
        again = cli("dead", "discard", ids[0])

        assert (one.status, one.out.split()) == (0, [ids[0], "discarded"])
        assert refused.status == 6
        assert all_others["tasks"] == 2
        assert again.status == 1
        assert "it is cancelled, not dead" in again.out
        assert cli.look("task", "show", ids[0])["reason"] == "discarded: the order was withdrawn"
        assert cli.look("task", "retry", ids[0])["results"][0]["ok"]
        assert states(cli) == {"cancelled": 2, "ready": 1}


class TestExport:
    def test_each_line_tells_one_task_with_its_arguments_error_and_history(self, cli: Cli) -> None:
        ids = cli.kill(2, "ValueError: 'a\u2028b'") + cli.kill(1, "KeyError: x")
        group = cli.look("dead", "groups")["groups"][0]["group"]

        everything = [json.loads(line) for line in cli("dead", "export").out.split("\n") if line]
        some = [json.loads(line) for line in cli("dead", "export", "--group", group).out.split("\n") if line]

        assert [one["id"] for one in everything] == sorted(ids)
        assert [one["id"] for one in some] == sorted(ids[:2])
        first: dict[str, Any] = everything[0]
        assert (first["name"], first["state"], first["reason"]) == ("shop.fail", State.DEAD, REASON)
        assert first["error"] == "ValueError: 'a\u2028b'"
        assert {"args", "history", "attempt"} <= set(first)
