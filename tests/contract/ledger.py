"""What every ledger promises. A subclass says only where one is."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ClassVar, TypeVar

import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from tests.contract.databases import OnDatabase
from workq import codec
from workq.errors import ConfigError, KeyConflict, NotFound, Refused
from workq.evidence import Certificate, Charge, Facts, Kind, OutOfMemory, Ran
from workq.incarnation import Incarnation
from workq.ledger import CancelAnswer, Evidence, Ledger, OpenTask, Prunes, Reaped, Settled, Unpublished
from workq.ledger.database import Database
from workq.ledger.sql import SqlLedger
from workq.task import (
    SETTLED,
    TRANSITIONS,
    Cancelled,
    Claim,
    Dead,
    Done,
    Enqueued,
    HandedBack,
    NewTask,
    Outcome,
    Retry,
    Settlement,
    State,
)

T = TypeVar("T")

LONG_S = 60.0
"""How long a noisy machine may take for what normally takes milliseconds."""
HOUR_S = 3600.0
ARGUMENTS = '{"a":[1],"k":{"x":"y"}}'
OUTCOMES: dict[str, Outcome] = {
    "done": Done('{"rows":7}'),
    "retry": Retry(5.0, "boom"),
    "dead": Dead("failures_max reached", "boom"),
    "cancelled": Cancelled("not needed any more"),
    "handed_back": HandedBack(),
}


def new(count: int = 1, **facts: Any) -> list[NewTask]:
    """Tasks to record."""
    given = {"name": "index", "queue": "default", "payload": ARGUMENTS} | facts
    return [NewTask(codec.new_task_id(), **given) for _ in range(count)]


def incarnation(name: str = "worker") -> Incarnation:
    return Incarnation(f"{name}.{secrets.token_hex(8)}", "host", 4711)


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """`call(0)`, `call(1)`, ... in threads that start together; their answers, in that order."""
    gate = threading.Barrier(count)

    def one(number: int) -> T:
        gate.wait(LONG_S)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return [future.result(LONG_S) for future in [pool.submit(one, number) for number in range(count)]]


class Clock:
    """The database's clock, which a test moves instead of sleeping."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def forward(self, seconds: float) -> None:
        self._database.clock_offset_s += seconds


