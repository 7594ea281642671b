"""Record: a task is in the ledger, as it was given, or it is not; in a transaction of ours or of the caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from tests.contract.given import HOUR_S, LONG_S, OTHER_THAN_DEFAULT, Clock, new
from tests.contract.ledger.steps import Steps
from workq.errors import ConfigError, KeyConflict
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.ledger.tasks import RARE
from workq.values import codec
from workq.values.hint import HintRow
from workq.values.incarnation import Incarnation
from workq.values.options import Stored, in_columns
from workq.values.task import Done, Enqueued, NewTask, State


def hint_rows(tasks: Sequence[NewTask]) -> list[HintRow]:
    return [HintRow(task.queue, task.id, 1, task.delay_s) for task in tasks]


class RecordContract(Steps):
    def test_a_recorded_task_is_ready_and_reads_as_it_was_given(self, ledger: Ledger) -> None:
        [given] = new(name="mail.send", queue="mail", failures_max=7, crashes_max=2, key="k")

        [answer] = ledger.tasks.record([given])

        assert answer == Enqueued(given.id, State.READY, created=True)
        task = self.task(ledger, given.id)
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
        assert abs(task.created_at - ledger.questions.clock()) < timedelta(seconds=LONG_S)
        assert task.due_at == task.created_at

    @pytest.mark.parametrize("rare", RARE, ids=lambda one: one.name)
    @pytest.mark.parametrize("plain", [0, 2])
    def test_a_rare_field_is_stored_also_beside_tasks_that_have_its_default(
        self, ledger: Ledger, rare: Stored, plain: int
    ) -> None:
        with_it = new(2, **{rare.name: OTHER_THAN_DEFAULT[rare.name]})
        without = new(plain)
        t = ledger.database.tables.task

        ledger.tasks.record([*without, *with_it])

        rows = {row.id: row for row in ledger.database.ask(lambda tx: tx.execute(select(t)).all())}
        written = [[getattr(rows[task.id], column) for column in rare.columns] for task in with_it]
        if rare.is_from_now:
            seconds = timedelta(seconds=OTHER_THAN_DEFAULT[rare.name])
            early = [rows[task.id].created_at + seconds - at for task, [at] in zip(with_it, written, strict=True)]
            assert max(map(abs, early)) < timedelta(seconds=LONG_S / 2)
        else:
            assert written == [list(in_columns(task, [rare]).values()) for task in with_it]
        for task in without:
            assert {getattr(rows[task.id], column) for column in rare.columns} == {None}

    def test_recording_nothing_does_nothing(self, ledger: Ledger) -> None:
        assert ledger.tasks.record([]) == []

    def test_a_delayed_task_waits_and_cannot_be_claimed_before_it_is_due(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        [given] = new(delay_s=HOUR_S)
        [answer] = ledger.tasks.record([given])
        clock.forward(HOUR_S - 30)
        early = ledger.claims.claim([given.id], by=worker.id)
        clock.forward(30)
        due = ledger.claims.claim([given.id], by=worker.id)

        assert answer.state is State.WAITING
        assert early == []
        assert [claim.task_id for claim in due] == [given.id]

    def test_what_is_due_at_an_instant_is_due_exactly_then(self, ledger: Ledger) -> None:
        at = ledger.questions.clock().replace(microsecond=0) + timedelta(hours=1)
        one, *others = new(3, delay_s=HOUR_S, at=at)
        ledger.tasks.record([one], hints=hint_rows)
        ledger.tasks.record(others)
        keyed = new(1, delay_s=HOUR_S, at=at, key="k")
        ledger.tasks.record(keyed)
        [moved] = self.record(ledger)
        ledger.decisions.reschedule(moved, delay_s=HOUR_S, who="ada", why="?", at=at)

        tasks = [
            self.task(ledger, task_id) for task_id in (one.id, *(other.id for other in others), keyed[0].id, moved)
        ]

        assert {task.due_at for task in tasks} == {at}
        ledger.decisions.reschedule(moved, delay_s=0.0, who="ada", why="now", at=at - timedelta(hours=2))
        assert self.task(ledger, moved).due_at > at - timedelta(hours=1, seconds=LONG_S)

    def test_an_instant_and_its_hint_come_by_the_clock_of_the_ledger_whatever_the_host_takes_for_now(
        self, ledger: Ledger
    ) -> None:
        """To a host whose clock is ahead the instant is past, to one that is behind it is far away."""
        at = ledger.questions.clock().replace(microsecond=0) + timedelta(hours=1)
        [ahead], [behind], [after] = (new(delay_s=delay_s, at=at) for delay_s in (0.0, 2 * HOUR_S, HOUR_S))
        [moved] = self.record(ledger)
        hint = ledger.database.tables.hint

        answers = [
            *ledger.tasks.record([ahead], hints=hint_rows),
            *ledger.tasks.record([behind, *new(delay_s=60.0)], hints=hint_rows)[:1],
            *ledger.tasks.record([after]),
        ]
        wanted = ledger.decisions.reschedule(moved, delay_s=0.0, who="ada", why="?", at=at)

        tasks = [self.task(ledger, task_id) for task_id in (ahead.id, behind.id, after.id, moved)]
        assert {(task.due_at, task.state) for task in tasks} == {(at, State.WAITING)}
        rows = select(hint.c.due_at).where(hint.c.body.in_([ahead.id, behind.id]))
        times = ledger.database.ask(lambda tx: tx.execute(rows).scalars().all())
        assert len(times) == 2
        assert all(abs(one - at) < timedelta(milliseconds=2) for one in times)
        for left_s in (*(one.due_in_s for one in answers), wanted.delay_s):
            assert left_s is not None
            assert HOUR_S - LONG_S < left_s <= HOUR_S

    def test_a_task_can_be_due_in_ten_years(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, delay_s=3650 * 86400.0)

        task = self.task(ledger, task_id)
        assert task.due_at - task.created_at == timedelta(days=3650)

    def test_many_alike_are_recorded_as_given_whatever_stands_in_their_payloads(self, ledger: Ledger) -> None:
        texts = ['"', "\\", '\\"', "{a,b}", "NULL", "", " ", "'); --", "\u2028 \U0001f600", "%s %(x)s", '{"', "\\\\"]
        tasks = [
            NewTask(codec.new_task_id(), "index", "default", codec.encode({"a": [text], "k": {}}, path="args"), 30.0)
            for text in texts
        ]

        recorded = ledger.tasks.record(tasks)

        assert recorded == [Enqueued(task.id, State.WAITING, True) for task in tasks]
        assert [self.task(ledger, task.id).args for task in tasks] == [(text,) for text in texts]

    def test_a_batch_is_recorded_as_a_whole_or_not_at_all(self, ledger: Ledger) -> None:
        self.record(ledger, key="taken")
        batch = [*new(5), *new(key="taken", payload='{"a":[2],"k":{}}'), *new(5)]

        with pytest.raises(KeyConflict):
            ledger.tasks.record(batch)

        assert all(ledger.questions.get(one.id) is None for one in batch)

    def test_a_batch_with_a_row_that_the_schema_forbids_leaves_nothing(self, ledger: Ledger) -> None:
        batch = [*new(3), *new(name=None), *new(3)]

        with pytest.raises(IntegrityError):
            ledger.tasks.record(batch)

        assert all(ledger.questions.get(one.id) is None for one in batch)

    def test_recording_again_with_the_same_ids_answers_the_same_and_adds_nothing(
        self, ledger: Ledger, database: Database
    ) -> None:
        batch = [*new(3), *new(delay_s=60.0), *new(key="k")]
        first = ledger.tasks.record(batch)
        before = self.everything(database)

        second = ledger.tasks.record(batch)

        assert second == first
        assert all(one.created for one in second)
        assert self.everything(database) == before

    def test_what_an_unknown_commit_recorded_in_part_of_a_batch_is_completed(self, ledger: Ledger) -> None:
        batch = new(6)
        ledger.tasks.record(batch[:3])

        answers = ledger.tasks.record(batch)

        assert [one.id for one in answers] == [one.id for one in batch]
        assert all(one.created for one in answers)
        assert len(ledger.questions.tasks()) == 6

    def test_recording_again_after_the_task_was_settled_answers_where_it_is(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        [given] = new(key="k")
        ledger.tasks.record([given])
        [claim] = ledger.claims.claim([given.id], by=worker.id)
        self.settle(ledger, claim, Done())
        ledger.tasks.record(new(key="k"))  # the key has another holder now

        assert ledger.tasks.record([given]) == [Enqueued(given.id, State.SUCCEEDED, created=True)]

    # -- in the caller's transaction

    def test_a_task_of_a_transaction_that_rolls_back_is_never_seen(self, ledger: Ledger, theirs: Engine) -> None:
        batch = [*new(3), *new(key="k")]
        with theirs.connect() as connection:
            answers = ledger.tasks.record(batch, connection=connection)
            connection.rollback()

        assert all(one.created for one in answers)
        assert all(ledger.questions.get(one.id) is None for one in batch)

    def test_a_task_of_a_transaction_that_commits_is_seen_from_then_on(self, ledger: Ledger, theirs: Engine) -> None:
        batch = [*new(3), *new(key="k")]
        with theirs.connect() as connection:
            ledger.tasks.record(batch, connection=connection)
            before = [ledger.questions.get(one.id) for one in batch]
            connection.commit()

        assert before == [None] * 4
        assert all(ledger.questions.get(one.id) is not None for one in batch)

    def test_a_session_is_as_good_as_a_connection(self, ledger: Ledger, theirs: Engine) -> None:
        [kept], [dropped] = new(), new()
        with Session(theirs) as session:
            ledger.tasks.record([kept], connection=session)
            session.commit()
            ledger.tasks.record([dropped], connection=session)
            session.rollback()

        assert ledger.questions.get(kept.id) is not None
        assert ledger.questions.get(dropped.id) is None

    def test_a_savepoint_that_rolls_back_takes_its_tasks_along(self, ledger: Ledger, theirs: Engine) -> None:
        [kept], [dropped] = new(), new()
        with theirs.begin() as connection:
            ledger.tasks.record([kept], connection=connection)
            savepoint = connection.begin_nested()
            ledger.tasks.record([dropped], connection=connection)
            savepoint.rollback()

        assert ledger.questions.get(kept.id) is not None
        assert ledger.questions.get(dropped.id) is None

    def test_the_callers_transaction_goes_on_after_a_key_conflict(self, ledger: Ledger, theirs: Engine) -> None:
        self.record(ledger, key="k")
        [kept] = new()
        with theirs.begin() as connection:
            with pytest.raises(KeyConflict):
                ledger.tasks.record([*new(), *new(key="k", payload='{"a":[2],"k":{}}')], connection=connection)
            ledger.tasks.record([kept], connection=connection)

        assert {task.id for task in ledger.questions.tasks() if task.key is None} == {kept.id}

    def test_a_key_is_found_from_within_the_callers_transaction(self, ledger: Ledger, theirs: Engine) -> None:
        [holder] = self.record(ledger, key="k")
        with theirs.begin() as connection:
            [answer] = ledger.tasks.record(new(key="k"), connection=connection)

        assert answer == Enqueued(holder, State.READY, created=False)

    def test_a_connection_to_another_database_is_refused(self, ledger: Ledger) -> None:
        engine = create_engine("sqlite://")
        with engine.connect() as connection, pytest.raises(ConfigError, match="its own ledger"):
            ledger.tasks.record(new(), connection=connection)
        engine.dispose()

    @pytest.mark.parametrize("whose", ["engine", "options", "connection"])
    def test_a_connection_that_commits_each_statement_is_refused(
        self, ledger: Ledger, theirs: Engine, whose: str
    ) -> None:
        level = "AUTOCOMMIT"
        engine = create_engine(theirs.url, isolation_level=level) if whose == "engine" else theirs
        engine = engine.execution_options(isolation_level=level) if whose == "options" else engine
        with engine.connect() as plain:
            connection = plain.execution_options(isolation_level=level) if whose == "connection" else plain
            with pytest.raises(ConfigError, match="connection: it is in AUTOCOMMIT"):
                ledger.tasks.record(new(), connection=connection)
        if whose == "engine":
            engine.dispose()

    def test_what_is_no_connection_is_refused(self, ledger: Ledger, theirs: Engine) -> None:
        class Asynchronous:
            async def connection(self) -> None: ...

        with theirs.connect() as closed:
            closed.close()
        for wrong in (object(), "sqlite://", theirs, Asynchronous(), closed):
            with pytest.raises(ConfigError, match="connection: "):
                ledger.tasks.record(new(), connection=wrong)

    # -- with its hints

    def test_hints_are_written_in_the_transaction_that_records(self, ledger: Ledger, database: Database) -> None:
        given = new(3)
        ledger.tasks.record(given, hints=hint_rows)

        assert len(self.everything(database)[database.tables.hint.name]) == 3
        assert ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=60.0) == []

    @pytest.mark.parametrize("key", [None, "k"], ids=["alike", "each"])
    def test_a_hint_is_as_due_as_its_task(self, ledger: Ledger, database: Database, key: str | None) -> None:
        given = [*new(2, queue="mail", delay_s=HOUR_S), *new(queue="mail", delay_s=HOUR_S, key=key)]
        ledger.tasks.record(given, hints=hint_rows)

        hint = database.tables.hint
        rows = database.ask(lambda tx: tx.execute(select(hint)).all())
        assert {(row.queue, row.size) for row in rows} == {("mail", 1)}
        due_at = {task.id: task.due_at for task in ledger.questions.tasks()}
        assert {row.body for row in rows} == set(due_at)
        assert all(abs(row.due_at - due_at[row.body]) < timedelta(seconds=LONG_S) for row in rows)

    def test_when_the_hints_cannot_be_written_nothing_is_recorded(self, ledger: Ledger, database: Database) -> None:
        def refused(tasks: Sequence[NewTask]) -> list[HintRow]:
            """No database takes the last one."""
            return [*hint_rows(tasks), HintRow(tasks[0].queue, "none", cast(int, None), 0.0)]

        with pytest.raises((IntegrityError, DataError)):
            ledger.tasks.record(new(3), hints=refused)

        assert ledger.questions.tasks() == []
        assert self.everything(database)[database.tables.hint.name] == []

    def test_only_created_tasks_are_hinted(self, ledger: Ledger, database: Database) -> None:
        self.record(ledger, key="k")
        hinted: list[str] = []
        given = [*new(2), *new(key="k")]

        def noted(tasks: Sequence[NewTask]) -> list[HintRow]:
            hinted.extend(task.id for task in tasks)
            return []

        ledger.tasks.record(given, hints=noted)
        tasks = [task for task in given if task.key is None]
        standing = ledger.tasks.record(tasks, hints=hint_rows)

        assert Counter(hinted[-2:]) == Counter(task.id for task in tasks)
        assert all(one.created for one in standing)
        assert self.everything(database)[database.tables.hint.name] == []
