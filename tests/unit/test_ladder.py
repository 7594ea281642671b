"""The ladder of delays, without a broker: every delay takes as long as it says, through the exchanges as declared."""

from __future__ import annotations

import random
import re

import pytest

from workq.broker.rabbitmq.delays import HORIZON_S, LEVELS, UNIT_MS, due_exchange, due_pattern, levels, split, way

QUEUES = ["mail", "a.b", "b", "x.a.b", "1.0.1", "delay"]


def matches(pattern: str, routing_key: str) -> bool:
    """A topic exchange, as AMQP defines it."""
    words = (re.escape(word).replace(r"\*", "[^.]*").replace(r"\#", ".*") for word in pattern.split("."))
    expression = r"\.".join(words).replace(r"\..*", r"(\..*)?")
    return re.fullmatch(expression, routing_key) is not None


def walk(exchange: str, routing_key: str) -> tuple[list[str], int]:
    """Where a message comes out, and after how many milliseconds, by the bindings of the ladder."""
    rungs = {level.name: level for level in levels("ns")}
    waited_ms = 0
    while exchange != due_exchange("ns"):
        level = rungs[exchange]
        assert level.passes is not None
        assert matches(level.waits, routing_key) != matches(level.passes, routing_key), "exactly one way on"
        if matches(level.waits, routing_key):
            waited_ms += level.ttl_ms
        exchange = level.next
    return [queue for queue in QUEUES if matches(due_pattern(f"ns.q.{queue}"), routing_key)], waited_ms


def test_every_unit_of_delay_is_waited_for_exactly() -> None:
    for count in [*range(1, 300), 2**LEVELS - 1, *(2**n for n in range(LEVELS))]:
        exchange, routing_key = way("ns", "ns.q.mail", count)

        assert walk(exchange, routing_key) == (["mail"], count * UNIT_MS)


@pytest.mark.parametrize("queue", QUEUES)
def test_a_hint_comes_out_in_its_own_queue_only_whatever_dots_its_name_has(queue: str) -> None:
    exchange, routing_key = way("ns", f"ns.q.{queue}", 513)

    assert walk(exchange, routing_key) == ([queue], 51_300)


def test_a_delay_is_waited_for_to_the_millisecond_and_less_than_a_unit_of_it_by_the_consumer() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        delay_s = rng.uniform(0.0, HORIZON_S)
        count, wait_ms = split(delay_s)

        assert 0 <= wait_ms < UNIT_MS
        assert -1e-6 <= count * UNIT_MS + wait_ms - delay_s * 1000 < 1.0


def test_what_floats_cannot_represent_costs_no_extra_millisecond() -> None:
    assert [split(n / 10) for n in range(8192)] == [(n, 0) for n in range(8192)]
    assert split(0.1 + 0.2) == (3, 0)
    assert [split(one) for one in (0.0001, 0.05, 0.0999, 0.09999, 1.234)] == [(0, 1), (0, 50), (1, 0), (1, 0), (12, 34)]


def test_no_delay_goes_straight_to_the_queue() -> None:
    assert way("ns", "ns.q.mail", 0) == ("", "ns.q.mail")


def test_a_hint_enters_at_its_highest_bit() -> None:
    assert way("ns", "ns.q.mail", 11) == ("ns.delay.03", "0.0.0.0.0.0.0.0.0.1.0.1.1.ns.q.mail")


def test_the_horizon_is_the_longest_delay() -> None:
    assert split(HORIZON_S) == (2**LEVELS - 1, 0)


@pytest.mark.parametrize("delay_s", [-0.1, HORIZON_S + 0.01, float("inf"), float("nan")])
def test_a_delay_outside_of_the_ladder_is_refused(delay_s: float) -> None:
    with pytest.raises(ValueError, match="a hint can wait"):
        split(delay_s)


def test_each_rung_is_declared_after_the_one_below() -> None:
    known = {due_exchange("ns")}
    for level in levels("ns"):
        assert level.next in known
        known.add(level.name)


def test_routing_keys_fit_into_amqp() -> None:
    _, routing_key = way("n" * 40, f"{'n' * 40}.q.{'q' * 100}", 2**LEVELS - 1)

    assert len(routing_key) <= 255