class LedgerContract(OnDatabase):
    """What every ledger promises."""

    @pytest.fixture
    def clock(self, database: Database) -> Clock:
        return Clock(database)

    @pytest.fixture
    def worker(self, ledger: Ledger) -> Incarnation:
        """A live incarnation."""
        worker = incarnation()
        ledger.join(worker, queues=["default"], threads=4)
        return worker

    @pytest.fixture
    def claimed(self, ledger: Ledger, worker: Incarnation) -> Claim:
        """A task that runs."""
        return self.run_one(ledger, worker)

    @pytest.fixture
    def theirs(self, url: str) -> Iterator[Engine]:
        """The caller's own engine to the same database, as SQLAlchemy makes it by default."""
        engine = create_engine(Database(url).url)
        yield engine
        engine.dispose()

    @staticmethod
    def record(ledger: Ledger, count: int = 1, **facts: Any) -> list[str]:
        return [one.id for one in ledger.record(new(count, **facts))]

    @classmethod
    def run_one(cls, ledger: Ledger, worker: Incarnation, **facts: Any) -> Claim:
        [claim] = ledger.claim(cls.record(ledger, **facts), by=worker.id)
        return claim

    @staticmethod
    def settle(ledger: Ledger, claim: Claim, outcome: Outcome) -> Settled:
        [settled] = ledger.settle([Settlement(claim, outcome)])
        return settled

    @staticmethod
    def state(ledger: Ledger, task_id: str) -> State:
        task = ledger.get(task_id)
        assert task is not None
        return task.state

    @staticmethod
    def charges(ledger: Ledger, task_id: str) -> list[str]:
        """What each reaping cost it."""
        return [event.detail["charged"] for event in ledger.history(task_id) if event.kind == "reaped"]

    @staticmethod
    def claim_elsewhere(ledger: Ledger, ids: Sequence[str]) -> list[Claim]:
        """The next claim of each, by another incarnation."""
        other = incarnation()
        ledger.join(other, queues=["default"], threads=4)
        return ledger.claim(ids, by=other.id)

    @classmethod
    def suspects(cls, ledger: Ledger, **facts: Any) -> list[str]:
        """Two tasks whose process died while both ran."""
        ids = cls.record(ledger, 2, **facts)
        [first, _] = cls.claim_elsewhere(ledger, ids)
        task = ledger.get(first.task_id)
        assert task is not None
        assert task.worker is not None
        ledger.reap(task.worker, Evidence("SIGSEGV", started=dict.fromkeys(ids, 1)))
        return ids

    @staticmethod
    def kinds(ledger: Ledger, task_id: str) -> list[str]:
        return [event.kind for event in ledger.history(task_id)]

    @staticmethod
    def everything(database: Database) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of all tables."""
        with database.engine.connect() as connection:
            return {
                table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
                for table in database.tables.metadata.sorted_tables
            }

    @staticmethod
    def row(database: Database, task_id: str) -> Any:
        t = database.tables.task
        with database.engine.connect() as connection:
            return connection.execute(select(t).where(t.c.id == task_id)).one()

    # -- record

    def test_a_recorded_task_is_ready_and_reads_as_it_was_given(self, ledger: Ledger) -> None:
        [given] = new(name="mail.send", queue="mail", failures_max=7, crashes_max=2, key="k")

        [answer] = ledger.record([given])

        assert answer == Enqueued(given.id, State.READY, created=True)
        task = ledger.get(given.id)
        assert task is not None
        assert (task.id, task.name, task.queue, task.state, task.key) == (
            given.id,
            "mail.send",
            "mail",
            State.READY,
            "k",
        )
        assert (task.args, task.kwargs) == ((1,), {"x": "y"})
        assert (task.attempt, task.failures, task.crashes, task.failures_max, task.crashes_max) == (0, 0, 0, 7, 2)
        assert (task.worker, task.started_at, task.settled_at, task.result, task.error) == (None,) * 5
        assert abs(task.created_at - ledger.clock()) < timedelta(seconds=LONG_S)
        assert task.due_at == task.created_at

    def test_recording_nothing_does_nothing(self, ledger: Ledger) -> None:
        assert ledger.record([]) == []

    def test_a_delayed_task_waits_and_cannot_be_claimed_before_it_is_due(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        [given] = new(delay_s=HOUR_S)
        [answer] = ledger.record([given])
        clock.forward(HOUR_S - 30)
        early = ledger.claim([given.id], by=worker.id)
        clock.forward(30)
        due = ledger.claim([given.id], by=worker.id)

        assert answer.state is State.WAITING
        assert early == []
        assert [claim.task_id for claim in due] == [given.id]

    def test_a_task_can_be_due_in_ten_years(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, delay_s=3650 * 86400.0)

        task = ledger.get(task_id)
        assert task is not None
        assert task.due_at - task.created_at == timedelta(days=3650)

    def test_a_batch_is_recorded_as_a_whole_or_not_at_all(self, ledger: Ledger) -> None:
        self.record(ledger, key="taken")
        batch = [*new(5), *new(key="taken", payload='{"a":[2],"k":{}}'), *new(5)]

        with pytest.raises(KeyConflict):
            ledger.record(batch)

        assert all(ledger.get(one.id) is None for one in batch)

    def test_a_batch_with_a_row_that_the_schema_forbids_leaves_nothing(self, ledger: Ledger) -> None:
        batch = [*new(3), *new(name=None), *new(3)]

        with pytest.raises(IntegrityError):
            ledger.record(batch)

        assert all(ledger.get(one.id) is None for one in batch)

    def test_recording_again_with_the_same_ids_answers_the_same_and_adds_nothing(
        self, ledger: Ledger, database: Database
    ) -> None:
        batch = [*new(3), *new(delay_s=60.0), *new(key="k")]
        first = ledger.record(batch)
        before = self.everything(database)

        second = ledger.record(batch)

        assert second == first
        assert all(one.created for one in second)
        assert self.everything(database) == before

    def test_what_an_unknown_commit_recorded_in_part_of_a_batch_is_completed(self, ledger: Ledger) -> None:
        batch = new(6)
        ledger.record(batch[:3])

        answers = ledger.record(batch)

        assert [one.id for one in answers] == [one.id for one in batch]
        assert all(one.created for one in answers)
        assert len(ledger.tasks()) == 6

    def test_recording_again_after_the_task_was_settled_answers_where_it_is(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        [given] = new(key="k")
        ledger.record([given])
        [claim] = ledger.claim([given.id], by=worker.id)
        self.settle(ledger, claim, Done())
        ledger.record(new(key="k"))  # the key has another holder now

        assert ledger.record([given]) == [Enqueued(given.id, State.SUCCEEDED, created=True)]

    # -- record in the caller's transaction

    def test_a_task_of_a_transaction_that_rolls_back_is_never_seen(self, ledger: Ledger, theirs: Engine) -> None:
        batch = [*new(3), *new(key="k")]
        with theirs.connect() as connection:
            answers = ledger.record(batch, connection=connection)
            connection.rollback()

        assert all(one.created for one in answers)
        assert all(ledger.get(one.id) is None for one in batch)

    def test_a_task_of_a_transaction_that_commits_is_seen_from_then_on(self, ledger: Ledger, theirs: Engine) -> None:
        batch = [*new(3), *new(key="k")]
        with theirs.connect() as connection:
            ledger.record(batch, connection=connection)
            before = [ledger.get(one.id) for one in batch]
            connection.commit()

        assert before == [None] * 4
        assert all(ledger.get(one.id) is not None for one in batch)

    def test_a_session_is_as_good_as_a_connection(self, ledger: Ledger, theirs: Engine) -> None:
        [kept], [dropped] = new(), new()
        with Session(theirs) as session:
            ledger.record([kept], connection=session)
            session.commit()
            ledger.record([dropped], connection=session)
            session.rollback()

        assert ledger.get(kept.id) is not None
        assert ledger.get(dropped.id) is None

    def test_a_savepoint_that_rolls_back_takes_its_tasks_along(self, ledger: Ledger, theirs: Engine) -> None:
        [kept], [dropped] = new(), new()
        with theirs.begin() as connection:
            ledger.record([kept], connection=connection)
            savepoint = connection.begin_nested()
            ledger.record([dropped], connection=connection)
            savepoint.rollback()

        assert ledger.get(kept.id) is not None
        assert ledger.get(dropped.id) is None

    def test_the_callers_transaction_goes_on_after_a_key_conflict(self, ledger: Ledger, theirs: Engine) -> None:
        self.record(ledger, key="k")
        [kept] = new()
        with theirs.begin() as connection:
            with pytest.raises(KeyConflict):
                ledger.record([*new(), *new(key="k", payload='{"a":[2],"k":{}}')], connection=connection)
            ledger.record([kept], connection=connection)

        assert {task.id for task in ledger.tasks() if task.key is None} == {kept.id}

    def test_a_key_is_found_from_within_the_callers_transaction(self, ledger: Ledger, theirs: Engine) -> None:
        [holder] = self.record(ledger, key="k")
        with theirs.begin() as connection:
            [answer] = ledger.record(new(key="k"), connection=connection)

        assert answer == Enqueued(holder, State.READY, created=False)

    def test_a_connection_to_another_database_is_refused(self, ledger: Ledger) -> None:
        engine = create_engine("sqlite://")
        with engine.connect() as connection, pytest.raises(ConfigError, match="its own ledger"):
            ledger.record(new(), connection=connection)
        engine.dispose()

    def test_what_is_no_connection_is_refused(self, ledger: Ledger, theirs: Engine) -> None:
        class Asynchronous:
            async def connection(self) -> None: ...

        with theirs.connect() as closed:
            closed.close()
        for wrong in (object(), "sqlite://", theirs, Asynchronous(), closed):
            with pytest.raises(ConfigError, match="connection: "):
                ledger.record(new(), connection=wrong)

    # -- within

    def test_hints_are_written_in_the_transaction_that_records(self, ledger: Ledger, database: Database) -> None:
        given = new(3)
        ledger.record(given, within=self.hinting(database))

        assert len(self.everything(database)[database.tables.hint.name]) == 3
        assert ledger.take_unpublished(limit=10, grace_s=-1.0, horizon_s=60.0) == []

    def test_when_the_hints_cannot_be_written_nothing_is_recorded(self, ledger: Ledger, database: Database) -> None:
        write = self.hinting(database)

        def fail(tx: Connection, tasks: Sequence[NewTask]) -> None:
            write(tx, tasks)
            raise RuntimeError("no room")

        with pytest.raises(RuntimeError, match="no room"):
            ledger.record(new(3), within=fail)

        assert ledger.tasks() == []
        assert self.everything(database)[database.tables.hint.name] == []

    def test_only_created_tasks_are_hinted(self, ledger: Ledger, database: Database) -> None:
        self.record(ledger, key="k")
        hinted: list[str] = []
        given = [*new(2), *new(key="k")]

        ledger.record(given, within=lambda _, tasks: hinted.extend(task.id for task in tasks))
        tasks = [task for task in given if task.key is None]
        standing = ledger.record(tasks, within=self.hinting(database))

        assert Counter(hinted[-2:]) == Counter(task.id for task in tasks)
        assert all(one.created for one in standing)
        assert self.everything(database)[database.tables.hint.name] == []

    @staticmethod
    def hinting(database: Database) -> Callable[[Connection, Sequence[NewTask]], None]:
        def write(tx: Connection, tasks: Sequence[NewTask]) -> None:
            hint = database.tables.hint
            rows = [{"queue": task.queue, "body": task.id, "size": 1} for task in tasks]
            tx.execute(insert(hint).values(due_at=database.now()), rows)

        return write

    # -- keys

    def test_a_second_task_with_the_key_of_a_live_one_answers_the_first(self, ledger: Ledger) -> None:
        [first] = ledger.record(new(key="k"))
        second, other = ledger.record([*new(key="k"), *new(key="other")])

        assert second == Enqueued(first.id, State.READY, created=False)
        assert other.created
        assert len(ledger.tasks()) == 2

    def test_the_same_key_twice_in_one_batch_makes_one_task(self, ledger: Ledger) -> None:
        first, second = ledger.record(new(2, key="k"))

        assert (first.created, second.created) == (True, False)
        assert first.id == second.id

    def test_a_key_belongs_to_the_name_of_its_task(self, ledger: Ledger) -> None:
        answers = ledger.record([*new(name="a", key="b:c"), *new(name="a:b", key="c"), *new(name="b", key="b:c")])

        assert all(one.created for one in answers)

    def test_a_key_that_is_held_with_other_arguments_is_a_conflict(self, ledger: Ledger) -> None:
        [holder] = self.record(ledger, key="k")

        with pytest.raises(KeyConflict, match=holder) as caught:
            ledger.record(new(key="k", payload='{"a":["secret"],"k":{}}'))

        assert "secret" not in str(caught.value)

    def test_the_longest_name_and_key_are_told_apart(self, ledger: Ledger) -> None:
        answers = ledger.record([new(name="n" * 200, key="é" * 199 + end)[0] for end in "aba"])

        assert [one.created for one in answers] == [True, True, False]

    @pytest.mark.parametrize("outcome", ["done", "dead", "cancelled"])
    def test_a_key_is_free_again_when_its_task_is_settled(
        self, ledger: Ledger, worker: Incarnation, outcome: str
    ) -> None:
        claim = self.run_one(ledger, worker, key="k")
        [running] = ledger.record(new(key="k"))
        self.settle(ledger, claim, OUTCOMES[outcome])
        [after] = ledger.record(new(key="k"))

        assert running == Enqueued(claim.task_id, State.RUNNING, created=False)
        assert after.created

    @pytest.mark.parametrize("outcome", ["retry", "handed_back"])
    def test_a_key_is_held_while_its_task_will_run_again(
        self, ledger: Ledger, worker: Incarnation, outcome: str
    ) -> None:
        claim = self.run_one(ledger, worker, key="k")
        self.settle(ledger, claim, OUTCOMES[outcome])

        assert not ledger.record(new(key="k"))[0].created

    def test_a_key_is_free_again_when_its_task_is_cancelled_by_a_person(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, key="k")
        ledger.cancel(task_id, reason="why")

        assert ledger.record(new(key="k"))[0].created

    def test_a_key_is_free_again_when_its_task_has_killed_too_many_workers(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claim = self.run_one(ledger, worker, key="k", crashes_max=1)
        ledger.reap(worker.id, Evidence("SIGKILL", started={claim.task_id: 1}))

        assert ledger.record(new(key="k"))[0].created

    def test_sixteen_producers_with_one_key_make_one_task(self, ledger: Ledger) -> None:
        for round_number in range(5):
            batch = new(16, key=f"k{round_number}")
            answers = at_once(16, lambda number, batch=batch: ledger.record([batch[number]])[0])  # type: ignore[misc]

            assert sum(one.created for one in answers) == 1
            assert len({one.id for one in answers}) == 1
        assert len(ledger.tasks()) == 5

    def test_producers_that_take_the_same_keys_in_other_orders_agree(self, ledger: Ledger) -> None:
        keys = [f"k{number}" for number in range(10)]

        def produce(number: int) -> list[Enqueued]:
            mine = keys if number % 2 else keys[::-1]
            return ledger.record([new(key=key)[0] for key in mine])

        answers = at_once(6, produce)

        assert sum(one.created for batch in answers for one in batch) == 10
        assert len({one.id for batch in answers for one in batch}) == 10

    def test_a_key_changes_hands_between_many_threads_without_a_second_holder(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        def live(number: int) -> int:
            created = 0
            for _ in range(8):
                [one] = ledger.record(new(key="k"))
                if one.created:
                    created += 1
                    for claim in ledger.claim([one.id], by=worker.id):
                        self.settle(ledger, claim, Done())
            return created

        created = sum(at_once(6, live))

        assert created == len(ledger.tasks()) >= 1
        assert {task.state for task in ledger.tasks()} == {State.SUCCEEDED}

    # -- the relay's marks

    def test_a_recorded_task_needs_a_hint_until_it_is_marked(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, queue="q")
        found = ledger.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0, dry_run=True)
        ledger.mark_published(found)

        assert found == [Unpublished(task_id, "q", 0, 0.0)]
        assert ledger.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0) == []

    def test_marking_nothing_does_nothing(self, ledger: Ledger) -> None:
        ledger.mark_published([])

    def test_a_mark_of_an_older_attempt_changes_nothing(self, ledger: Ledger, worker: Incarnation) -> None:
        claim = self.run_one(ledger, worker)
        self.settle(ledger, claim, HandedBack())

        ledger.mark_published([Unpublished(claim.task_id, claim.queue, 0, 0.0)])
        needed = ledger.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0, dry_run=True)
        ledger.mark_published(needed)

        assert [one.attempt for one in needed] == [1]
        assert ledger.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0) == []

    def test_a_mark_of_a_task_that_runs_or_is_settled_changes_nothing(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        running, done = self.run_one(ledger, worker), self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        before = self.everything(database)

        ledger.mark_published([Unpublished(claim.task_id, claim.queue, 1, 0.0) for claim in (running, done)])

        assert self.everything(database) == before

    def test_nothing_is_taken_before_the_grace_is_over(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger)
        young = ledger.take_unpublished(limit=10, grace_s=20.0, horizon_s=0.0)
        clock.forward(21.0)

        assert young == []
        assert len(ledger.take_unpublished(limit=10, grace_s=20.0, horizon_s=0.0)) == 1

    def test_only_what_is_due_within_the_horizon_is_taken_with_its_delay(self, ledger: Ledger) -> None:
        ready, soon, _ = (self.record(ledger, delay_s=delay_s)[0] for delay_s in (0.0, 200.0, HOUR_S))

        taken = ledger.take_unpublished(limit=10, grace_s=-1.0, horizon_s=400.0)

        assert [one.task_id for one in taken] == [ready, soon]
        assert taken[0].delay_s == 0.0
        assert 200.0 - LONG_S < taken[1].delay_s <= 200.0

    def test_what_is_taken_is_bounded_and_the_oldest_comes_first(self, ledger: Ledger, clock: Clock) -> None:
        ids = []
        for _ in range(5):
            ids += self.record(ledger)
            clock.forward(1.0)

        first = ledger.take_unpublished(limit=3, grace_s=0.0, horizon_s=0.0)
        second = ledger.take_unpublished(limit=3, grace_s=0.0, horizon_s=0.0)

        assert [one.task_id for one in first] == ids[:3]
        assert [one.task_id for one in second] == ids[3:]

    def test_a_reservation_ends_by_itself(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger)
        first = ledger.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)
        again = ledger.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)
        clock.forward(60.0)

        assert (len(first), len(again)) == (1, 0)
        assert ledger.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0) == first

    def test_ten_sweeps_at_once_publish_each_row_once(self, ledger: Ledger) -> None:
        ids = self.record(ledger, 100)

        def relay(_: int) -> list[str]:
            taken: list[str] = []
            for _ in range(4):
                taken += [one.task_id for one in ledger.take_unpublished(limit=7, grace_s=-1.0, horizon_s=0.0)]
            return taken

        taken = [task_id for batch in at_once(10, relay) for task_id in batch]
        taken += [one.task_id for one in ledger.take_unpublished(limit=100, grace_s=-1.0, horizon_s=0.0)]

        assert Counter(taken) == Counter(ids)

    def test_a_hint_that_died_with_its_holder_is_needed_again(self, ledger: Ledger, clock: Clock) -> None:
        ready, waiting = self.record(ledger)[0], self.record(ledger, delay_s=100.0)[0]
        ledger.mark_published([Unpublished(task_id, "default", 0, 0.0) for task_id in (ready, waiting)])

        answered = {one.task_id: one for one in ledger.unhint([ready, waiting])}
        reserved = ledger.take_unpublished(limit=10, grace_s=0.0, horizon_s=400.0)
        clock.forward(60.0)
        later = ledger.take_unpublished(limit=10, grace_s=0.0, horizon_s=400.0)

        assert answered[ready] == Unpublished(ready, "default", 0, 0.0)
        assert 100.0 - LONG_S < answered[waiting].delay_s <= 100.0
        assert reserved == []
        assert {one.task_id for one in later} == {ready, waiting}

    def test_what_runs_or_is_settled_or_unknown_gets_no_new_hint(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        running, done = self.run_one(ledger, worker), self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        before = self.everything(database)

        assert ledger.unhint([running.task_id, done.task_id, codec.new_task_id(), "no id"]) == []
        assert ledger.unhint([]) == []
        assert self.everything(database) == before

    # -- claim

    def test_a_claim_grants_the_first_attempt_under_a_fresh_token(self, ledger: Ledger, worker: Incarnation) -> None:
        [task_id] = self.record(ledger, name="mail", queue="q", failures_max=4, crashes_max=6)

        [claim] = ledger.claim([task_id], by=worker.id)

        assert (claim.task_id, claim.name, claim.queue, claim.payload) == (task_id, "mail", "q", ARGUMENTS)
        assert (claim.attempt, claim.failures, claim.crashes) == (1, 0, 0)
        assert (claim.failures_max, claim.crashes_max, claim.job_id) == (4, 6, None)
        assert len(claim.token) == 32
        task = ledger.get(task_id)
        assert task is not None
        assert (task.state, task.attempt, task.worker) == (State.RUNNING, 1, worker.id)
        assert task.started_at is not None
        assert abs(task.started_at - ledger.clock()) < timedelta(seconds=LONG_S)

    def test_each_claim_counts_the_attempt_and_changes_the_token(self, ledger: Ledger, worker: Incarnation) -> None:
        first = self.run_one(ledger, worker)
        self.settle(ledger, first, HandedBack())
        [second] = ledger.claim([first.task_id], by=worker.id)

        assert (first.attempt, second.attempt) == (1, 2)
        assert first.token != second.token

    def test_the_answer_has_the_order_of_the_question_without_repetitions(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 20)
        asked = Random(1).sample(ids, 20)

        claims = ledger.claim([*asked, *asked[:5], codec.new_task_id(), "no id"], by=worker.id)

        assert [claim.task_id for claim in claims] == asked

    def test_claiming_nothing_grants_nothing(self, ledger: Ledger, worker: Incarnation) -> None:
        assert ledger.claim([], by=worker.id) == []

    def test_what_runs_or_is_settled_or_unknown_is_not_granted(self, ledger: Ledger, worker: Incarnation) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(5)]
        for claim, name in zip(claims[1:], ["done", "dead", "cancelled"], strict=False):
            self.settle(ledger, claim, OUTCOMES[name])
        [cancelled] = self.record(ledger)
        ledger.cancel(cancelled, reason="why")

        ids = [*(claim.task_id for claim in claims), cancelled, codec.new_task_id()]

        assert ledger.claim(ids, by=worker.id) == []

    def test_each_task_is_granted_to_one_of_eight_workers(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 60)

        def claim(number: int) -> list[str]:
            mine = Random(number).sample(ids, len(ids))
            batches = [mine[start : start + 20] for start in range(0, 60, 20)]
            return [one.task_id for batch in batches for one in ledger.claim(batch, by=worker.id)]

        granted = [task_id for answer in at_once(8, claim) for task_id in answer]

        assert Counter(granted) == Counter(ids)
        assert {self.row_attempt(ledger, task_id) for task_id in ids} == {1}

    @staticmethod
    def row_attempt(ledger: Ledger, task_id: str) -> int:
        task = ledger.get(task_id)
        assert task is not None
        return task.attempt

    @pytest.mark.parametrize("end", ["unknown", "left", "reaped"])
    def test_an_incarnation_that_is_not_live_gets_nothing(self, ledger: Ledger, end: str) -> None:
        worker = incarnation()
        if end != "unknown":
            ledger.join(worker, queues=["default"], threads=1)
        if end == "left":
            ledger.leave(worker.id)
        if end == "reaped":
            ledger.reap(worker.id, Evidence("SIGKILL"))
        [task_id] = self.record(ledger)

        assert ledger.claim([task_id], by=worker.id) == []
        assert self.state(ledger, task_id) is State.READY

    # -- settle

    def test_a_success_keeps_the_result_and_ends_the_task(self, ledger: Ledger, claimed: Claim) -> None:
        settled = self.settle(ledger, claimed, Done('{"rows":7}', note="cut"))

        assert settled == Settled(claimed.task_id, State.SUCCEEDED)
        task = ledger.get(claimed.task_id)
        assert task is not None
        assert (task.state, task.result, task.reason, task.error) == (State.SUCCEEDED, {"rows": 7}, "cut", None)
        assert (task.attempt, task.failures, task.crashes) == (1, 0, 0)
        assert task.settled_at is not None
        assert self.kinds(ledger, claimed.task_id) == []

    def test_a_failure_waits_for_its_next_attempt_and_needs_a_hint(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation, clock: Clock
    ) -> None:
        settled = self.settle(ledger, claimed, Retry(300.0, "boom"))

        assert settled == Settled(claimed.task_id, State.WAITING, 300.0)
        task = ledger.get(claimed.task_id)
        assert task is not None
        assert (task.state, task.failures, task.crashes, task.error) == (State.WAITING, 1, 0, "boom")
        assert (task.settled_at, task.reason) == (None, None)
        assert 300.0 - LONG_S < (task.due_at - ledger.clock()).total_seconds() <= 300.0
        [event] = ledger.history(claimed.task_id)
        assert (event.kind, event.attempt, event.detail) == ("failed", 1, {"error": "boom", "retry_in_s": 300.0})
        [needed] = ledger.take_unpublished(limit=10, grace_s=-1.0, horizon_s=400.0)
        assert (needed.task_id, needed.attempt) == (claimed.task_id, 1)
        assert ledger.claim([claimed.task_id], by=worker.id) == []
        clock.forward(301.0)
        assert ledger.claim([claimed.task_id], by=worker.id)[0].failures == 1

    def test_a_failure_can_be_tried_again_at_once(self, ledger: Ledger, claimed: Claim, worker: Incarnation) -> None:
        self.settle(ledger, claimed, Retry(0.0, "boom"))

        assert [claim.attempt for claim in ledger.claim([claimed.task_id], by=worker.id)] == [2]

    @pytest.mark.parametrize("failed", [True, False])
    def test_a_dead_task_keeps_its_reason(self, ledger: Ledger, claimed: Claim, *, failed: bool) -> None:
        settled = self.settle(ledger, claimed, Dead("failures_max reached", "boom", failed=failed))

        assert settled == Settled(claimed.task_id, State.DEAD)
        task = ledger.get(claimed.task_id)
        assert task is not None
        assert (task.state, task.reason, task.error) == (State.DEAD, "failures_max reached", "boom")
        assert task.failures == int(failed)
        assert task.settled_at is not None
        [event] = ledger.history(claimed.task_id)
        assert (event.kind, event.detail) == ("failed", {"error": "boom", "dead": "failures_max reached"})

    def test_a_handler_can_cancel_its_own_task(self, ledger: Ledger, claimed: Claim) -> None:
        settled = self.settle(ledger, claimed, Cancelled("not needed"))

        assert settled == Settled(claimed.task_id, State.CANCELLED)
        task = ledger.get(claimed.task_id)
        assert task is not None
        assert (task.state, task.reason, task.failures) == (State.CANCELLED, "not needed", 0)
        [event] = ledger.history(claimed.task_id)
        assert (event.kind, event.detail) == ("cancelled", {"reason": "not needed", "by": "handler"})

    def test_what_is_handed_back_costs_nothing_and_needs_a_hint(self, ledger: Ledger, claimed: Claim) -> None:
        settled = self.settle(ledger, claimed, HandedBack())

        assert settled == Settled(claimed.task_id, State.READY)
        task = ledger.get(claimed.task_id)
        assert task is not None
        assert (task.state, task.attempt, task.failures, task.crashes) == (State.READY, 1, 0, 0)
        assert ledger.history(claimed.task_id) == []
        assert len(ledger.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0)) == 1

    def test_a_batch_answers_in_its_order_each_with_its_own_outcome(self, ledger: Ledger, worker: Incarnation) -> None:
        claims = ledger.claim(self.record(ledger, 10), by=worker.id)
        Random(3).shuffle(claims)
        outcomes = [*OUTCOMES.values()] * 2

        settled = ledger.settle([Settlement(*pair) for pair in zip(claims, outcomes, strict=True)])

        assert [one.task_id for one in settled] == [claim.task_id for claim in claims]
        states = [State.SUCCEEDED, State.WAITING, State.DEAD, State.CANCELLED, State.READY]
        assert [one.state for one in settled] == states * 2
        assert [self.state(ledger, claim.task_id) for claim in claims] == states * 2

    def test_settling_nothing_answers_nothing(self, ledger: Ledger) -> None:
        assert ledger.settle([]) == []

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_settling_again_answers_the_same_and_writes_nothing(
        self, ledger: Ledger, database: Database, claimed: Claim, outcome: str
    ) -> None:
        first = self.settle(ledger, claimed, OUTCOMES[outcome])
        before = self.everything(database)

        second = self.settle(ledger, claimed, OUTCOMES[outcome])

        assert second == first
        assert self.everything(database) == before

    def test_settling_a_batch_again_together_with_new_ones_writes_only_the_new(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claims = ledger.claim(self.record(ledger, 10), by=worker.id)
        batch = [Settlement(*pair) for pair in zip(claims, [*OUTCOMES.values()] * 2, strict=True)]
        first = ledger.settle(batch[:5])

        second = ledger.settle(batch)

        assert second[:5] == first
        assert [one.state for one in second[5:]] == [one.state for one in first]
        assert all(len(ledger.history(claim.task_id)) <= 1 for claim in claims)

    @pytest.mark.parametrize("outcome", ["done", "retry", "dead", "cancelled"])
    def test_a_late_worker_cannot_settle_a_task_claimed_again(
        self, ledger: Ledger, claimed: Claim, outcome: str
    ) -> None:
        ledger.reap(claimed_by(ledger, claimed), Evidence("SIGKILL"))
        other = incarnation("other")
        ledger.join(other, queues=["default"], threads=1)
        [second] = ledger.claim([claimed.task_id], by=other.id)

        late = self.settle(ledger, claimed, OUTCOMES[outcome])

        assert late == Settled(claimed.task_id, None)
        assert self.state(ledger, claimed.task_id) is State.RUNNING
        assert self.kinds(ledger, claimed.task_id) == ["reaped", "late_result"]
        event = ledger.history(claimed.task_id)[-1]
        assert (event.attempt, event.detail) == (1, {"outcome": outcome})
        assert self.settle(ledger, second, Done("2")).state is State.SUCCEEDED

    @pytest.mark.parametrize("outcome", ["done", "retry", "dead", "cancelled"])
    def test_a_late_worker_cannot_settle_a_task_that_was_reaped(
        self, ledger: Ledger, database: Database, claimed: Claim, outcome: str
    ) -> None:
        ledger.reap(claimed_by(ledger, claimed), Evidence("SIGKILL"))
        before = self.row(database, claimed.task_id)

        late = self.settle(ledger, claimed, OUTCOMES[outcome])

        assert late.state is None
        assert self.row(database, claimed.task_id) == before

    def test_a_late_result_is_recorded_once(self, ledger: Ledger, claimed: Claim) -> None:
        ledger.reap(claimed_by(ledger, claimed), Evidence("SIGKILL"))

        answers = [self.settle(ledger, claimed, Done("1")) for _ in range(3)]

        assert {one.state for one in answers} == {None}
        assert self.kinds(ledger, claimed.task_id).count("late_result") == 1

    def test_the_right_attempt_with_a_wrong_token_settles_nothing(self, ledger: Ledger, claimed: Claim) -> None:
        forged = replace(claimed, token="0" * 32)

        assert self.settle(ledger, forged, Done("1")).state is None
        assert self.state(ledger, claimed.task_id) is State.RUNNING

    def test_the_right_token_with_a_wrong_attempt_settles_nothing(self, ledger: Ledger, claimed: Claim) -> None:
        forged = replace(claimed, attempt=7)

        assert self.settle(ledger, forged, Done("1")).state is None
        assert self.state(ledger, claimed.task_id) is State.RUNNING

    def test_a_handler_that_ran_after_its_task_was_handed_back_is_late(self, ledger: Ledger, claimed: Claim) -> None:
        self.settle(ledger, claimed, HandedBack())

        for outcome in ("done", "retry", "dead", "cancelled"):
            assert self.settle(ledger, claimed, OUTCOMES[outcome]).state is None
        assert self.state(ledger, claimed.task_id) is State.READY

    def test_an_old_and_the_new_attempt_of_a_task_in_one_batch_are_told_apart(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation
    ) -> None:
        self.settle(ledger, claimed, HandedBack())
        [newer] = ledger.claim([claimed.task_id], by=worker.id)

        settled = ledger.settle([Settlement(claimed, Retry(5.0, "old")), Settlement(newer, Done("1"))])

        assert [one.state for one in settled] == [None, State.SUCCEEDED]
        assert [(one.kind, one.attempt) for one in ledger.history(claimed.task_id)] == [("late_result", 1)]

    def test_one_of_two_different_outcomes_of_one_attempt_wins(self, ledger: Ledger, claimed: Claim) -> None:
        first = self.settle(ledger, claimed, Done("1"))
        second = self.settle(ledger, claimed, Retry(1.0, "boom"))

        assert (first.state, second.state) == (State.SUCCEEDED, None)
        assert self.state(ledger, claimed.task_id) is State.SUCCEEDED

    def test_a_task_that_is_not_in_the_ledger_any_more_is_settled_late(self, ledger: Ledger, claimed: Claim) -> None:
        self.settle(ledger, claimed, Done())
        ledger.prune(limit=10, retention_s=-1.0, dead_retention_s=-1.0)

        assert ledger.get(claimed.task_id) is None
        assert self.settle(ledger, claimed, Done()).state is None

    def test_eight_threads_that_settle_the_same_attempts_write_each_once(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claims = ledger.claim(self.record(ledger, 30), by=worker.id)
        batch = [Settlement(claim, Retry(60.0, "boom")) for claim in claims]

        answers = at_once(8, lambda number: ledger.settle(Random(number).sample(batch, len(batch))))

        assert {one.state for answer in answers for one in answer} == {State.WAITING}
        assert {ledger.get(claim.task_id).failures for claim in claims} == {1}  # type: ignore[union-attr]
        assert all(self.kinds(ledger, claim.task_id) == ["failed"] for claim in claims)

    def test_claims_and_settlements_at_the_same_time_lose_nothing(self, ledger: Ledger) -> None:
        ids = self.record(ledger, 80)

        def work(number: int) -> list[tuple[str, int]]:
            me, rng, done = incarnation(), Random(number), []
            ledger.join(me, queues=["default"], threads=1)
            for _ in range(12):
                claims = ledger.claim(rng.sample(ids, 20), by=me.id)
                rng.shuffle(claims)
                choices: list[Outcome] = [Done(), Retry(0.0, "boom"), HandedBack()]
                outcomes = [rng.choice(choices) for _ in claims]
                settled = ledger.settle([Settlement(*pair) for pair in zip(claims, outcomes, strict=True)])
                done += [(one.task_id, claim.attempt) for one, claim in zip(settled, claims, strict=True)]
                assert all(one.state is not None for one in settled)
            return done

        settled = [one for answer in at_once(8, work) for one in answer]

        assert len(set(settled)) == len(settled)
        assert Counter(task_id for task_id, _ in settled) == Counter(
            {task.id: task.attempt for task in ledger.tasks() if task.attempt}
        )
        assert ledger.counts().states[State.RUNNING] == 0

    # -- look

    def test_a_look_tells_why_a_hint_could_not_be_claimed(self, ledger: Ledger, worker: Incarnation) -> None:
        running = self.run_one(ledger, worker, queue="q")
        [waiting] = self.record(ledger, delay_s=100.0)

        looks = ledger.look([running.task_id, waiting, codec.new_task_id(), "no id"])

        assert set(looks) == {running.task_id, waiting}
        assert (looks[running.task_id].state, looks[running.task_id].queue) == (State.RUNNING, "q")
        assert looks[running.task_id].due_in_s <= 0.0
        assert 100.0 - LONG_S < looks[waiting].due_in_s <= 100.0
        assert ledger.look([]) == {}

    # -- workers

    def test_an_incarnation_that_joins_is_live(self, ledger: Ledger) -> None:
        worker = incarnation()
        ledger.join(worker, queues=["a", "b"], threads=3)

        [row] = ledger.workers()

        assert (row.id, row.state, row.host, row.pid) == (worker.id, "live", "host", 4711)
        assert (row.queues, row.threads, row.ended_at, row.evidence) == (("a", "b"), 3, None, None)
        assert 0.0 <= row.beat_age_s < LONG_S
        assert ledger.counts().workers == 1

    def test_joining_again_changes_nothing(self, ledger: Ledger, database: Database) -> None:
        worker = incarnation()
        ledger.join(worker, queues=["a"], threads=3)
        before = self.everything(database)

        at_once(6, lambda _: ledger.join(worker, queues=["a"], threads=3))

        assert self.everything(database) == before

    def test_joining_at_the_same_time_makes_one_incarnation(self, ledger: Ledger) -> None:
        worker = incarnation()

        at_once(6, lambda _: ledger.join(worker, queues=["a"], threads=3))

        assert [row.id for row in ledger.workers()] == [worker.id]

    def test_a_beat_renews_the_heartbeat(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        clock.forward(100.0)
        [before] = ledger.workers()
        is_live = ledger.beat(worker.id)
        [after] = ledger.workers()

        assert is_live
        assert before.beat_age_s >= 100.0
        assert after.beat_age_s < LONG_S

    def test_a_reaped_incarnation_learns_it_from_its_beat_and_stays_reaped(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ledger.reap(worker.id, Evidence("SIGKILL"))

        assert not ledger.beat(worker.id)
        ledger.join(worker, queues=["default"], threads=4)
        assert not ledger.beat(worker.id)
        assert ledger.workers() == []

    def test_an_unknown_incarnation_does_not_live(self, ledger: Ledger) -> None:
        assert not ledger.beat("nobody")

    def test_who_leaves_has_left_and_leaving_again_changes_nothing(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        ledger.leave(worker.id)
        before = self.everything(database)
        ledger.leave(worker.id)
        ledger.leave("nobody")

        [row] = ledger.workers(live_only=False)
        assert row.state == "left"
        assert row.ended_at is not None
        assert ledger.workers() == []
        assert self.everything(database) == before

    def test_the_newest_incarnation_is_listed_first(self, ledger: Ledger, clock: Clock) -> None:
        workers = [incarnation() for _ in range(3)]
        for worker in workers:
            ledger.join(worker, queues=[], threads=1)
            clock.forward(1.0)
        ledger.leave(workers[1].id)

        assert [row.id for row in ledger.workers()] == [workers[2].id, workers[0].id]
        assert [row.id for row in ledger.workers(live_only=False)] == [worker.id for worker in workers[::-1]]

    # -- suspect and reap

    def test_a_missing_lease_is_acted_on_at_the_second_look_a_beat_later(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        clock.forward(31.0)
        first = ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        too_soon = ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        clock.forward(5.0)
        second = ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0)

        assert (first, too_soon, second) == ([], [], [worker.id])

    def test_a_worker_that_beats_is_never_suspected(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        for _ in range(10):
            clock.forward(20.0)
            ledger.beat(worker.id)
            assert ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0) == []

    def test_a_beat_ends_a_suspicion(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        clock.forward(31.0)
        ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        ledger.beat(worker.id)
        clock.forward(31.0)

        assert ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0) == []

    def test_whoever_has_a_lease_again_is_no_longer_suspected(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        clock.forward(31.0)
        ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        ledger.suspect([], beat_s=5.0, lease_s=30.0)
        clock.forward(5.0)

        assert ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0) == []

    def test_only_live_incarnations_are_suspected(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        ledger.leave(worker.id)
        clock.forward(31.0)
        for _ in range(2):
            assert ledger.suspect([worker.id, "nobody"], beat_s=0.0, lease_s=30.0) == []
            clock.forward(10.0)

    def test_reaping_returns_what_had_started_and_charges_the_crash(self, ledger: Ledger, worker: Incarnation) -> None:
        claim = self.run_one(ledger, worker)

        reaped = ledger.reap(worker.id, Evidence("exit status 139 (SIGSEGV)", started={claim.task_id: 1}))

        assert reaped is not None
        assert (reaped.worker, reaped.returned, reaped.dead) == (worker.id, 1, 0)
        assert reaped.hints == (Unpublished(claim.task_id, "default", 1, 0.0),)
        task = ledger.get(claim.task_id)
        assert task is not None
        assert (task.state, task.attempt, task.failures, task.crashes) == (State.READY, 1, 0, 1)
        assert task.error == "its worker process died: exit status 139 (SIGSEGV)"
        [event] = ledger.history(claim.task_id)
        assert (event.kind, event.attempt, event.worker) == ("reaped", 1, worker.id)
        said = {name: event.detail[name] for name in ("kind", "cause", "state", "charged", "started")}
        assert said == {
            "kind": "lease", "cause": "exit status 139 (SIGSEGV)", "state": "ready", "charged": "crash", "started": True
        }  # fmt: skip
        [row] = ledger.workers(live_only=False)
        assert (row.state, row.evidence) == ("reaped", "exit status 139 (SIGSEGV)")

    def test_reaping_charges_nothing_to_what_had_not_started(self, ledger: Ledger, worker: Incarnation) -> None:
        started, waiting = (self.run_one(ledger, worker, crashes_max=1) for _ in range(2))

        reaped = ledger.reap(worker.id, Evidence("SIGKILL", started={started.task_id: 1}))

        assert reaped is not None
        assert (reaped.returned, reaped.dead) == (1, 1)
        assert [hint.task_id for hint in reaped.hints] == [waiting.task_id]
        neighbour = ledger.get(waiting.task_id)
        assert neighbour is not None
        assert (neighbour.state, neighbour.crashes, neighbour.error) == (State.READY, 0, None)
        assert ledger.history(waiting.task_id)[0].detail["charged"] == "nothing"

    def test_without_evidence_every_claim_counts_as_started(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 3)
        ledger.claim(ids, by=worker.id)

        ledger.reap(worker.id, Evidence("its lease ended"))

        assert [self.charges(ledger, task_id) for task_id in ids] == [["presence"]] * 3
        assert all(ledger.history(task_id)[0].detail["started"] for task_id in ids)

    def test_a_death_that_nobody_saw_is_free_once_and_makes_nobody_a_suspect(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        """A pause is no crash; but a task that takes whole hosts along is found out all the same."""
        [task_id] = self.record(ledger, crashes_max=2)
        suspects = []
        for number in range(3):
            elsewhere = incarnation(f"host{number}")
            ledger.join(elsewhere, queues=["default"], threads=1)
            [claim] = ledger.claim([task_id], by=elsewhere.id)
            suspects.append(claim.is_suspect)
            ledger.reap(elsewhere.id, Evidence("its lease ended"))

        assert suspects == [False, False, True]
        assert self.charges(ledger, task_id) == ["presence", "crash", "crash"]
        assert self.state(ledger, task_id) is State.DEAD

    def test_what_had_ended_and_was_not_settled_is_not_to_blame_and_leaves_another_alone(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ended, running = self.record(ledger, 2)
        ledger.claim([ended, running], by=worker.id)

        started = {ended: 1, running: 1}
        ledger.reap(worker.id, Evidence("SIGSEGV", started=started, ended=frozenset({ended})))

        assert self.charges(ledger, ended) == ["presence"]
        assert self.charges(ledger, running) == ["crash"]

    def test_of_several_that_had_started_nobody_is_charged_and_all_are_suspects(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        """Nobody knows yet which of them it was."""
        ids = self.record(ledger, 3, crashes_max=1)
        ledger.claim(ids, by=worker.id)

        reaped = ledger.reap(worker.id, Evidence("SIGSEGV", started=dict.fromkeys(ids, 1)))

        assert reaped is not None
        assert (reaped.returned, reaped.dead) == (3, 0)
        assert [self.charges(ledger, task_id) for task_id in ids] == [["suspicion"]] * 3
        assert [ledger.get(task_id).crashes for task_id in ids] == [0, 0, 0]  # type: ignore[union-attr]
        assert all(claim.is_suspect for claim in self.claim_elsewhere(ledger, ids))

    def test_a_first_claim_is_of_no_suspect(self, ledger: Ledger, claimed: Claim) -> None:
        assert not claimed.is_suspect

    def test_who_had_started_alone_is_charged_with_the_crash_and_runs_alone_again(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claim = self.run_one(ledger, worker)

        ledger.reap(worker.id, Evidence("SIGSEGV", started={claim.task_id: 1}))

        assert self.charges(ledger, claim.task_id) == ["crash"]
        [again] = self.claim_elsewhere(ledger, [claim.task_id])
        assert (again.is_suspect, again.crashes) == (True, 1)

    def test_a_suspect_that_runs_when_its_process_dies_is_charged_and_its_company_is_not(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        """Suspects run alone; one that was found in company all the same (an older worker) is charged there too."""
        suspect, neighbour = self.suspects(ledger)[0], self.run_one(ledger, worker).task_id
        ledger.claim([suspect], by=worker.id)

        ledger.reap(worker.id, Evidence("SIGSEGV", started={suspect: 2, neighbour: 1}))

        assert self.charges(ledger, suspect) == ["suspicion", "crash"]
        assert self.charges(ledger, neighbour) == ["suspicion"]

    def test_a_suspect_that_had_not_started_is_charged_with_nothing_and_stays_one(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        suspect, neighbour = self.suspects(ledger)[0], self.run_one(ledger, worker).task_id
        ledger.claim([suspect], by=worker.id)

        ledger.reap(worker.id, Evidence("SIGSEGV", started={neighbour: 1}))

        assert self.charges(ledger, suspect) == ["suspicion", "nothing"]
        assert self.charges(ledger, neighbour) == ["crash"]
        [again] = self.claim_elsewhere(ledger, [suspect])
        assert again.is_suspect

    def test_a_suspect_that_crashes_for_the_last_time_is_dead_as_worker_lost(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        suspect, _ = self.suspects(ledger, crashes_max=1)
        ledger.claim([suspect], by=worker.id)

        ledger.reap(worker.id, Evidence("SIGSEGV", started={suspect: 2}))

        task = ledger.get(suspect)
        assert task is not None
        assert (task.state, task.reason, task.crashes) == (State.DEAD, "worker_lost", 1)

    def test_reviving_clears_the_suspicion(self, ledger: Ledger, worker: Incarnation) -> None:
        suspect, _ = self.suspects(ledger, crashes_max=1)
        ledger.claim([suspect], by=worker.id)
        ledger.reap(worker.id, Evidence("SIGSEGV", started={suspect: 2}))

        ledger.revive(suspect, why="its bug is fixed")

        [again] = self.claim_elsewhere(ledger, [suspect])
        assert (again.is_suspect, again.crashes) == (False, 0)

    def test_who_ran_beside_what_exceeded_its_hard_limit_is_no_suspect(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        slow, neighbour = self.run_one(ledger, worker).task_id, self.run_one(ledger, worker).task_id
        started = {slow: 1, neighbour: 1}

        ledger.reap(worker.id, Evidence("hard limit", started=started, failed={slow: ("too slow", 0.0)}))

        assert [self.charges(ledger, task_id) for task_id in (slow, neighbour)] == [["failure"], ["nothing"]]
        [again] = self.claim_elsewhere(ledger, [neighbour])
        assert not again.is_suspect

    def test_starts_are_bounded_by_the_budgets_and_one_suspicion(self, ledger: Ledger) -> None:
        """It dies with every process, always in company that is not to blame."""
        [task_id] = self.record(ledger, crashes_max=3)
        starts = 0
        while self.state(ledger, task_id) is not State.DEAD:
            other = incarnation()
            ledger.join(other, queues=["default"], threads=2)
            company = self.run_one(ledger, other)
            [claim] = ledger.claim([task_id], by=other.id)
            starts += 1
            ledger.reap(other.id, Evidence("SIGKILL", started={task_id: claim.attempt, company.task_id: 1}))

        assert starts == 1 + 3
        assert self.charges(ledger, task_id) == ["suspicion", "crash", "crash", "crash"]

    def test_nobody_in_a_process_that_was_killed_beside_a_larger_one_is_charged_suspected_or_not(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        first, second = self.run_one(ledger, worker), self.run_one(ledger, worker)
        ledger.reap(worker.id, Evidence("SIGKILL", started={first.task_id: 1, second.task_id: 1}))
        other = incarnation()
        ledger.join(other, queues=["default"], threads=4)
        [again] = ledger.claim([first.task_id], by=other.id)
        assert again.is_suspect

        reaped = ledger.reap(
            other.id, Evidence("out of memory", started={first.task_id: again.attempt}, is_bystander=True)
        )

        assert reaped is not None
        assert [hint.task_id for hint in reaped.hints] == [first.task_id]
        task = ledger.get(first.task_id)
        assert task is not None
        assert (task.state, task.crashes, task.failures) == (State.READY, 0, 0)
        assert self.charges(ledger, first.task_id) == ["suspicion", "nothing"]

    # -- certificates

    def test_the_certificate_of_a_death_says_who_ran_what_and_who_was_charged(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ran, waited = self.run_one(ledger, worker, name="shop.resize"), self.run_one(ledger, worker)
        ledger.beat(worker.id, memory_bytes=300 << 20)
        clock.forward(7.0)
        facts = Facts(
            signal="SIGKILL",
            oom=OutOfMemory(1, 1, 512 << 20),
            memory_bytes=500 << 20,
            memory_age_s=0.7,
            peak_bytes=510 << 20,
            ran_s={ran.task_id: 4.5},
            stacks={ran.task_id: 'File "shop.py", line 3 in resize'},
            unknown=("who was meant",),
        )

        ledger.reap(worker.id, Evidence("out of memory", {ran.task_id: 1}, kind=Kind.KILLED, facts=facts))

        [row] = ledger.workers(live_only=False)
        assert row.certificate is not None
        beat_age_s = row.certificate.beat_age_s
        assert beat_age_s is not None
        assert 7.0 <= beat_age_s < 7.0 + LONG_S
        assert row.certificate == Certificate(
            kind=Kind.KILLED,
            cause="out of memory",
            host="host",
            pid=4711,
            signal="SIGKILL",
            oom=OutOfMemory(1, 1, 512 << 20),
            memory_bytes=500 << 20,
            memory_age_s=0.7,
            peak_bytes=510 << 20,
            beat_memory_bytes=300 << 20,
            beat_age_s=beat_age_s,
            unknown=("who was meant",),
            claims=(
                Ran(
                    task_id=ran.task_id, attempt=1, name="shop.resize", state="ready", charged=Charge.CRASH,
                    started=True, ran_s=4.5, stack='File "shop.py", line 3 in resize',
                ),
                Ran(
                    task_id=waited.task_id, attempt=1, name="index", state="ready", charged=Charge.NOTHING,
                    started=False,
                ),
            ),
        )  # fmt: skip
        [event] = ledger.history(ran.task_id)
        assert event.worker == worker.id
        assert event.detail == {
            "kind": "killed", "cause": "out of memory", "state": "ready", "charged": "crash", "started": True,
            "ran_s": 4.5, "stack": 'File "shop.py", line 3 in resize', "host": "host", "pid": 4711,
            "signal": "SIGKILL", "oom": {"group_kills": 1, "machine_kills": 1, "limit_bytes": 512 << 20},
            "memory_bytes": 500 << 20, "memory_age_s": 0.7, "peak_bytes": 510 << 20,
            "beat_memory_bytes": 300 << 20, "beat_age_s": beat_age_s,
            "unknown": ["who was meant"],
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("kind", "unknown"),
        [
            (Kind.LEASE, "whether it died, was paused, or was cut off"),
            (Kind.GONE, "how it ended"),
            (Kind.REDIS_LOSS, "whether it died before or after the loss"),
        ],
        ids=["lease", "gone", "redis_loss"],
    )
    def test_a_death_that_nobody_saw_says_what_is_not_known(
        self, ledger: Ledger, worker: Incarnation, claimed: Claim, kind: Kind, unknown: str
    ) -> None:
        ledger.reap(worker.id, Evidence("nobody is there", kind=kind))

        [row] = ledger.workers(live_only=False)
        assert row.certificate is not None
        assert row.certificate.kind is kind
        assert (row.certificate.signal, row.certificate.exit_status, row.certificate.oom) == (None, None, None)
        assert row.certificate.unknown[0].startswith(unknown)
        assert row.certificate.unknown[1] == "which of its claims had started: all count as started"
        assert ledger.history(claimed.task_id)[0].detail["unknown"] == list(row.certificate.unknown)

    def test_a_certificate_names_some_of_very_many_claims_and_counts_the_others(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 230)
        ledger.claim(ids, by=worker.id)

        ledger.reap(worker.id, Evidence("SIGKILL", started={ids[-1]: 1}))

        [row] = ledger.workers(live_only=False)
        assert row.certificate is not None
        assert row.certificate.claims[0].task_id == ids[-1]
        assert (len(row.certificate.claims), row.certificate.claims_more) == (200, 30)

    def test_evidence_that_an_older_version_wrote_as_plain_text_is_still_read(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        with database.engine.begin() as connection:
            connection.execute(
                update(database.tables.worker).values(state="reaped", evidence="process 7: killed by SIGKILL")
            )

        [row] = ledger.workers(live_only=False)

        assert (row.evidence, row.certificate) == ("process 7: killed by SIGKILL", None)

    def test_an_incarnation_is_found_by_the_beginning_of_its_id(self, ledger: Ledger, worker: Incarnation) -> None:
        others = [incarnation(name) for name in ("worker%", "WORKER", "work")]
        for one in others:
            ledger.join(one, queues=[], threads=1)

        assert [row.id for row in ledger.workers(prefix=worker.id[:-4])] == [worker.id]
        assert [row.id for row in ledger.workers(prefix="worker%")] == [others[0].id]
        assert {row.id for row in ledger.workers(prefix="work")} == {worker.id, others[0].id, others[2].id}
        assert ledger.workers(prefix=worker.id + "x") == []

    def test_what_an_incarnation_runs_is_listed(self, ledger: Ledger, worker: Incarnation, claimed: Claim) -> None:
        other = incarnation()
        ledger.join(other, queues=[], threads=1)
        self.run_one(ledger, other)

        self.record(ledger)
        ended = self.run_one(ledger, worker)
        self.settle(ledger, ended, Done())

        assert [task.id for task in ledger.running(worker.id)] == [claimed.task_id]
        assert ledger.running("nobody") == []

    def test_evidence_of_an_older_attempt_charges_nothing(self, ledger: Ledger, worker: Incarnation) -> None:
        first = self.run_one(ledger, worker)
        self.settle(ledger, first, HandedBack())
        ledger.claim([first.task_id], by=worker.id)

        ledger.reap(worker.id, Evidence("SIGKILL", started={first.task_id: 1}))

        assert ledger.get(first.task_id).crashes == 0  # type: ignore[union-attr]

    def test_a_task_that_kills_its_workers_is_dead_as_worker_lost(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, crashes_max=3)
        reaped: list[Reaped | None] = []
        for _ in range(3):
            worker = incarnation()
            ledger.join(worker, queues=["default"], threads=1)
            ledger.claim([task_id], by=worker.id)
            reaped.append(ledger.reap(worker.id, Evidence("SIGKILL", started={task_id: len(reaped) + 1})))

        assert [(one.returned, one.dead) for one in reaped if one] == [(1, 0), (1, 0), (0, 1)]
        task = ledger.get(task_id)
        assert task is not None
        assert (task.state, task.reason, task.crashes, task.failures) == (State.DEAD, "worker_lost", 3, 0)
        assert task.settled_at is not None

    def test_what_exceeded_its_hard_limit_failed_and_its_neighbours_are_not_charged(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        slow, neighbour = (self.run_one(ledger, worker) for _ in range(2))
        evidence = Evidence(
            "hard limit", started={slow.task_id: 1, neighbour.task_id: 1}, failed={slow.task_id: ("too slow", 200.0)}
        )

        reaped = ledger.reap(worker.id, evidence)

        assert reaped is not None
        assert {hint.task_id: round(hint.delay_s) for hint in reaped.hints} == {slow.task_id: 200, neighbour.task_id: 0}
        failed, other = ledger.get(slow.task_id), ledger.get(neighbour.task_id)
        assert failed is not None
        assert other is not None
        assert (failed.state, failed.failures, failed.crashes, failed.error) == (State.WAITING, 1, 0, "too slow")
        assert (failed.due_at - ledger.clock()).total_seconds() > 200.0 - LONG_S
        assert (other.state, other.failures, other.crashes) == (State.READY, 0, 0)

    def test_what_exceeds_its_hard_limit_for_the_last_time_is_dead(self, ledger: Ledger, worker: Incarnation) -> None:
        claim = self.run_one(ledger, worker, failures_max=1)

        reaped = ledger.reap(worker.id, Evidence("hard limit", failed={claim.task_id: ("too slow", 5.0)}))

        assert reaped is not None
        assert (reaped.returned, reaped.dead) == (0, 1)
        task = ledger.get(claim.task_id)
        assert task is not None
        assert (task.state, task.failures, task.reason) == (State.DEAD, 1, "failures_max reached: time_limit")

    def test_one_of_ten_sweeps_reaps(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 20)
        ledger.claim(ids, by=worker.id)

        answers = at_once(10, lambda _: ledger.reap(worker.id, Evidence("SIGKILL")))

        [reaped] = [answer for answer in answers if answer is not None]
        assert reaped.returned == 20
        assert all(self.kinds(ledger, task_id) == ["reaped"] for task_id in ids)

    @pytest.mark.parametrize("end", ["unknown", "left"])
    def test_who_is_not_live_is_not_reaped(self, ledger: Ledger, worker: Incarnation, end: str) -> None:
        ledger.leave(worker.id)

        assert ledger.reap(worker.id if end == "left" else "nobody", Evidence("SIGKILL")) is None

    def test_a_suspect_that_beat_meanwhile_is_not_reaped(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claim = self.run_one(ledger, worker)
        clock.forward(31.0)
        ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        clock.forward(5.0)
        suspects = ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        ledger.beat(worker.id)

        answer = ledger.reap(worker.id, Evidence("its lease ended"), suspected_for_s=5.0, lease_s=30.0)

        assert suspects == [worker.id]
        assert answer is None
        assert self.state(ledger, claim.task_id) is State.RUNNING
        assert ledger.beat(worker.id)

    def test_a_suspect_is_reaped_only_after_the_time_asked_for(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        clock.forward(31.0)
        evidence = Evidence("its lease ended")
        unsuspected = ledger.reap(worker.id, evidence, suspected_for_s=0.0, lease_s=30.0)
        ledger.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        too_soon = ledger.reap(worker.id, evidence, suspected_for_s=5.0, lease_s=30.0)
        clock.forward(5.0)

        assert (unsuspected, too_soon) == (None, None)
        assert ledger.reap(worker.id, evidence, suspected_for_s=5.0, lease_s=30.0) is not None

    def test_what_was_settled_before_the_reaping_is_not_touched(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        claim = self.run_one(ledger, worker)
        self.settle(ledger, claim, Done("1"))
        before = self.row(database, claim.task_id)

        reaped = ledger.reap(worker.id, Evidence("SIGKILL"))

        assert reaped is not None
        assert (reaped.returned, reaped.dead, reaped.hints) == (0, 0, ())
        assert self.row(database, claim.task_id) == before

    def test_a_settlement_and_a_reaping_at_the_same_time_never_both_win(self, ledger: Ledger) -> None:
        for _ in range(10):
            worker = incarnation()
            ledger.join(worker, queues=["default"], threads=1)
            claims = ledger.claim(self.record(ledger, 5), by=worker.id)
            batch = [Settlement(claim, Done("1")) for claim in claims]

            def act(number: int, worker: Incarnation = worker, batch: list[Settlement] = batch) -> Any:
                return ledger.settle(batch) if number else ledger.reap(worker.id, Evidence("SIGKILL"))

            reaped, settled = at_once(2, act)

            assert reaped is not None
            won = {one.task_id for one in settled if one.state is State.SUCCEEDED}
            assert won.isdisjoint(hint.task_id for hint in reaped.hints)
            assert len(won) + reaped.returned == 5

    def test_hints_of_a_reaping_are_taken_again_when_the_reaper_dies_before_it_publishes(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claim = self.run_one(ledger, worker)
        ledger.reap(worker.id, Evidence("SIGKILL"))
        reserved = ledger.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)
        clock.forward(60.0)

        assert reserved == []
        assert [one.task_id for one in ledger.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)] == [claim.task_id]

    # -- orphans, promote, prune

    @pytest.mark.parametrize("end", ["left", "reaped", "pruned"])
    def test_what_runs_under_an_incarnation_that_is_not_live_is_returned(
        self, ledger: Ledger, database: Database, worker: Incarnation, end: str
    ) -> None:
        claim = self.run_one(ledger, worker)
        w = database.tables.worker
        with database.engine.begin() as connection:
            if end == "pruned":
                connection.execute(delete(w))
            else:
                connection.execute(update(w).values(state=end))

        dry = ledger.orphans(limit=10, dry_run=True)
        returned = ledger.orphans(limit=10)

        assert dry == returned == [Unpublished(claim.task_id, "default", 1, 0.0)]
        task = ledger.get(claim.task_id)
        assert task is not None
        assert (task.state, task.crashes) == (State.READY, 0)
        assert self.kinds(ledger, claim.task_id) == ["reaped"]
        assert ledger.orphans(limit=10) == []
        assert self.settle(ledger, claim, Done()).state is None

    def test_what_a_live_incarnation_runs_is_no_orphan(self, ledger: Ledger, worker: Incarnation) -> None:
        self.run_one(ledger, worker)

        assert ledger.orphans(limit=10) == []

    def test_orphans_are_bounded_and_shared_by_ten_sweeps(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 40)
        ledger.claim(ids, by=worker.id)
        with database.engine.begin() as connection:
            connection.execute(update(database.tables.worker).values(state="left"))
        first = ledger.orphans(limit=7)

        answers = at_once(10, lambda _: ledger.orphans(limit=7))
        answers += [ledger.orphans(limit=100), first]

        assert len(first) == 7
        assert all(len(answer) <= 7 for answer in answers[:10])
        assert Counter(hint.task_id for answer in answers for hint in answer) == Counter(ids)
        assert all(self.kinds(ledger, task_id) == ["reaped"] for task_id in ids)

    def test_an_orphan_is_never_judged_alone(self, ledger: Ledger, database: Database, worker: Incarnation) -> None:
        """What else ran in its process may have been ended before."""
        claim = self.run_one(ledger, worker, crashes_max=1)
        ledger.leave(worker.id)

        ledger.orphans(limit=10)

        [event] = ledger.history(claim.task_id)
        assert (event.detail["kind"], event.detail["charged"]) == ("orphan", "presence")
        [again] = self.claim_elsewhere(ledger, [claim.task_id])
        assert (again.is_suspect, again.crashes) == (False, 0)

    def test_a_dead_orphan_needs_no_hint(self, ledger: Ledger, database: Database, worker: Incarnation) -> None:
        suspect, _ = self.suspects(ledger, crashes_max=1)
        ledger.claim([suspect], by=worker.id)
        with database.engine.begin() as connection:
            connection.execute(update(database.tables.worker).values(state="left"))

        assert ledger.orphans(limit=10, dry_run=True) == ledger.orphans(limit=10) == []
        assert self.state(ledger, suspect) is State.DEAD

    def test_waiting_tasks_become_ready_when_their_time_has_come(self, ledger: Ledger, clock: Clock) -> None:
        soon = [self.record(ledger, delay_s=100.0, queue=queue)[0] for queue in ("a", "b", "c")]
        [later] = self.record(ledger, delay_s=HOUR_S, queue="b")
        early = ledger.promote(limit=10)
        clock.forward(101.0)
        dry = ledger.promote(limit=10, dry_run=True)
        counts = [ledger.promote(limit=2), ledger.promote(limit=2), ledger.promote(limit=2)]

        assert early == 0
        assert dry == 3
        assert counts == [2, 1, 0]
        assert [self.state(ledger, task_id) for task_id in soon] == [State.READY] * 3
        assert self.state(ledger, later) is State.WAITING

    def test_ten_promotions_at_once_count_each_task_once(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger, 50, delay_s=10.0)
        clock.forward(11.0)

        assert sum(at_once(10, lambda _: ledger.promote(limit=100))) == 50

    def test_a_waiting_task_that_is_due_can_be_claimed_before_it_is_promoted(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        [task_id] = self.record(ledger, delay_s=10.0)
        clock.forward(11.0)

        assert len(ledger.claim([task_id], by=worker.id)) == 1
        assert ledger.promote(limit=10) == 0

    def test_settled_tasks_are_removed_after_their_retention_each_class_by_its_own(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(4)]
        for claim, outcome in zip(claims, ["done", "cancelled", "dead", "retry"], strict=True):
            self.settle(ledger, claim, OUTCOMES[outcome])
        done, cancelled, dead, retry = (claim.task_id for claim in claims)
        young = ledger.prune(limit=10, retention_s=100.0, dead_retention_s=200.0)
        clock.forward(101.0)
        first = ledger.prune(limit=10, retention_s=100.0, dead_retention_s=200.0)
        left = {task.id for task in ledger.tasks()}
        clock.forward(100.0)
        second = ledger.prune(limit=10, retention_s=100.0, dead_retention_s=200.0)

        assert (young.tasks, first.tasks, second.tasks) == (0, 2, 1)
        assert left == {dead, retry}
        assert [ledger.get(task_id) for task_id in (done, cancelled, dead)] == [None] * 3
        assert self.state(ledger, retry) is State.WAITING

    def test_pruning_is_bounded_and_takes_the_oldest(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(5)]
        for claim in claims:
            self.settle(ledger, claim, Done())
            clock.forward(1.0)
        counts = [ledger.prune(limit=2, retention_s=0.0, dead_retention_s=0.0).tasks]
        left = {task.id for task in ledger.tasks()}
        counts += [ledger.prune(limit=2, retention_s=0.0, dead_retention_s=0.0).tasks for _ in range(3)]

        assert counts == [2, 2, 1, 0]
        assert left == {claim.task_id for claim in claims[2:]}

    def test_old_events_and_ended_workers_are_removed_and_live_workers_never(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        gone = incarnation()
        ledger.join(gone, queues=[], threads=1)
        ledger.leave(gone.id)
        for _ in range(3):
            ledger.note("manual", detail={})
        clock.forward(400 * 86400.0)
        dry = ledger.prune(limit=2, retention_s=0.0, dead_retention_s=0.0, dry_run=True)
        first = ledger.prune(limit=2, retention_s=0.0, dead_retention_s=0.0)
        second = ledger.prune(limit=2, retention_s=0.0, dead_retention_s=0.0)

        assert dry == first
        assert (first.events, first.workers) == (2, 1)
        assert (second.events, second.workers) == (1, 0)
        assert [row.id for row in ledger.workers(live_only=False)] == [worker.id]

    def test_dry_runs_count_the_same_and_change_nothing(
        self, ledger: Ledger, database: Database, worker: Incarnation, clock: Clock
    ) -> None:
        self.record(ledger, 3)
        self.record(ledger, 2, delay_s=50.0)
        for outcome in OUTCOMES.values():
            self.settle(ledger, self.run_one(ledger, worker), outcome)
        gone = incarnation()
        ledger.join(gone, queues=[], threads=1)
        ledger.claim(self.suspects(ledger, crashes_max=1) + self.record(ledger, 2), by=gone.id)
        ledger.leave(gone.id)
        clock.forward(100.0)
        before = self.everything(database)

        def steps(*, dry_run: bool) -> list[Any]:
            return [
                ledger.take_unpublished(limit=50, grace_s=0.0, horizon_s=60.0, dry_run=dry_run),
                ledger.promote(limit=50, dry_run=dry_run),
                ledger.prune(limit=50, retention_s=50.0, dead_retention_s=50.0, dry_run=dry_run),
                ledger.orphans(limit=50, dry_run=dry_run),
            ]

        dry = steps(dry_run=True)
        unchanged = self.everything(database) == before
        real = steps(dry_run=False)

        assert unchanged
        assert dry == real
        assert [len(real[0]), real[1], real[2].tasks, len(real[3])] == [7, 3, 3, 2]

    # -- plan and apply

    BY: ClassVar[dict[str, str]] = {"who": "eve@host", "what": "test"}

    @staticmethod
    def noted(ledger: Ledger, task_id: str) -> int:
        """How many events say that a person did something to this task."""
        return [event.kind for event in ledger.history(task_id)].count("manual")

    def test_a_fence_tells_where_a_task_stands_and_its_seal_is_not_the_token(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claim = self.run_one(ledger, worker)
        [waiting] = self.record(ledger, delay_s=HOUR_S)
        unknown = codec.new_task_id()

        fences = ledger.fences([claim.task_id, waiting, unknown, "no id"])

        assert set(fences) == {claim.task_id, waiting}
        fence = fences[claim.task_id]
        assert (fence.state, fence.attempt, fence.worker) == (State.RUNNING, 1, worker.id)
        assert fence.seal is not None
        assert claim.token not in fence.seal
        assert fence.seal not in claim.token
        assert (fences[waiting].state, fences[waiting].seal) == (State.WAITING, None)
        assert ledger.fences([claim.task_id]) == {claim.task_id: fence}, "asked again it is the same"

    def test_a_planned_relay_takes_what_stands_where_it_stood_and_refuses_the_rest_with_the_reason(
        self, ledger: Ledger, worker: Incarnation, database: Database
    ) -> None:
        ids = self.record(ledger, 6)
        fences = [ledger.fences(ids)[one] for one in ids]
        sent = Unpublished(ids[1], "default", 0, 0.0)
        ledger.mark_published([sent])
        ledger.claim([ids[2]], by=worker.id)
        [claim] = ledger.claim([ids[3]], by=worker.id)
        self.settle(ledger, claim, HandedBack())
        ledger.cancel(ids[4], reason="no need")
        with database.engine.begin() as tx:
            tx.execute(delete(database.tables.task).where(database.tables.task.c.id == ids[5]))

        applied = ledger.relay_planned(fences, by=self.BY)

        assert applied.changed == (ids[0],)
        assert applied.hints == (Unpublished(ids[0], "default", 0, 0.0),)
        assert dict(applied.refused) == {
            ids[1]: "its hint was sent meanwhile",
            ids[2]: "it was ready and is running now",
            ids[3]: "it was at attempt 0 and is at 1 now",
            ids[4]: "it was ready and is cancelled now",
            ids[5]: "it is not in the ledger any more",
        }
        assert [self.noted(ledger, one) for one in ids] == [1, 0, 0, 0, 0, 0]

    def test_a_planned_relay_of_what_was_published_unpublishes_it(self, ledger: Ledger, clock: Clock) -> None:
        [task_id] = self.record(ledger)
        ledger.mark_published([Unpublished(task_id, "default", 0, 0.0)])
        clock.forward(60.0)

        applied = ledger.relay_planned(list(ledger.fences([task_id]).values()), by=self.BY)

        assert applied.changed == (task_id,)
        assert ledger.fences([task_id])[task_id].published_at is None
        assert ledger.take_unpublished(limit=9, grace_s=0.0, horizon_s=HOUR_S) == [], "it is reserved"
        clock.forward(60.0)
        assert [one.task_id for one in ledger.take_unpublished(limit=9, grace_s=0.0, horizon_s=HOUR_S)] == [task_id]

    def test_what_a_relay_has_in_hand_is_not_relayed_by_a_plan(self, ledger: Ledger, clock: Clock) -> None:
        ids = self.record(ledger, 2)
        clock.forward(60.0)
        fences = list(ledger.fences(ids).values())
        assert len(ledger.take_unpublished(limit=1, grace_s=0.0, horizon_s=HOUR_S)) == 1

        applied = ledger.relay_planned(fences, by=self.BY)

        assert len(applied.changed) == 1
        assert list(applied.refused.values()) == ["somebody is sending its hint just now"]

    def test_ten_applications_at_once_change_each_row_once(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        relayed = self.record(ledger, 40)
        waiting = self.record(ledger, 40, delay_s=5.0)
        running = self.record(ledger, 40)
        assert len(ledger.claim(running, by=worker.id)) == 40
        ledger.leave(worker.id)
        clock.forward(60.0)
        fences = ledger.fences([*relayed, *waiting, *running])

        def one(_: int) -> list[str]:
            relay = ledger.relay_planned([fences[each] for each in relayed], by=self.BY)
            promote = ledger.promote_planned([fences[each] for each in waiting], by=self.BY)
            back = ledger.return_planned([fences[each] for each in running], by=self.BY)
            for applied, all_of_them in ((relay, relayed), (promote, waiting), (back, running)):
                assert sorted([*applied.changed, *applied.refused]) == sorted(all_of_them)
            assert {one.task_id for one in back.hints} == set(back.changed)
            return [*relay.changed, *promote.changed, *back.changed]

        changed = Counter(each for of_one in at_once(10, one) for each in of_one)

        assert changed == Counter([*relayed, *waiting, *running])
        assert {self.noted(ledger, each) for each in changed} == {1}
        assert {self.state(ledger, each) for each in changed} == {State.READY}

    def test_a_planned_promotion_is_only_of_what_still_waits_and_is_due(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        due, promoted, claimed, early = self.record(ledger, 4, delay_s=5.0)
        [later] = self.record(ledger, delay_s=HOUR_S)
        fences = list(ledger.fences([due, promoted, claimed, early, later]).values())
        clock.forward(10.0)
        ledger.promote_planned([one for one in fences if one.task_id == promoted], by=self.BY)
        ledger.claim([claimed], by=worker.id)
        ledger.mark_published([Unpublished(early, "default", 0, 0.0)])

        applied = ledger.promote_planned(fences, by=self.BY)

        assert sorted(applied.changed) == sorted([due, early]), "a hint that was sent meanwhile is no reason"
        assert dict(applied.refused) == {
            promoted: "it was waiting and is ready now",
            claimed: "it was waiting and is running now",
            later: "it is not due yet",
        }

    def test_a_planned_return_is_only_of_the_same_claim_under_a_worker_that_is_not_live(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        left, again, alive = (self.run_one(ledger, worker) for _ in range(3))
        [mine] = self.claim_elsewhere(ledger, self.record(ledger))
        ids = [left.task_id, again.task_id, alive.task_id, mine.task_id]
        fences = list(ledger.fences(ids).values())
        assert set(ledger.return_planned(fences, by=self.BY).refused.values()) == {
            f"its worker {fence.worker} is live" for fence in fences
        }
        self.settle(ledger, again, HandedBack())
        self.claim_elsewhere(ledger, [again.task_id])
        self.settle(ledger, alive, Done())
        ledger.leave(worker.id)
        assert [one.fence.task_id for one in ledger.orphaned(limit=9)] == [left.task_id]

        applied = ledger.return_planned(fences, by=self.BY)

        assert applied.changed == (left.task_id,)
        assert [one.task_id for one in applied.hints] == [left.task_id]
        assert dict(applied.refused) == {
            again.task_id: "it was at attempt 1 and is at 2 now",
            alive.task_id: "it was running and is succeeded now",
            mine.task_id: next(f"its worker {one.worker} is live" for one in fences if one.task_id == mine.task_id),
        }
        assert self.settle(ledger, left, Done()).state is None, "the old claim has ended"

    def suspected(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        clock.forward(100.0)
        assert ledger.suspect([worker.id], beat_s=4.0, lease_s=30.0) == []
        clock.forward(10.0)
        assert ledger.suspect([worker.id], beat_s=4.0, lease_s=30.0) == [worker.id]

    def test_a_planned_reaping_does_what_was_foreseen(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(2)]
        ledger.cancel(claims[0].task_id, reason="asked")
        self.suspected(ledger, worker, clock)

        foreseen = ledger.foresee(worker.id, Evidence("silence"))
        assert foreseen is not None
        reaped = ledger.reap(
            worker.id, Evidence("silence"), suspected_for_s=4.0, lease_s=30.0, planned=foreseen, by=self.BY
        )

        assert reaped is not None
        assert {one.fence.task_id: one.becomes for one in foreseen.claims} == {
            claim.task_id: self.state(ledger, claim.task_id) for claim in claims
        }
        assert {one.fence.task_id: [one.charged] for one in foreseen.claims} == {
            claim.task_id: self.charges(ledger, claim.task_id) for claim in claims
        }
        assert [self.noted(ledger, claim.task_id) for claim in claims] == [1, 1]
        assert ledger.foresee(worker.id, Evidence("silence")) is None

    @pytest.mark.parametrize("since", ["a beat", "a settlement", "another claim", "a lease"])
    def test_a_worker_that_has_moved_since_the_plan_is_not_reaped(
        self, ledger: Ledger, worker: Incarnation, clock: Clock, database: Database, since: str
    ) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(2)]
        self.suspected(ledger, worker, clock)
        foreseen = ledger.foresee(worker.id, Evidence("silence"))
        match since:
            case "a beat":
                ledger.beat(worker.id)
            case "a settlement":
                self.settle(ledger, claims[0], HandedBack())
            case "another claim":
                self.run_one(ledger, worker)
            case "a lease":
                ledger.suspect([], beat_s=4.0, lease_s=30.0)
        if since in ("a beat", "a lease"):
            self.suspected(ledger, worker, clock)  # and it has been silent again for as long as a sweep asks for

        reaped = ledger.reap(
            worker.id, Evidence("silence"), suspected_for_s=4.0, lease_s=30.0, planned=foreseen, by=self.BY
        )

        assert reaped is None
        assert self.state(ledger, claims[1].task_id) is State.RUNNING
        assert [row.id for row in ledger.workers()] == [worker.id], "nothing of it stood"
        assert self.noted(ledger, claims[1].task_id) == 0
        assert ledger.reap(worker.id, Evidence("silence"), suspected_for_s=4.0, lease_s=30.0) is not None

    def test_a_worker_that_nobody_suspected_and_that_has_beaten_since_the_plan_is_not_reaped(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation, clock: Clock
    ) -> None:
        foreseen = ledger.foresee(worker.id, Evidence("its process is gone"))
        clock.forward(5.0)
        assert ledger.beat(worker.id)

        reaped = ledger.reap(worker.id, Evidence("its process is gone"), planned=foreseen, by=self.BY)

        assert reaped is None
        assert self.state(ledger, claimed.task_id) is State.RUNNING

    def test_a_planned_removal_spares_what_was_revived_and_settled_again(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(3)]
        for claim in claims:
            self.settle(ledger, claim, Dead("no", "no"))
        kept = {"retention_s": HOUR_S, "dead_retention_s": HOUR_S}
        assert ledger.prunable(limit=9, **kept) == []
        clock.forward(2 * HOUR_S)
        [dead] = ledger.prunable(limit=9, **kept)
        ledger.revive(claims[0].task_id, why="a person asked")
        ledger.revive(claims[1].task_id, why="a person asked")
        [again] = ledger.claim([claims[1].task_id], by=worker.id)
        self.settle(ledger, again, Dead("no", "no"))
        clock.forward(2 * HOUR_S)  # and it is beyond its retention again

        first = ledger.prune_planned(dead, by=self.BY, **kept)
        second = ledger.prune_planned(dead, by=self.BY, **kept)

        assert (dead.what, sorted(dead.ids)) == (Prunes.DEAD, sorted(claim.task_id for claim in claims))
        assert first.changed == (claims[2].task_id,)
        assert sorted(first.refused) == sorted(claim.task_id for claim in claims[:2])
        assert (second.changed, len(second.refused)) == ((), 3)
        assert [ledger.get(claim.task_id) is None for claim in claims] == [False, False, True]

    def test_a_removal_keeps_to_the_retention_of_today_whatever_the_plan_says(
        self, ledger: Ledger, claimed: Claim, clock: Clock
    ) -> None:
        self.settle(ledger, claimed, Done())
        clock.forward(2 * HOUR_S)
        [old] = ledger.prunable(limit=9, retention_s=HOUR_S, dead_retention_s=HOUR_S)

        applied = ledger.prune_planned(old, retention_s=9 * HOUR_S, dead_retention_s=HOUR_S, by=self.BY)

        assert (applied.changed, list(applied.refused)) == ((), [claimed.task_id])

    def test_what_is_foreseen_is_what_the_sweep_would_do(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        waiting = self.record(ledger, 3, delay_s=5.0)
        self.record(ledger, 2, delay_s=HOUR_S)
        orphan = self.run_one(ledger, worker)
        settled = self.run_one(ledger, worker)
        self.settle(ledger, settled, Done())
        ledger.leave(worker.id)
        clock.forward(60.0)

        assert sorted(ledger.promotable(limit=9)) == sorted(waiting)
        assert len(ledger.promotable(limit=2)) == 2
        assert ledger.promote(limit=9, dry_run=True) == 3
        assert [one.task_id for one in ledger.orphans(limit=9, dry_run=True)] == [orphan.task_id]
        assert [one.fence.task_id for one in ledger.orphaned(limit=9)] == [orphan.task_id]
        [old] = ledger.prunable(limit=9, retention_s=30.0, dead_retention_s=30.0)
        assert (old.what, old.ids) == (Prunes.SUCCEEDED, (settled.task_id,))
        assert ledger.prune(limit=9, retention_s=30.0, dead_retention_s=30.0, dry_run=True).tasks == 1

    def test_a_sweep_is_noted_once_in_a_while(self, ledger: Ledger, clock: Clock) -> None:
        assert ledger.swept_for_s() is None
        at_once(8, lambda _: ledger.swept(every_s=5.0))
        clock.forward(3.0)
        ledger.swept(every_s=5.0)
        early = ledger.swept_for_s()
        clock.forward(3.0)
        ledger.swept(every_s=5.0)
        late = ledger.swept_for_s()

        assert early is not None
        assert late is not None
        assert early >= 3.0
        assert late < early

    # -- rebuild

    def test_pages_of_unclaimed_tasks_have_each_once_in_the_order_in_which_they_are_due(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        waiting = self.record(ledger, 5, delay_s=HOUR_S)
        ready = self.record(ledger, 8)
        self.record(ledger, 2, queue="other")
        self.run_one(ledger, worker)
        gone = self.run_one(ledger, worker)
        self.settle(ledger, gone, Done())
        clock.forward(60.0)
        before = ledger.clock()
        clock.forward(1.0)
        self.record(ledger, 3)

        found: list[str] = []
        after = None
        while page := ledger.unclaimed_page("default", before=before, after=after, limit=4):
            assert len(page) <= 4
            found += [one.task_id for one in page]
            after = (page[-1].due_at, page[-1].task_id)

        assert found[:8] == sorted(ready, key=lambda one: (ledger.fences([one])[one].due_at, one))
        assert sorted(found[8:]) == sorted(waiting)
        assert ledger.unclaimed("default", before=before) == 13
        assert ledger.open_queues() == ["default", "other"]

    def test_what_is_renewed_needs_a_hint_once_and_what_was_published_since_does_not(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ids = self.record(ledger, 6)
        ledger.mark_published([Unpublished(one, "default", 0, 0.0) for one in ids[:4]])
        clock.forward(60.0)
        before = ledger.clock()
        clock.forward(1.0)
        ledger.mark_published([Unpublished(ids[3], "default", 0, 0.0)])
        ledger.claim([ids[2]], by=worker.id)
        ledger.relay_planned([ledger.fences([ids[5]])[ids[5]]], by=self.BY)  # somebody has it in hand

        first = ledger.renew(ids, before=before)
        second = ledger.renew(ids, before=before)

        assert [one.task_id for one in first] == [ids[0], ids[1], ids[4]]
        assert second == []
        assert ledger.fences([ids[0]])[ids[0]].published_at is None
        ledger.mark_published(first)
        clock.forward(60.0)
        assert [one.task_id for one in ledger.renew(ids, before=before)] == [ids[5]]

    def test_ten_rebuilds_at_once_renew_each_task_once(self, ledger: Ledger, clock: Clock) -> None:
        ids = self.record(ledger, 100)
        ledger.mark_published([Unpublished(one, "default", 0, 0.0) for one in ids])
        clock.forward(60.0)
        before = ledger.clock()

        renewed = at_once(10, lambda _: ledger.renew(ids, before=before))

        assert Counter(one.task_id for of_one in renewed for one in of_one) == Counter(ids)

    def test_only_markers_that_are_out_are_dropped(self, ledger: Ledger) -> None:
        back, out = codec.new_task_id(), codec.new_task_id()
        for marker, queue in ((back, "default"), (out, "default"), (codec.new_task_id(), "other")):
            assert ledger.marker_sent(queue, 0, marker, spacing_s=0.0, depth=1)
        ledger.marker_returned([back])

        dropped = [ledger.markers_dropped("default"), ledger.markers_dropped("default")]

        assert dropped == [1, 0]
        assert [(one.queue, one.id == back) for one in ledger.markers()] == [("default", True), ("other", False)]

    # -- audit

    def test_open_tasks_come_page_by_page_and_each_once(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ready, waiting = self.record(ledger, 7), self.record(ledger, 4, delay_s=HOUR_S)
        clock.forward(1.0)
        ready += self.record(ledger, 3)
        running = [claim.task_id for claim in ledger.claim(self.record(ledger, 5), by=worker.id)]
        settled, gone = self.run_one(ledger, worker), self.record(ledger, 1)
        self.settle(ledger, settled, Done(None))
        ledger.cancel(gone[0], reason="no need")
        elsewhere = self.record(ledger, 2, queue="other")

        def pages(*, is_running: bool, limit: int) -> list[str]:
            met: list[str] = []
            after: OpenTask | None = None
            while page := ledger.open_tasks("default", is_running=is_running, after=after, limit=limit):
                assert len(page) <= limit
                met += [one.task_id for one in page]
                after = page[-1]
            return met

        for limit in (1, 2, 3, 7, 100):
            assert Counter(pages(is_running=False, limit=limit)) == Counter(ready + waiting), limit
            assert Counter(pages(is_running=True, limit=limit)) == Counter(running), limit
        assert ledger.queues_with_open_tasks() == ["default", "other"]
        assert set(ledger.open_among([*ready, *gone, settled.task_id, elsewhere[0], running[0], "no id"])) == {
            *ready,
            elsewhere[0],
            running[0],
        }

    def test_an_open_task_tells_where_it_stands(self, ledger: Ledger, worker: Incarnation) -> None:
        [task_id] = self.record(ledger)
        [before] = ledger.open_tasks("default", is_running=False)
        ledger.mark_published([Unpublished(task_id, "default", 0, 0.0)])
        hinted = ledger.open_among([task_id])[task_id]
        ledger.claim([task_id], by=worker.id)
        [running] = ledger.open_tasks("default", is_running=True)

        assert (before.state, before.attempt, before.published_at, before.worker) == (State.READY, 0, None, None)
        assert before.due_at <= before.now
        assert hinted.published_at is not None
        assert before.queued_at <= hinted.published_at <= hinted.now
        assert (running.state, running.attempt, running.worker) == (State.RUNNING, 1, worker.id)

    def test_a_marker_that_came_back_speaks_for_those_that_were_sent_before(self, ledger: Ledger, clock: Clock) -> None:
        assert ledger.marker_sent_at("default", 0) is None
        sent_at = []
        markers = [codec.new_task_id() for _ in range(3)]
        for marker in markers:
            clock.forward(1.0)
            assert ledger.marker_sent("default", 0, marker, spacing_s=0.0, depth=1)
            at = ledger.marker_sent_at("default", 0)
            assert at is not None
            sent_at.append(at)
        assert sent_at == sorted(set(sent_at))

        ledger.marker_returned([markers[1]])

        assert [ledger.has_marker_returned("default", 0, since=at) for at in sent_at] == [True, True, False]
        assert not ledger.has_marker_returned("other", 0, since=sent_at[0])
        assert not ledger.has_marker_returned("default", 1, since=sent_at[0])

    def test_markers_that_were_on_their_way_while_the_order_was_disturbed_are_dropped(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        back_before, back_since, out, elsewhere = (codec.new_task_id() for _ in range(4))
        for marker in (back_before, back_since, out, elsewhere):
            queue = "other" if marker == elsewhere else "default"
            assert ledger.marker_sent(queue, 0, marker, spacing_s=0.0, depth=1)
        ledger.marker_returned([back_before])
        clock.forward(1.0)
        since = ledger.clock()
        clock.forward(1.0)
        ledger.marker_returned([back_since])

        dropped = [ledger.markers_voided("default", since=since) for _ in range(2)]

        assert dropped == [2, 0]
        assert {one.id for one in ledger.markers()} == {back_before, elsewhere}

    def test_what_nobody_holds_is_returned_at_no_charge_if_it_still_runs_under_the_same_claim(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claims = ledger.claim(self.record(ledger, 3), by=worker.id)
        fences = ledger.fences([claim.task_id for claim in claims])
        first, again, done = claims
        self.settle(ledger, done, Done(None))
        self.settle(ledger, again, HandedBack())
        ledger.claim([again.task_id], by=worker.id)

        applied = ledger.return_unheld(list(fences.values()), by=self.BY)
        second = ledger.return_unheld(list(fences.values()), by=self.BY)

        assert applied.changed == (first.task_id,)
        assert [hint.task_id for hint in applied.hints] == [first.task_id]
        assert set(applied.refused) == {again.task_id, done.task_id}
        assert second.changed == ()
        task = ledger.get(first.task_id)
        assert task is not None
        assert (task.state, task.failures, task.crashes, task.attempt) == (State.READY, 0, 0, 1)
        assert self.settle(ledger, first, Done(None)).state is None
        assert [event.kind for event in ledger.history(first.task_id)] == ["manual", "reaped", "late_result"]
        assert [row.state for row in ledger.workers()] == ["live"]

    # -- people

    @pytest.mark.parametrize("delay_s", [0.0, HOUR_S])
    def test_what_does_not_run_is_cancelled_at_once(self, ledger: Ledger, delay_s: float) -> None:
        [task_id] = self.record(ledger, delay_s=delay_s)

        answer = ledger.cancel(task_id, reason="not needed")

        assert answer is CancelAnswer.CANCELLED
        task = ledger.get(task_id)
        assert task is not None
        assert (task.state, task.reason) == (State.CANCELLED, "not needed")
        assert task.settled_at is not None
        assert [(event.kind, event.detail) for event in ledger.history(task_id)] == [
            ("cancelled", {"reason": "not needed"})
        ]

    def test_cancelling_is_asked_of_what_runs(self, ledger: Ledger, claimed: Claim) -> None:
        first = ledger.cancel(claimed.task_id, reason="not needed")
        second = ledger.cancel(claimed.task_id, reason="again")

        assert (first, second) == (CancelAnswer.REQUESTED, CancelAnswer.REQUESTED)
        task = ledger.get(claimed.task_id)
        assert task is not None
        assert (task.state, task.is_cancel_requested) == (State.RUNNING, True)
        assert self.kinds(ledger, claimed.task_id) == ["cancelled"]

    def test_cancelling_again_or_too_late_changes_nothing(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        [cancelled] = self.record(ledger)
        ledger.cancel(cancelled, reason="not needed")
        done, dead = self.run_one(ledger, worker), self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        self.settle(ledger, dead, OUTCOMES["dead"])
        before = self.everything(database)

        answers = [ledger.cancel(task_id, reason="?") for task_id in (cancelled, done.task_id, dead.task_id)]

        assert answers == [CancelAnswer.ALREADY_CANCELLED, CancelAnswer.ALREADY_FINISHED, CancelAnswer.ALREADY_FINISHED]
        assert self.everything(database) == before

    @pytest.mark.parametrize("task_id", ["01a1fc62-6900-73bb-8aa5-d6cb9f630536", "no id", "", "'; drop table task"])
    def test_a_task_that_is_not_there_is_neither_cancelled_nor_revived(self, ledger: Ledger, task_id: str) -> None:
        with pytest.raises(NotFound):
            ledger.cancel(task_id, reason="?")
        with pytest.raises(NotFound):
            ledger.revive(task_id, why="?")
        assert ledger.get(task_id) is None
        assert ledger.history(task_id) == []

    @pytest.mark.parametrize("outcome", ["retry", "dead", "handed_back"])
    def test_after_a_cancel_request_a_failure_ends_as_cancelled(
        self, ledger: Ledger, claimed: Claim, outcome: str
    ) -> None:
        ledger.cancel(claimed.task_id, reason="not needed")

        settled = self.settle(ledger, claimed, OUTCOMES[outcome])

        assert settled == Settled(claimed.task_id, State.CANCELLED)
        task = ledger.get(claimed.task_id)
        assert task is not None
        assert (task.state, task.reason) == (State.CANCELLED, "not needed")
        assert task.settled_at is not None
        assert self.settle(ledger, claimed, OUTCOMES[outcome]) == settled

    def test_after_a_cancel_request_a_success_stays_a_success(self, ledger: Ledger, claimed: Claim) -> None:
        ledger.cancel(claimed.task_id, reason="not needed")

        assert self.settle(ledger, claimed, Done("1")).state is State.SUCCEEDED
        task = ledger.get(claimed.task_id)
        assert task is not None
        assert (task.state, task.reason) == (State.SUCCEEDED, None)

    def test_after_a_cancel_request_a_reaping_ends_as_cancelled(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation
    ) -> None:
        ledger.cancel(claimed.task_id, reason="not needed")

        reaped = ledger.reap(worker.id, Evidence("SIGKILL"))

        assert reaped is not None
        assert (reaped.returned, reaped.dead, reaped.hints) == (0, 0, ())
        task = ledger.get(claimed.task_id)
        assert task is not None
        assert (task.state, task.reason) == (State.CANCELLED, "not needed")

    def test_a_cancel_that_was_answered_is_never_started_afterwards(self, ledger: Ledger, worker: Incarnation) -> None:
        for _ in range(10):
            [task_id] = self.record(ledger)

            def act(number: int, task_id: str = task_id) -> Any:
                return ledger.claim([task_id], by=worker.id) if number else ledger.cancel(task_id, reason="?")

            answer, claims = at_once(2, act)

            assert (answer is CancelAnswer.CANCELLED) == (claims == [])
            assert answer in (CancelAnswer.CANCELLED, CancelAnswer.REQUESTED)

    @pytest.mark.parametrize("end", ["dead", "cancelled"])
    def test_a_revived_task_is_ready_with_fresh_budgets(self, ledger: Ledger, worker: Incarnation, end: str) -> None:
        claim = self.run_one(ledger, worker, key="k")
        self.settle(ledger, claim, Retry(0.0, "boom"))
        [claim] = ledger.claim([claim.task_id], by=worker.id)
        ledger.cancel(claim.task_id, reason="?")
        self.settle(ledger, claim, OUTCOMES[end])

        hint = ledger.revive(claim.task_id, why="fixed")

        assert hint == Unpublished(claim.task_id, "default", 2, 0.0)
        task = ledger.get(claim.task_id)
        assert task is not None
        assert (task.state, task.attempt, task.failures, task.crashes) == (State.READY, 2, 0, 0)
        assert (task.settled_at, task.reason, task.is_cancel_requested) == (None, None, False)
        assert ledger.history(claim.task_id)[-1].kind == "revived"
        assert ledger.history(claim.task_id)[-1].detail == {"why": "fixed"}
        assert not ledger.record(new(key="k"))[0].created
        assert ledger.claim([claim.task_id], by=worker.id)[0].attempt == 3

    def test_a_task_is_not_revived_while_its_key_is_held_by_another(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, key="k")
        ledger.cancel(task_id, reason="?")
        self.record(ledger, key="k")

        with pytest.raises(Refused, match="key"):
            ledger.revive(task_id, why="?")
        assert self.state(ledger, task_id) is State.CANCELLED
        assert self.kinds(ledger, task_id) == ["cancelled"]

    def test_only_dead_and_cancelled_tasks_are_revived(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        done, running = self.run_one(ledger, worker), self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        ids = [done.task_id, running.task_id, self.record(ledger)[0], self.record(ledger, delay_s=HOUR_S)[0]]
        before = self.everything(database)

        for task_id in ids:
            with pytest.raises(Refused):
                ledger.revive(task_id, why="?")
        assert self.everything(database) == before

    def test_a_note_is_kept_with_its_task(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger)
        ledger.note("manual", detail={"by": "anna"}, task_id=task_id, worker="w")
        ledger.note("manual", detail={"by": "nobody"})

        [event] = ledger.history(task_id)
        assert (event.kind, event.task_id, event.worker, event.detail) == ("manual", task_id, "w", {"by": "anna"})
        assert event.at.tzinfo is UTC

    # -- questions

    def test_tasks_are_listed_from_the_newest_a_page_at_a_time(self, ledger: Ledger) -> None:
        ids = [self.record(ledger)[0] for _ in range(7)]

        pages: list[list[str]] = []
        after = None
        while page := [task.id for task in ledger.tasks(limit=3, after=after)]:
            pages.append(page)
            after = page[-1]

        newest_first = sorted(ids, reverse=True)
        assert pages == [newest_first[:3], newest_first[3:6], newest_first[6:]]

    def test_a_page_after_what_is_no_task_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(ConfigError, match="after"):
            ledger.tasks(after="' OR 1=1")

    def test_tasks_are_filtered_by_state_queue_and_name(self, ledger: Ledger, worker: Incarnation) -> None:
        self.run_one(ledger, worker, queue="a", name="x")
        [wanted] = self.record(ledger, queue="a", name="x")
        self.record(ledger, queue="b", name="x")
        self.record(ledger, queue="a", name="y")

        assert [task.id for task in ledger.tasks(state=State.READY, queue="a", name="x")] == [wanted]
        assert len(ledger.tasks(queue="a")) == 3
        assert ledger.tasks(queue="%") == ledger.tasks(name="' OR ''='") == []

    def test_history_is_told_from_the_oldest(self, ledger: Ledger, worker: Incarnation) -> None:
        claim = self.run_one(ledger, worker)
        self.settle(ledger, claim, Retry(0.0, "first"))
        [claim] = ledger.claim([claim.task_id], by=worker.id)
        self.settle(ledger, claim, Dead("enough", "second"))
        ledger.revive(claim.task_id, why="?")

        events = ledger.history(claim.task_id)
        assert [(event.kind, event.attempt) for event in events] == [("failed", 1), ("failed", 2), ("revived", None)]
        assert events == sorted(events, key=lambda event: event.at)

    def test_counts_tell_how_many_are_where(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        empty = ledger.counts()
        self.record(ledger, 3, queue="a")
        clock.forward(100.0)
        self.record(ledger, 2, queue="a", delay_s=HOUR_S)
        self.record(ledger, queue="b", delay_s=10.0)
        self.run_one(ledger, worker, queue="b")
        self.settle(ledger, self.run_one(ledger, worker, queue="c"), Done())
        clock.forward(20.0)

        counts = ledger.counts()

        assert empty.queues == {}
        assert empty.oldest_ready_s is None
        assert set(empty.states) == set(State)
        a, b = counts.queues["a"], counts.queues["b"]
        assert (a.ready, a.waiting, a.running) == (3, 2, 0)
        assert (b.ready, b.waiting, b.running) == (1, 0, 1)  # due, though not promoted yet: it could run now
        assert "c" not in counts.queues
        assert counts.states[State.SUCCEEDED] == 1
        assert counts.oldest_ready_s is not None
        assert 120.0 <= counts.oldest_ready_s < 120.0 + LONG_S
        assert counts.workers == 1

    def test_what_is_due_is_known_by_its_queue(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        self.record(ledger, queue="later", delay_s=100.0)
        self.run_one(ledger, worker, queue="running")
        before = [ledger.has_due(queues) for queues in (["later"], ["running"], ["none"], [])]
        clock.forward(101.0)

        assert before == [False] * 4
        assert ledger.has_due(["none", "later"])
        assert not ledger.has_due(["running", "none"])

    def test_the_clock_is_the_databases_in_utc(self, ledger: Ledger, clock: Clock) -> None:
        now = ledger.clock()
        clock.forward(HOUR_S)

        assert now.tzinfo is UTC
        assert abs(now - datetime.now(UTC)) < timedelta(seconds=LONG_S)
        assert timedelta(seconds=HOUR_S) <= ledger.clock() - now < timedelta(seconds=HOUR_S + LONG_S)

    # -- text

    @pytest.mark.parametrize(
        "text",
        [
            "🦀 and 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
            'it\'s "quoted" `so` \\ back\\slash',
            "line\nnext\r\ntab\t",
            "%s %(x)s :name ? {0} $1",
            "é vs e\u0301",
        ],
    )
    def test_any_text_survives(self, ledger: Ledger, worker: Incarnation, text: str) -> None:
        payload = codec.encode({"a": [text], "k": {"k": text}}, path="args")
        claim = self.run_one(ledger, worker, payload=payload, key="k " + text.replace("\n", " ") + "!")
        assert claim.payload == payload
        self.settle(ledger, claim, Retry(0.0, text))
        [claim] = ledger.claim([claim.task_id], by=worker.id)
        self.settle(ledger, claim, Done(codec.encode(text, path="result")))

        task = ledger.get(claim.task_id)
        assert task is not None
        assert (task.args, task.kwargs, task.result, task.error) == ((text,), {"k": text}, text, text)
        assert ledger.history(claim.task_id)[0].detail["error"] == text

    def test_a_payload_and_a_result_of_250_kb_survive(self, ledger: Ledger, worker: Incarnation) -> None:
        large = codec.encode({"a": ["é" * 125_000], "k": {}}, path="args")
        claim = self.run_one(ledger, worker, payload=large)
        self.settle(ledger, claim, Done(large))

        task = ledger.get(claim.task_id)
        assert task is not None
        assert len(large.encode()) > 250_000
        assert (claim.payload, task.args, task.result["a"]) == (large, ("é" * 125_000,), ["é" * 125_000])

    @pytest.mark.parametrize("text", ["nul \x00 byte", "lone \ud800 surrogate"])
    def test_what_exceptions_and_people_say_never_keeps_an_outcome_from_being_written(
        self, ledger: Ledger, text: str
    ) -> None:
        workers = [incarnation() for _ in range(2)]
        for worker in workers:
            ledger.join(worker, queues=["default"], threads=1)
        claims = ledger.claim(self.record(ledger, 4), by=workers[0].id)
        outcomes: list[Outcome] = [Done(None, note=text), Retry(5.0, text), Dead(text, text), Cancelled(text)]
        settled = ledger.settle([Settlement(*pair) for pair in zip(claims, outcomes, strict=True)])
        [cancelled] = self.record(ledger)
        ledger.cancel(cancelled, reason=text)
        ledger.revive(cancelled, why=text)
        [claim] = ledger.claim([cancelled], by=workers[1].id)
        ledger.reap(workers[1].id, Evidence(text, failed={claim.task_id: (text, 1.0)}))

        assert [one.state for one in settled] == [State.SUCCEEDED, State.WAITING, State.DEAD, State.CANCELLED]
        task = ledger.get(claims[2].task_id)
        assert task is not None
        assert task.reason == task.error == text.replace("\x00", "\\x00").replace("\ud800", "\\ud800")
        assert self.kinds(ledger, cancelled) == ["cancelled", "revived", "reaped"]

    def test_an_endless_error_is_cut(self, ledger: Ledger, claimed: Claim) -> None:
        self.settle(ledger, claimed, Dead("r" * 5000, "e" * 5_000_000))

        task = ledger.get(claimed.task_id)
        assert task is not None
        assert task.error == "e" * 20_000
        assert task.reason == "r" * 200

    def test_names_that_differ_only_by_case_or_accent_are_different(self, ledger: Ledger) -> None:
        answers = ledger.record([new(name="Index", queue="Q", key=key)[0] for key in ("k", "K", "ḱ", "k!")])
        self.record(ledger, name="index", queue="q", key="k")

        assert all(one.created for one in answers)
        assert len(ledger.tasks(queue="Q")) == 4
        assert len(ledger.tasks(name="index")) == 1
        assert set(ledger.counts().queues) == {"Q", "q"}

    # -- the schema

    def test_the_schema_forbids_what_must_never_be_stored(self, ledger: Ledger, database: Database) -> None:
        [task_id] = self.record(ledger, key="k")
        t = database.tables.task
        nonsense: list[dict[str, Any]] = [
            {"state": "foo"},
            {"state": "running"},
            {"state": "succeeded"},
            {"settled_at": database.now()},
            {"state": "succeeded", "settled_at": database.now()},
            {"attempt": -1},
        ]
        for values in nonsense:
            with pytest.raises(DBAPIError, match=r"(?i)constraint"), database.engine.begin() as tx:
                tx.execute(update(t).where(t.c.id == task_id).values(**values))

    # -- everything together

    @pytest.mark.parametrize("seed", range(3))
    def test_any_sequence_of_operations_keeps_the_rules(self, ledger: Ledger, database: Database, seed: int) -> None:
        Walk(ledger, database, seed).run(steps=120)

    def test_closing_again_does_no_harm(self, url: str) -> None:
        ledger = SqlLedger(Database(url))
        ledger.close()
        ledger.close()


def claimed_by(ledger: Ledger, claim: Claim) -> str:
    task = ledger.get(claim.task_id)
    assert task is not None
    assert task.worker is not None
    return task.worker


class Walk:
    """A random sequence of operations; after each, every row must have moved only as `task.TRANSITIONS` allows."""

    def __init__(self, ledger: Ledger, database: Database, seed: int) -> None:
        self.ledger, self.database, self.seed = ledger, database, seed
        self.rng = Random(seed)
        self.ids: list[str] = []
        self.claims: list[Claim] = []
        self.workers: list[Incarnation] = []
        self.won: Counter[tuple[str, int]] = Counter()
        self.steps: dict[str, Callable[[], object]] = {
            "record": self.record,
            "claim": self.claim,
            "settle": self.settle,
            "reap": lambda: ledger.reap(self.a_worker(), self.evidence()),
            "leave": lambda: ledger.leave(self.a_worker()),
            "join": self.join,
            "beat": lambda: ledger.beat(self.a_worker()),
            "cancel": lambda: ledger.cancel(self.rng.choice(self.ids), reason="?"),
            "revive": lambda: ledger.revive(self.rng.choice(self.ids), why="?"),
            "promote": lambda: ledger.promote(limit=5),
            "orphans": lambda: ledger.orphans(limit=5),
            "unhint": lambda: ledger.unhint(self.some_ids()),
            "publish": lambda: ledger.mark_published(
                ledger.take_unpublished(limit=5, grace_s=0.0, horizon_s=self.rng.uniform(0, 100))
            ),
            "prune": lambda: ledger.prune(limit=1, retention_s=300.0, dead_retention_s=400.0),
            "wait": self.wait,
        }
        self.weights = [9, 20, 25, 2, 1, 3, 1, 4, 4, 4, 3, 2, 4, 1, 6]

    def run(self, *, steps: int) -> None:
        done: list[str] = []
        self.join()
        self.record()
        before = self.rows()
        for _ in range(steps):
            step = self.rng.choices([*self.steps], self.weights)[0]
            done.append(step)
            with suppress(Refused, KeyConflict, NotFound):
                self.steps[step]()
            after = self.rows()
            self.check(before, after, f"Walk(ledger, database, {self.seed}): {' '.join(done)}")
            before = after

    def check(self, before: dict[str, Any], after: dict[str, Any], how: str) -> None:
        for task_id, row in after.items():
            state = State(row.state)
            assert (state in SETTLED) == (row.settled_at is not None), how
            assert (state in SETTLED) <= (row.live_key is None), how
            assert state in SETTLED or (row.live_key is None) == (row.task_key is None), how
            assert row.failures + row.crashes <= row.attempt, how
            old = before.get(task_id)
            if old is None:
                assert row.attempt == 0, how
                continue
            assert row.attempt >= old.attempt, how
            assert row.failures >= old.failures or State(old.state) in (State.DEAD, State.CANCELLED), how
            if row.attempt > old.attempt:
                assert (state, row.token == old.token) == (State.RUNNING, False), how
            if state is not State(old.state):
                assert state in TRANSITIONS[State(old.state)], f"{old.state} -> {state.value}: {how}"
            elif state is State.RUNNING:
                assert (row.attempt, row.token) == (old.attempt, old.token), how
        assert all(State(before[task_id].state) in SETTLED for task_id in before.keys() - after.keys()), how
        assert not [fence for fence, count in self.won.items() if count > 1], how

    def rows(self) -> dict[str, Any]:
        with self.database.engine.connect() as connection:
            return {row.id: row for row in connection.execute(select(self.database.tables.task))}

    def record(self) -> None:
        facts = {
            "delay_s": self.rng.choice([0.0, 0.0, 30.0, 200.0]),
            "failures_max": self.rng.randint(1, 3),
            "crashes_max": self.rng.randint(1, 2),
            "key": self.rng.choice([None, None, "a", "b"]),
            "queue": self.rng.choice(["q", "r"]),
        }
        self.ids += [one.id for one in self.ledger.record(new(self.rng.randint(1, 3), **facts)) if one.created]

    def claim(self) -> None:
        self.claims += self.ledger.claim(self.some_ids(), by=self.a_worker())

    def settle(self) -> None:
        chosen = self.rng.sample(self.claims, min(len(self.claims), self.rng.randint(1, 4)))  # also long settled ones
        outcomes = [self.rng.choice([Done("1"), Done(), *OUTCOMES.values()]) for _ in chosen]
        settled = self.ledger.settle([Settlement(*pair) for pair in zip(chosen, outcomes, strict=True)])
        for one, claim, outcome in zip(settled, chosen, outcomes, strict=True):
            if one.state is State.SUCCEEDED:
                assert isinstance(outcome, Done)
                self.won[(one.task_id, claim.attempt)] += 1
                self.claims.remove(claim)

    def join(self) -> None:
        self.workers.append(incarnation())
        self.ledger.join(self.workers[-1], queues=["q"], threads=1)

    def wait(self) -> None:
        self.database.clock_offset_s += self.rng.uniform(0.0, 60.0)

    def evidence(self) -> Evidence:
        started = {claim.task_id: claim.attempt for claim in self.claims if self.rng.random() < 0.5}
        failed = {claim.task_id: ("slow", 5.0) for claim in self.claims if self.rng.random() < 0.1}
        return Evidence("SIGKILL", started=self.rng.choice([None, started]), failed=self.rng.choice([None, failed]))

    def a_worker(self) -> str:
        return self.rng.choice(self.workers[-4:]).id

    def some_ids(self) -> list[str]:
        return self.rng.sample(self.ids[-40:], min(len(self.ids[-40:]), self.rng.randint(1, 8)))
