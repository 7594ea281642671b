"""Taking in: a record of a broker is recorded once, with the position behind it, by the newest owner alone."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete

from tests.contract.given import HOUR_S, Clock, at_once
from tests.contract.ledger.messages import ALL, BY, MessageSteps, new_message
from workq.errors import KeyConflict, NotFound, Refused
from workq.ledger.sql import Ledger
from workq.messages.intake.values import CancelOf, IntakeRow, NewIntake, OffsetMove, Overtaken, Position, Step, TakenIn
from workq.messages.ledger.matches import LoneMessage, MiscountedIntake
from workq.messages.ledger.sql import MessageLedger
from workq.messages.ledger.tables import message_tables
from workq.messages.ledger.taken_records import TakenRecords
from workq.messages.values import KEPT_AFTER_S, SentMessage
from workq.values.incarnation import Incarnation
from workq.values.task import Done, State


class IntakesContract(MessageSteps):
    def way_in(self, ledger: Ledger, name: str = "in") -> TakenRecords:
        part = ledger.part(MessageLedger)
        part.intakes.add_intake(NewIntake(name, "kafka", {"topic": "t"}, None, "orders"), **BY)
        return part.taken

    def intake(self, ledger: Ledger, name: str = "in") -> IntakeRow:
        return ledger.part(MessageLedger).intakes.required(name)

    def ids(self, ledger: Ledger) -> set[str]:
        return {one.id for one in ledger.part(MessageLedger).letters.all(ALL)}

    def test_a_way_in_is_added_once_and_listed_and_forgotten_with_its_positions(self, ledger: Ledger) -> None:
        taken, intakes = self.way_in(ledger), ledger.part(MessageLedger).intakes
        self.way_in(ledger)
        taken.take_partition("in", "t", 0, owner="a")

        with pytest.raises(Refused, match="intake 'in' is there already"):
            intakes.add_intake(NewIntake("in", "kafka", {"topic": "other"}, None), **BY)
        intakes.add_intake(NewIntake("next", "amqp", {"queue": "q"}, None), **BY)
        assert [one.name for one in intakes.all(limit=1)] == ["in"]
        assert [one.name for one in intakes.all(after="in")] == ["next"]
        assert [(one.topic, one.part, one.owner) for one in intakes.offsets("in")] == [("t", 0, "a")]
        intakes.remove("in", **BY)
        assert (intakes.intake("in"), intakes.offsets("in")) == (None, [])
        with pytest.raises(NotFound, match="no intake 'in'"):
            intakes.remove("in", **BY)
        assert self.decided(ledger) == [
            (f"intake {what}", "ann@host", "a test") for what in ("in added", "next added", "in removed")
        ]

    def test_records_and_the_positions_behind_them_are_recorded_together(self, ledger: Ledger) -> None:
        self.destination(ledger)
        taken = self.way_in(ledger)
        first = taken.take_partition("in", "t", 3, owner="a")
        steps: list[Step] = [new_message("x"), new_message("y", delay_s=60.0)]

        found, hints = taken.record("in", steps, owner="a", moves=[OffsetMove("t", 3, first.epoch, 17)])

        assert (first, found) == (Position(None, 1), TakenIn(2, 0, 0))
        assert [one.queue for one in hints] == ["workq.messages"] * 2
        assert self.message(ledger, "y").state is State.WAITING
        assert taken.take_partition("in", "t", 3, owner="b") == Position(17, 2)
        assert (self.intake(ledger).recorded, self.intake(ledger).taken_at is None) == (2, False)

    def test_what_is_rehearsed_is_not_recorded(self, ledger: Ledger) -> None:
        self.destination(ledger)
        taken = self.way_in(ledger)
        taken.record("in", [new_message("old")], owner="a")
        steps: list[Step] = [new_message("x", delay_s=60.0), CancelOf("old")]

        taken.rehearse("in", steps)

        assert (self.ids(ledger), self.message(ledger, "old").state) == ({"old"}, State.READY)
        assert (self.intake(ledger).recorded, self.intake(ledger).cancelled) == (1, 0)
        with pytest.raises(NotFound):
            taken.rehearse("in", [new_message("y", destination="nowhere")])
        assert taken.record("in", steps, owner="a")[0] == TakenIn(1, 0, 1)

    def test_what_a_way_in_has_recorded_is_there_until_retention_removes_it(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        taken, part = self.way_in(ledger), ledger.part(MessageLedger)
        taken.record("in", [new_message(name) for name in ("a", "b", "b", "c")], owner="o")
        self.post(ledger, new_message("theirs"))
        m, fine = message_tables(ledger.database).message, [part.matches.miscounted_intakes()]
        self.let_run(ledger, worker, [SentMessage("a", "")], Done())
        clock.forward(3 * HOUR_S)
        ledger.upkeep.prune(limit=10, retention_s=HOUR_S, dead_retention_s=HOUR_S)
        clock.forward(KEPT_AFTER_S + HOUR_S)
        pruned = part.pruning.prune_messages(limit=10)
        fine.append(part.matches.miscounted_intakes())
        part.intakes.remove("in", **BY)
        self.way_in(ledger)
        fine.append(part.matches.miscounted_intakes())

        ledger.database.written(delete(m).where(m.c.id == "b"))  # by hand

        assert (pruned, fine) == (1, [[], [], []])
        assert part.matches.miscounted_intakes() == [MiscountedIntake("in", 2, 1)]
        assert part.matches.without_task(limit=9) == []
        assert len(part.matches.without_message(limit=9)) == 1

    def test_what_does_not_match_is_found_by_one_look_and_what_does_is_not(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        part, t = ledger.part(MessageLedger), ledger.database.tables.task
        w = message_tables(ledger.database).waiting_message
        sent = self.post(ledger, *[new_message(name) for name in "abcde"])
        self.let_run(ledger, worker, sent[:1], Done())
        part.decisions.disable("orders", **BY)
        ledger.claims.claim([one.task_id for one in sent[1:4]], by=worker.id)
        looks = part.matches.without_task, part.matches.without_message, part.matches.without_place
        before = [list(look(limit=9)) for look in looks]

        ledger.database.written(delete(t).where(t.c.id == sent[4].task_id))
        ledger.database.written(delete(w).where(w.c.task_id == sent[1].task_id))
        after = [list(look(limit=9)) for look in looks]

        assert before == [[], [], []]
        assert after == [[LoneMessage("e", sent[4].task_id, "orders")], [], [sent[1].task_id]]

    def test_who_was_overtaken_records_nothing_and_moves_nothing(self, ledger: Ledger) -> None:
        self.destination(ledger)
        taken = self.way_in(ledger)
        old = taken.take_partition("in", "t", 0, owner="a")
        kept = taken.take_partition("in", "t", 1, owner="a")
        new = taken.take_partition("in", "t", 0, owner="b")

        moves = [OffsetMove("t", 1, kept.epoch, 9), OffsetMove("t", 0, old.epoch, 5)]

        with pytest.raises(Overtaken):
            taken.record("in", [new_message("x")], owner="a", moves=moves)
        with pytest.raises(Overtaken):  # nor with the epoch of the new owner
            taken.record("in", [new_message("x")], owner="a", moves=[OffsetMove("t", 0, new.epoch, 5)])

        assert self.ids(ledger) == set()
        assert [one.next_offset for one in ledger.part(MessageLedger).intakes.offsets("in")] == [None, None]
        assert self.intake(ledger).recorded == 0

    def test_of_many_who_take_a_partition_at_once_each_has_an_epoch_of_its_own(self, ledger: Ledger) -> None:
        taken = self.way_in(ledger)

        epochs = at_once(6, lambda n: taken.take_partition("in", "t", 0, owner=str(n)).epoch)

        assert sorted(epochs) == [1, 2, 3, 4, 5, 6]

    def test_a_topic_that_was_made_anew_begins_at_its_beginning(self, ledger: Ledger) -> None:
        taken = self.way_in(ledger)
        first = taken.take_partition("in", "t", 0, owner="a", topic_id="one")
        taken.record("in", [], owner="a", moves=[OffsetMove("t", 0, first.epoch, 93)])

        assert taken.take_partition("in", "t", 0, owner="a") == Position(93, 2)
        assert taken.take_partition("in", "t", 0, owner="a", topic_id="one") == Position(93, 3)
        assert taken.take_partition("in", "t", 0, owner="a", topic_id="two") == Position(None, 4)

    def test_an_id_is_recorded_once_within_a_batch_and_across_batches(self, ledger: Ledger) -> None:
        self.destination(ledger)
        taken = self.way_in(ledger)

        first, _ = taken.record("in", [new_message("x", body="1"), new_message("x", body="2")], owner="a")
        second, hints = taken.record("in", [new_message("x", body="3"), new_message("y")], owner="a")

        assert (first, second, len(hints)) == (TakenIn(1, 1, 0), TakenIn(1, 1, 0), 1)
        assert ledger.part(MessageLedger).letters.body("x") == b"1"
        assert (self.intake(ledger).recorded, self.intake(ledger).repeated) == (2, 2)

    def test_the_same_ids_at_the_same_moment_are_recorded_once(self, ledger: Ledger) -> None:
        self.destination(ledger)
        taken = self.way_in(ledger)

        def take_in(_: int) -> TakenIn:
            return taken.record("in", [new_message(f"m{n}") for n in range(20)], owner="a")[0]

        found = at_once(4, take_in)

        assert (sum(one.recorded for one in found), sum(one.repeated for one in found)) == (20, 60)
        assert self.intake(ledger).recorded == 20

    def test_a_record_cancels_what_came_before_it_and_not_what_comes_after(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        taken = self.way_in(ledger)
        steps: list[Step] = [
            *(CancelOf("later"), new_message("later"), new_message("gone", delay_s=60.0)),
            *(CancelOf("gone"), CancelOf("never was"), new_message("gone")),
        ]

        found, _ = taken.record("in", steps, owner="a")
        self.let_run(ledger, worker, self.post(ledger, new_message("sent")), Done(None))
        taken.record("in", [CancelOf("sent")], owner="a")

        assert found == TakenIn(2, 1, 3)
        assert self.message(ledger, "later").state is State.READY
        assert (self.message(ledger, "gone").state, self.message(ledger, "sent").state) == (
            State.CANCELLED,
            State.SUCCEEDED,
        )
        said = self.message(ledger, "gone").reason
        assert said == "workq-cancel, in a record"
        assert self.intake(ledger).cancelled == 4

    def test_what_cannot_be_recorded_keeps_the_whole_batch_back(self, ledger: Ledger) -> None:
        self.destination(ledger)
        self.destination(ledger, "bills")
        taken = self.way_in(ledger)
        self.post(ledger, new_message("x"))
        position = taken.take_partition("in", "t", 0, owner="a")
        move: Any = {"owner": "a", "moves": [OffsetMove("t", 0, position.epoch, 4)]}

        with pytest.raises(NotFound):
            taken.record("in", [new_message("y"), new_message("z", destination="none")], **move)
        with pytest.raises(KeyConflict):
            taken.record("in", [new_message("y"), new_message("x", destination="bills")], **move)
        with pytest.raises(NotFound, match="no intake 'gone'"):
            taken.record("gone", [new_message("y")], owner="a")

        assert self.ids(ledger) == {"x"}
        standing = taken.standing([new_message("x"), new_message("y", destination="none"), CancelOf("x")])
        assert (standing.destinations, standing.messages) == (frozenset({"orders"}), {"x": "orders"})
        assert taken.take_partition("in", "t", 0, owner="a").next_offset is None

    def test_what_went_into_quarantine_is_counted_with_its_reason(self, ledger: Ledger) -> None:
        taken = self.way_in(ledger)
        position = taken.take_partition("in", "t", 0, owner="a")

        taken.record(
            "in", [], owner="a", moves=[OffsetMove("t", 0, position.epoch, 2)], unreadable=["first", "no time"]
        )

        found = self.intake(ledger)
        assert (found.quarantined, found.quarantined_why, found.quarantined_at is None) == (2, "no time", False)
        assert taken.take_partition("in", "t", 0, owner="a").next_offset == 2

    def test_since_when_nothing_could_be_read_is_noted_until_it_can(self, ledger: Ledger) -> None:
        self.way_in(ledger)
        intakes = ledger.part(MessageLedger).intakes

        intakes.failed("in", "nothing listens")
        since = self.intake(ledger).failing_since
        intakes.failed("in", "another")
        assert (self.intake(ledger).error, self.intake(ledger).failing_since) == ("another", since)
        intakes.well("in")
        assert (self.intake(ledger).error, self.intake(ledger).failing_since) == (None, None)
