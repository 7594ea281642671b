"""Turns: queues one after the other, the bands of each by weight. The stated bounds, for whatever arrives whenever."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workq.broker import PAGE, Delivery
from workq.broker.fair_turns import STEPS, WEIGHTS, FairBuffer, QueueTurns, Rotation
from workq.values.codec import new_task_id
from workq.values.lane import all_of
from workq.values.task import Priority

HIGH, NORMAL, LOW = all_of("mail")
HIGHER_MAX = 20
"""Before a low task that is first in line, where tasks come one by one."""


def line_of(*names: str) -> QueueTurns:
    line = QueueTurns("mail")
    line.serve(names)
    return line


class Waiting:
    """What waits in the bands of a queue: the sizes of pages, first in, first out."""

    def __init__(self, *names: str) -> None:
        self.line = line_of(*names)
        self.pages: Mapping[str, deque[int]] = {name: deque() for name in names}

    def take(self) -> tuple[str, int] | None:
        name = self.line.next(lambda name: bool(self.pages[name]))
        if name is None:
            return None
        size = self.pages[name].popleft()
        self.line.took(name, size)
        return name, size


def test_while_all_bands_wait_any_21_in_a_row_have_16_high_4_normal_and_1_low() -> None:
    line = line_of(HIGH, NORMAL, LOW)

    taken = []
    for _ in range(200):
        name = line.next(lambda _: True)
        assert name is not None
        line.took(name, 1)
        taken.append(name)

    assert taken[0] == HIGH
    for start in range(len(taken) - 21):
        assert Counter(taken[start : start + 21]) == {HIGH: 16, NORMAL: 4, LOW: 1}


def test_weights_divide_the_greatest_so_that_passes_are_whole_numbers() -> None:
    assert {priority: WEIGHTS[priority] * STEPS[priority] for priority in Priority} == dict.fromkeys(Priority, 16)


arrivals = st.lists(st.sampled_from([HIGH, NORMAL, LOW, None]), max_size=300)


@given(arrivals, st.lists(st.sampled_from([HIGH, NORMAL, LOW]), max_size=60))
def test_a_low_task_that_is_first_in_line_starts_after_at_most_20_higher_ones(
    arriving: list[str | None], there: list[str]
) -> None:
    waiting = Waiting(HIGH, NORMAL, LOW)
    for name in there:
        waiting.pages[name].append(1)
    higher = {NORMAL: 0, LOW: 0}

    for new in [*arriving, *[None] * 400]:
        if new is not None:
            waiting.pages[new].append(1)
            continue
        first = {band for band in higher if waiting.pages[band]}
        taken = waiting.take()
        if taken is None:
            break
        for band in higher:
            higher[band] = higher[band] + 1 if band in first and band != taken[0] else 0
        assert higher[LOW] <= HIGHER_MAX
        assert higher[NORMAL] <= 5, "four high ones, and a low one whose turn it is"


pages = st.tuples(st.sampled_from([HIGH, NORMAL, LOW]), st.integers(1, PAGE))


@given(st.lists(pages, max_size=200), st.integers(1, PAGE), st.integers(1, PAGE))
def test_between_pages_of_low_tasks_there_are_fewer_than_20_times_as_many_higher_ones_and_two_pages(
    arriving: list[tuple[str, int]], size: int, busy: int
) -> None:
    """Bands that are never empty, of one size, among pages of any sizes before them."""
    waiting = Waiting(HIGH, NORMAL, LOW)
    for name, count in [*arriving, *[(HIGH, busy)] * 2500, *[(NORMAL, busy)] * 700, *[(LOW, size)] * 20]:
        waiting.pages[name].append(count)
    last, higher = 1, 0

    while waiting.pages[LOW] and waiting.pages[NORMAL] and waiting.pages[HIGH]:
        taken = waiting.take()
        assert taken is not None
        name, count = taken
        higher = 0 if name == LOW else higher + count
        last = count if name == LOW else last
        assert higher < 20 * last + 2 * PAGE


@given(st.integers(1, PAGE))
def test_where_all_tasks_come_in_pages_of_one_size_it_is_20_pages(size: int) -> None:
    waiting = Waiting(HIGH, NORMAL, LOW)
    for name in (HIGH, NORMAL, LOW):
        waiting.pages[name].extend([size] * 100)
    between = 0

    while waiting.pages[HIGH]:
        taken = waiting.take()
        assert taken is not None
        between = 0 if taken[0] == LOW else between + 1
        assert between <= HIGHER_MAX


def test_a_high_one_overtakes_a_backlog_of_the_others_at_once() -> None:
    waiting = Waiting(HIGH, NORMAL, LOW)
    waiting.pages[LOW].extend([1] * 1000)
    waiting.pages[NORMAL].extend([1] * 1000)
    for _ in range(500):
        waiting.take()
    waiting.pages[HIGH].extend([1] * 3)

    taken = [waiting.take() for _ in range(5)]

    assert taken.count((HIGH, 1)) == 3


def test_to_be_empty_saves_nothing_up() -> None:
    waiting = Waiting(HIGH, LOW)
    waiting.pages[HIGH].extend([1] * 1000)
    for _ in range(500):
        waiting.take()
    waiting.pages[LOW].extend([1] * 100)

    taken = Counter(one[0] for _ in range(34) if (one := waiting.take()) is not None)

    assert taken == {HIGH: 32, LOW: 2}


def test_a_band_whose_next_hint_is_still_on_its_way_keeps_its_turn_for_a_round() -> None:
    waiting = Waiting(HIGH, LOW)
    waiting.pages[HIGH].extend([1] * 100)
    waiting.pages[LOW].append(1)
    while waiting.pages[LOW]:
        waiting.take()
    before = [waiting.take() for _ in range(20)]

    waiting.pages[LOW].append(1)

    assert before == [(HIGH, 1)] * 20
    assert waiting.take() == (LOW, 1)


def test_asking_again_before_anything_is_taken_answers_the_same() -> None:
    line = line_of(HIGH, NORMAL, LOW)

    assert {line.next(lambda name: name != HIGH) for _ in range(5)} == {NORMAL}


def test_a_band_is_asked_only_when_it_may_be_its_turn() -> None:
    line = line_of(HIGH, NORMAL, LOW)
    asked: Counter[str] = Counter()

    def has(name: str) -> bool:
        asked[name] += 1
        return name != LOW

    for _ in range(200):
        name = line.next(has)
        assert name is not None
        line.took(name, 1)

    assert asked[LOW] <= 200 / 20 + 1


def test_queues_take_turns_whatever_the_priorities_of_their_tasks() -> None:
    turns = Rotation(["mail", "mail~high", "mail~low", "reports~low", "reports"])

    taken = []
    for _ in range(60):
        chosen = turns.next(lambda _: True)
        assert chosen is not None
        line, name = chosen
        line.took(name, 1)
        turns.turn(line)
        taken.append(line.queue)

    assert taken == list(islice(cycle(["mail", "reports"]), 60))


def test_what_is_served_may_change_and_a_queue_that_stays_keeps_its_place() -> None:
    turns = Rotation(["mail", "reports"])
    turns.turn(turns.lines[0])

    turns.serve(["mail", "mail~low", "reports", "sums"])
    more = [line.queue for line in turns.lines]
    turns.serve(["sums"])

    assert more == ["reports", "mail", "sums"]
    assert [line.queue for line in turns.lines] == ["sums"]


@pytest.mark.parametrize("known_before", [True, False])
def test_a_band_that_comes_into_use_begins_at_the_present(known_before: bool) -> None:
    line = line_of(NORMAL, *[LOW] * known_before)
    for _ in range(100):
        name = line.next(lambda name: name == NORMAL)
        assert name == NORMAL
        line.took(name, 1)

    line.serve([HIGH, NORMAL, LOW])
    taken = []
    for _ in range(42):
        name = line.next(lambda _: True)
        assert name is not None
        line.took(name, 1)
        taken.append(name)

    assert Counter(taken) == {HIGH: 32, NORMAL: 8, LOW: 2}


# -- the buffer of a consumer


def delivery(queue: str, ids: int = 1, marker: str | None = None) -> Delivery:
    return Delivery(None, queue, tuple(new_task_id() for _ in range(ids)), marker=marker)


def test_a_buffer_gives_whole_deliveries_up_to_the_room_and_one_in_any_case() -> None:
    buffer = FairBuffer()
    sent = [delivery("mail", size) for size in (10, 20, 30)]
    for one in sent:
        buffer.append(one)

    taken = [buffer.take(5), buffer.take(50), buffer.take(50)]

    assert taken == [sent[:1], sent[1:], []]
    assert len(buffer) == 0


@given(st.lists(st.tuples(st.sampled_from([HIGH, NORMAL, LOW, "reports"]), st.integers(0, 3)), max_size=100))
def test_each_band_of_a_buffer_stays_first_in_first_out_so_that_a_marker_proves_what_it_says(
    arriving: list[tuple[str, int]],
) -> None:
    buffer = FairBuffer()
    sent = [delivery(queue, ids, marker=None if ids else "m") for queue, ids in arriving]
    for one in sent:
        buffer.append(one)

    taken: list[Delivery] = []
    while page := buffer.take(5):
        taken += page

    for queue in (HIGH, NORMAL, LOW, "reports"):
        assert [id(one) for one in taken if one.queue == queue] == [id(one) for one in sent if one.queue == queue]
    assert len(taken) == len(sent)


def test_of_a_page_that_is_longer_than_the_room_only_what_is_kept_counts() -> None:
    buffer = FairBuffer()
    for _ in range(100):
        buffer.append(delivery(HIGH))
        buffer.append(delivery(LOW, PAGE))

    taken = [one.queue for _ in range(68) for one in buffer.take(1)]

    assert Counter(taken) == {HIGH: 64, LOW: 4}


def test_what_is_forgotten_does_not_come() -> None:
    buffer = FairBuffer()
    buffer.append(delivery(LOW))

    buffer.clear()

    assert (len(buffer), buffer.take(10)) == (0, [])
