"""Levels of delays, without a broker: how they are written, which one a hint waits in, and who shares it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.process import opened, tasks
from tests.unit.test_ladder import QUEUES, matches
from workq import State
from workq.broker import HOP_S, PAGE, Hint, arrives_in_s
from workq.broker.rabbitmq import RabbitMQBroker
from workq.broker.rabbitmq.delays import Binary, Delays, Levels, delays_of, due_exchange, due_pattern, split
from workq.config import levels_ms
from workq.config.times import LEVEL_MAX_MS, LEVEL_MIN_MS, LEVELS_MAX
from workq.enqueue.relay import pages_of
from workq.errors import ConfigError
from workq.ledger import Unpublished
from workq.values.codec import new_task_id
from workq.worker.fetch.refused import HintPages

LADDER = "levels:5s,10s,30s,1m"
MS = (5_000, 10_000, 30_000, 60_000)

lists_of_levels = st.sets(st.integers(LEVEL_MIN_MS, LEVEL_MAX_MS), min_size=1, max_size=LEVELS_MAX).map(
    lambda found: tuple(sorted(found))
)


def broker(ladder: str = LADDER) -> RabbitMQBroker:
    """One that nobody asks to connect."""
    return RabbitMQBroker("amqp://nowhere.invalid", namespace="ns", ladder=ladder)


def rows(delays: Sequence[float], queue: str = "mail") -> list[Unpublished]:
    return [Unpublished(new_task_id(), queue, 0, delay_s) for delay_s in delays]


# ------------------------------------------------------------------------------------------ as people write


@pytest.mark.parametrize(
    ("ladder", "levels"),
    [
        ("binary", ()),
        (LADDER, MS),
        ("levels:100ms", (100,)),
        ("levels:0.1s,1500ms,1.5m,2h", (100, 1_500, 90_000, 7_200_000)),
        ("levels:24h", (86_400_000,)),
        ("levels:1d", (86_400_000,)),
    ],
)
def test_a_ladder_is_binary_or_levels_of_durations(ladder: str, levels: tuple[int, ...]) -> None:
    assert levels_ms(ladder) == levels


@pytest.mark.parametrize(
    ("ladder", "said"),
    [
        ("", "is no ladder"),
        ("Binary", "is no ladder"),
        ("5s,10s", "is no ladder"),
        ("level:5s", "is no ladder"),
        (5, "must be text, not a number"),
        (["5s"], "must be text, not a list"),
        ("levels:", "'' is no duration"),
        ("levels:5s,", "'' is no duration"),
        ("levels:5s,,10s", "'' is no duration"),
        ("levels:5s, 10s", "' 10s' is no duration"),
        ("levels:5", "'5' is no duration"),
        ("levels:5S", "'5S' is no duration"),
        ("levels:-5s", "'-5s' is no duration"),
        ("levels:1e3s", "'1e3s' is no duration"),
        ("levels:nan", "'nan' is no duration"),
        ("levels:\u0665s", "is no duration"),
        ("levels:5s;10s", "is no duration"),
        ("levels:5s\n", "is no duration"),
        ("levels:" + "9" * 5_000 + "s", "is no duration"),
        ("levels:100.5ms", "no whole number of milliseconds"),
        ("levels:0s", "out of bounds"),
        ("levels:99ms", "out of bounds"),
        ("levels:0.099s", "out of bounds"),
        ("levels:24.001h", "out of bounds"),
        ("levels:999999999d", "out of bounds"),
        ("levels:5s,5s", "'5s' is not above the one before it"),
        ("levels:1m,60s", "'60s' is not above"),
        ("levels:10s,5s", "'5s' is not above"),
        ("levels:" + ",".join(f"{n}s" for n in range(1, 34)), "33 levels are too many"),
    ],
)
def test_any_other_form_is_one_line_that_says_what_is_wrong_before_anything_is_contacted(
    ladder: object, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        levels_ms(ladder)
    message = str(caught.value)
    assert said in message
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 200
    with pytest.raises(ConfigError):
        RabbitMQBroker("amqp://nowhere.invalid", ladder=ladder)  # type: ignore[arg-type]  # what the test is about


# ------------------------------------------------------------------------------------------ which level it is


@given(lists_of_levels, st.floats(0.0, 1.0))
def test_a_hint_is_never_early_and_late_by_less_than_the_gap(ms: tuple[int, ...], part: float) -> None:
    delay_s = part * ms[-1] / 1000
    waits_s = Levels(ms).waits_s(delay_s)

    place = bisect_left(ms, round(waits_s * 1000))
    below_ms = ms[place - 1] if place else 0
    assert waits_s >= delay_s - 1e-6
    assert waits_s - delay_s <= Levels(ms).late_max_s
    if delay_s > 1e-6:
        assert round(waits_s * 1000) in ms
        assert waits_s - delay_s < (ms[place] - below_ms) / 1000 + 1e-6


@given(lists_of_levels)
def test_a_delay_that_is_a_level_waits_exactly_so_long(ms: tuple[int, ...]) -> None:
    assert [Levels(ms).waits_s(one / 1000) for one in ms] == [one / 1000 for one in ms]
    assert [Levels(ms).waits_s(one * 0.001) for one in ms] == [one / 1000 for one in ms], "floats are forgiven"


def test_no_delay_goes_straight_to_its_queue() -> None:
    assert Levels(MS).way("ns", "ns.q.mail", 0.0) == ("", "ns.q.mail", 0)


@pytest.mark.parametrize("delay_s", [-0.1, 60.000001, 60.001, float("inf"), float("nan")])
def test_a_delay_above_the_largest_level_is_refused(delay_s: float) -> None:
    with pytest.raises(ValueError, match=r"a hint can wait from 0 to 60 s"):
        Levels(MS).way("ns", "ns.q.mail", delay_s)


def test_the_largest_gap_is_told() -> None:
    assert delays_of(LADDER).late_max_s == 30.0
    assert delays_of("levels:1h").late_max_s == 3600.0
    assert delays_of("binary").late_max_s == 0.0


# ------------------------------------------------------------------------------------------ its way in the broker


@pytest.mark.parametrize("queue", QUEUES)
def test_a_hint_passes_one_level_and_comes_out_in_its_own_queue_only(queue: str) -> None:
    delays = Levels(MS)
    for delay_s, level_ms in ((0.001, 5_000), (5.0, 5_000), (5.001, 10_000), (59.0, 60_000)):
        exchange, routing_key, wait_ms = delays.way("ns", f"ns.q.{queue}", delay_s)

        waits_in = [one for one in delays.queues("ns") if one.exchange == exchange and matches(one.waits, routing_key)]
        assert [(one.ttl_ms, one.next, one.passes) for one in waits_in] == [(level_ms, due_exchange("ns"), None)]
        assert wait_ms == 0
        assert [one for one in QUEUES if matches(due_pattern(f"ns.q.{one}"), routing_key)] == [queue]


def test_no_two_ladders_share_a_queue_unless_it_waits_equally_long() -> None:
    ladders: list[Delays] = [Binary(), Levels(MS), Levels((1_000, 5_000)), Levels((100, 200, 400))]
    found = {(one.name, one.ttl_ms, one.exchange, one.next) for ladder in ladders for one in ladder.queues("ns")}

    assert len({name for name, *_ in found}) == len(found)
    assert {one.name for one in Levels(MS).queues("ns")} == {f"ns.level.{one}" for one in MS}


def test_routing_keys_fit_into_amqp() -> None:
    _, routing_key, _ = Levels((LEVEL_MAX_MS,)).way("n" * 40, f"{'n' * 40}.q.{'q' * 100}", 1.0)

    assert len(routing_key) <= 255


# ------------------------------------------------------------------------------------------ who shares hints


@given(st.lists(st.floats(0.0, 90.0), max_size=50))
def test_what_waits_in_one_level_shares_hints_and_none_of_it_is_early(delays: list[float]) -> None:
    pages = pages_of(broker(), rows(delays))

    assert sum(len(page) for _, page in pages) == sum(delay_s <= 60.0 for delay_s in delays)
    for hint, page in pages:
        came_s = broker().waits_s(hint.delay_s)
        assert hint.task_ids == tuple(row.task_id for row in page)
        assert not any(hint.waits_s)
        for row in page:
            assert row.arrives_in_s == (came_s + HOP_S if came_s else 0.0)
    waits = {delay_s: broker().waits_s(delay_s) for delay_s in delays if delay_s <= 60.0}
    assert {hint.delay_s for hint, _ in pages} == set(waits.values())
    assert all(waits_s >= delay_s - 1e-6 for delay_s, waits_s in waits.items())


def test_a_thousand_tasks_of_one_level_need_ten_hints() -> None:
    pages = pages_of(broker(), rows([10.0 + n / 100 for n in range(1, 1_001)]))

    assert [(hint.delay_s, len(hint.task_ids)) for hint, _ in pages] == [(30.0, PAGE)] * 10


def test_where_delays_are_exact_nothing_is_said_of_an_arrival() -> None:
    [(_, [row])] = pages_of(broker("binary"), rows([7.25]))

    assert (row.delay_s, row.arrives_in_s) == (7.25, 0.0)
    assert arrives_in_s(broker("binary"), 7.25) == 7.25
    assert split(7.25) == (72, 50)


# ------------------------------------------------------------------------------------------ hints in place of others


def test_a_pause_is_never_longer_than_the_longest_delay_and_what_is_due_later_is_left_to_the_sweep() -> None:
    again = HintPages(0.5)
    again.add("moment", "mail", pause_s=5.0)
    again.add("soon", "mail", due_in_s=0.3, pause_s=0.2)
    again.add("late", "mail", due_in_s=0.6, pause_s=0.2)
    again.add("due", "mail", due_in_s=-9.0, pause_s=0.2)

    assert {one.task_ids: one.delay_s for one in again.hints()} == {("moment",): 0.5, ("soon",): 0.3, ("due",): 0.2}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Makes a broker that keeps delays exactly keep them as levels of five seconds do."""

    def make(embedded: Any) -> None:
        monkeypatch.setattr(type(embedded), "is_late", True)
        monkeypatch.setattr(type(embedded), "waits_s", lambda _self, delay_s: 5.0 * math.ceil(delay_s / 5.0))

    return make


