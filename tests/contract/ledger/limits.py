"""Limits: of the tasks that share one, so many run at once, and so many start in a time; the others wait in a line."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from tests.contract.given import HOUR_S, OUTCOMES, Clock, at_once, new
from tests.contract.ledger.steps import Steps
from workq.errors import LedgerUnavailable, Refused
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.limits.ledger import parked, permits
from workq.limits.ledger.limits import LimitRow, Limits
from workq.limits.ledger.tables import limit_tables
from workq.order.ledger.order import Order
from workq.values.incarnation import Incarnation
from workq.values.task import Done, HandedBack, Limit, State

TWO = Limit("mail", concurrency=2)
TEN_A_MINUTE = Limit("mail", rate="10/m")
COUNTED_S = 1.1 * 60.0
SPARE_S = 0.1 * 60.0


class LimitsContract(Steps):
    def limit(self, ledger: Ledger, key: str = "mail") -> LimitRow:
        [row] = ledger.part(Limits).all(key=key)
        return row

    def admitted(self, ledger: Ledger, key: str = "mail") -> list[str]:
        return [hint.task_id for hint in ledger.part(Limits).admit([key])]

    def claim(self, ledger: Ledger, worker: Incarnation, ids: Sequence[str]) -> list[str]:
        return [claim.task_id for claim in ledger.claims.claim(ids, by=worker.id)]

    # -- at once

    def test_so_many_run_at_once_and_the_others_leave_their_worker(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 5, limit=TWO)

        claims = ledger.claims.claim(ids, by=worker.id)

        assert [claim.task_id for claim in claims] == ids[:2]
        assert {(claim.limit_key, claim.start_within_s) for claim in claims} == {("mail", None)}
        assert [self.state(ledger, one) for one in ids] == [State.RUNNING] * 2 + [State.WAITING] * 3
        assert self.limit(ledger) == LimitRow("mail", running=2, coming=0, parked=3)
        assert self.claim(ledger, worker, ids[2:]) == []
        assert ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=HOUR_S, dry_run=True) == []
        assert ledger.upkeep.promote(limit=9) == 0
        assert ledger.questions.has_due(["default"])

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_whatever_ends_an_attempt_lets_the_next_one_start(
        self, ledger: Ledger, worker: Incarnation, outcome: str
    ) -> None:
        ids = self.record(ledger, 4, limit=TWO)
        first, _ = ledger.claims.claim(ids, by=worker.id)

        self.settle(ledger, first, OUTCOMES[outcome])
        [hint] = ledger.part(Limits).admit(["mail"])

        assert (hint.task_id, hint.delay_s, hint.attempt) == (ids[2], 0.0, 0)
        assert self.marked(ledger, [hint]) == [ids[2]]
        assert self.state(ledger, ids[2]) is State.READY
        assert self.limit(ledger) == LimitRow("mail", running=1, coming=1, parked=1)
        assert self.claim(ledger, worker, [ids[2]]) == [ids[2]]
        assert self.admitted(ledger) == []

    def test_beside_others_what_has_no_limit_starts_too(self, ledger: Ledger, worker: Incarnation) -> None:
        """Whichever of them were claimed before."""
        for _ in range(2):
            limited, plain = self.record(ledger, 3, limit=TWO), self.record(ledger, 2)
            mixed = [limited[0], plain[0], limited[1], limited[2], plain[1]]

            claims = ledger.claims.claim(mixed, by=worker.id)

            assert [claim.task_id for claim in claims] == [limited[0], plain[0], limited[1], plain[1]]
            assert self.claim(ledger, worker, mixed) == []
            [last] = self.record(ledger, 1)
            assert self.claim(ledger, worker, [last]) == [last]
            for claim in claims:
                self.settle(ledger, claim, Done())
            [hint] = ledger.part(Limits).admit(["mail"])
            [third] = ledger.claims.claim([hint.task_id], by=worker.id)
            self.settle(ledger, third, Done())

    def test_permits_that_are_over_are_only_counted_while_there_is_plenty_of_room(
        self, ledger: Ledger, worker: Incarnation, database: Database
    ) -> None:
        """However many are kept, no more run than may."""
        permit = limit_tables(database).permit
        ids = self.record(ledger, 9, limit=Limit("mail", concurrency=5))
        for claim in ledger.claims.claim(ids[:2], by=worker.id):
            self.settle(ledger, claim, Done())

        assert self.claim(ledger, worker, ids[2:4]) == ids[2:4]
        assert database.ask(lambda tx: tx.execute(select(func.count()).select_from(permit)).scalar()) == 4
        assert self.limit(ledger) == LimitRow("mail", running=2, coming=0, parked=0)
        assert self.claim(ledger, worker, ids[4:8]) == ids[4:7], "four and four more are more than five"
        assert database.ask(lambda tx: tx.execute(select(func.count()).select_from(permit)).scalar()) == 5
        assert self.limit(ledger) == LimitRow("mail", running=5, coming=0, parked=1)

    # -- claimed by whoever knows that it is their turn

    def test_whose_turn_comes_is_claimed_as_far_as_there_is_room_and_the_others_are_hinted(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 6, limit=Limit("mail", concurrency=3))
        for claim in ledger.claims.claim(ids, by=worker.id):
            self.settle(ledger, claim, Done())

        claims, hints = ledger.part(Limits).admit_and_claim(["mail"], by=worker.id, room=2, queues=["default"])

        assert [(claim.task_id, claim.attempt, claim.start_within_s) for claim in claims] == [
            (one, 1, None) for one in ids[3:5]
        ]
        assert [hint.task_id for hint in hints] == ids[5:]
        assert [self.state(ledger, one) for one in ids[3:]] == [State.RUNNING] * 2 + [State.READY]
        assert self.limit(ledger) == LimitRow("mail", running=2, coming=1, parked=0)
        assert ledger.part(Limits).admit_and_claim(["mail"], by=worker.id, room=2, queues=["default"]) == ([], [])
        for claim in claims:
            assert self.settle(ledger, claim, Done()).state is State.SUCCEEDED
        assert self.claim(ledger, worker, ids[5:]) == ids[5:]

    @pytest.mark.parametrize("what", ["no room", "another queue", "not live"])
    def test_who_cannot_be_claimed_gets_a_hint(self, ledger: Ledger, worker: Incarnation, what: str) -> None:
        first, second = self.record(ledger, 2, limit=Limit("mail", concurrency=1))
        [claim] = ledger.claims.claim([first], by=worker.id)
        assert self.claim(ledger, worker, [second]) == []
        self.settle(ledger, claim, Done())
        by, room, queues = worker.id, 1, ["default"]
        if what == "no room":
            room = 0
        elif what == "another queue":
            queues = ["other"]
        else:
            by = "host.b007.9.9.nobody"

        claims, hints = ledger.part(Limits).admit_and_claim(["mail"], by=by, room=room, queues=queues)

        assert (claims, [(hint.task_id, hint.delay_s) for hint in hints]) == ([], [(second, 0.0)])
        assert self.state(ledger, second) is State.READY
        assert self.claim(ledger, worker, [second]) == [second]

    def test_of_a_paused_queue_nobody_is_claimed(self, ledger: Ledger, worker: Incarnation) -> None:
        first, second = self.record(ledger, 2, limit=Limit("mail", concurrency=1))
        [claim] = ledger.claims.claim([first, second], by=worker.id)
        self.settle(ledger, claim, Done())
        ledger.pauses.pause("default", who="eve@host", why="?")

        claims, hints = ledger.part(Limits).admit_and_claim(["mail"], by=worker.id, room=1, queues=["default"])

        assert (claims, [hint.task_id for hint in hints]) == ([], [second])
        ledger.pauses.resume("default", who="eve@host", why="?")
        assert self.claim(ledger, worker, [second]) == [second]

    def test_a_rate_holds_for_those_who_are_claimed_at_once(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ids = self.record(ledger, 14, limit=TEN_A_MINUTE)
        assert self.claim(ledger, worker, ids) == ids[:10]

        early = ledger.part(Limits).admit_and_claim(["mail"], by=worker.id, room=9, queues=["default"])
        clock.forward(COUNTED_S + 0.5)
        claims, hints = ledger.part(Limits).admit_and_claim(["mail"], by=worker.id, room=3, queues=["default"])

        assert early == ([], [])
        assert [claim.task_id for claim in claims] == ids[10:13]
        assert all(0.0 < (claim.start_within_s or 0.0) <= SPARE_S for claim in claims)
        assert [hint.task_id for hint in hints] == ids[13:]

    def test_subtasks_are_left_to_a_claim_that_asks_their_job(
        self, ledger: Ledger, worker: Incarnation, database: Database
    ) -> None:
        first, second = self.record(ledger, 2, limit=Limit("mail", concurrency=1))
        [claim] = ledger.claims.claim([first, second], by=worker.id)
        t = database.tables.task
        with database.engine.begin() as connection:
            connection.execute(t.update().where(t.c.id == second).values(job_id=first))
        self.settle(ledger, claim, Done())

        claims, hints = ledger.part(Limits).admit_and_claim(["mail"], by=worker.id, room=1, queues=["default"])

        assert (claims, [hint.task_id for hint in hints]) == ([], [second])

    def test_whoever_comes_while_somebody_is_let_in_keeps_a_place(
        self, ledger: Ledger, worker: Incarnation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who comes behind others does not wait for the lock, and may get a place before one that is just let in."""
        ids = self.record(ledger, 4, limit=Limit("mail", concurrency=1))
        [claim] = ledger.claims.claim(ids[:3], by=worker.id)
        self.settle(ledger, claim, Done())
        first_parked, came = parked.first, list[list[str]]()
        coming = threading.Thread(target=lambda: came.append(self.claim(ledger, worker, ids[3:])))

        def others_come(tx: Connection, database: Database, key: str) -> Iterator[Any]:
            rows = list(first_parked(tx, database, key))
            coming.start()
            coming.join(timeout=1.0)  # on SQLite it waits for this transaction
            return iter(rows)

        with monkeypatch.context() as patched:
            patched.setattr(parked, "first", others_come)
            patched.setattr(parked, "number", lambda _now: 1)
            claims, hints = ledger.part(Limits).admit_and_claim(["mail"], by=worker.id, room=1, queues=["default"])
            coming.join()

        assert ([claim.task_id for claim in claims], hints, came) == (ids[1:2], [], [[]])
        assert self.limit(ledger) == LimitRow("mail", running=1, coming=0, parked=2)

    def test_who_is_reaped_takes_up_no_place(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 4, limit=TWO)
        ledger.claims.claim(ids, by=worker.id)
        assert self.admitted(ledger) == []

        ledger.workers.reap(worker.id, Evidence("killed"))

        assert ledger.part(Limits).limits_to_look_at(limit=9) == ["mail"]
        assert self.admitted(ledger) == ids[2:]

    def test_who_waits_for_its_retry_takes_up_no_place_and_stands_behind_the_others_then(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ids = self.record(ledger, 4, limit=TWO)
        first, _ = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, first, OUTCOMES["failed"])
        assert self.claim(ledger, worker, self.admitted(ledger)) == [ids[2]]
        clock.forward(6.0)

        assert self.claim(ledger, worker, [ids[0]]) == []

        ledger.workers.reap(worker.id, Evidence("killed"))
        assert self.admitted(ledger) == [ids[3], ids[0]]

    def test_nobody_overtakes_those_who_wait(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 3, limit=TWO)
        first, second = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, first, Done())
        self.settle(ledger, second, Done())
        late = self.record(ledger, 1, limit=TWO)

        assert self.claim(ledger, worker, late) == []
        assert self.admitted(ledger) == [ids[2], *late]

    def test_a_place_that_is_given_is_kept_for_whom_it_was_given_to(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 3, limit=TWO)
        first, _ = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, first, Done())
        turn = self.admitted(ledger)
        late = self.record(ledger, 1, limit=TWO)

        assert self.claim(ledger, worker, late) == []
        assert self.claim(ledger, worker, turn) == turn

    def test_a_place_whose_task_is_cancelled_paused_or_not_fetched_for_long_is_free_again(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ids = self.record(ledger, 8, limit=Limit("mail", concurrency=1))
        [first] = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, first, Done())

        assert self.admitted(ledger) == [ids[1]]
        ledger.decisions.cancel(ids[1], who="ada", why="no need")
        assert self.admitted(ledger) == [ids[2]]
        ledger.decisions.reschedule(ids[2], delay_s=HOUR_S, who="ada", why="later")
        assert self.admitted(ledger) == [ids[3]]
        clock.forward(61.0)
        assert self.admitted(ledger) == [ids[4]]

    def test_who_is_cancelled_or_rescheduled_in_the_line_is_passed_over(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 6, limit=TWO)
        running = ledger.claims.claim(ids, by=worker.id)
        ledger.decisions.cancel(ids[2], who="ada", why="no need")
        hint = ledger.decisions.reschedule(ids[3], delay_s=0.0, who="ada", why="now")
        for claim in running:
            self.settle(ledger, claim, Done())

        assert hint.task_id == ids[3]
        assert self.admitted(ledger) == ids[4:]
        assert self.claim(ledger, worker, [ids[3]]) == []  # it stands in line again
        assert self.limit(ledger).parked == 1

    @pytest.mark.parametrize("has_room", [False, True], ids=["hinted", "claimed"])
    def test_who_waits_behind_many_that_were_cancelled_comes_at_once(
        self, ledger: Ledger, worker: Incarnation, has_room: bool
    ) -> None:
        count = 2 * parked.AT_ONCE + 3
        ids = self.record(ledger, count, limit=TWO)
        first, _ = ledger.claims.claim(ids, by=worker.id)
        ledger.bulk.cancel_all(ids[3:-1], states=[State.WAITING], who="ada", why="no need")
        ledger.decisions.cancel(ids[2], who="ada", why="no need")
        self.settle(ledger, first, Done())

        claims, hints = ledger.part(Limits).admit_and_claim(
            ["mail"], by=worker.id, room=int(has_room), queues=["default"]
        )

        assert [one.task_id for one in claims] + [one.task_id for one in hints] == ids[-1:]
        assert bool(claims) is has_room
        assert self.limit(ledger) == LimitRow("mail", running=1 + has_room, coming=1 - has_room, parked=0)

    def test_whoever_waits_between_those_that_were_cancelled_keeps_its_place(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 2 * parked.AT_ONCE + 4, limit=Limit("mail", concurrency=1))
        [first] = ledger.claims.claim(ids, by=worker.id)
        stay = [ids[parked.AT_ONCE + 50], ids[-1]]
        ledger.bulk.cancel_all(
            [one for one in ids[1:] if one not in stay], states=[State.WAITING], who="ada", why="no need"
        )
        self.settle(ledger, first, Done())

        assert self.admitted(ledger) == stay[:1]
        assert self.limit(ledger) == LimitRow("mail", running=0, coming=1, parked=1)
        [second] = ledger.claims.claim(stay[:1], by=worker.id)
        self.settle(ledger, second, Done())
        assert self.admitted(ledger) == stay[1:]

    def test_who_was_cancelled_in_the_line_and_is_sent_back_stands_at_its_end(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        """Also in the line of its order, which nobody overtakes."""
        [running] = ledger.claims.claim(self.record(ledger, 1, limit=Limit("mail", concurrency=1)), by=worker.id)
        ids = [self.record(ledger, 1, limit=Limit("mail", concurrency=1), order_key="key")[0] for _ in range(2)]
        assert self.claim(ledger, worker, ids[:1]) == []
        ledger.decisions.cancel(ids[0], who="ada", why="no need")
        [turn] = ledger.part(Order).advance(["key"])
        assert (turn.task_id, self.claim(ledger, worker, ids[1:])) == (ids[1], [])

        ledger.decisions.revive(ids[0], who="ada", why="after all")
        self.settle(ledger, running, Done())

        assert self.admitted(ledger) == ids[1:]
        [second] = ledger.claims.claim(ids[1:], by=worker.id)
        self.settle(ledger, second, Done())
        assert [hint.task_id for hint in ledger.part(Order).advance(["key"])] == ids[:1]
        assert self.claim(ledger, worker, ids[:1]) == ids[:1]

    def test_what_was_claimed_of_one_limit_is_told_though_another_cannot_be_looked_at(
        self, ledger: Ledger, worker: Incarnation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = {key: self.record(ledger, 2, limit=Limit(key, concurrency=1)) for key in ("a", "b")}
        for claim in ledger.claims.claim([one for line in lines.values() for one in line], by=worker.id):
            self.settle(ledger, claim, Done())
        admit = permits.admit

        def but_for(gone: str) -> Any:
            def admitted(tx: Connection, database: Database, key: str, **more: Any) -> permits.NextPermits:
                if key == gone:
                    raise LedgerUnavailable("it went away")
                return admit(tx, database, key, **more)

            return admitted

        with monkeypatch.context() as patched:
            patched.setattr(permits, "admit", but_for("a"))
            with pytest.raises(LedgerUnavailable):
                ledger.part(Limits).admit_and_claim(["a", "b"], by=worker.id, room=9, queues=["default"])
            patched.setattr(permits, "admit", but_for("b"))
            claims, hints = ledger.part(Limits).admit_and_claim(["a", "b"], by=worker.id, room=9, queues=["default"])

        assert ([one.task_id for one in claims], hints) == (lines["a"][1:], [])
        assert self.admitted(ledger, "b") == lines["b"][1:]

    def test_limits_are_apart_and_tasks_without_one_are_not_slowed(self, ledger: Ledger, worker: Incarnation) -> None:
        one = self.record(ledger, 2, limit=Limit("a", concurrency=1))
        other = self.record(ledger, 2, limit=Limit("b", concurrency=1))
        free = self.record(ledger, 2)

        assert self.claim(ledger, worker, [*one, *other, *free]) == [one[0], other[0], *free]
        assert [row.key for row in ledger.part(Limits).all()] == ["a", "b"]

    def test_a_dead_worker_gets_nothing_and_its_places_come_free(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 3, limit=TWO)
        ledger.workers.leave(worker.id)

        assert self.claim(ledger, worker, ids) == []
        assert self.admitted(ledger) == [ids[2]]  # places whose attempt never began are nobody's
        assert [claim.task_id for claim in self.claim_elsewhere(ledger, ids)] in ([ids[2], ids[0]], [ids[0], ids[2]])

    def test_what_was_granted_is_told_though_the_ledger_goes_away_before_it_has_looked_at_limits(
        self, ledger: Ledger, worker: Incarnation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free, limited = self.record(ledger, 2), self.record(ledger, 2, limit=TWO)

        def away(*_: object) -> None:
            raise LedgerUnavailable("it went away")

        with monkeypatch.context() as patched:
            patched.setattr(permits, "ask", away)
            granted = self.claim(ledger, worker, [*free, *limited])
            with pytest.raises(LedgerUnavailable):
                ledger.claims.claim(limited, by=worker.id)

        assert granted == free
        assert self.claim(ledger, worker, limited) == limited

    def test_eight_claimants_together_never_have_more_than_the_limit(self, ledger: Ledger) -> None:
        ids = self.record(ledger, 40, limit=Limit("mail", concurrency=3))

        def take(number: int) -> list[str]:
            return [claim.task_id for claim in self.claim_elsewhere(ledger, ids[number::8])]

        taken = [one for some in at_once(8, take) for one in some]

        assert len(taken) == len(set(taken)) == 3
        assert self.limit(ledger) == LimitRow("mail", running=3, coming=0, parked=37)

    def test_a_dry_run_tells_who_would_start_and_changes_nothing(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 3, limit=TWO)
        first, _ = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, first, Done())

        told = [hint.task_id for hint in ledger.part(Limits).admit(["mail"], dry_run=True)]

        assert told == [ids[2]]
        assert self.limit(ledger).parked == 1
        assert self.admitted(ledger) == told

    # -- in a time

    def test_so_many_are_claimed_in_a_time_and_each_has_to_start_soon(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ids = self.record(ledger, 12, limit=TEN_A_MINUTE)

        claims = ledger.claims.claim(ids, by=worker.id)
        too_early = self.admitted(ledger)
        clock.forward(COUNTED_S - 30.0)
        still = self.admitted(ledger)
        clock.forward(30.0)
        turn = self.admitted(ledger)

        assert [claim.task_id for claim in claims] == ids[:10]
        assert {claim.start_within_s for claim in claims} == {SPARE_S}
        assert (too_early, still) == ([], [])
        assert turn == ids[10:]
        assert self.claim(ledger, worker, turn) == turn

    def test_who_was_too_late_to_start_waits_for_its_turn_again_and_has_used_up_one(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ids = self.record(ledger, 11, limit=TEN_A_MINUTE)
        first = ledger.claims.claim(ids, by=worker.id)[0]

        self.settle(ledger, first, HandedBack())

        assert self.admitted(ledger) == []
        assert self.claim(ledger, worker, [ids[0]]) == []
        clock.forward(COUNTED_S)
        assert self.admitted(ledger) == [ids[10], ids[0]]

    def test_a_hint_that_is_late_costs_no_start(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        ids = self.record(ledger, 11, limit=TEN_A_MINUTE)
        ledger.claims.claim(ids, by=worker.id)
        clock.forward(COUNTED_S)
        turn = self.admitted(ledger)

        clock.forward(SPARE_S + 20.0)

        assert self.claim(ledger, worker, turn) == turn

    def test_who_comes_a_moment_too_early_gets_its_turn_promised(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        first, second = self.record(ledger, 2, limit=Limit("mail", rate="1/m"))
        assert self.claim(ledger, worker, [first]) == [first]
        clock.forward(COUNTED_S - permits.AHEAD_S + 0.5)

        early = self.claim(ledger, worker, [second])
        [look] = ledger.claims.look([second]).values()
        clock.forward(permits.AHEAD_S)

        assert early == []
        assert 0.0 < look.due_in_s <= permits.AHEAD_S
        assert self.claim(ledger, worker, [second]) == [second]

    def test_no_window_has_more_claims_than_the_rate(
        self, ledger: Ledger, worker: Incarnation, clock: Clock, database: Database
    ) -> None:
        ids = self.record(ledger, 40, limit=Limit("mail", rate="10/s"))
        p = limit_tables(database).permit
        claimed_at: dict[str, datetime] = {}
        while len(claimed_at) < len(ids):
            ledger.claims.claim([one for one in ids if one not in claimed_at], by=worker.id)
            with database.read() as tx:
                claimed_at |= {row.task_id: row.at for row in tx.execute(select(p).where(p.c.attempt.is_not(None)))}
            ledger.part(Limits).admit(["mail"])
            clock.forward(0.05)

        in_order = sorted(claimed_at.values())
        closest = min(later - earlier for earlier, later in zip(in_order, in_order[10:], strict=False))
        assert closest >= timedelta(seconds=1.1)  # a second, and by how much one may start after its claim

    def test_a_clock_that_is_set_back_stops_nobody_for_long(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        one_an_hour = Limit("mail", rate="1/h")
        self.claim(ledger, worker, self.record(ledger, limit=one_an_hour))

        clock.forward(-HOUR_S)
        [second] = self.record(ledger, limit=one_an_hour)

        assert self.claim(ledger, worker, [second]) == [second]

    def test_a_limit_that_nobody_uses_is_forgotten(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        claim = self.run_one(ledger, worker, limit=TWO)
        self.settle(ledger, claim, Done())
        assert ledger.part(Limits).limits_to_look_at(limit=9) == []

        clock.forward(90_000.0)

        assert ledger.part(Limits).limits_to_look_at(limit=9) == ["mail"]
        assert self.admitted(ledger) == []
        assert ledger.part(Limits).all() == []

    def test_a_task_keeps_its_limit_and_its_key_in_order(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 2, limit=TWO, order_key="k")

        [first] = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, first, Done())
        [turn] = ledger.part(Order).advance(["k"])

        assert self.task(ledger, ids[1]).limit == TWO
        assert self.claim(ledger, worker, [turn.task_id]) == [ids[1]]
        assert self.claim_elsewhere(ledger, self.record(ledger, 2, limit=TWO)) != []
        first_in_line, behind = self.record(ledger, 2, limit=TWO, order_key="other")
        assert self.claim(ledger, worker, [first_in_line]) == []  # parked by its limit, and first of its key
        assert ledger.decisions.reschedule(first_in_line, delay_s=0.0, who="ada", why="now").task_id == first_in_line
        with pytest.raises(Refused, match="its turn in order key"):
            ledger.decisions.reschedule(behind, delay_s=0.0, who="ada", why="now")

    def test_a_batch_may_have_tasks_with_and_without(self, ledger: Ledger) -> None:
        recorded = ledger.tasks.record([*new(limit=TWO), *new(), *new(limit=TEN_A_MINUTE)])

        assert [self.task(ledger, one.id).limit for one in recorded] == [TWO, None, TEN_A_MINUTE]
