"""Due tasks: what a worker is answered that no hint reaches."""

from __future__ import annotations

from tests.contract.given import HOUR_S, Clock
from tests.contract.ledger.steps import Steps
from workq.ledger.due_tasks import DueTask
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation


class DueTasksContract(Steps):
    @staticmethod
    def due(ledger: Ledger, *queues: str, limit: int = 10, after: DueTask | None = None) -> list[str]:
        behind = {} if after is None else {after.queue: after}
        return [one.task_id for one in ledger.due_tasks.oldest(queues, limit=limit, after=behind)]

    def test_what_can_be_claimed_of_these_lines_is_answered_the_oldest_first_with_or_without_a_hint(
        self, ledger: Ledger, database: Database, worker: Incarnation, clock: Clock
    ) -> None:
        [retried] = self.record(ledger, delay_s=1.0)
        clock.forward(2.0)
        [fresh] = self.record(ledger)
        [urgent] = self.record(ledger, queue="default~high")
        self.record(ledger, queue="other")
        self.record(ledger, delay_s=HOUR_S)
        self.run_one(ledger, worker)
        ledger.hints.mark_published(ledger.hints.take_unpublished(limit=1, grace_s=-1.0, horizon_s=0.0))
        before = self.everything(database)

        found = self.due(ledger, "default~high", "default")

        assert found == [urgent, retried, fresh]
        assert self.everything(database) == before
        assert [one.task_id for one in ledger.claims.claim(found, by=worker.id)] == found
        assert self.due(ledger, "default~high", "default") == []
        assert self.due(ledger) == []

    def test_what_must_not_start_is_not_answered(self, ledger: Ledger, clock: Clock) -> None:
        paused = self.record(ledger, queue="mail")
        self.record(ledger, expires_s=60.0)
        [first, _] = self.record(ledger, 2, order_key="k")
        ledger.pauses.pause("mail", who="eve@host", why="?")
        clock.forward(61.0)

        assert self.due(ledger, "default", "mail") == [first]
        ledger.pauses.resume("mail", who="eve@host", why="?")
        assert self.due(ledger, "default", "mail") == [first, *paused]

    def test_what_comes_behind_a_task_is_read_a_page_at_a_time(self, ledger: Ledger, clock: Clock) -> None:
        ids = self.record(ledger, 3, delay_s=1.0)
        clock.forward(1.0)
        ids += self.record(ledger, 4)
        other = self.record(ledger, queue="other")
        found: list[str] = []
        sizes: list[int] = []
        after: DueTask | None = None
        for _ in range(4):
            rows = ledger.due_tasks.oldest(["default"], limit=2, after={} if after is None else {"default": after})
            found += [one.task_id for one in rows]
            sizes.append(len(rows))
            after = rows[-1]

        assert sizes == [2, 2, 2, 1]
        assert (set(found[:3]), set(found[3:])) == (set(ids[:3]), set(ids[3:]))
        assert self.due(ledger, "default", "other", after=after) == other, "each line has a place of its own"

    def test_what_is_due_for_less_than_some_time_can_be_left_out(self, ledger: Ledger, clock: Clock) -> None:
        older = self.record(ledger)
        clock.forward(2.0)
        newer = self.record(ledger)

        def due(for_s: float) -> list[str]:
            return [one.task_id for one in ledger.due_tasks.oldest(["default"], limit=9, after={}, for_s=for_s)]

        assert (due(0.0), due(1.5), due(4.0)) == ([*older, *newer], older, [])

    def test_the_newest_of_them_are_read_a_page_at_a_time_too(self, ledger: Ledger, clock: Clock) -> None:
        ids = self.record(ledger, 3)
        clock.forward(2.0)
        ids += self.record(ledger, 2)
        other = self.record(ledger, queue="other")
        clock.forward(2.0)
        self.record(ledger)
        found: list[DueTask] = []
        for _ in range(3):
            before = {"default": found[-1]} if found else {}
            found += ledger.due_tasks.newest(["default"], limit=2, before=before, for_s=1.0)

        assert sorted(one.task_id for one in found) == sorted(ids)
        assert found == sorted(found, reverse=True)
        rows = ledger.due_tasks.newest(["default", "other"], limit=9, before={"default": found[-1]}, for_s=1.0)
        assert [one.task_id for one in rows] == other, "each line has a place of its own"
