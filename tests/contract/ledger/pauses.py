"""Pauses: nothing of a paused queue is claimed, from the commit of the pause until its end; all else goes on."""

from __future__ import annotations

import pytest

from tests.contract.given import HOUR_S, Clock, at_once
from tests.contract.ledger.steps import Steps
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.lane import all_of, meant
from workq.values.task import Claim, Done, State

WHO = "eve@host"


class PausesContract(Steps):
    def test_nothing_of_a_paused_queue_is_claimed_until_it_is_resumed(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        mail, other = self.record(ledger, 2, queue="mail"), self.record(ledger, queue="other")
        ledger.pauses.pause("mail", who=WHO, why="the mail server moves")

        claims = ledger.claims.claim(mail + other, by=worker.id)
        looks = ledger.claims.look(mail + other)
        is_resumed = ledger.pauses.resume("mail", who=WHO, why="it has moved")
        again = ledger.claims.claim(mail, by=worker.id)

        assert [one.task_id for one in claims] == other
        assert [looks[one].is_paused for one in mail + other] == [True, True, False]
        assert is_resumed
        assert [one.task_id for one in again] == mail
        assert [one.attempt for one in again] == [1, 1], "what was refused costs nothing"
        assert not any(one.is_paused for one in ledger.claims.look(mail).values())

    def test_what_is_claimed_goes_on_and_what_is_enqueued_waits(
        self, ledger: Ledger, worker: Incarnation, claimed: Claim
    ) -> None:
        ledger.pauses.pause(claimed.queue, who=WHO, why="?")

        late = self.record(ledger)

        assert self.settle(ledger, claimed, Done()).state is State.SUCCEEDED
        assert ledger.claims.claim(late, by=worker.id) == []
        assert self.state(ledger, late[0]) is State.READY

    def test_it_ends_by_itself_by_the_clock_of_the_database(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ids = self.record(ledger, queue="mail")
        made = ledger.pauses.pause("mail", who=WHO, why="?", for_s=HOUR_S)
        assert made.ends_at is not None
        assert (made.ends_at - made.paused_at).total_seconds() == pytest.approx(HOUR_S, abs=30.0)

        clock.forward(HOUR_S - 60.0)
        before = ledger.claims.claim(ids, by=worker.id), list(ledger.pauses.all())
        clock.forward(120.0)
        after = ledger.claims.claim(ids, by=worker.id), list(ledger.pauses.all())

        assert before == ([], sorted(all_of("mail")))
        assert ([one.task_id for one in after[0]], after[1]) == (ids, [])
        assert not ledger.pauses.resume("mail", who=WHO, why="?"), "it was over"

    def test_who_paused_it_and_why_is_kept_and_told(self, ledger: Ledger) -> None:
        ledger.pauses.pause("mail", who=WHO, why="incident 42")
        ledger.pauses.pause("reports", who=WHO, why="w" * 500)
        ledger.pauses.pause("odd", who="\x00", why="\ud800 \x00")
        ledger.pauses.resume("odd", who="\x00", why="\ud800")
        ledger.pauses.pause("mail", who="bob@host", why="incident 43", for_s=60.0)

        pauses = ledger.pauses.all()
        ledger.pauses.resume("mail", who="bob@host", why="mended")

        assert {name: (one.queue, one.who, one.why[:40]) for name, one in pauses.items()} == {
            **{name: (name, "bob@host", "incident 43") for name in all_of("mail")},
            **{name: (name, WHO, "w" * 40) for name in all_of("reports")},
        }
        assert (pauses["reports"].ends_at, len(pauses["reports"].why)) == (None, 200)
        told = ledger.questions.happened(["paused", "resumed"], within_s=HOUR_S, limit=9)
        assert [(one.kind, one.detail["queue"], one.detail["who"]) for one in told] == [
            ("paused", "mail", WHO),
            ("paused", "reports", WHO),
            *((kind, "odd", told[2].detail["who"]) for kind in ("paused", "resumed")),
            ("paused", "mail", "bob@host"),
            ("resumed", "mail", "bob@host"),
        ]
        assert list(ledger.pauses.all()) == sorted(all_of("reports"))

    @pytest.mark.parametrize(
        ("paused", "resumed", "left"),
        [
            ("mail", "mail", []),
            ("mail", "mail~low", ["mail", "mail~high"]),
            ("mail", "mail~normal", ["mail~high", "mail~low"]),
            ("mail~high", "mail", []),
            ("mail~high", "mail~low", ["mail~high"]),
            ("mail~normal", "mail~normal", []),
        ],
    )
    def test_a_queue_is_paused_and_resumed_with_all_of_its_bands_and_a_band_by_itself(
        self, ledger: Ledger, worker: Incarnation, paused: str, resumed: str, left: list[str]
    ) -> None:
        tasks = {band: self.record(ledger, queue=band)[0] for band in (*all_of("mail"), "reports~low")}

        made = ledger.pauses.pause(paused, who=WHO, why="?")
        first = ledger.claims.claim(list(tasks.values()), by=worker.id)
        was_paused = ledger.pauses.resume(resumed, who=WHO, why="?")
        second = ledger.claims.claim(list(tasks.values()), by=worker.id)

        assert made.queue == paused
        assert sorted(one.queue for one in first) == sorted(tasks.keys() - set(meant(paused)))
        assert was_paused == bool(set(meant(paused)) & set(meant(resumed)))
        assert sorted(one.queue for one in second) == sorted(set(meant(paused)) & set(meant(resumed)))
        assert list(ledger.pauses.all()) == left

    def test_resuming_what_is_not_paused_changes_nothing(self, ledger: Ledger, database: Database) -> None:
        before = self.everything(database)

        assert not ledger.pauses.resume("mail", who=WHO, why="?")

        assert self.everything(database) == before

    def test_no_task_of_it_counts_as_due_and_no_marker_is_wanted(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger, queue="mail")
        ledger.hints.mark_published(ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=0.0))
        clock.forward(60.0)
        before = ledger.questions.has_due(["mail"]), ledger.hints.lines(slack_s=1.0)

        ledger.pauses.pause("mail", who=WHO, why="?")
        meanwhile = ledger.questions.has_due(["mail"]), ledger.hints.lines(slack_s=1.0)
        ledger.pauses.resume("mail", who=WHO, why="?")
        afterwards = ledger.questions.has_due(["mail"]), ledger.hints.lines(slack_s=1.0)

        assert before == afterwards == (True, ["mail"])
        assert meanwhile == (False, [])

    def test_many_at_once_pause_it_once_or_anew(self, ledger: Ledger) -> None:
        made = at_once(8, lambda number: ledger.pauses.pause("mail", who=f"{number}@host", why="?"))

        assert sorted(one.who for one in made) == [f"{number}@host" for number in range(8)]
        assert list(ledger.pauses.all()) == sorted(all_of("mail"))
        assert len({one.who for one in ledger.pauses.all().values()}) == 1, "all of its bands by the same person"
        assert at_once(8, lambda _: ledger.pauses.resume("mail", who=WHO, why="?")).count(True) == 1

    def test_a_claim_at_the_same_moment_stands_or_is_refused_and_later_ones_are(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 50, queue="mail")

        def one(number: int) -> int:
            if number:
                return len(ledger.claims.claim(ids[:25], by=worker.id))
            ledger.pauses.pause("mail", who=WHO, why="?")
            return len(ledger.claims.claim(ids[25:], by=worker.id))

        after_the_pause, beside_it = at_once(2, one)

        assert after_the_pause == 0
        assert beside_it in (0, 25)
