"""The dead: counted, grouped by what they died of, sent back and discarded, each of them once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import update

from tests.contract.given import HOUR_S, Clock, at_once, new_job
from tests.contract.ledger.steps import Steps
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JobOptions
from workq.ledger import NO_GROUP, Evidence, Which
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.fingerprint import fingerprint
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Done, State

REASON = "failures_max reached: ValueError"
EVERYONE = Which()


class DeadContract(Steps):
    @classmethod
    def kill(cls, ledger: Ledger, worker: Incarnation, count: int, error: str = "boom", **facts: Any) -> list[str]:
        """So many that died of this."""
        claims = ledger.claims.claim(cls.record(ledger, count, **facts), by=worker.id)
        for claim in claims:
            cls.settle(ledger, claim, Dead(REASON, error))
        return [claim.task_id for claim in claims]

    @staticmethod
    def all_ids(ledger: Ledger, which: Which, *, limit: int = 2) -> list[str]:
        """All of them, page by page."""
        found: list[str] = []
        while page := ledger.bulk.dead_ids(which, after=found[-1] if found else None, limit=limit):
            assert len(page) <= limit
            found += page
        return found

    def test_the_dead_are_grouped_by_what_they_died_of_the_largest_first(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        alike = [self.kill(ledger, worker, 1, f"ValueError: order {number} is odd")[0] for number in range(3)]
        clock.forward(60.0)
        other = self.kill(ledger, worker, 2, "ValueError: no money")
        elsewhere = self.kill(ledger, worker, 1, "ValueError: order 9 is odd", name="refund", queue="mail")
        self.settle(ledger, self.run_one(ledger, worker), Done())

        groups = ledger.bulk.dead_groups(EVERYONE, limit=9)

        assert [(one.name, one.tasks, one.sample) for one in groups] == [
            ("index", 3, min(alike)),
            ("index", 2, min(other)),
            ("refund", 1, elsewhere[0]),
        ]
        assert len({one.group for one in groups}) == 3
        assert groups[0].group == fingerprint("index", REASON, "ValueError: order 7 is odd")
        assert groups[0].reason == REASON
        assert groups[0].first_at == self.task(ledger, alike[0]).settled_at
        assert (groups[1].first_at - groups[0].last_at).total_seconds() == pytest.approx(60.0, abs=30.0)
        assert [one.tasks for one in ledger.bulk.dead_groups(EVERYONE, limit=1)] == [3]

    def test_as_many_as_would_be_sent_back_are_counted_and_no_other(self, ledger: Ledger, worker: Incarnation) -> None:
        plain = self.kill(ledger, worker, 2)
        [twin] = self.kill(ledger, worker, 1, key="twin")
        [again] = self.kill(ledger, worker, 1, key="twin")
        [held] = self.kill(ledger, worker, 1, key="held")
        self.record(ledger, key="held")
        job = new_job(JobOptions(queue="default"))
        ledger.part(JobLedger).jobs.begin_job(job)
        [of_job] = ledger.claims.claim([job.splitter.id], by=worker.id)
        self.settle(ledger, of_job, Dead(REASON, "boom"))
        ids = (*plain, twin, again, held, of_job.task_id)

        counted = ledger.bulk.revivable_count(EVERYONE), ledger.bulk.revivable_count(Which(ids=ids[:3]))
        apart = [ledger.bulk.dead_count(Which(of_job=one)) for one in (None, False, True)]
        hints, refused = ledger.bulk.revive_dead(ids, who="ada", why="?")

        assert counted == (3, 3)
        assert apart == [6, 5, 1]
        assert ledger.questions.counts().dead_of_jobs == 1
        assert (len(hints), len(refused)) == (3, 3)
        assert {held, of_job.task_id} <= set(refused)

    def test_each_filter_leaves_those_that_it_names(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        old = self.kill(ledger, worker, 2)
        clock.forward(HOUR_S)
        mail = self.kill(ledger, worker, 1, queue="mail")
        named = self.kill(ledger, worker, 1, name="refund")
        cancelled = self.record(ledger)[0]
        ledger.decisions.cancel(cancelled, who="ada", why="not needed")
        group = fingerprint("refund", REASON, "boom")

        found = {
            which: self.all_ids(ledger, which)
            for which in (
                EVERYONE,
                Which(queue="mail"),
                Which(name="refund"),
                Which(group=group),
                Which(older_s=HOUR_S / 2),
                Which(younger_s=HOUR_S / 2),
                Which(name="refund", queue="mail"),
            )
        }

        assert list(found.values()) == [
            sorted([*old, *mail, *named]),
            mail,
            named,
            named,
            old,
            sorted(mail + named),
            [],
        ]
        assert [ledger.bulk.dead_count(which) for which in found] == [len(ids) for ids in found.values()]

    def test_those_from_before_there_were_groups_are_a_group(
        self, ledger: Ledger, worker: Incarnation, database: Database
    ) -> None:
        before, since = self.kill(ledger, worker, 2), self.kill(ledger, worker, 1, "other")
        t = database.tables.task
        database.run(lambda tx: tx.execute(update(t).where(t.c.id.in_(before)).values(fingerprint=None)))

        groups = {one.group: one.tasks for one in ledger.bulk.dead_groups(EVERYONE, limit=9)}

        assert groups == {NO_GROUP: 2, fingerprint("index", REASON, "other"): 1}
        assert self.all_ids(ledger, Which(group=NO_GROUP)) == before
        assert ledger.bulk.dead_count(Which(group=NO_GROUP, name="other")) == 0
        assert since[0] not in before

    def test_a_task_that_died_with_its_process_has_a_group(self, ledger: Ledger, worker: Incarnation) -> None:
        claims = [self.run_one(ledger, worker, crashes_max=1) for _ in range(1)]
        ledger.workers.reap(worker.id, Evidence("SIGSEGV", started={claims[0].task_id: claims[0].attempt}))

        [group] = ledger.bulk.dead_groups(EVERYONE, limit=9)

        assert (group.tasks, group.sample) == (1, claims[0].task_id)
        assert group.group != NO_GROUP

    def test_they_go_back_with_fresh_budgets_and_hints_and_out_of_their_group(
        self, ledger: Ledger, worker: Incarnation, database: Database
    ) -> None:
        ids = self.kill(ledger, worker, 3)
        [done] = self.record(ledger)

        hints, refused = ledger.bulk.revive_dead([*ids, done, "no id"], who="ada", why="the bank is back")
        again = ledger.bulk.revive_dead(ids, who="ada", why="once more")

        assert sorted(hint.task_id for hint in hints) == ids
        assert refused == {}
        assert again == ([], {})
        for task_id in ids:
            task = self.task(ledger, task_id)
            assert (task.state, task.failures, task.crashes, task.reason) == (State.READY, 0, 0, None)
            assert self.kinds(ledger, task_id).count("revived") == 1
            assert self.row(database, task_id).fingerprint is None
        assert ledger.bulk.dead_groups(EVERYONE, limit=9) == []
        assert len(ledger.claims.claim(ids, by=worker.id)) == 3
        assert self.kinds(ledger, done) == []

    def test_one_whose_key_somebody_holds_is_told_and_the_others_go_back(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        [keyed] = self.kill(ledger, worker, 1, key="k")
        [free] = self.kill(ledger, worker, 1, key="free")
        [plain] = self.kill(ledger, worker, 1)
        self.record(ledger, key="k")

        hints, refused = ledger.bulk.revive_dead([keyed, free, plain], who="ada", why="again")

        assert sorted(hint.task_id for hint in hints) == sorted([free, plain])
        assert list(refused) == [keyed]
        assert "its key is held by a live task" in refused[keyed]
        assert self.state(ledger, keyed) is State.DEAD

    def test_several_at_once_send_each_of_them_back_once(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.kill(ledger, worker, 40)

        answers = at_once(4, lambda _: ledger.bulk.revive_dead(ids, who="ada", why="again"))
        hints = [hint.task_id for hinted, _ in answers for hint in hinted]
        hints += [hint.task_id for hint in ledger.bulk.revive_dead(ids, who="ada", why="the rest")[0]]

        assert Counter(hints) == Counter(ids)
        assert all(self.kinds(ledger, task_id).count("revived") == 1 for task_id in ids)

    def test_what_is_discarded_is_cancelled_and_nothing_else_is(
        self, ledger: Ledger, worker: Incarnation, database: Database
    ) -> None:
        ids = self.kill(ledger, worker, 2)
        running = self.run_one(ledger, worker)

        discarded = ledger.bulk.discard_dead([*ids, running.task_id], who="ada", why="withdrawn")
        again = ledger.bulk.discard_dead(ids, who="ada", why="withdrawn")

        assert (sorted(discarded), again) == (ids, [])
        for task_id in ids:
            task = self.task(ledger, task_id)
            assert (task.state, task.reason) == (State.CANCELLED, "discarded: withdrawn")
            assert task.error == "boom"
            assert self.kinds(ledger, task_id).count("cancelled") == 1
            assert self.row(database, task_id).fingerprint is None
        assert self.state(ledger, running.task_id) is State.RUNNING
        assert ledger.bulk.dead_count(EVERYONE) == 0
        assert ledger.decisions.revive(ids[0], who="ada", why="after all").task_id == ids[0]

    def test_one_that_is_discarded_and_sent_back_at_once_is_one_of_both(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.kill(ledger, worker, 20)
        ids += [task_id for number in range(10) for task_id in self.kill(ledger, worker, 1, key=f"k{number}")]

        def decide(number: int) -> list[str]:
            if number:
                return ledger.bulk.discard_dead(ids, who="ada", why="withdrawn")
            return [hint.task_id for hint in ledger.bulk.revive_dead(ids, who="ada", why="again")[0]]

        revived, discarded = at_once(2, decide)

        assert not set(revived) & set(discarded)
        states = {task_id: self.state(ledger, task_id) for task_id in ids}
        assert {one for one in ids if states[one] is State.READY} == set(revived)
        assert {one for one in ids if states[one] is State.CANCELLED} == set(discarded)
