"""How the databases find rows: never by reading the whole task table, and never the backlog where ids are known.

20,000 settled and 2,000 open tasks, with the statistics of now, and with those of an idle hour, when nothing was open:
the planner then takes the indexes of the open states for tiny. What a method sends to the database is
recorded, and each statement is explained with its own parameters. On PostgreSQL it is explained a second time as the
generic plan that the server uses for a statement which it has seen often.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from sqlalchemy import NullPool, bindparam, create_engine, insert
from sqlalchemy.types import Float

from tests.contract.given import chunks, new_job
from tests.contract.sent import listen
from workq.broker.later.due_rows import DueRows
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JobOptions
from workq.lab.servers import PostgreSQL
from workq.ledger import Evidence, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.hint_rows import insert_hints
from workq.ledger.scan_floor import Floor
from workq.ledger.sql import Ledger
from workq.limits.ledger.limits import Limits
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import WhichMessages
from workq.slices import SLICES, every_table
from workq.values import codec
from workq.values.hint import HintRow
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Dead, Done, Failed, HandedBack, Limit, NewTask, Outcome, Settlement
from workq.webhooks.ledger.sql import WebhookLedger

SETTLED, OPEN = 20_000, 2_000
WORKER = "live.worker"


@dataclass
class Stage:
    """A filled ledger, and some of its tasks."""

    ledger: Ledger
    database: Database
    ready: list[str]
    running: list[Claim]
    job: str = ""
    sent: list[tuple[str, Any]] = field(default_factory=list)


ONE = Limit("mail", concurrency=1)
STATISTICS = ["of now", "of an idle hour"]


def fill(database: Database, statistics: str) -> Stage:
    every_table(database.tables).create_all(database.engine)
    ledger = Ledger(database, SLICES)
    ledger.workers.join(Incarnation(WORKER, "host", 1), queues=["q"], threads=1)
    stage = Stage(ledger, database, [], [])
    rows: list[dict[str, Any]] = []
    for number in range(SETTLED + OPEN):
        place = "succeeded" if number < SETTLED else ("ready", "waiting", "running")[number % 3]
        rows.append(
            {
                "id": codec.new_task_id(),
                "state": place,
                "queue": f"q{number % 5}",
                "delay_s": (number % 7 - 4) * 60.0 if place == "waiting" else -60.0,
                "attempt": int(place in ("succeeded", "running")),
                "token": f"{number:032}",
                "worker": WORKER,
                "settled_s": -float(number),
                "expires_s": -5.0 if place == "waiting" and number % 30 == 1 else None,
            }
        )
        if place == "ready":
            stage.ready.append(rows[-1]["id"])
        if place == "running":
            stage.running.append(Claim(rows[-1]["id"], "n", "q", "{}", 1, f"{number:032}", 0, 0, 5, 3, None))
    t, now = database.tables.task, database.now
    facts = {"name": "n", "failures_max": 5, "crashes_max": 3, "payload": '{"a":[],"k":{}}'}
    times = {"created_at": now(), "queued_at": now(-60.0), "started_at": now()}
    due, settled, expires = (now(bindparam(name, type_=Float())) for name in ("delay_s", "settled_s", "expires_s"))
    events = [{"task_id": row["id"], "attempt": 1, "kind": "failed", "detail": "{}"} for row in rows[:SETTLED]]
    in_all = insert(t).values(due_at=due, expires_at=expires, published_at=now(), **facts, **times)
    with database.engine.begin() as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql("ALTER TABLE workq_task SET (autovacuum_enabled = false)")
        connection.execute(in_all.values(settled_at=settled), rows[:SETTLED])
        connection.execute(insert(database.tables.event).values(at=now()), events)
        connection.exec_driver_sql("ANALYZE")
        connection.execute(in_all, rows[SETTLED:])
    ledger.hints.unhint(stage.ready[:100])
    other = Ledger(database, SLICES)  # one that has claimed such tasks asks about limits and jobs the next time, too
    stage.job = begin_job(other)
    limited = other.tasks.record(
        [NewTask(codec.new_task_id(), "n", "q", '{"a":[],"k":{}}', limit=ONE) for _ in range(30)]
    )
    other.claims.claim([one.id for one in limited], by=WORKER)
    if statistics == "of now":
        with database.engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE")

    listen(database, lambda statement, parameters: stage.sent.append((statement, parameters)))
    return stage


def begin_job(ledger: Ledger) -> str:
    """A job that runs, with subtasks of which one has begun."""
    job = new_job(JobOptions(queue="q", window=50))
    ledger.part(JobLedger).jobs.begin_job(job)
    page = chunks(20)
    ledger.part(JobLedger).jobs.split_job(job.id, page, after=0, cursor=200, is_last=False)
    ledger.claims.claim([page[0].task_id], by=WORKER)
    return job.id


def of_the_past(database: Database) -> Stage:
    """Many tasks that have run, in a ledger that has just been analysed; and a worker that has left."""
    ledger = Ledger(database, SLICES)
    stage = Stage(ledger, database, [], [])
    for name in (WORKER, "left.worker"):
        ledger.workers.join(Incarnation(name, "host", 1), queues=["q"], threads=1)
    for _ in range(10):
        tasks = [NewTask(codec.new_task_id(), "n", "q", '{"a":[],"k":{}}') for _ in range(200)]
        ids = [one.id for one in ledger.tasks.record(tasks)]
        ledger.outcomes.settle([Settlement(claim, Done()) for claim in ledger.claims.claim(ids, by=WORKER)])
    ledger.workers.leave("left.worker")
    with create_engine(database.url, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
    listen(database, lambda statement, parameters: stage.sent.append((statement, parameters)))
    return stage


ORDERS = WhichMessages(destination="orders")
OTHERS: list[Outcome] = [Failed(9.0, "x"), Dead("r", "x"), HandedBack(), Done()]
CALLS: dict[str, Callable[[Stage], object]] = {
    "claim": lambda stage: stage.ledger.claims.claim(stage.ready[:100], by=WORKER),
    "claim one": lambda stage: stage.ledger.claims.claim(stage.ready[310:311], by=WORKER),
    "settle_done": lambda stage: stage.ledger.outcomes.settle(
        [Settlement(claim, Done()) for claim in stage.running[:50]]
    ),
    "settle one": lambda stage: stage.ledger.outcomes.settle([Settlement(stage.running[150], Done())]),
    "settle_others": lambda stage: stage.ledger.outcomes.settle(
        [Settlement(claim, outcome) for claim, outcome in zip(stage.running[50:150], OTHERS * 25, strict=True)]
    ),
    "mark_published": lambda stage: stage.ledger.hints.mark_published(
        [Unpublished(task_id, "q", 0, 0.0) for task_id in stage.ready[100:200]]
    ),
    "mark one published": lambda stage: stage.ledger.hints.mark_published([Unpublished(stage.ready[320], "q", 0, 0.0)]),
    "open_tasks": lambda stage: _first_pages(stage.ledger, is_running=False),
    "open_tasks that run": lambda stage: _first_pages(stage.ledger, is_running=True),
    "open_among": lambda stage: stage.ledger.audits.open_among(stage.ready[:100]),
    "queues_with_open_tasks": lambda stage: stage.ledger.audits.queues_with_open_tasks(),
    "take_unpublished": lambda stage: stage.ledger.hints.take_unpublished(limit=50, grace_s=0.0, horizon_s=60.0),
    "unhint": lambda stage: stage.ledger.hints.unhint(stage.ready[200:250]),
    "expire": lambda stage: stage.ledger.upkeep.expire(limit=50),
    "expirable": lambda stage: stage.ledger.plans.expirable(limit=50),
    "promote": lambda stage: stage.ledger.upkeep.promote(limit=50),
    "orphans": lambda stage: stage.ledger.workers.orphans(limit=50),
    "has_due": lambda stage: stage.ledger.questions.has_due(["q1", "q2"]),
    "due tasks": lambda stage: stage.ledger.due_tasks.oldest(["q1", "q2"], limit=100, after={}),
    "due tasks, the newest": lambda stage: stage.ledger.due_tasks.newest(["q1", "q2"], limit=100, before={}),
    "look": lambda stage: stage.ledger.claims.look(stage.ready[:50]),
    "prune": lambda stage: stage.ledger.upkeep.prune(limit=50, retention_s=60.0, dead_retention_s=60.0),
    "cancel": lambda stage: stage.ledger.decisions.cancel(stage.ready[300], who="ada", why="?"),
    "running": lambda stage: stage.ledger.questions.running(WORKER),
    "claimed_by": lambda stage: stage.ledger.workers.claimed_by(WORKER),
    "return_forgotten": lambda stage: stage.ledger.workers.return_forgotten(
        dict.fromkeys(stage.ready[:50], "?"), by=WORKER
    ),
    "tend_job": lambda stage: stage.ledger.part(JobLedger).care.tend_job(stage.job),
    "pause and resume_job": lambda stage: (
        stage.ledger.part(JobLedger).decisions.pause_job(stage.job, who="eve", why="?"),
        stage.ledger.part(JobLedger).decisions.resume_job(stage.job, who="eve", why="?"),
    ),
    "admit": lambda stage: stage.ledger.part(Limits).admit(["mail"]),
    "tend_deliveries": lambda stage: stage.ledger.part(WebhookLedger).counter.tend_deliveries(limit=50),
    "letters": lambda stage: stage.ledger.part(MessageLedger).letters.letters(["a", "b"]),
    "messages to one": lambda stage: stage.ledger.part(MessageLedger).letters.all(ORDERS, limit=50),
    "line of a destination": lambda stage: stage.ledger.part(MessageLedger).line.come("orders"),
    "length of a line": lambda stage: stage.ledger.part(MessageLedger).line.length("orders"),
    "tend the lines": lambda stage: stage.ledger.part(MessageLedger).line.tend(limit=50),
    "overdue messages": lambda stage: stage.ledger.part(MessageLedger).letters.overdue("orders"),
    "make_due": lambda stage: stage.ledger.part(MessageLedger).decisions.make_due(ORDERS, who="ada", why="?"),
    "wake": lambda stage: stage.ledger.part(MessageLedger).decisions.wake(limit=50),
    "ended messages": lambda stage: stage.ledger.part(MessageLedger).letters.ended(within_s=60.0, limit=50),
    "prune_messages": lambda stage: stage.ledger.part(MessageLedger).pruning.prune_messages(limit=50),
    "hold_deliveries": lambda stage: stage.ledger.part(WebhookLedger).decisions.hold_deliveries(limit=50),
    "history": lambda stage: stage.ledger.questions.history(stage.ready[0]),
    "reap": lambda stage: stage.ledger.workers.reap(WORKER, Evidence("SIGKILL")),  # the last: it ends the worker
}
BY_ID = {
    *("claim", "settle_done", "settle_others", "mark_published", "unhint", "look", "cancel"),
    *("claim one", "settle one", "mark one published", "return_forgotten"),
}
"""What knows its tasks must find them by their primary key, whatever the statistics say."""
OF_FEW = {"tend_job", "pause and resume_job", "admit", "tend_deliveries", "hold_deliveries"}
"""What begins at a job, a limit or a delivery finds its tasks from there."""


def _first_pages(ledger: Ledger, *, is_running: bool) -> None:
    after = None
    for _ in range(2):
        page = ledger.audits.open_tasks("q1", is_running=is_running, after=after, limit=50)
        after = page[-1] if page else after  # nothing runs any more once another call has reaped the worker


def statements(stage: Stage, call: str) -> Iterator[tuple[str, Any]]:
    """What a method sends, without the statements that no planner sees."""
    stage.sent.clear()
    CALLS[call](stage)
    sent = list(stage.sent)
    assert sent
    for statement, parameters in sent:
        if re.match(r"\s*(SELECT|UPDATE|DELETE|WITH)\b", statement):
            yield statement, parameters


class TestSQLite:
    @pytest.fixture(scope="class", params=STATISTICS)
    @classmethod
    def stage(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
        database = Database(f"sqlite:///{tmp_path_factory.mktemp('plans') / 'workq.db'}")
        yield fill(database, request.param)
        database.close()

    @pytest.mark.parametrize("call", CALLS)
    def test_rows_are_searched_not_scanned(self, stage: Stage, call: str) -> None:
        for statement, parameters in statements(stage, call):
            with stage.database.engine.connect() as connection:
                plan = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            text = "\n".join([statement, *plan])
            assert not [line for line in plan if re.match(r"SCAN workq_(task|event)\b", line)], text
            if call in BY_ID:
                tasks = [line for line in plan if "workq_task" in line]
                assert all("sqlite_autoindex_workq_task_1 (id=?)" in line for line in tasks), text


LOOKS: dict[str, Callable[[Ledger], object]] = {
    "unpublished": lambda ledger: ledger.hints.take_unpublished(limit=50, grace_s=0.0, horizon_s=60.0, dry_run=True),
    "lines": lambda ledger: ledger.hints.lines(slack_s=2.0),
    "promotable": lambda ledger: ledger.upkeep.promote(limit=50, dry_run=True),
}
"""What may begin at the floor (see ledger/scan_floor.py)."""


class TestPostgreSQL:
    @pytest.mark.parametrize("name", LOOKS)
    def test_a_look_that_begins_at_the_floor_reads_one_range_of_its_index(self, stage: Stage, name: str) -> None:
        """Otherwise it reads the dead versions below, which is what the floor is for."""
        ticks = count(0.0, 1.0)
        ledger = Ledger(stage.database, SLICES, floor=Floor(stage.database, clock=lambda: next(ticks)))
        ledger.hints.lines(slack_s=2.0)
        for _ in range(2):
            LOOKS[name](ledger)
        stage.sent.clear()

        LOOKS[name](ledger)

        sent = [(statement, given) for statement, given in stage.sent if "due_at >=" in statement]
        assert sent
        for statement, given in sent:
            nodes = self.nodes(self.plan(stage, statement, given))
            [cond] = [node["Index Cond"] for node in nodes if node.get("Index Name", "").startswith("workq_task_")]
            assert "(due_at >= " in cond, cond
            assert "(state)::text = '" in cond, cond

    def test_where_nearly_all_rows_are_dead_the_looks_of_a_sweep_still_read_one_range(
        self, postgres_server: PostgreSQL
    ) -> None:
        """While somebody's transaction keeps them, the statistics of each index are of nothing, and all look alike."""
        database = Database(postgres_server.create_database())
        every_table(database.tables).create_all(database.engine)
        with database.engine.connect() as forgotten:
            forgotten.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            forgotten.exec_driver_sql("SELECT 1 FROM workq_meta").all()
            stage = of_the_past(database)
            ticks = count(0.0, 1.0)
            ledger = Ledger(database, SLICES, floor=Floor(database, clock=lambda: next(ticks)))
            for _ in range(2):
                ledger.workers.orphans(limit=50)
            stage.sent.clear()

            ledger.upkeep.expire(limit=50)
            ledger.workers.orphans(limit=50)

            conditions = [one for one in self.explained_in_turn(stage) if one[0].startswith("workq_task_")]
        database.close()
        assert [name for name, _ in conditions] == ["workq_task_expiring", "workq_task_running"]
        assert "expires_at <= " in conditions[0][1]
        assert "worker" in conditions[1][1]

    def test_a_mover_does_not_read_what_is_due_later_to_find_what_is_due_now(self, postgres_server: PostgreSQL) -> None:
        """Behind a wave of new rows, until the next ANALYZE, PostgreSQL takes their table for small."""
        database = Database(postgres_server.create_database())
        every_table(database.tables).create_all(database.engine)
        with database.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE workq_hint SET (autovacuum_enabled = false)")
            connection.exec_driver_sql("ANALYZE workq_hint")
        database.run(lambda tx: insert_hints(tx, database, [HintRow("q", "{}", 1, 3600.0 + n) for n in range(2_000)]))
        database.run(lambda tx: insert_hints(tx, database, [HintRow("q", "{}", 1, 0.1)]))
        stage = Stage(Ledger(database, SLICES), database, [], [])
        listen(database, lambda statement, parameters: stage.sent.append((statement, parameters)))
        rows = DueRows(database)

        assert rows.first(within_s=0.3).keys() == {"q"}
        assert len(rows.take(["q"], ahead_s=0.3, limit=1000)) == 1

        looks = [one for one in stage.sent if "due_at >=" in one[0]]
        assert len(looks) == 2
        for statement, parameters in looks:
            with database.engine.connect() as connection:
                found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
                nodes = self.nodes(found.scalar_one()[0]["Plan"])
                assert max(node["Actual Rows"] for node in nodes) <= 1, statement
        database.close()

    def test_some_of_many_due_tasks_are_found_without_reading_all_of_them(self, postgres_server: PostgreSQL) -> None:
        """Each process without hints asks so, again and again; a backlog was written since the last ANALYZE."""
        database = Database(postgres_server.create_database())
        every_table(database.tables).create_all(database.engine)
        ledger = Ledger(database, SLICES)
        with database.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE workq_task SET (autovacuum_enabled = false)")
            connection.exec_driver_sql("ANALYZE workq_task")
        for _ in range(30):
            ledger.tasks.record([NewTask(codec.new_task_id(), "act", "q", "{}") for _ in range(100)])
        stage = Stage(ledger, database, [], [])
        listen(database, lambda statement, parameters: stage.sent.append((statement, parameters)))

        assert len(ledger.due_tasks.oldest(["q"], limit=100, after={})) == 100

        read = [node["Actual Rows"] for node in self.nodes_in_turn(stage, "ANALYZE, ")]
        database.close()
        assert 100 <= max(read) <= 201, "what is due at the same moment is sorted by its id"

    def explained_in_turn(self, stage: Stage) -> list[tuple[str, str]]:
        """The indexes that were used, each with its condition."""
        nodes = self.nodes_in_turn(stage)
        return [(node["Index Name"], node.get("Index Cond", "")) for node in nodes if "Index Name" in node]

    def nodes_in_turn(self, stage: Stage, how: str = "") -> list[Any]:
        """The plans of what was sent, node by node. What was set between the statements is set here, too."""
        found: list[Any] = []
        with stage.database.engine.connect() as connection:
            for statement, parameters in list(stage.sent):
                if statement.startswith("SET "):
                    connection.exec_driver_sql(statement)
                    continue
                explained = connection.exec_driver_sql(f"EXPLAIN ({how}FORMAT JSON) {statement}", parameters)
                found += self.nodes(explained.scalar_one()[0]["Plan"])
                connection.commit()  # what was set for one transaction ends with it
        return found

    @pytest.fixture(scope="class", params=STATISTICS)
    @classmethod
    def stage(cls, request: pytest.FixtureRequest, postgres_server: PostgreSQL) -> Iterator[Stage]:
        database = Database(postgres_server.create_database())
        yield fill(database, request.param)
        database.close()

    @pytest.mark.parametrize("call", CALLS)
    def test_no_statement_reads_the_whole_table(self, stage: Stage, call: str) -> None:
        for statement, parameters in statements(stage, call):
            for plan in (self.plan(stage, statement, parameters), self.generic_plan(stage, statement, parameters)):
                nodes = list(self.nodes(plan))
                text = f"{statement}\n{json.dumps(plan, indent=1)}"
                whole = [node for node in nodes if node["Node Type"] == "Seq Scan"]
                assert not [node for node in whole if node["Relation Name"] in ("workq_task", "workq_event")], text
                if call in BY_ID | OF_FEW:
                    by_id = [node for node in nodes if node.get("Index Name") == "workq_task_pk"]
                    assert all("Index Cond" in node for node in by_id), f"all tasks, in the order of their ids: {text}"
                if call in BY_ID:
                    indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
                    # few workers are live: finding one of them among these is as good as by its name
                    of_workers = {"workq_worker_pk", "workq_worker_by_state"}
                    of_messages = {"workq_message_by_task", "workq_destination_pk"}
                    assert indexes <= {"workq_task_pk", "workq_event_by_task"} | of_workers | of_messages, text

    @staticmethod
    def plan(stage: Stage, statement: str, parameters: Any) -> Any:
        with stage.database.engine.connect() as connection:
            found = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
            return found.scalar_one()[0]["Plan"]

    @staticmethod
    def generic_plan(stage: Stage, statement: str, parameters: Any) -> Any:
        """The plan that serves any parameters: PostgreSQL may choose it from the sixth execution on."""
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
        numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%")
        values = ", ".join(f"%({name})s" for name in names)
        with stage.database.engine.connect() as connection:
            connection.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
            connection.exec_driver_sql(f"PREPARE explained AS {numbered}".replace("%", "%%"))
            literal = connection.connection.dbapi_connection.cursor()  # type: ignore[union-attr]  # it is connected
            import psycopg

            text = psycopg.ClientCursor(literal.connection).mogrify(f"({values})", parameters) if names else ""
            found = connection.exec_driver_sql(
                f"EXPLAIN (FORMAT JSON) EXECUTE explained {text}".replace("%", "%%")
            ).scalar_one()[0]["Plan"]
            connection.exec_driver_sql("DEALLOCATE explained")
            return found

    @classmethod
    def nodes(cls, plan: Any) -> Iterator[Any]:
        yield plan
        for child in plan.get("Plans", []):
            yield from cls.nodes(child)
