"""workq rebuild: it shows how many, asks, and says what it did. What it does to a broker is in tests/system."""

from __future__ import annotations

import json

from sqlalchemy import delete

from tests.cli.conftest import Cli
from tests.cli.test_sweep import ago, claim, join, record
from tests.stores import database_of
from workq.inflight import Entry


def fill(cli: Cli) -> None:
    """Seven tasks in two queues, one that runs, one that a live worker holds, and a broker that lost every hint."""
    with cli.queue() as wq, ago(wq, 60.0):
        record(wq, 4)
        record(wq, 3, queue="mail", delay_s=3600.0)
        me = join(wq, "me")
        claim(wq, record(wq, 1), me)
        [held] = record(wq, 1)
        wq.stores.inflight.beat(me.id, lease_s=600.0, entries=[])
        wq.stores.inflight.hold([Entry(held, "sums")], by=me.id)
        database = database_of(wq)
        database.run(lambda tx: tx.execute(delete(database.tables.hint)))


def hints(cli: Cli) -> list[int]:
    """How many tasks each hint in the broker carries."""
    with cli.queue() as wq:
        database = database_of(wq)
        hint = database.tables.hint
        bodies = database.ask(lambda tx: list(tx.execute(hint.select().order_by(hint.c.id)).all()))
    return [row.size for row in bodies]


class TestRebuild:
    def test_a_dry_run_counts_by_queue_and_sends_nothing(self, cli: Cli) -> None:
        fill(cli)

        ran = cli.here("rebuild", "--dry-run", "-o", "json")

        nothing = cli.here("rebuild", "--queue", "nobody", "--dry-run")

        assert (ran.status, nothing.status) == (3, 0)
        assert ran.json() == {"dry_run": True, "tasks": 8, "queues": {"mail": 3, "sums": 5}}
        assert hints(cli) == []

    def test_it_sends_a_hint_for_each_task_that_nobody_has_and_says_how_many(self, cli: Cli) -> None:
        fill(cli)

        ran = cli.here("rebuild", "--yes", "-o", "json")

        document = ran.json()
        assert ran.status == 0
        assert document.pop("seconds") >= 0.0
        assert document == {"dry_run": False, "tasks": 7, "hints": 4, "later": 0, "held": 1, "markers": 0}
        assert sorted(hints(cli)) == [1, 1, 1, 4], "one page of those that are due, one for each delay"

    def test_only_one_queue(self, cli: Cli) -> None:
        fill(cli)

        ran = cli.here("rebuild", "--queue", "mail", "--yes", "-o", "json")

        assert ran.json()["tasks"] == 3
        assert hints(cli) == [1, 1, 1]
        assert cli.here("rebuild", "--queue", "unknown", "--yes", "-o", "json").json()["tasks"] == 0

    def test_running_it_again_sends_them_again_and_no_task_runs_twice(self, cli: Cli) -> None:
        cli.record("shop.add", 1, count=5)
        for _ in range(2):
            assert cli.here("rebuild", "--yes", "-q").status == 0

        assert cli("worker", "--drain", "--processes", "1", "-q", app=True).status == 0

        tasks = cli.look("task", "ls")["tasks"]
        assert [(one["state"], one["attempt"]) for one in tasks] == [("succeeded", 1)] * 5

    def test_without_yes_it_asks_where_somebody_can_answer_and_refuses_elsewhere(self, cli: Cli) -> None:
        fill(cli)

        silent = cli.here("rebuild")
        no = cli.on_a_terminal("rebuild", typed="n\n")
        sent = hints(cli)
        yes = cli.on_a_terminal("rebuild", typed="y\n")

        assert (silent.status, no.status, yes.status) == (6, 6, 0)
        assert "refused without --yes" in silent.err
        assert "hints for 8 tasks would be sent again: do it?" in no.out
        assert sent == []
        assert "7 tasks, 4 hints" in yes.out

    def test_it_is_kept_who_did_it_and_why(self, cli: Cli) -> None:
        fill(cli)
        cli.here("rebuild", "--yes", "-q", "--why", "a new broker")

        with cli.queue() as wq:
            events = wq.stores.ledger.questions.happened(["manual"], within_s=600.0, limit=9)

        assert [one.detail["what"] for one in events] == ["rebuild", "rebuild"], "when it began, and when it ended"
        assert all("@" in one.detail["who"] for one in events)
        assert [one.detail["why"] for one in events] == ["a new broker", "a new broker"]
        assert (events[0].detail["tasks_open"], events[1].detail["tasks"]) == (8, 7)

    def test_nothing_open_is_nothing_to_do(self, cli: Cli) -> None:
        cli.here("db", "migrate")
        ran = cli.here("rebuild", "-o", "json")
        assert (ran.status, json.loads(ran.out)["tasks"]) == (0, 0)

    def test_a_store_that_is_away_is_exit_4_and_nothing_is_marked(self, cli: Cli) -> None:
        fill(cli)
        for name, url in (
            ("WORKQ_BROKER_URL", "amqp://u:canary-pw@127.0.0.1:1/"),
            ("WORKQ_INFLIGHT_URL", "redis://127.0.0.1:1"),
        ):
            ran = cli("rebuild", "--yes", env={name: url})

            assert (ran.status, ran.out) == (4, "")
            assert "127.0.0.1:1" in ran.err
            assert "canary-pw" not in ran.err
        with cli.queue() as wq:
            left = wq.stores.ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=9e9, dry_run=True)
        assert left == []
