"""What every ledger promises about markers: which hints a returned marker proves lost, and which it does not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select

from tests.contract.databases import OnDatabase
from workq.ledger import Marker, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.hint_rows import insert_hints
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.hint import HintRow
from workq.values.incarnation import Incarnation
from workq.values.task import Done, NewTask, Settlement

SLACK_S = 2.0
ME = Incarnation("marks.worker", "host", 4711)


class MarksContract(OnDatabase):
    """What every ledger promises about markers."""

    # -- which queues have something to prove

    def test_a_queue_needs_a_marker_while_a_due_task_with_a_hint_is_unclaimed(
        self, ledger: Ledger, database: Database
    ) -> None:
        assert ledger.hints.lines(slack_s=SLACK_S) == []
        unpublished = record(ledger, queue="a", hint=False)
        record(ledger, queue="b", delay_s=60.0)
        [waiting] = record(ledger, queue="c")

        assert ledger.hints.lines(slack_s=SLACK_S) == [], "not due for the slack yet"
        database.clock_offset_s += SLACK_S + 0.1
        assert ledger.hints.lines(slack_s=SLACK_S) == ["c"]
        ledger.workers.join(ME, queues=["c"], threads=1)
        [claim] = ledger.claims.claim([waiting], by=ME.id)
        assert ledger.hints.lines(slack_s=SLACK_S) == []
        ledger.outcomes.settle([Settlement(claim, Done())])
        hint(ledger, unpublished, queue="a")
        database.clock_offset_s += 60.0
        assert ledger.hints.lines(slack_s=SLACK_S) == ["a", "b"]

    # -- life of a marker

    def test_no_marker_overtakes_a_delayed_hint_that_is_due_and_still_a_row(
        self, ledger: Ledger, database: Database
    ) -> None:
        database.run(lambda tx: insert_hints(tx, database, [HintRow("late", "{}", 1, 5.0)]))
        database.clock_offset_s += 5.0 + SLACK_S - 0.5

        def is_sent(queue: str, overdue_s: float | None) -> bool:
            marker_id = codec.new_task_id()
            return ledger.markers.sent(queue, 0, marker_id, spacing_s=0.0, depth=None, overdue_s=overdue_s)

        assert is_sent("late", SLACK_S), "a mover has still time for it"
        database.clock_offset_s += 1.0
        assert not is_sent("late", SLACK_S)
        assert is_sent("late", None), "where rows are the queue itself, they say nothing"
        assert is_sent("other", SLACK_S)

    def test_a_marker_is_out_then_back_then_closed(self, ledger: Ledger, database: Database) -> None:
        marker = send(ledger)
        assert (marker.queue, marker.band, marker.depth, marker.lost) == ("default", 0, 7, 0)
        assert marker.returned_for_s is None
        assert marker.closed_for_s is None
        database.clock_offset_s += 500.0
        assert ledger.markers.returned([marker.id]) == 1
        database.clock_offset_s += 300.0
        [marker] = ledger.markers.all()
        assert marker.sent_for_s == pytest.approx(800.0, abs=60.0)
        assert marker.returned_for_s == pytest.approx(300.0, abs=60.0)
        ledger.markers.closed(marker)
        [marker] = ledger.markers.all()
        assert marker.closed_for_s == pytest.approx(0.0, abs=60.0)

    def test_a_marker_that_nobody_awaits_changes_nothing(self, ledger: Ledger) -> None:
        marker = send(ledger)
        assert ledger.markers.returned([codec.new_task_id(), "no id", ""]) == 0
        assert ledger.markers.returned([]) == 0
        assert ledger.markers.returned([marker.id]) == 1
        assert ledger.markers.returned([marker.id]) == 0
        ledger.markers.closed(marker)
        assert ledger.markers.returned([marker.id]) == 0

    def test_a_marker_that_is_out_is_not_closed(self, ledger: Ledger) -> None:
        marker = send(ledger)
        ledger.markers.closed(marker)
        assert ledger.markers.all()[0].closed_for_s is None

    def test_a_marker_too_soon_after_the_newest_of_its_line_is_refused(
        self, ledger: Ledger, database: Database
    ) -> None:
        first = send(ledger)
        assert not ledger.markers.sent("default", 0, codec.new_task_id(), spacing_s=30.0, depth=None)
        assert ledger.markers.sent("default", 1, codec.new_task_id(), spacing_s=30.0, depth=None), "another band"
        assert ledger.markers.sent("other", 0, codec.new_task_id(), spacing_s=30.0, depth=None)
        assert ledger.markers.sent("default", 0, first.id, spacing_s=30.0, depth=None), "said again"
        database.clock_offset_s += 31.0
        second = codec.new_task_id()
        assert ledger.markers.sent("default", 0, second, spacing_s=30.0, depth=None)
        assert [one.id for one in ledger.markers.all() if (one.queue, one.band) == ("default", 0)] == [
            second,
            first.id,
        ]

    def test_closing_a_marker_drops_the_older_ones_of_its_line_only(self, ledger: Ledger, database: Database) -> None:
        send(ledger)
        other = send(ledger, queue="other")
        database.clock_offset_s += 1.0
        second = send(ledger)
        database.clock_offset_s += 1.0
        third = send(ledger)
        ledger.markers.returned([second.id])
        ledger.markers.closed(second)
        assert {one.id for one in ledger.markers.all()} == {second.id, third.id, other.id}

    def test_the_position_of_a_marker_is_noted_once_and_told(self, ledger: Ledger) -> None:
        marker = send(ledger)
        other = send(ledger, queue="other")
        assert marker.position is None
        for position in ("[1, 2]", "[3, 4]"):
            ledger.markers.placed(marker.id, position)

        assert {one.id: one.position for one in ledger.markers.all()} == {marker.id: "[1, 2]", other.id: None}

    # -- the proof

    def test_a_hint_that_was_overtaken_and_is_nowhere_is_lost_once(self, ledger: Ledger, database: Database) -> None:
        ids = record(ledger, 5)
        database.clock_offset_s += SLACK_S + 1.0
        marker = send(ledger)
        assert lost(ledger, marker) == [], "it has not come back"
        ledger.markers.returned([marker.id])
        assert sorted(lost(ledger, marker, dry_run=True)) == ids
        assert sorted(lost(ledger, marker)) == ids
        assert lost(ledger, marker) == []
        assert ledger.markers.all()[0].lost == 5
        [event] = [one for one in events(database) if one[0] == "hints_lost"]
        told = codec.decode(event[1])
        assert (told["queue"], told["tasks"], told["marker"]) == ("default", 5, marker.id)
        assert sorted(told["first"]) == ids

    def test_what_is_held_claimed_settled_or_cancelled_is_not_lost(self, ledger: Ledger, database: Database) -> None:
        ledger.workers.join(ME, queues=["default"], threads=1)
        held, running, settled, cancelled, gone = record(ledger, 5)
        database.clock_offset_s += SLACK_S + 1.0
        marker = send(ledger)
        ledger.markers.returned([marker.id])
        ledger.claims.claim([running], by=ME.id)
        ledger.outcomes.settle([Settlement(ledger.claims.claim([settled], by=ME.id)[0], Done())])
        ledger.decisions.cancel(cancelled, who="ada", why="no")
        assert lost(ledger, marker, held={held}) == [gone]

    def test_a_hint_confirmed_after_the_marker_was_sent_is_not_proved_lost(
        self, ledger: Ledger, database: Database
    ) -> None:
        later, again, delayed_again = record(ledger, 3, hint=False)
        hint(ledger, [again, delayed_again])
        database.clock_offset_s += SLACK_S + 1.0
        marker = send(ledger)
        database.clock_offset_s += 1.0
        hint(ledger, [later])
        ledger.hints.rehinted([again])
        ledger.hints.rehinted([delayed_again], delay_s=5.0)
        ledger.markers.returned([marker.id])
        assert lost(ledger, marker) == []
        database.clock_offset_s += 1.0
        marker = send(ledger)
        ledger.markers.returned([marker.id])
        assert sorted(lost(ledger, marker)) == sorted([later, again]), "one is still on its way to the queue"
        database.clock_offset_s += 5.0
        marker = send(ledger)
        ledger.markers.returned([marker.id])
        assert lost(ledger, marker) == [delayed_again]

    def test_of_two_hints_the_later_one_decides_whoever_notes_it_last(self, ledger: Ledger, database: Database) -> None:
        """One was sent with a delay, another at once, and the notes come in the other order."""
        [task_id] = record(ledger)
        ledger.hints.rehinted([task_id], delay_s=SLACK_S + 10.0)
        ledger.hints.rehinted([task_id], delay_s=2.0)
        database.clock_offset_s += SLACK_S + 5.0
        marker = send(ledger)
        ledger.markers.returned([marker.id])
        assert lost(ledger, marker) == [], "it is still on its way to the queue"
        database.clock_offset_s += SLACK_S + 10.0
        marker = send(ledger)
        ledger.markers.returned([marker.id])
        assert lost(ledger, marker) == [task_id]

    def test_a_delayed_hint_is_judged_only_by_a_marker_sent_after_it_was_due_for_the_slack(
        self, ledger: Ledger, database: Database
    ) -> None:
        [delayed] = record(ledger, delay_s=10.0)
        for wait_s, is_lost in ((5.0, False), (6.0, False), (SLACK_S, True)):
            database.clock_offset_s += wait_s
            marker = send(ledger)
            ledger.markers.returned([marker.id])
            assert lost(ledger, marker, dry_run=True) == [delayed] * is_lost, wait_s

    def test_a_hint_that_comes_after_its_due_time_is_judged_only_by_a_marker_sent_after_it_has_come(
        self, ledger: Ledger, database: Database
    ) -> None:
        """It waits in a level of the delays, and the level keeps it for longer than its delay."""
        in_time, late, later = record(ledger, 3, delay_s=10.0, hint=False)
        ledger.hints.mark_published(
            [
                Unpublished(in_time, "default", 0, 10.0),
                Unpublished(late, "default", 0, 30.0, arrives_in_s=32.0),
                Unpublished(later, "default", 0, 60.0, arrives_in_s=62.0),
            ]
        )
        for wait_s, found in ((11.0 + SLACK_S, [in_time]), (15.0, []), (5.0, [late]), (25.0, []), (6.0, [later])):
            database.clock_offset_s += wait_s
            marker = send(ledger)
            ledger.markers.returned([marker.id])
            assert lost(ledger, marker) == found, wait_s
            hint(ledger, found)
            ledger.markers.closed(marker)
            for task_id in found:
                ledger.decisions.cancel(task_id, who="ada", why="seen")

    def test_a_marker_speaks_for_its_own_queue_and_until_it_is_closed(self, ledger: Ledger, database: Database) -> None:
        record(ledger, queue="other")
        [ours] = record(ledger)
        database.clock_offset_s += SLACK_S + 1.0
        marker = send(ledger)
        ledger.markers.returned([marker.id])
        assert lost(ledger, marker, dry_run=True) == [ours]
        ledger.markers.closed(marker)
        assert lost(ledger, marker) == []

    def test_proofs_are_bounded_and_what_is_held_does_not_fill_the_bound(
        self, ledger: Ledger, database: Database
    ) -> None:
        ids = record(ledger, 40)
        database.clock_offset_s += SLACK_S + 1.0
        marker = send(ledger)
        ledger.markers.returned([marker.id])
        held = set(ids[:30])
        first = lost(ledger, marker, held=held, limit=6)
        second = lost(ledger, marker, held=held, limit=6)
        assert (len(first), len(second)) == (6, 4)
        assert sorted(first + second) == sorted(set(ids) - held)

    def test_ten_sweeps_together_repair_each_hint_once(self, ledger: Ledger, database: Database) -> None:
        ids = record(ledger, 50)
        database.clock_offset_s += SLACK_S + 1.0
        marker = send(ledger)
        ledger.markers.returned([marker.id])
        with ThreadPoolExecutor(10) as pool:
            answers = [future.result(60) for future in [pool.submit(lost, ledger, marker) for _ in range(10)]]
        assert sorted(task_id for answer in answers for task_id in answer) == ids
        assert ledger.markers.all()[0].lost == 50

    def test_what_was_proved_lost_is_relayed_by_another_sweep_if_the_first_dies(
        self, ledger: Ledger, database: Database
    ) -> None:
        [task_id] = record(ledger)
        database.clock_offset_s += SLACK_S + 1.0
        marker = send(ledger)
        ledger.markers.returned([marker.id])
        assert lost(ledger, marker) == [task_id]
        assert relayed(ledger) == [], "it is reserved for whoever proved it"
        database.clock_offset_s += 20.0
        assert relayed(ledger) == [task_id]

    # -- a hint in place of another

    def test_a_new_hint_is_noted_for_what_has_one_and_is_unclaimed_only(
        self, ledger: Ledger, database: Database
    ) -> None:
        ledger.workers.join(ME, queues=["default"], threads=1)
        [without] = record(ledger, hint=False)
        waiting, running = record(ledger, 2)
        ledger.claims.claim([running], by=ME.id)
        before = published(database)
        database.clock_offset_s += 1000.0
        ledger.hints.rehinted([without, waiting, running, codec.new_task_id(), "no id"])
        after = published(database)
        assert after[without] is None
        assert after[running] == before[running]
        assert (after[waiting] - before[waiting]).total_seconds() == pytest.approx(1000.0, abs=60.0)


def record(
    ledger: Ledger, count: int = 1, *, queue: str = "default", delay_s: float = 0.0, hint: bool = True
) -> list[str]:
    """Tasks of one queue, with a confirmed hint unless told otherwise; their ids, sorted."""
    tasks = [NewTask(codec.new_task_id(), "index", queue, "{}", delay_s=delay_s) for _ in range(count)]
    ledger.tasks.record(tasks)
    ids = sorted(task.id for task in tasks)
    if hint:
        ledger.hints.mark_published([Unpublished(task_id, queue, 0, delay_s) for task_id in ids])
    return ids


def hint(ledger: Ledger, ids: Sequence[str], *, queue: str = "default") -> None:
    """The hints of these are confirmed."""
    ledger.hints.mark_published([Unpublished(task_id, queue, 0, 0.0) for task_id in ids])


def send(ledger: Ledger, *, queue: str = "default") -> Marker:
    """A marker is out; as the ledger tells it."""
    marker_id = codec.new_task_id()
    assert ledger.markers.sent(queue, 0, marker_id, spacing_s=0.0, depth=7)
    return next(one for one in ledger.markers.all() if one.id == marker_id)


def lost(
    ledger: Ledger, marker: Marker, *, held: set[str] | None = None, limit: int = 100, dry_run: bool = False
) -> list[str]:
    rows = ledger.markers.lost(marker, held=held or set(), slack_s=SLACK_S, limit=limit, dry_run=dry_run)
    return [row.task_id for row in rows]


def relayed(ledger: Ledger) -> list[str]:
    return [row.task_id for row in ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=60.0)]


def published(database: Database) -> dict[str, Any]:
    c = database.tables.task.c
    with database.read() as tx:
        return {row.id: row.published_at for row in tx.execute(select(c.id, c.published_at))}


def events(database: Database) -> list[tuple[str, str]]:
    c = database.tables.event.c
    with database.read() as tx:
        return [(row.kind, row.detail) for row in tx.execute(select(c.kind, c.detail).order_by(c.id))]
