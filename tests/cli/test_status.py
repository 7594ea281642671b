"""`workq status`: the totals are the sums of what the queues say."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_a_task_that_is_due_and_not_promoted_is_ready_in_its_queue_and_in_the_totals(cli: Cli) -> None:
    with cli.queue() as wq:
        wq.handler("shop.add").options(delay_s=60.0).enqueue(1)
        wq.handler("shop.add").options(delay_s=0.001).enqueue(2)
        wq.handler("shop.fail").enqueue()

    found, told = cli.look("status"), cli.here("status").out

    sums = {state: sum(one[state] for one in found["queues"].values()) for state in ("ready", "waiting", "running")}
    assert sums == {"ready": 2, "waiting": 1, "running": 0}
    assert {state: found["states"][state] for state in sums} == sums
    assert "\nready:        2\nwaiting:      1\nrunning:      0\n" in told


def test_it_says_that_workers_find_tasks_without_the_broker(cli: Cli) -> None:
    with cli.queue() as wq:
        history = wq.stores.ledger.history
        history.note("polled", detail={"tasks": 2}, worker="w")
        assert cli.look("status")["polled"] == 0, "the broker was there"
        assert "poll" not in cli.here("status").out
        for tasks in (3, 4):
            history.note("polled", detail={"tasks": tasks, "reason": "away"}, worker="w")

    assert cli.look("status")["polled"] == 7
    assert "Workers poll: without the broker they found 7 tasks within the last three minutes" in cli.here("status").out
