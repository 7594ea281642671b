"""The webhooks demo's receivers, and its proof: it can fail, and says of what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from workq.cli.session import Session
from workq.demo.command import webhooks_ended
from workq.demo.webhooks.play import Returned, WebhookReport, WebhookScene
from workq.demo.webhooks.proof import ReceiverTally, Recorded, Request, tally
from workq.demo.webhooks.roles import (
    LEAVING,
    SLOW,
    STEADY,
    NowAndThen,
    SoManyInARow,
    Steadily,
    UntilItLeaves,
    the_five,
)
from workq.demo.webhooks.shop import Move, moves_of

NOBODY: frozenset[str] = frozenset()
SENT_AT = {"a": 10.0, "b": 10.5}
BOTH = {"a": Recorded(True, 1), "b": Recorded(True, 1)}


def taken(webhook_id: str, at: float) -> Request:
    """One that was answered with 200."""
    return Request(webhook_id, at, at + 0.1, 200)


def count(requests: list[Request], **facts: Any) -> ReceiverTally:
    """What a receiver got that was sent a and b, and no process was killed."""
    given: dict[str, Any] = {"sent_at": SENT_AT, "recorded": BOTH, "in_hand": NOBODY}
    return tally("steady", "order.created", requests=requests, **given | facts)


# -- the receivers


def test_the_five_are_sent_five_types_and_none_is_like_another() -> None:
    roles = the_five(400)

    assert len({one.event_type for one in roles.values()}) == 5
    assert [one.name for one in roles.values()] == list(roles)


def test_one_is_slow_and_one_is_not() -> None:
    assert Steadily().answer(0.0).after_s == 0.0
    assert Steadily(0.25).answer(0.0).after_s == 0.25


def test_the_flaky_one_refuses_its_part() -> None:
    manner = NowAndThen(0.3, Random(1))

    statuses = [manner.answer(0.0).status for _ in range(2_000)]

    assert set(statuses) == {200, 503}
    assert 500 < statuses.count(503) < 700


def test_the_limited_one_takes_so_many_then_nothing_for_a_while_and_says_for_how_long() -> None:
    manner = SoManyInARow(2, 1.0)

    found = [manner.answer(at) for at in (5.0, 5.1, 5.2, 6.1, 6.3, 6.4, 6.5)]

    assert [one.status for one in found] == [200, 200, 429, 429, 200, 200, 429]
    assert {one.retry_after_s for one in found if one.status == 429} == {1.0}


def test_the_leaving_one_is_gone_for_everybody_until_it_is_brought_back() -> None:
    manner = UntilItLeaves(1)

    before = [manner.answer(0.0).status for _ in range(3)]
    manner.bring_back()

    assert before == [200, 410, 410]
    assert [manner.answer(0.0).status for _ in range(3)] == [200, 200, 200]


def test_each_order_goes_through_all_moves_and_no_event_has_the_id_of_another() -> None:
    moves = list(moves_of(7, ["order.created", "order.paid"], first_order=3))

    assert moves[:3] == [Move(3, "order.created"), Move(3, "order.paid"), Move(4, "order.created")]
    assert len({one.event_id for one in moves}) == 7
    assert moves[0].event_id == "order_created_3"


# -- the proof


def test_all_that_was_sent_has_arrived() -> None:
    found = count([taken("b", 12.0), taken("a", 11.0)])

    assert found.is_right
    assert (found.sent, found.arrived, found.requests, found.attempts) == (2, 2, 2, 2)
    assert found.waits is not None
    assert found.waits.half_s == pytest.approx(1.1)
    assert found.waits.most_s == pytest.approx(1.6)
    assert found.span_s == pytest.approx(2.1)


def test_a_request_that_was_refused_is_a_retry_and_no_arrival() -> None:
    refused = Request("a", 11.0, 11.0, 503)

    found = count([refused, taken("a", 12.0), taken("b", 12.0)], recorded=BOTH | {"a": Recorded(True, 2)})
    lost = count([refused, taken("b", 12.0)])

    assert found.is_right
    assert found.refused == {503: 1}
    assert lost.lost == ("a",)
    assert not lost.is_right


def test_nothing_at_all_has_arrived() -> None:
    found = count([], recorded={})

    assert found.lost == found.unfinished == ("a", "b")
    assert (found.waits, found.span_s) == (None, 0.0)
    assert not found.is_right


def test_what_was_rolled_back_or_is_another_receivers_is_foreign_even_if_it_was_refused() -> None:
    came = [taken("a", 11.0), taken("b", 11.0)]

    for stranger in (taken("c", 12.0), Request("c", 12.0, 12.0, 503)):
        found = count([*came, stranger])
        assert found.foreign == ("c",)
        assert not found.is_right


def test_what_is_not_signed_has_not_arrived() -> None:
    found = count([replace(taken("a", 11.0), is_signed=False), taken("b", 11.0)])

    assert (found.unsigned, found.lost) == (1, ("a",))
    assert not found.is_right


def test_what_comes_twice_is_excused_only_where_a_killed_process_had_it_in_hand() -> None:
    came = [taken("a", 11.0), taken("a", 12.0), taken("b", 11.0)]

    excused, unexcused = count(came, in_hand=frozenset({"a"})), count(came)

    assert (excused.twice, excused.unexcused) == (("a",), ())
    assert excused.is_right
    assert (unexcused.twice, unexcused.unexcused) == (("a",), ("a",))
    assert not unexcused.is_right


def test_a_repetition_that_comes_before_the_first_one_is_answered_is_one_too() -> None:
    came = [Request("a", 11.0, 11.5, 200), Request("a", 11.1, 11.2, 200), taken("b", 11.0)]

    assert count(came).twice == ("a",)


@pytest.mark.parametrize(("again_at", "is_early"), [(11.5, True), (12.0, False), (13.0, False)])
def test_who_was_asked_to_wait_has_to(again_at: float, is_early: bool) -> None:
    came = [Request("a", 11.0, 11.0, 429, retry_after_s=1.0), taken("a", again_at), taken("b", 11.0)]
    recorded = BOTH | {"a": Recorded(True, 2)}

    found = count(came, recorded=recorded)

    assert (found.early == ("a",)) is is_early
    assert found.is_right is not is_early
    assert count(came, recorded=recorded, in_hand=frozenset({"a"})).is_right


@pytest.mark.parametrize(
    ("known", "in_hand", "is_right"),
    [
        (Recorded(True, 1), NOBODY, False),
        (Recorded(True, 1), frozenset({"a"}), True),
        (Recorded(True, 3), frozenset({"a"}), False),
        (Recorded(False, 2), NOBODY, False),
        (Recorded(True, 2), NOBODY, True),
    ],
)
def test_the_ledger_has_to_say_the_same(known: Recorded, in_hand: frozenset[str], is_right: bool) -> None:
    came = [Request("a", 11.0, 11.0, 503), taken("a", 12.0), taken("b", 11.0)]

    assert count(came, recorded=BOTH | {"a": known}, in_hand=in_hand).is_right is is_right


def test_what_a_killed_process_had_in_hand_has_waited_for_the_kill_and_for_nobody_else() -> None:
    found = count([taken("a", 19.0), taken("b", 11.0)], in_hand=frozenset({"a"}))

    assert found.waits is not None
    assert found.waits.most_s == pytest.approx(9.1)
    assert found.waits.most_undisturbed_s == pytest.approx(0.6)


# -- the verdict


def report(**facts: Any) -> WebhookReport:
    """One of a run in which all went well, and nobody was killed."""
    each = count([taken("a", 11.0), taken("b", 11.0)])
    slow = replace(each, name=SLOW, span_s=9.0)
    given: dict[str, Any] = {
        "tallies": (replace(each, name=STEADY), slow, replace(each, name=LEAVING)),
        "returned": Returned(released=5, recovered=1),
        "trouble": None,
    }
    return WebhookReport(
        scene=WebhookScene(6, the_five(2), 2, 32, False, Path("demo")),
        stores="SQLite",
        rolled_back=20,
        killed=None,
        freed=None,
        seconds=9.0,
        **given | facts,
    )


def with_one(tallies: tuple[ReceiverTally, ...], **facts: Any) -> tuple[ReceiverTally, ...]:
    """The same, but for something of the first."""
    return (replace(tallies[0], **facts), *tallies[1:])


RIGHT = report().tallies


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (report(), 0, "arrived   6 of 6, each verified by its signature and its id\n"),
        (report(tallies=with_one(RIGHT, lost=("a",), arrived=1)), 1, "lost      1: a\n"),
        (report(tallies=with_one(RIGHT, foreign=("order_paid_81",))), 1, "foreign   1: order_paid_81 (of 20 events"),
        (report(tallies=with_one(RIGHT, unsigned=3)), 1, "unsigned  3\n"),
        (
            report(tallies=with_one(RIGHT, twice=("a",), unexcused=("a",))),
            1,
            "twice     1, of which nobody knows why 1: a\n",
        ),
        (report(tallies=with_one(RIGHT, twice=("a",))), 0, "twice     1, with the same webhook-id"),
        (report(tallies=with_one(RIGHT, early=("a",))), 1, "early     sent again earlier than it was asked for"),
        (report(tallies=with_one(RIGHT, unfinished=("a",))), 1, "open      not succeeded, as the ledger says, at"),
        (report(tallies=with_one(RIGHT, unrecorded=("a",))), 1, "unknown   not as many requests came"),
        (report(tallies=with_one(RIGHT, waits=None)), 1, "Nothing has arrived at steady."),
        (report(tallies=(RIGHT[0], replace(RIGHT[1], span_s=0.2), RIGHT[2])), 1, "steady WAITED FOR THE OTHERS"),
        (report(returned=None), 1, "FAILED: it did not go as it should"),
        (report(returned=Returned(released=5, recovered=0)), 1, "FAILED: it did not go as it should"),
        (report(trouble="no progress for 120 s"), 1, "Not finished: no progress for 120 s"),
    ],
)
def test_only_what_has_arrived_as_it_should_deserves_status_0(
    given: WebhookReport, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert webhooks_ended(Session(), given) == status
    page = capsys.readouterr().out
    assert said in page
    assert ("Proved" in page) == (status == 0)
    assert ("FAILED" in page or "Not finished" in page) == (status == 1)
