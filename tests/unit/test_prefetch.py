"""How many deliveries a process asks for: few at first, many where tasks are quick and come one by one."""

from __future__ import annotations

import pytest

from workq.broker import PAGE, Delivery
from workq.worker.pace import PREFETCH_MAX, Prefetch


def single(count: int) -> list[Delivery]:
    return [Delivery(number, "q", (f"task {number}",)) for number in range(count)]


def pages(count: int) -> list[Delivery]:
    return [Delivery(number, "q", tuple(f"task {number}.{one}" for one in range(PAGE))) for number in range(count)]


def test_it_begins_with_few_and_grows_while_a_fast_process_gets_single_tasks() -> None:
    prefetch = Prefetch(threads=1)
    counts = [prefetch.least]
    for _ in range(40):
        counts.append(prefetch.grow(single(prefetch.count), ahead=400))

    assert counts[0] == 2
    assert counts == sorted(counts)
    assert counts[-1] == PREFETCH_MAX


def test_a_slow_process_and_one_that_gets_pages_stay_with_few() -> None:
    slow, paged = Prefetch(threads=4), Prefetch(threads=4)
    for _ in range(40):
        slow.grow(single(slow.count), ahead=4)
        paged.grow(pages(2), ahead=400)

    assert (slow.count, paged.count) == (8, 4)


@pytest.mark.parametrize("threads", [1, 8, 50])
def test_it_begins_as_if_all_were_pages_and_the_first_delivery_tells_better(threads: int) -> None:
    singles, paged = Prefetch(threads), Prefetch(threads)
    began = singles.count

    assert began == paged.grow(pages(2), ahead=threads) == 2
    assert singles.grow(single(1), ahead=threads) == max(2, min(50, 2 * threads))
    assert singles.shrink() == max(2, min(50, 2 * threads)), "what it knows of its hints, it keeps"


def test_messages_without_tasks_say_nothing_about_the_size_of_hints() -> None:
    prefetch = Prefetch(threads=1)
    for _ in range(40):
        prefetch.grow([Delivery(1, "q", (), fault="not_json"), Delivery(2, "q", (), marker="m")], ahead=100)

    assert prefetch.count == 2


def test_it_is_back_to_few_at_once() -> None:
    prefetch = Prefetch(threads=1)
    for _ in range(40):
        prefetch.grow(single(10), ahead=400)

    assert prefetch.shrink() == prefetch.least == prefetch.count
