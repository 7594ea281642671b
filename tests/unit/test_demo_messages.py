"""The messages demo's plan, and its proof: it can fail, and says of what."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from workq.cli.session import Session
from workq.demo.command import messages_ended
from workq.demo.messages.mailboxes import open_mailboxes
from workq.demo.messages.plan import DECIDED_PART, planned
from workq.demo.messages.play import Decided, MessageReport, MessageScene
from workq.demo.messages.proof import Arrival, ExpectedMessage, Fate, MailboxTally, tally
from workq.errors import ConfigError

EXPECTED = {
    "a": ExpectedMessage("message a", 10.0),
    "b": ExpectedMessage("message b", 20.0),
    "c": ExpectedMessage("message c", 20.0, Fate.CANCELLED),
    "d": ExpectedMessage("message d", 20.0, Fate.TOO_LATE),
}


def came(name: str, at: float, *, message_id: str | None = None) -> Arrival:
    return Arrival(message_id or name, f"message {name}", at)


ALL = (came("a", 10.5), came("b", 20.1))


def count(*more: Arrival, of: tuple[Arrival, ...] = ALL) -> MailboxTally:
    return tally("http", EXPECTED, [*of, *more])


def test_what_had_to_come_has_come() -> None:
    found = count()

    assert found.is_right
    assert (found.sent, found.arrived, found.copies, found.too_late) == (2, 2, 0, 0)
    assert found.lateness is not None
    assert found.lateness.half_s == pytest.approx(0.1)
    assert found.lateness.most_s == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("found", "wrong", "who"),
    [
        (count(of=ALL[:1]), "missing", "b"),
        (count(came("b", 19.9)), "early", "b"),
        (count(came("c", 21.0)), "uncancelled", "c"),
        (count(came("b", 21.0, message_id="b-again")), "foreign", "b-again"),
        (count(came("b", 21.0, message_id="a")), "foreign", "a"),
        (count(came("x", 21.0)), "foreign", "x"),
        (tally("http", EXPECTED, []), "missing", "a"),
    ],
    ids=["missing", "early", "cancelled", "copy of another id", "id of another", "stranger", "nothing"],
)
def test_what_is_wrong_is_seen(found: MailboxTally, wrong: str, who: str) -> None:
    assert who in getattr(found, wrong)
    assert not found.is_right


def test_what_is_no_mistake_is_counted() -> None:
    found = count(came("a", 11.0), came("a", 12.0), came("d", 20.0))

    assert found.is_right
    assert (found.copies, found.too_late) == (2, 1)


def test_each_message_has_its_time_and_none_is_decided_about_after_the_kill() -> None:
    plan = list(planned(1000, 10.0, ["http", "call"], rng=Random(1)))

    decided = [one for one in plan if one.decide_after_s is not None]
    assert len({one.id for one in plan}) == len({one.body for one in plan}) == 1000
    assert [one.due_after_s for one in plan] == sorted(one.due_after_s for one in plan)
    assert plan[-1].due_after_s < 10.0
    assert len(decided) == 10
    assert sum(one.moved_to_s is not None for one in decided) == 5
    assert all((one.decide_after_s or 0.0) <= one.due_after_s < 10.0 * DECIDED_PART for one in decided)
    assert all(one.due_after_s < one.moved_to_s < 10.0 for one in decided if one.moved_to_s is not None)
    assert {one.box for one in plan} == {"http", "call"}


def report(*tallies: MailboxTally, **facts: Any) -> MessageReport:
    given: dict[str, Any] = {
        "scene": MessageScene(2, 2.0, 2, 8, kill=False, folder=Path()),
        "stores": "",
        "left_out": {},
        "decided": Decided(),
        "killed": None,
        "freed_s": None,
        "away": None,
        "recorded_s": 1.0,
        "seconds": 3.0,
        "states": {"succeeded": 2},
        "trouble": None,
    }
    return MessageReport(tallies=tallies, **given | facts)


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize(
    ("told", "status"),
    [
        (report(count()), 0),
        (report(count(), replace(count(), missing=("b",))), 1),
        (report(count(), trouble="the worker is gone"), 1),
        (report(count(), states={"succeeded": 1, "dead": 1}), 1),
    ],
    ids=["right", "missing", "trouble", "dead"],
)
def test_the_exit_status_is_that_of_the_proof(
    told: MessageReport, status: int, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session()
    session.output = output

    assert messages_ended(session, told) == status

    out = capsys.readouterr().out
    assert ('"is_proved": true' in out or "Proved: each message" in out) is (status == 0)


def test_what_the_machine_lacks_is_left_out_with_how_to_get_it_or_refused_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workq.lab.servers.jars.JARS", tmp_path)
    for name in ("pika", "aiohttp"):
        monkeypatch.setitem(sys.modules, name, None)

    with open_mailboxes((), tmp_path, broker_url=None) as (boxes, left_out):
        assert list(boxes) == ["call"]
    with pytest.raises(ConfigError, match=r"^--kind kafka: kafka-.* is not there: make servers"):
        open_mailboxes(("call", "kafka"), tmp_path, broker_url=None).__enter__()

    assert left_out["amqp"] == "pika is not installed: install workq with its extra [rabbitmq]"
    assert left_out["kafka"].startswith("kafka-4.4.0 is not there: make servers")
    assert left_out["http"] == "aiohttp is not installed: install workq with its extra [webhooks]"
