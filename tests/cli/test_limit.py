"""`workq limit`: how many run, are about to, and wait."""

from __future__ import annotations

from tests.cli.conftest import Cli
from workq.values.incarnation import Incarnation


def crowd(cli: Cli) -> None:
    """Five share two places, and two more have one of their own."""
    with cli.queue() as wq:
        add, ledger, me = wq.handler("shop.add"), wq.stores.ledger, Incarnation("host.me", "host", 4711)
        ledger.workers.join(me, queues=["sums"], threads=4)
        ids = [add.options(limit="mail", concurrency=2).enqueue(1).id for _ in range(5)]
        ids += [add.options(limit="api", rate="1/h").enqueue(1).id for _ in range(2)]
        ledger.claims.claim(ids, by=me.id)


def test_limits_are_listed_with_who_runs_and_who_waits(cli: Cli) -> None:
    crowd(cli)

    shown, found = cli("limit", "ls"), cli.look("limit", "ls")["limits"]

    assert shown.status == 0
    assert [line.split() for line in shown.out.splitlines()[1:]] == [["api", "1", "0", "1"], ["mail", "2", "0", "3"]]
    assert found == [
        {"key": "api", "running": 1, "coming": 0, "parked": 1, "closed_until": None},
        {"key": "mail", "running": 2, "coming": 0, "parked": 3, "closed_until": None},
    ]


def test_one_limit_is_shown_and_an_unknown_one_is_exit_1(cli: Cli) -> None:
    crowd(cli)

    assert cli.look("limit", "show", "mail")["parked"] == 3
    unknown = cli("limit", "show", "nobody")
    assert unknown.status == 1
    assert "no limit 'nobody' is in use" in unknown.err


def test_a_task_tells_its_limit(cli: Cli) -> None:
    crowd(cli)
    [one] = [task for task in cli.look("task", "ls", "--state", "running")["tasks"] if task["limit"]["key"] == "api"]

    assert one["limit"] == {"key": "api", "concurrency": None, "rate": "1/h"}
    assert "rate='1/h'" in cli("task", "show", one["id"]).out


def test_without_limits_that_is_said(cli: Cli) -> None:
    cli.here("db", "migrate")
    assert cli("limit", "ls").err == "no limit is in use\n"
