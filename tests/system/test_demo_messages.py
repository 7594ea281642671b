"""`workq demo messages`, as a newcomer runs it, to what each machine has, and to real brokers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.system.stage import Stage, report_of

SOME = ("--count", "300", "--within", "3")


def assert_proved(report: dict[str, Any], kinds: list[str]) -> None:
    found = report["destinations"]
    assert [one["name"] for one in found] == kinds
    assert all(one["arrived"] == one["sent"] > 0 for one in found)
    assert {one[what] for one in found for what in ("missing", "early", "foreign", "uncancelled")} == {0}
    decided = report["decided"]
    assert sum(decided.values()) == 10
    assert 290 <= sum(one["sent"] for one in found) + decided["cancelled"] <= 300
    assert report["killed"]["messages"] >= 1
    assert report["freed_s"] is not None
    assert report["away"]["refused"] >= 1
    assert report["left_out"] == {}


def test_messages_arrive_at_their_time_past_a_kill_and_a_receiver_that_is_away(stage: Stage) -> None:
    done = stage.demo("messages", *SOME, "--kind", "http", "--kind", "call")

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(r"SIGKILL   process \d+, which had \d+ messages? in its hands", done.stderr)
    assert "away      http answers 503" in done.stderr
    assert re.search(r"back      http is back after .*, in which it refused [1-9]", done.stderr)
    assert "missing   0\n" in done.stdout
    assert "early     0\n" in done.stdout
    assert re.search(r"cancelled \d+, of which arrived 0\n", done.stdout)
    assert "Proved: each message arrived, none before its time" in done.stdout
    stage.assert_nothing_is_left()


@pytest.mark.usefixtures("rabbitmq_server", "kafka_server")  # they skip where one is not installed
def test_the_same_to_brokers_that_it_starts_itself(stage: Stage) -> None:
    done = stage.demo("messages", *SOME, "-o", "json")

    assert_proved(report_of(done), ["amqp", "kafka", "http", "call"])
    stage.assert_nothing_is_left()
