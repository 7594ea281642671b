"""What has come to one consumer of Kafka: given out by the prefetch, acked in any order, dropped with its partition."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from workq.broker import Delivery
from workq.broker.kafka.arrivals import Arrivals, Place
from workq.broker.kafka.records import RecordTag
from workq.broker.kafka.tracker import PartitionLife
from workq.errors import ConfigError

PLACE = ("topic", 0)


def come(arrivals: Arrivals, offsets: Iterable[int], *, place: Place = PLACE) -> bool:
    def delivery(life: PartitionLife, offset: int) -> Delivery:
        return Delivery(RecordTag(life, offset, b"", 0, ""), life.queue, (f"{offset}",))

    return arrivals.receive([(place, one, None, lambda life, one=one: delivery(life, one)) for one in offsets])  # type: ignore[misc]  # a lambda's default has no type


def taken(arrivals: Arrivals) -> list[Delivery]:
    return arrivals.take(ids_max=100, wait_s=0.0)


def offsets(found: Iterable[Delivery]) -> list[int]:
    return [one.tag.offset for one in found]


@pytest.fixture
def arrivals() -> Arrivals:
    made = Arrivals(["mail"], prefetch=2)
    made.begin("mail", [PLACE])
    return made


def test_as_many_as_the_prefetch_are_out_and_an_ack_lets_the_next_one_go(arrivals: Arrivals) -> None:
    assert come(arrivals, range(4))
    first = taken(arrivals)
    nothing = taken(arrivals)
    arrivals.ack(first[1:])
    second = taken(arrivals)

    assert (offsets(first), nothing, offsets(second)) == ([0, 1], [], [2])
    assert arrivals.to_commit() == [], "the first one is open"
    arrivals.ack(first[:1])
    [(life, done, _)] = arrivals.to_commit()
    assert (life.place, done) == (PLACE, 2)


def test_what_is_put_back_is_due_once_and_given_out_again_where_it_was_not_stored(arrivals: Arrivals) -> None:
    come(arrivals, range(3))
    first, _ = taken(arrivals)
    arrivals.put_back(first, delay_s=60.0)
    third = taken(arrivals)
    assert offsets(third) == [2], "it counts no more against the prefetch"
    assert arrivals.due_back() == []

    arrivals.ack(third)
    arrivals.moved(first, is_stored=False)
    [again] = taken(arrivals)
    assert offsets([again]) == [0]
    arrivals.put_back(again, delay_s=0.0)
    assert offsets(arrivals.due_back()) == [0]
    assert arrivals.due_back() == []
    arrivals.moved(again, is_stored=True)
    assert [done for _, done, _ in arrivals.to_commit()] == [1]


def test_nothing_of_a_partition_that_went_is_given_out_or_acked(arrivals: Arrivals) -> None:
    come(arrivals, range(3))
    out = taken(arrivals)

    [life] = arrivals.end([PLACE])
    arrivals.ack(out)

    assert life.to_commit() is None
    assert taken(arrivals) == []
    assert not come(arrivals, [3]), "it is not ours"
    arrivals.begin("mail", [PLACE])
    come(arrivals, [0, 1])
    assert offsets(taken(arrivals)) == [0, 1], "what was out counts no more"


@pytest.mark.parametrize("is_asked_anew", [True, False])
def test_a_partition_that_is_read_anew_stays_paused_for_kafka_until_it_is_resumed(
    arrivals: Arrivals, is_asked_anew: bool
) -> None:
    come(arrivals, [7])
    arrivals.lives[PLACE].is_paused = True

    if is_asked_anew:
        arrivals.begin("mail", [PLACE])
    else:
        come(arrivals, [0])

    assert arrivals.lives[PLACE].is_paused


def test_while_it_is_paused_or_serves_others_nothing_new_is_given_out(arrivals: Arrivals) -> None:
    arrivals.pause()
    come(arrivals, range(2))
    held = taken(arrivals), arrivals.places_held_back(), arrivals.paused_s is not None
    arrivals.serve(["other"])
    arrivals.resume()
    unserved = taken(arrivals), arrivals.places_held_back(), arrivals.paused_s
    arrivals.serve(["mail"])

    assert held == ([], {PLACE}, True)
    assert unserved == ([], set(), None)
    assert offsets(taken(arrivals)) == [0, 1]


def test_what_fails_for_good_is_raised_to_whoever_takes(arrivals: Arrivals) -> None:
    arrivals.fail(ConfigError("no right"))

    with pytest.raises(ConfigError, match="no right"):
        taken(arrivals)
