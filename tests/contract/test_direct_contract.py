"""What a direct consumer promises on each database: hints leave with the transaction that claims their tasks."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, func, select

from tests.contract.databases import OnDatabase, OnMariaDB, OnPostgreSQL, OnSQLite
from tests.contract.given import LONG_S, Clock, at_once, incarnation, new
from tests.contract.sent import listen
from workq.broker import Hint
from workq.broker.embedded import EmbeddedBroker
from workq.broker.embedded.claiming_consumer import DirectConsumer, Taken
from workq.broker.embedded.consumer import BEGINNING
from workq.errors import LeaseLost
from workq.inflight.embedded import ClaimsInFlight
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.logs.seldom import Seldom
from workq.slices import SLICES
from workq.values.codec import Envelope, encode_hint, new_task_id
from workq.values.incarnation import Incarnation
from workq.values.lane import all_of
from workq.values.task import Done, Settlement, State
from workq.worker.fetch.refused import LOOKS_MAX, REFUSED_AGAIN_S, RefusedHints

BEAT_S = 5.0


def flat(pages: list[list[str]]) -> list[str]:
    return [task_id for page in pages for task_id in page]


class DirectContract(OnDatabase):
    @pytest.fixture
    def clock(self, database: Database) -> Clock:
        return Clock(database)

    @pytest.fixture
    def broker(self, database: Database) -> Iterator[EmbeddedBroker]:
        broker = EmbeddedBroker(database)
        yield broker
        broker.close()

    @pytest.fixture
    def worker(self, ledger: Ledger) -> Incarnation:
        worker = incarnation()
        ledger.workers.join(worker, queues=["default"], threads=4)
        return worker

    @pytest.fixture
    def consumer(self, broker: EmbeddedBroker, ledger: Ledger, worker: Incarnation) -> DirectConsumer:
        return DirectConsumer(broker, ledger, ["default"], name=worker.id)

    @pytest.fixture
    def missed(self, ledger: Ledger, worker: Incarnation) -> RefusedHints:
        return RefusedHints(
            ledger,
            me=worker.id,
            beat_s=BEAT_S,
            kept_s=3600.0,
            horizon_s=float("inf"),
            seldom=Seldom(logging.getLogger("tests")),
            wall=time.time,
        )

    @staticmethod
    def hinted(
        ledger: Ledger, broker: EmbeddedBroker, *pages: int, queue: str = "default", delay_s: float = 0.0
    ) -> list[list[str]]:
        """Tasks, and a hint for each page of them."""
        ids = [[one.id for one in ledger.tasks.record(new(size, queue=queue, delay_s=delay_s))] for size in pages]
        broker.publish([Hint(queue, tuple(page)) for page in ids], deadline_s=LONG_S)
        return ids

    @staticmethod
    def take(consumer: DirectConsumer, missed: RefusedHints, ids_max: int = 100) -> Taken:
        """One look; what it took, if anything."""
        return consumer.claim(lambda *of: missed.judge(*of).again, ids_max=ids_max, wait_s=0.0) or Taken()

    @staticmethod
    def granted(taken: Taken) -> list[str]:
        return sorted(claim.task_id for claim in taken.claims)

    @staticmethod
    def waiting(database: Database) -> list[tuple[str, int]]:
        """Queue and size of each row of hints."""
        hint = database.tables.hint
        with database.read() as connection:
            return [
                (row.queue, row.size) for row in connection.execute(select(hint).order_by(hint.c.due_at, hint.c.id))
            ]

    # -- claim

    def test_tasks_are_claimed_and_their_hints_are_gone(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        consumer: DirectConsumer,
        worker: Incarnation,
        missed: RefusedHints,
    ) -> None:
        pages = self.hinted(ledger, broker, 3, 1, 2)

        taken = self.take(consumer, missed)

        assert self.granted(taken) == sorted(flat(pages))
        assert taken.hinted == dict.fromkeys(flat(pages), "default")
        assert {(claim.attempt, len(claim.token)) for claim in taken.claims} == {(1, 32)}
        tasks = [ledger.questions.get(task_id) for task_id in taken.hinted]
        assert {(task.state, task.worker) for task in tasks if task is not None} == {(State.RUNNING, worker.id)}
        assert self.waiting(database) == []
        assert {one.state for one in ledger.outcomes.settle([Settlement(one, Done()) for one in taken.claims])} == {
            State.SUCCEEDED
        }

    @pytest.mark.parametrize("at_once", [1, 7, 100])
    def test_tasks_of_all_bands_are_claimed_and_run_by_weight_however_many_at_once(
        self, ledger: Ledger, broker: EmbeddedBroker, consumer: DirectConsumer, missed: RefusedHints, at_once: int
    ) -> None:
        high, normal, low = all_of("default")
        for band, count in ((low, 8), (normal, 32), (high, 128)):
            self.hinted(ledger, broker, *[1] * count, queue=band)
        consumer.serve([high, normal, low])

        found = []
        while claims := self.take(consumer, missed, at_once).claims:
            found += [claim.queue for claim in claims]

        assert Counter(found) == {high: 128, normal: 32, low: 8}
        for start in range(84 - 20):
            assert Counter(found[start : start + 21]) == {high: 16, normal: 4, low: 1}

    def test_of_a_page_that_is_longer_than_the_room_only_what_is_claimed_counts(
        self, ledger: Ledger, broker: EmbeddedBroker, consumer: DirectConsumer, missed: RefusedHints
    ) -> None:
        high, _, low = all_of("default")
        self.hinted(ledger, broker, 50, queue=low)
        self.hinted(ledger, broker, *[1] * 60, queue=high)
        consumer.serve([high, low])

        found = [claim.queue for _ in range(68) for claim in self.take(consumer, missed, 1).claims]

        assert Counter(found[:51]) == {high: 48, low: 3}

    def test_where_no_band_is_in_use_a_look_asks_no_more_than_for_a_queue(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        consumer: DirectConsumer,
        missed: RefusedHints,
    ) -> None:
        sent: list[str] = []
        listen(database, lambda text, _: sent.append(text))
        self.take(consumer, missed)
        idle = len(sent)
        self.hinted(ledger, broker, 5)
        sent.clear()
        self.take(consumer, missed)
        busy = sum("_hint" in text and text.startswith("SELECT") for text in sent)

        assert idle == 1
        assert busy == 2, "whether there is one, and which"

    def test_what_is_claimed_is_held(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        consumer: DirectConsumer,
        worker: Incarnation,
        missed: RefusedHints,
    ) -> None:
        inflight = ClaimsInFlight(database)
        [page] = self.hinted(ledger, broker, 3)
        taken = self.take(consumer, missed)

        held = {(hold.task_id, hold.queue, hold.worker, hold.attempt) for hold in inflight.held_by(worker.id)}
        assert held == {(task_id, "default", worker.id, 1) for task_id in page}
        assert {hold.task_id for hold in inflight.holds("default")} == set(page)
        assert inflight.holds("other") == inflight.held_by("nobody") == []
        ledger.outcomes.settle([Settlement(one, Done()) for one in taken.claims])
        assert inflight.holds("default") == []

    def test_the_rest_of_a_page_keeps_its_place(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        consumer: DirectConsumer,
        missed: RefusedHints,
    ) -> None:
        [first, second] = self.hinted(ledger, broker, 10, 4)

        seen = [self.granted(self.take(consumer, missed, ids_max=4)) for _ in range(4)]

        assert seen == [first[:4], first[4:8], first[8:], second], "a page is only cut when it is the first"
        assert self.waiting(database) == []

    def test_single_hints_are_taken_together(
        self, ledger: Ledger, broker: EmbeddedBroker, consumer: DirectConsumer, missed: RefusedHints
    ) -> None:
        ids = flat(self.hinted(ledger, broker, *[1] * 120))

        sizes, seen = [], []
        while taken := self.granted(self.take(consumer, missed, ids_max=50)):
            sizes.append(len(taken))
            seen += taken

        assert sorted(seen) == sorted(ids)
        assert max(sizes) == 50, "once it knows how many hints to ask for, it fills the room"

    def test_queues_are_served_in_turns(
        self, ledger: Ledger, broker: EmbeddedBroker, worker: Incarnation, missed: RefusedHints
    ) -> None:
        consumer = DirectConsumer(broker, ledger, ["a", "b"], name=worker.id)
        for queue in ("a", "b"):
            self.hinted(ledger, broker, *[2] * 3, queue=queue)

        seen = [set(self.take(consumer, missed, ids_max=2).hinted.values()) for _ in range(4)]

        assert seen == [{"a"}, {"b"}, {"a"}, {"b"}]

    def test_a_hint_is_not_taken_before_it_is_due(
        self, ledger: Ledger, broker: EmbeddedBroker, clock: Clock, consumer: DirectConsumer, missed: RefusedHints
    ) -> None:
        [task_id] = [one.id for one in ledger.tasks.record(new(delay_s=30.0))]
        broker.publish([Hint("default", (task_id,), 30.0)], deadline_s=LONG_S)

        early = self.take(consumer, missed)
        clock.forward(31.0)

        assert (self.granted(early), self.granted(self.take(consumer, missed))) == ([], [task_id])

    def test_each_task_is_granted_to_one_of_six_consumers(
        self, ledger: Ledger, broker: EmbeddedBroker, database: Database, missed: RefusedHints
    ) -> None:
        pages = self.hinted(ledger, broker, *[7, 1, 30] * 10)
        workers = [incarnation() for _ in range(6)]
        for worker in workers:
            ledger.workers.join(worker, queues=["default"], threads=4)

        def work(number: int) -> list[str]:
            consumer = DirectConsumer(broker, ledger, ["default"], name=workers[number].id)
            seen: list[str] = []
            empty = 0
            while empty < 3:  # rows that others are just taking are passed over
                taken = consumer.claim(lambda *of: missed.judge(*of).again, ids_max=10 + number, wait_s=0.05) or Taken()
                seen += self.granted(taken)
                empty = 0 if taken.claims else empty + 1
            return seen

        granted = [task_id for answer in at_once(6, work) for task_id in answer]

        assert Counter(granted) == Counter(flat(pages))
        assert self.waiting(database) == []

    def test_a_consumer_that_waits_sees_what_another_connection_commits(
        self, ledger: Ledger, broker: EmbeddedBroker, database: Database, consumer: DirectConsumer, missed: RefusedHints
    ) -> None:
        other = Database(database.url.render_as_string(hide_password=False), namespace=database.namespace)
        elsewhere = EmbeddedBroker(other)
        late = threading.Timer(0.3, lambda: self.hinted(Ledger(other, SLICES), elsewhere, 1))
        late.start()

        taken = consumer.claim(lambda *of: missed.judge(*of).again, ids_max=10, wait_s=LONG_S)

        late.join()
        other.close()
        assert taken is not None
        assert len(taken.claims) == 1

    def test_a_closed_consumer_takes_nothing(
        self, ledger: Ledger, broker: EmbeddedBroker, consumer: DirectConsumer, missed: RefusedHints
    ) -> None:
        self.hinted(ledger, broker, 1)
        consumer.close()

        assert consumer.claim(lambda *of: missed.judge(*of).again, ids_max=10, wait_s=LONG_S) is None

    # -- what is not granted

    def test_hints_of_what_is_settled_are_dropped(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        consumer: DirectConsumer,
        missed: RefusedHints,
    ) -> None:
        [[gone, here]] = self.hinted(ledger, broker, 2)
        ledger.decisions.cancel(gone, who="ada", why="why")

        taken = self.take(consumer, missed)

        assert self.granted(taken) == [here]
        assert self.waiting(database) == []

    def test_a_hint_that_is_early_is_written_again_for_the_right_moment(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        clock: Clock,
        consumer: DirectConsumer,
        missed: RefusedHints,
    ) -> None:
        [[early]] = self.hinted(ledger, broker, 1, delay_s=20.0)

        first = self.take(consumer, missed)
        again = self.waiting(database)
        clock.forward(10.0)
        too_early = self.take(consumer, missed)
        clock.forward(11.0)

        assert (self.granted(first), again, self.granted(too_early)) == ([], [("default", 1)], [])
        assert self.granted(self.take(consumer, missed)) == [early]

    def test_an_unknown_id_is_looked_up_a_few_times_a_beat_apart(
        self,
        broker: EmbeddedBroker,
        database: Database,
        clock: Clock,
        consumer: DirectConsumer,
        missed: RefusedHints,
    ) -> None:
        unknown = new_task_id()
        broker.publish([Hint("default", (unknown,))], deadline_s=LONG_S)
        judged = []

        def judge(*of: object) -> Sequence[Hint]:
            judged.append(missed.judge(*of))  # type: ignore[arg-type]  # as the consumer calls it
            return judged[-1].again

        for _ in range(LOOKS_MAX):
            assert consumer.claim(judge, ids_max=10, wait_s=0.0) is not None
            clock.forward(BEAT_S + 0.1)

        assert [one.unknown for one in judged] == [[]] * (LOOKS_MAX - 1) + [[unknown]]
        assert self.waiting(database) == []
        missed.tell(judged[-1], queue="default")

    def test_a_task_may_be_in_another_queue_than_its_hint(
        self, ledger: Ledger, broker: EmbeddedBroker, consumer: DirectConsumer, missed: RefusedHints
    ) -> None:
        [elsewhere] = [one.id for one in ledger.tasks.record(new(queue="elsewhere"))]
        broker.publish([Hint("default", (elsewhere,))], deadline_s=LONG_S)

        taken = self.take(consumer, missed)

        assert [(claim.task_id, claim.queue) for claim in taken.claims] == [(elsewhere, "elsewhere")]
        assert taken.hinted == {elsewhere: "default"}

    def test_an_incarnation_that_has_ended_gets_nothing_and_loses_nothing(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        clock: Clock,
        consumer: DirectConsumer,
        worker: Incarnation,
        missed: RefusedHints,
    ) -> None:
        [page] = self.hinted(ledger, broker, 3)
        ledger.workers.reap(worker.id, Evidence("SIGKILL"))
        judged = []

        def judge(*of: object) -> Sequence[Hint]:
            judged.append(missed.judge(*of))  # type: ignore[arg-type]  # as the consumer calls it
            return judged[-1].again

        taken = consumer.claim(judge, ids_max=10, wait_s=0.0)

        assert taken is not None
        assert taken.claims == []
        with pytest.raises(LeaseLost):
            missed.tell(judged[-1], queue="default")
        clock.forward(REFUSED_AGAIN_S + 0.1)
        other = incarnation()
        ledger.workers.join(other, queues=["default"], threads=1)
        assert self.granted(self.take(DirectConsumer(broker, ledger, ["default"], name=other.id), missed)) == page

    # -- what is no hint of a task

    def test_markers_and_foreign_messages_come_out_beside_the_claims(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        consumer: DirectConsumer,
        missed: RefusedHints,
    ) -> None:
        marker = new_task_id()
        pages = self.hinted(ledger, broker, 1)
        broker.publish([Hint("default", (), marker=marker)], deadline_s=LONG_S)
        pages += self.hinted(ledger, broker, 1)
        hint = database.tables.hint
        newer = encode_hint(Envelope("default", (new_task_id(),))).replace(b'"v":1', b'"v":99').decode()
        database.run(
            lambda tx: [
                tx.execute(hint.insert().values(queue="default", due_at=database.now(), body=body, size=1))
                for body in ("nothing of ours", newer)
            ]
        )

        taken = self.take(consumer, missed)

        assert self.granted(taken) == sorted(flat(pages))
        assert [(one.marker, one.fault) for one in taken.others] == [
            (marker, None),
            (None, "not_json"),
            (None, "newer_version"),
        ]
        assert [one.returns for one in taken.others] == [0, 0, 0]
        assert self.take(consumer, missed).others == [], "they are this consumer's for a while"
        consumer.ack(taken.others[:1])
        consumer.quarantine(taken.others[1], reason="not_json")
        consumer.put_back(taken.others[2], delay_s=0.0)
        [again] = self.take(consumer, missed).others
        assert (again.fault, again.returns) == ("newer_version", 1)
        consumer.close()
        assert len(self.waiting(database)) == 1

    def test_what_a_marker_has_overtaken_is_never_in_its_transaction_too_late(
        self, ledger: Ledger, broker: EmbeddedBroker, consumer: DirectConsumer, missed: RefusedHints
    ) -> None:
        """A marker comes out after all hints before it: also when the room ends within the page before it."""
        marker = new_task_id()
        [page] = self.hinted(ledger, broker, 5)
        broker.publish([Hint("default", (), marker=marker)], deadline_s=LONG_S)

        first, second = self.take(consumer, missed, ids_max=3), self.take(consumer, missed, ids_max=3)

        assert (self.granted(first), first.others) == (page[:3], [])
        assert (self.granted(second), [one.marker for one in second.others]) == (page[3:], [marker])

    def test_a_hint_that_was_sent_again_is_stamped(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        consumer: DirectConsumer,
        missed: RefusedHints,
    ) -> None:
        """So that no marker which was sent before it proves it lost."""
        [[early]] = self.hinted(ledger, broker, 1, delay_s=20.0)
        ledger.hints.mark_published(ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=1e9))
        t = database.tables.task

        def ahead_s() -> float:
            with database.read() as connection:
                stamp, now = connection.execute(
                    select(t.c.published_at, database.now().label("now")).where(t.c.id == early)
                ).one()
            return float((stamp - now).total_seconds())

        before_s = ahead_s()
        self.take(consumer, missed)

        assert before_s <= 0.0
        assert 10.0 < ahead_s() <= 20.0

    def test_a_hint_that_comes_twice_is_claimed_once(
        self,
        ledger: Ledger,
        broker: EmbeddedBroker,
        database: Database,
        consumer: DirectConsumer,
        missed: RefusedHints,
    ) -> None:
        [[task_id]] = self.hinted(ledger, broker, 1)
        broker.publish([Hint("default", (task_id,)), Hint("default", (task_id,))], deadline_s=LONG_S)

        assert self.granted(self.take(consumer, missed)) == [task_id]
        assert self.take(consumer, missed).claims == []
        with database.read() as connection:
            assert connection.execute(select(func.count()).select_from(database.tables.hint)).scalar_one() == 0

    def test_what_is_due_later_keeps_nobody_from_what_is_due_now(
        self, database: Database, ledger: Ledger, worker: Incarnation
    ) -> None:
        broker = EmbeddedBroker(database, clock=lambda: 0.0)  # the only look at everything is the first
        consumer = DirectConsumer(broker, ledger, ["default"], name=worker.id)
        broker.publish([Hint("default", (new_task_id(),), delay_s=60.0)], deadline_s=LONG_S)
        for _ in range(2):
            assert consumer.claim(lambda _missed, _looks: (), ids_max=10, wait_s=0.0) is None

        [[task_id]] = self.hinted(ledger, broker, 1)
        taken = consumer.claim(lambda _missed, _looks: (), ids_max=10, wait_s=0.0)
        broker.close()

        assert taken is not None
        assert self.granted(taken) == [task_id]


class TestSQLite(OnSQLite, DirectContract):
    pass


class TestPostgreSQL(OnPostgreSQL, DirectContract):
    def test_what_was_taken_is_not_read_again_while_an_old_transaction_keeps_it(
        self, database: Database, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        """Such a transaction keeps dead versions at the front of the index, thousands a second."""
        broker = EmbeddedBroker(database, clock=lambda: 0.0)  # the only look at everything is the first
        consumer = DirectConsumer(broker, ledger, ["default"], name=worker.id)
        sent: list[tuple[str, Any]] = []

        def tell(text: str, given: Any) -> None:
            if "b_since" in text and "b_limit" in text:
                sent.append((text, given))

        def buffers(text: str, given: Mapping[str, Any]) -> int:
            with database.engine.connect() as connection:
                plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", given)
                return int(plan.scalar_one()[0]["Plan"]["Shared Hit Blocks"])

        theirs = create_engine(database.url, isolation_level="REPEATABLE READ", poolclass=NullPool)
        with theirs.connect() as idle:
            idle.execute(select(func.now()))
            ids = flat(self.hinted(ledger, broker, *[1] * 1000))
            while ids:
                taken = consumer.claim(lambda _missed, _looks: (), ids_max=100, wait_s=0.0)
                assert taken is not None
                ids = [task_id for task_id in ids if task_id not in taken.hinted]
            clock.forward(60.0)
            listen(database, tell)
            for _ in range(2):
                self.hinted(ledger, broker, 1)
                assert consumer.claim(lambda _missed, _looks: (), ids_max=100, wait_s=0.0) is not None
            broker.close()
            text, given = sent[-1]
            from_the_front = buffers(text, given)
            from_the_beginning = buffers(text, given | {"b_since": BEGINNING})

        assert from_the_beginning > 20, "pages of the table and of its index"
        assert from_the_front < 10


class TestMariaDB(OnMariaDB, DirectContract):
    pass
