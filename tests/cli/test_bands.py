"""Priorities on the command line: given with a task, told with it, and a queue is all of its bands or one of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Cli


def record_each(cli: Cli, count: int = 2) -> dict[str, list[str]]:
    """So many tasks of each priority."""
    with cli.queue() as wq:
        call = wq.handler("shop.add").options
        return {
            priority: [call(priority=priority).enqueue(number).id for number in range(count)]
            for priority in ("high", "normal", "low")
        }


def listed(cli: Cli, queue: str) -> set[str]:
    return {one["id"] for one in cli.look("task", "ls", "--queue", queue)["tasks"]}


def paused(cli: Cli) -> list[str]:
    return [one["queue"] for one in cli.look("queue", "ls")["queues"] if one["paused"]]


def test_a_task_is_enqueued_with_a_priority_and_tells_it(cli: Cli) -> None:
    made = cli("enqueue", "shop.add", "a=1", "--priority", "low", "-o", "json", app=True).json()

    shown = cli.look("task", "show", made["id"])
    [in_list] = cli.look("task", "ls")["tasks"]
    as_text = cli.here("task", "show", made["id"]).out
    in_table = cli.here("task", "ls").out

    assert (shown["queue"], shown["priority"]) == (in_list["queue"], in_list["priority"]) == ("sums", "low")
    assert "priority: low" in as_text
    assert "sums~low" in in_table


@pytest.mark.parametrize("priority", ["High", "urgent", "0", "5", "", "true"])
def test_anything_else_is_refused_before_anything_is_asked(cli: Cli, priority: str) -> None:
    ran = cli("enqueue", "shop.add", "a=1", "--priority", priority, app=True)

    assert ran.status == 2
    assert "--priority" in ran.err
    assert not (cli.folder / "shop.db").exists()


@pytest.mark.parametrize("queue", ["sums~", "sums~urgent", "~low", "sums~LOW"])
def test_what_is_no_band_is_no_queue(shared_cli: Cli, queue: str) -> None:
    for command in (("queue", "show"), ("queue", "resume"), ("queue", "purge")):
        assert shared_cli.here(*command, queue).status == 2
    assert shared_cli.here("task", "ls", "--queue", queue).status == 2


def test_no_worker_serves_and_no_task_is_given_a_single_band(cli: Cli) -> None:
    assert cli("worker", "--queues", "sums~low", app=True).status == 2
    assert cli("enqueue", "shop.add", "a=1", "--queue", "sums~low", app=True).status == 2


def test_queues_are_told_line_by_line_once_they_are_used(cli: Cli) -> None:
    cli.record("shop.add", 1)
    before = [one["queue"] for one in cli.look("queue", "ls")["queues"]]
    tasks = record_each(cli)

    after = {one["queue"]: one["ready"] for one in cli.look("queue", "ls")["queues"]}
    together = cli.look("queue", "show", "sums")
    one = cli.look("queue", "show", "sums~low")
    middle = cli.look("queue", "show", "sums~normal")

    assert before == ["sums"]
    assert after == {"sums": 3, "sums~high": 2, "sums~low": 2}
    assert (together["ready"], len(together["bands"])) == (7, 3)
    assert (one["ready"], middle["ready"]) == (2, 3)
    assert listed(cli, "sums~low") == set(tasks["low"])


def test_a_filter_by_a_queue_means_all_of_its_bands(cli: Cli) -> None:
    tasks = record_each(cli)

    assert listed(cli, "sums") == {one for ids in tasks.values() for one in ids}
    assert listed(cli, "sums~high") == set(tasks["high"])
    assert listed(cli, "sums~normal") == set(tasks["normal"])
    assert cli.look("rebuild", "--queue", "sums", "--dry-run")["tasks"] == 6
    assert cli.look("rebuild", "--queue", "sums~low", "--dry-run")["tasks"] == 2
    assert cli.look("audit", "--queue", "sums")["findings"] == []


def test_pause_resume_and_purge_act_on_all_bands_or_on_one(cli: Cli) -> None:
    tasks = record_each(cli)
    reasons: dict[str, Any] = {}

    cli.look("queue", "pause", "sums", "--why", "?")
    all_paused = paused(cli)
    reasons["all"] = cli.look("why", tasks["low"][0])
    cli.look("queue", "resume", "sums~low")
    some_paused = paused(cli)
    cli.look("queue", "resume", "sums")
    cli.look("queue", "pause", "sums~low", "--why", "?")
    low_paused = paused(cli)
    reasons["one"] = cli.look("why", tasks["low"][0])
    reasons["other"] = cli.look("why", tasks["high"][0])
    purged = cli.look("queue", "purge", "sums~low", "--yes")
    rest = cli.look("queue", "purge", "sums", "--yes")

    assert all_paused == ["sums", "sums~high", "sums~low"]
    assert some_paused == ["sums", "sums~high"]
    assert low_paused == ["sums~low"]
    assert reasons["all"]["do"].endswith("workq queue resume sums")
    assert reasons["one"]["do"].endswith("workq queue resume sums~low")
    assert reasons["other"]["code"] == "no_worker"
    assert (purged["cancelled"], rest["cancelled"]) == (2, 4)


def test_a_task_of_a_band_that_nobody_serves_is_told_with_its_queue(cli: Cli) -> None:
    [task_id] = record_each(cli, 1)["low"]

    assert cli.look("why", task_id)["do"] == "start one: workq worker --queues sums"


def test_a_worker_of_a_queue_serves_all_of_its_bands(cli: Cli) -> None:
    record_each(cli)

    cli("worker", "--drain", "--queues", "sums", "-q", app=True)

    assert cli.look("status")["states"]["succeeded"] == 6
