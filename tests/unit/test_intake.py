"""What one record of a broker asks for, and how what cannot be read is set aside."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from workq import WorkQueue
from workq.errors import CommitUnknown, SchemaMismatch
from workq.intake import IntakeProcess
from workq.messages.intake import IntakeLink
from workq.messages.intake.aside import CUT_BYTES, RecordsAside
from workq.messages.intake.kafka_records import record_of
from workq.messages.intake.reading import read_record
from workq.messages.intake.taker import IntakeTaker
from workq.messages.intake.values import BrokerRecord, CancelOf, IntakeBatch, NewIntake, Unreadable
from workq.messages.intakes import MessageIntakes
from workq.messages.kinds import Answer, Confirmed, DestinationLink, Posting, SendFault, Unsent
from workq.messages.kinds.reach import ReachFailed
from workq.messages.ledger import recorded
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import DestinationPolicy, NewDestination, NewMessage, WhichMessages

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


def record(
    body: bytes | None = b"x", *, where: str = "t[0]@1", key: bytes | None = None, **headers: str
) -> BrokerRecord:
    named = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
    return BrokerRecord(body=body, headers=named, key=key, own_id="own", where=where)


def message(given: BrokerRecord, *, to: str | None = "orders") -> NewMessage:
    found = read_record(given, to=to)
    assert isinstance(found, NewMessage), found
    return found


def reason(given: BrokerRecord, *, to: str | None = "orders") -> str:
    found = read_record(given, to=to)
    assert isinstance(found, Unreadable), found
    return found.reason


@pytest.mark.parametrize(
    "text",
    [
        str(int(LATER.timestamp() * 1000)),
        LATER.isoformat(),
        LATER.isoformat().replace("+00:00", "Z"),
        LATER.astimezone(tz=None).isoformat(),
    ],
    ids=["milliseconds", "offset", "z", "local"],
)
def test_a_time_is_epoch_milliseconds_or_rfc_3339(text: str) -> None:
    assert message(record(workq_at=text)).at == LATER


@pytest.mark.parametrize("text", ["0", "1000", "1970-01-01T00:00:00Z", "2001-09-09T01:46:40+02:00"])
def test_what_is_past_is_due_at_once(text: str) -> None:
    """The ledger has the last word of what is past: it makes such an instant its own now."""
    found = message(record(workq_at=text))

    assert found.delay_s == 0.0
    assert found.at is not None
    assert found.at < datetime.now(UTC)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (record(workq_at="soon"), "need epoch milliseconds or RFC 3339, got 'soon'"),
        (record(workq_at="2026-12-01T08:00:00"), "has no offset"),
        (record(workq_at="-5"), "need epoch milliseconds"),
        (record(workq_at="9" * 15), "workq-at: need epoch"),
        (record(workq_at="1" * 16), "workq-at: need epoch"),
        (record(workq_at="9990-12-01T08:00:00Z"), "workq-at: '9990-12-01T08:00:00Z' is more than 3660 days away"),
        (record(workq_to="no name"), "name"),
        (record(workq_id="two words"), "id"),
        (record(workq_cancel=""), "id"),
        (record(workq_hat="x"), "header 'workq-hat' is not known"),
        (record(None), "it has no body"),
        (record(b"x" * 300_000), "300000 bytes"),
        (BrokerRecord(b"x", {f"h{n}": b'"' * 4096 for n in range(40)}, None, "own", "t[0]@1"), "headers: 328"),
        (record(key=b"\xff"), "'key' is no text in UTF-8"),
        (record(content_type="\n"), "content-type"),
    ],
)
def test_what_is_wrong_with_a_record_is_its_reason(given: BrokerRecord, said: str) -> None:
    assert said in reason(given)


def test_a_record_without_a_destination_needs_that_of_the_way_in() -> None:
    assert "workq-to is missing" in reason(record(), to=None)
    assert message(record(workq_to="bills"), to="orders").destination == "bills"


def test_a_record_without_an_id_is_named_by_its_place() -> None:
    assert message(record()).id == "own"
    assert message(record(workq_id="a")).id == "a"


def test_a_record_of_kafka_has_another_name_in_each_group() -> None:
    one = Mock(**{"headers.return_value": None, "timestamp.return_value": (1, 5), "value.return_value": b"x"})

    names = [record_of(one, topic_id="id", group=group).own_id for group in ("a", "b", "a")]

    assert (names[0] == names[2], names[0] == names[1]) == (True, False)


def test_a_cancel_needs_nothing_else() -> None:
    assert read_record(record(None, workq_cancel="a", workq_at="?"), to=None) == CancelOf("a")


def test_other_headers_and_the_key_are_sent_on_and_bytes_stay_as_they_are() -> None:
    found = message(record(b"\xff", key=b"k", colour="red", content_type="image/png"))

    assert (found.headers, found.key, found.content_type) == ({"colour": "red"}, "k", "image/png")
    assert (found.is_binary, found.body) == (True, "/w==")


class Belt(IntakeLink):
    """A way in that gives one batch, once."""

    def __init__(self, *records: BrokerRecord) -> None:
        self.batches = [IntakeBatch(records)]
        self.told: list[str] = []

    def fetch(self, *, limit: int, timeout_s: float) -> IntakeBatch:
        return self.batches.pop() if self.batches else IntakeBatch()

    def quarantine(self, unreadable: Sequence[tuple[BrokerRecord, str]], *, timeout_s: float) -> None:
        self.told += ["quarantine", *(one.where for one, _ in unreadable)]

    def passed(self, batch: IntakeBatch) -> None:
        self.told.append("passed")

    def close(self) -> None:
        self.told.append("close")


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_batch_whose_recording_failed_or_may_have_stood_is_recorded_once_and_sent_back_to_nobody(
    wq: WorkQueue, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    ledger = wq.stores.ledger.part(MessageLedger)
    row = ledger.intakes.required("in")
    nameless = BrokerRecord(body=b"x", headers={}, key=None, own_id=None, where="q#1")
    belt = Belt(nameless)
    taker = IntakeTaker(row, belt, ledger=ledger, producer=wq.producer, owner="me")
    record_by = wq.producer.record_by

    def fail(write: Any) -> Any:
        if is_recorded:
            record_by(write)
        raise CommitUnknown("the connection broke during COMMIT")

    with monkeypatch.context() as broken:
        broken.setattr(wq.producer, "record_by", fail)
        with pytest.raises(CommitUnknown):
            taker.round(timeout_s=0.0)
    assert belt.told == []
    assert taker.round(timeout_s=0.0) == 1
    assert taker.round(timeout_s=0.0) == 0

    assert belt.told == ["passed"]
    assert len(ledger.letters.all(WhichMessages())) == ledger.intakes.required("in").recorded == 1


@pytest.fixture
def wq(tmp_path: Path) -> Iterator[WorkQueue]:
    with WorkQueue(ledger=f"sqlite:///{tmp_path / 'workq.db'}") as made:
        part = made.stores.ledger.part(MessageLedger)
        part.destinations.add_destination(
            NewDestination("orders", "call", {}, None, DestinationPolicy()), who="eve@here", why="a test"
        )
        part.intakes.add_intake(NewIntake("in", "amqp", {"queue": "q"}, None, "orders"), who="eve@here", why="a test")
        yield made


def test_a_record_that_the_ledger_cannot_record_is_found_and_set_aside_alone(
    wq: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = wq.stores.ledger.part(MessageLedger)
    bodies = [b"bad" if place in (1, 4) else b"good" for place in range(8)]
    belt = Belt(*(record(body, where=str(place), workq_id=f"m{place}") for place, body in enumerate(bodies)))
    write = recorded._row

    def refuse(one: NewMessage) -> Any:
        if one.body == "bad":
            raise OverflowError("nobody has thought of this\nvalues")
        return write(one)

    monkeypatch.setattr(recorded, "_row", refuse)
    taker = IntakeTaker(ledger.intakes.required("in"), belt, ledger=ledger, producer=wq.producer, owner="me")

    assert taker.round(timeout_s=0.0) == 8

    row = ledger.intakes.required("in")
    assert belt.told == ["quarantine", "1", "4", "passed"]
    assert (row.recorded, row.quarantined) == (6, 2)
    assert row.quarantined_why == "it cannot be recorded: OverflowError: nobody has thought of this"


def test_what_no_record_can_help_sets_none_aside_and_the_batch_is_kept(
    wq: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = wq.stores.ledger.part(MessageLedger)
    belt = Belt(record(workq_id="a"), record(workq_cancel="b"))
    taker = IntakeTaker(ledger.intakes.required("in"), belt, ledger=ledger, producer=wq.producer, owner="me")

    for error in (OverflowError("a defect"), SchemaMismatch("a table is gone")):
        with monkeypatch.context() as broken:
            broken.setattr(recorded, "_row", Mock(side_effect=error))
            with pytest.raises(type(error)):
                taker.round(timeout_s=0.0)
    assert belt.told == []
    assert taker.round(timeout_s=0.0) == 2

    assert (belt.told, ledger.intakes.required("in").recorded) == (["passed"], 1)


def test_what_nobody_expects_ends_no_process_and_is_noted(
    wq: WorkQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop, noted = threading.Event(), list[str | None]()
    process = IntakeProcess(wq, queues=["intake:in"], threads=1, is_drain=False, board=Mock(), stop=stop)

    class Jammed(Belt):
        def fetch(self, *, limit: int, timeout_s: float) -> IntakeBatch:
            noted.append(intakes.required("in").error)
            if len(noted) == 1:
                raise OverflowError("no such number")
            if not self.batches:
                stop.set()
            return super().fetch(limit=limit, timeout_s=timeout_s)

    intakes, belt = wq.stores.ledger.part(MessageLedger).intakes, Jammed(record())
    monkeypatch.setattr(MessageIntakes, "open", lambda *_, **__: belt)

    process._serve("in")

    row = intakes.required("in")
    assert noted == [None, "OverflowError: no such number; the log says more", None]
    assert belt.told == ["close", "passed", "close"]
    assert (row.recorded, row.failing_since, process._is_over()) == (1, None, True)
    assert not process._is_broken
    assert [one.exc_info is not None for one in caplog.records if one.message == "intake.broken"] == [True]


class Shelf(DestinationLink):
    """A quarantine that answers what it is told to, by the first byte of a body; and takes headers of 40 KB at most."""

    def __init__(self) -> None:
        self.answers: dict[bytes, Unsent] = {}
        self.kept: list[Posting] = []

    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        found: list[Answer] = []
        for one in postings:
            unsent = self.answers.get(one.body[:1])
            if sum(map(len, one.headers.values())) > 40_000:
                found.append(Unsent(SendFault.MESSAGE, "headers"))
            elif unsent is not None and (unsent.fault is not SendFault.MESSAGE or len(one.body) > CUT_BYTES):
                found.append(unsent)
            else:
                self.kept.append(one)
                found.append(Confirmed())
        return found

    def test(self, *, timeout_s: float) -> list[str]:
        return []

    def close(self) -> None:
        pass


class TestAside:
    def test_what_was_confirmed_is_not_sent_again_until_it_is_passed(self) -> None:
        shelf = Shelf()
        aside = RecordsAside(shelf, make=lambda _: None)
        shelf.answers[b"b"] = Unsent(SendFault.AWAY, "nothing listens")
        both = [(record(b"a", where="1"), "?"), (record(b"b", where="2"), "?")]

        with pytest.raises(ReachFailed, match="the quarantine does not take a record: nothing listens"):
            aside.keep(both, timeout_s=1.0)
        shelf.answers.clear()
        aside.keep(both, timeout_s=1.0)

        assert [one.body for one in shelf.kept] == [b"a", b"b"]

    @pytest.mark.parametrize("ending", ["passed", "close"])
    def test_another_record_of_the_same_place_is_sent(self, ending: str) -> None:
        shelf = Shelf()
        aside = RecordsAside(shelf, make=lambda _: None)

        aside.keep([(record(b"a", where="q#1"), "?")], timeout_s=1.0)
        getattr(aside, ending)()
        aside.keep([(record(b"b", where="q#1"), "?")], timeout_s=1.0)

        assert [one.body for one in shelf.kept] == [b"a", b"b"]

    def test_the_id_that_was_given_is_kept_however_its_header_is_written(self) -> None:
        shelf = Shelf()

        given = BrokerRecord(body=b"a", headers={"Workq-Id": b"a b"}, key=None, own_id="own", where="1")
        RecordsAside(shelf, make=lambda _: None).keep([(given, "?")], timeout_s=1.0)

        [kept] = shelf.kept
        assert dict(kept.headers) == {"workq-id-given": "a b", "workq-reason": "?", "workq-where": "1"}

    def test_a_quarantine_that_is_missing_is_made(self) -> None:
        shelf = Shelf()
        shelf.answers[b"a"] = Unsent(SendFault.NO_TARGET, "no such topic")
        aside = RecordsAside(shelf, make=lambda _: shelf.answers.clear())

        aside.keep([(record(b"a"), "?")], timeout_s=1.0)

        assert len(shelf.kept) == 1

    def test_what_is_too_large_is_cut_and_says_so(self) -> None:
        shelf = Shelf()
        shelf.answers[b"a"] = Unsent(SendFault.MESSAGE, "too large")
        aside = RecordsAside(shelf, make=lambda _: None)

        aside.keep([(record(b"a" * 200_000, where="t[0]@7", colour="red"), "too much")], timeout_s=1.0)

        [kept] = shelf.kept
        said: Any = kept.headers
        assert len(kept.body) == CUT_BYTES
        assert said == {"workq-reason": "too much", "workq-where": "t[0]@7", "workq-cut": "200000"}

    def test_with_too_many_headers_the_body_stays_whole_and_some_are_left_out(self) -> None:
        shelf = Shelf()
        shelf.answers[b"b"] = Unsent(SendFault.NO_TARGET, "no such queue")
        aside = RecordsAside(shelf, make=lambda _: shelf.answers.clear())
        many = {"workq-at": b"soon"} | {f"h{number}": b"x" * 3000 for number in range(30)}
        large = BrokerRecord(body=b"a" * 200_000, headers=many, key=None, own_id=None, where="1")

        aside.keep([(large, "late"), (record(b"b", where="2"), "?")], timeout_s=1.0)

        found = {one.body[:1]: one for one in shelf.kept}
        said = found[b"a"].headers
        assert (len(found[b"a"].body), said["workq-at"], said["workq-reason"]) == (200_000, "soon", "late")
        assert int(said["workq-headers-left-out"]) == 30 - sum(name.startswith("h") for name in said) > 0
        assert found.keys() == {b"a", b"b"}, "the quarantine was made, for both"