def test_a_hint_that_a_worker_sends_on_is_not_proved_lost_while_it_may_be_in_its_level(
    tmp_path: Path, late: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be claimed, and its level keeps the new hint for longer than a moment."""
    stamps: list[tuple[tuple[str, ...], float]] = []
    with opened(tmp_path) as process:
        ledger = process.stores.ledger
        late(process.stores.broker)
        monkeypatch.setattr(ledger.claims, "claim", lambda task_ids, *, by: [])
        monkeypatch.setattr(
            ledger.hints, "rehinted", lambda task_ids, *, delay_s=0.0: stamps.append((tuple(task_ids), delay_s))
        )
        [task_id] = tasks(process, 1)
        process.rounds()

        assert process.state(task_id) is State.READY
    assert ((task_id,), 5.0 + HOP_S) in stamps


def test_a_producer_counts_a_late_hint_from_the_commit_so_that_it_never_comes_early(
    tmp_path: Path, late: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delay begins in the ledger; what was waited for before that must not be taken off."""
    sent: list[Hint] = []
    with opened(tmp_path) as process:
        producer, stores = process.wq.producer, process.wq.stores
        relay = producer.relay
        now = [1000.0]
        record = stores.ledger.tasks.record

        def slowly(*args: Any, **kwargs: Any) -> Any:
            now[0] += 3.0
            return record(*args, **kwargs)

        def publish(hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
            sent.extend(hints)
            return [True] * len(hints)

        late(stores.broker)
        monkeypatch.setattr(type(stores.broker), "is_transactional", False)
        monkeypatch.setattr(stores.broker, "publish", publish)
        monkeypatch.setattr(stores.ledger.tasks, "record", slowly)
        monkeypatch.setattr(relay, "clock", lambda: now[0])
        monkeypatch.setattr(relay, "_has_thread", False)
        handler = process.wq.registry.get("work")
        assert handler is not None
        handler.options(delay_s=6.0).enqueue(1)
        relay.relay_once()

    assert [replace(one, task_ids=()) for one in sent] == [Hint("default", (), 10.0)]
