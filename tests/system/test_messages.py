"""Messages are sent at their time, past a destination that fails, past killed workers, and none is lost."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from tests.system.box import APP, behave, box_of, got
from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State
from workq.messages import Messages

BOUND_S = 60.0


@pytest.fixture(params=["sqlite", "servers"])
def leg(request: pytest.FixtureRequest, open_leg: OpenLeg) -> Leg:
    """Each leg, with a tenth of the default times."""
    return open_leg(request.param, divide=10.0)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    folder = tmp_path / "box"
    folder.mkdir()
    return folder


@pytest.fixture
def messages(leg: Leg, box: Path) -> Messages:
    made = Messages(leg.app, kind_of=box_of)
    made.destinations.add("orders", kind="box", folder=str(box))
    return made


def wait_for(messages: Messages, count: int, state: State = State.SUCCEEDED) -> None:
    wait_until(
        lambda: sum(1 for _ in messages.all(state=state)) == count, timeout_s=BOUND_S, what=f"{count} are {state}"
    )


def test_they_are_sent_at_their_time_and_not_before_with_what_they_were_given(
    leg: Leg, messages: Messages, box: Path
) -> None:
    at = datetime.now(UTC) + timedelta(seconds=2.5)
    messages.send("orders", "now", key="k", headers={"trace": "1"}, message_id="first")
    messages.send("orders", {"id": 17}, delay_s=1.5, message_id="delayed")
    messages.send("orders", b"\x00\xff", at=at, message_id="at")
    with Session(leg.app.stores.ledger.database.engine) as session:
        messages.send("orders", "never", connection=session)
        session.rollback()
        messages.send("orders", "theirs", connection=session, message_id="theirs")
        session.commit()

    with leg.fleet(processes=1, app=APP) as fleet:
        wait_for(messages, 4)
        fleet.terminate()
        assert fleet.wait(30) == 0, fleet.text()

    arrived = {one["id"]: one for one in got(box)}
    assert Counter(one["id"] for one in got(box)) == {"first": 1, "theirs": 1, "delayed": 1, "at": 1}
    assert (arrived["first"]["key"], arrived["first"]["headers"]) == ("k", {"trace": "1"})
    assert arrived["first"]["content_type"] == "text/plain; charset=utf-8"
    assert (arrived["delayed"]["body"], arrived["delayed"]["content_type"]) == ('{"id":17}', "application/json")
    rows = {one.id: one for one in messages.all()}
    assert arrived["delayed"]["at"] >= rows["delayed"].created_at.timestamp() + 1.5
    assert arrived["at"]["at"] >= at.timestamp()
    assert (rows["at"].where, rows["at"].attempts, rows["at"].state) == ("the box", 1, State.SUCCEEDED)


def test_a_destination_that_is_away_rests_and_its_messages_wait_at_no_cost(
    leg: Leg, messages: Messages, box: Path
) -> None:
    other = box.parent / "other"
    other.mkdir()
    messages.destinations.add("bills", kind="box", folder=str(other))
    behave(box, fault="away")
    messages.send_many("orders", [{"body": str(number)} for number in range(30)])

    with leg.fleet(processes=2, app=APP):
        wait_until(
            lambda: messages.destinations.get("orders").failures > 1, timeout_s=BOUND_S, what="it has failed twice"
        )
        messages.send_many("bills", [{"body": str(number)} for number in range(30)])
        wait_until(lambda: len(got(other)) == 30, timeout_s=BOUND_S, what="the other destination gets its own")
        orders = messages.destinations.get("orders")
        waiting = list(messages.all(to="orders"))
        behave(box)
        wait_for(messages, 60)

    assert (orders.fault, orders.error, orders.state) == ("away", "the box is away", "enabled")
    assert {one.failures for one in waiting} == {0}
    assert Counter(one["body"] for one in got(box)) == {str(number): 1 for number in range(30)}
    well = messages.destinations.get("orders")
    assert (well.failures, well.failing_since, well.error) == (0, None, None)


def test_past_a_destination_that_hangs_two_threads_send_all_to_another_one(open_leg: OpenLeg, box: Path) -> None:
    leg = open_leg("sqlite", divide=10.0)
    messages, other = Messages(leg.app, kind_of=box_of), box.parent / "other"
    other.mkdir()
    messages.destinations.add("orders", kind="box", folder=str(box), timeout_s=300.0)
    messages.destinations.add("bills", kind="box", folder=str(other))
    behave(box, fault="hang")
    messages.send_many("orders", [{"body": str(number)} for number in range(250)])

    with leg.fleet(processes=1, threads=2, app=APP):
        wait_until(lambda: len(got(box, "hung.jsonl")) > 0, timeout_s=BOUND_S, what="one call hangs")
        messages.send_many("bills", [{"body": str(number)} for number in range(150)])
        wait_until(lambda: len(got(other)) == 150, timeout_s=BOUND_S, what="all arrive at the other one")
        hung, arrived = got(box, "hung.jsonl"), got(box)
        behave(box)
        wait_for(messages, 400)

    assert (len(hung), arrived) == (1, [])
    assert Counter(one["body"] for one in got(box)) == {str(number): 1 for number in range(250)}


def test_what_is_never_taken_is_dead_and_keeps_no_other_back(leg: Leg, messages: Messages, box: Path) -> None:
    behave(box, fault="message", body="bad")
    messages.send_many("orders", [{"body": "bad" if number == 5 else str(number)} for number in range(20)])

    with leg.fleet(processes=1, app=APP):
        wait_for(messages, 19)
        wait_for(messages, 1, State.DEAD)
        [dead] = messages.all(state="dead")
        behave(box)
        messages.retry(dead.id, why="it takes them now")
        wait_for(messages, 20)

    assert (dead.failures, dead.reason) == (1, "not retried: NotTaken")
    assert "the box is message" in (dead.error or "")
    assert [one["sending"] for one in got(box) if one["body"] == "bad"] == [1]
    assert messages.destinations.get("orders").failures == 0


def test_what_was_not_confirmed_in_time_is_sent_again_with_the_same_id(leg: Leg, messages: Messages, box: Path) -> None:
    behave(box, fault="late")
    sent = messages.send("orders", "x")

    with leg.fleet(processes=1, app=APP):
        wait_until(lambda: len(got(box)) > 1, timeout_s=BOUND_S, what="it is sent again")
        behave(box)
        wait_for(messages, 1)

    assert {(one["id"], one["sending"]) for one in got(box)} == {(sent.id, 1)}
    row = messages.get(sent.id)
    assert row is not None
    assert row.failures >= 1


def test_a_worker_that_dies_between_confirm_and_settlement_sends_copies_of_the_same_id(
    leg: Leg, messages: Messages, box: Path
) -> None:
    sent = messages.send_many("orders", [{"body": str(number)} for number in range(20)])
    once = box.parent / "once"
    failpoint = {"WORKQ_FAILPOINT": "worker.after_run:exit137", "WORKQ_FAILPOINT_ONCE": str(once)}

    with leg.fleet(processes=1, app=APP, environ=failpoint):
        wait_for(messages, 20)

    assert once.exists()
    counts = Counter(one["id"] for one in got(box))
    assert set(counts) == {one.id for one in sent}
    assert max(counts.values()) == 2


def test_messages_of_one_order_key_arrive_in_the_order_of_their_commits(
    leg: Leg, messages: Messages, box: Path
) -> None:
    messages.send("orders", "0", order_key="a", delay_s=1.0)
    for number in range(1, 6):
        messages.send("orders", str(number), order_key="a")
    messages.send("orders", "of another key", order_key="b")

    with leg.fleet(processes=2, app=APP):
        wait_for(messages, 7)

    assert [one["body"] for one in got(box) if one["body"].isdigit()] == [str(number) for number in range(6)]
    assert Counter(one["body"] for one in got(box))["of another key"] == 1


def test_while_it_is_disabled_nothing_is_sent_and_what_waits_is_sent_when_it_is_enabled(
    leg: Leg, messages: Messages, box: Path
) -> None:
    messages.disable("orders", why="they are moving", who="ann")
    messages.send_many("orders", [{"body": str(number)} for number in range(10)])
    later = messages.send("orders", "later", delay_s=3600.0)

    with leg.fleet(processes=1, app=APP):
        wait_until(
            lambda: sum(one.waits_for == "destination" for one in messages.all(state=State.WAITING)) == 10,
            timeout_s=BOUND_S,
            what="all of them wait for it",
        )
        assert {one.attempts for one in messages.all()} == {0}
        assert got(box) == []
        assert messages.enable("orders", why="they have moved") == 10
        wait_for(messages, 10)

    assert len(got(box)) == 10
    row = messages.get(later.id)
    assert row is not None
    assert (row.state, row.attempts) == (State.WAITING, 0)


def test_a_restore_sends_all_again_with_the_same_ids_as_another_sending(
    leg: Leg, messages: Messages, box: Path
) -> None:
    sent = messages.send_many("orders", [{"body": str(number)} for number in range(700)])
    cancelled = messages.send("orders", "cancelled", delay_s=3600.0)
    messages.cancel(cancelled.id)

    with leg.fleet(processes=1, app=APP):
        wait_for(messages, 700)
        (box / "got.jsonl").unlink()
        assert messages.restore("orders", dry_run=True).sent_again == 700
        assert messages.restore("orders", why="their disk is gone").sent_again == 700
        wait_for(messages, 700)

    assert Counter((one["id"], one["sending"]) for one in got(box)) == {(one.id, 2): 1 for one in sent}
