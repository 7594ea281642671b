"""The schema files and their runner, on every database: equal to the tables, whole or not at all, applied once.

Two migrators, a crash after any statement, a user without rights, tables of somebody else: each on a real database.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT
from sqlalchemy import Connection, NullPool, create_engine, event, inspect, literal, select, text
from sqlalchemy.exc import DBAPIError

from tests.zygote import FORKED_WITH, Forked
from workq.config import Settings
from workq.diagnose.doctor.check import Level
from workq.diagnose.doctor.ledger import look
from workq.errors import ConfigError, LedgerUnavailable, SchemaMismatch
from workq.lab.servers import MariaDB, PostgreSQL
from workq.ledger.columns import DIALECTS, FROZEN
from workq.ledger.engine import migrate as migrations
from workq.ledger.engine.database import Database
from workq.ledger.engine.migrate import Status, ensure, migrate, require_current, statements, status
from workq.ledger.engine.url import ledger_url
from workq.ledger.schema import SCHEMA_VERSION
from workq.slices import every_table
from workq.values.codec import new_task_id

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path.name for path in (ROOT / "sql" / "sqlite").glob("[0-9]*.sql"))
NEW = ["schema.sql"]
"""What a new ledger gets."""
LANDED = "f48904343e24f3dd4a4f5cca7444fdc483e82863a8060a483ff784abb1511ae7"
"""The numbered files up to FROZEN, as they were released: a ledger may have stopped behind each of their statements."""
WAIT_S = 60.0
"""How long a test waits for another process. Never reached unless something is broken."""


class Place:
    """A kind of database: makes empty ones, and opens them."""

    def __init__(self, dialect: str, make: Callable[[], str]) -> None:
        self.dialect = dialect
        self.make = make
        self._opened: list[Database] = []

    def open(self, url: str | None = None, *, namespace: str = "workq", statement_timeout_s: float = 10.0) -> Database:
        """A database to work with; an empty one without a URL."""
        database = Database(url or self.make(), namespace=namespace, statement_timeout_s=statement_timeout_s)
        self._opened.append(database)
        return database

    def close(self) -> None:
        for database in self._opened:
            database.close()


KINDS = ("sqlite", "postgresql", "mysql")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    names = (f"m{secrets.token_hex(6)}" for _ in count())
    if request.param == "sqlite":
        place = Place("sqlite", lambda: f"sqlite:///{tmp_path / next(names)}.db")
    else:
        server = request.getfixturevalue({"postgresql": "postgres_server", "mysql": "mariadb_server"}[request.param])
        place = Place(request.param, lambda: server.create_database(next(names)))
    yield place
    place.close()


only = pytest.mark.parametrize


# -------------------------------------------------------------------------------------------------------- what it holds


def test_the_files_make_the_same_schema_as_the_sqlalchemy_tables(place: Place) -> None:
    by_files, by_tables = place.open(), place.open()
    migrate(by_files)
    every_table(by_tables.tables).create_all(by_tables.engine)

    found, wanted = schema_of(by_files), schema_of(by_tables)

    assert found.keys() == wanted.keys()
    for table in wanted:
        assert found[table] == wanted[table], table
    assert wanted.keys() == set(every_table(by_tables.tables).tables)


UPGRADES = [
    (dialect, version)
    for dialect in KINDS
    for version in range(1, SCHEMA_VERSION + 1)
    if dialect == "sqlite" or version % 4 == 1 or version >= SCHEMA_VERSION - 1
]
"""On a server each fourth: the row of an earlier version goes through the same files there."""


@only(("place", "version"), UPGRADES, indirect=["place"])
def test_an_upgrade_from_each_version_keeps_its_rows_and_makes_the_schema_of_a_new_ledger(
    place: Place, version: int
) -> None:
    schema, meta = of_a_new_ledger(place)
    old = at_version(place, version)
    execute(
        old,
        "INSERT INTO workq_task (id, name, queue, state, due_at, failures_max, crashes_max, payload, created_at, "
        "queued_at) VALUES (:id, 'n', 'q', 'ready', :at, 5, 3, '{}', :at, :at)",
        {"id": "01890000-0000-7000-8000-000000000001", "at": "2026-01-01 00:00:00.000"},
    )

    assert status(old) == Status(version, SCHEMA_VERSION, tuple(FILES[version:]))
    assert migrate(old) == FILES[version:]

    assert schema_of(old) == schema
    assert rows(old, META) == meta
    assert rows(old, "SELECT name, state, attempt, is_suspect, order_key FROM workq_task") == [
        ("n", "ready", 0, 0, None)
    ]
    require_current(old)


def test_what_followed_a_death_by_its_position_follows_it_by_its_task(place: Place) -> None:
    """The backfill of version 13."""
    old = at_version(place, 12)
    at = "2026-01-01 00:00:00.000"
    for number, after_death in enumerate(("skip", "block")):
        task_id = f"01890000-0000-7000-8000-00000000000{number}"
        execute(
            old,
            "INSERT INTO workq_task (id, name, queue, state, due_at, failures_max, crashes_max, payload, created_at, "
            "queued_at, order_key) VALUES (:id, :name, 'q', 'ready', :at, 5, 3, '{}', :at, :at, 'k')",
            {"id": task_id, "name": after_death, "at": at},
        )
        execute(
            old,
            "INSERT INTO workq_position (order_key, position, task_id, due_at, after_death) "
            "VALUES ('k', :number, :id, :at, :after_death)",
            {"number": number, "id": task_id, "at": at, "after_death": after_death},
        )

    migrate(old)

    found = rows(old, "SELECT name, after_death FROM workq_task ORDER BY name")
    assert found == [("block", None), ("skip", "skip")]


def test_the_comparison_sees_what_it_should(place: Place) -> None:
    """Checks, partial indexes and defaults are really compared: reflection could as well have found none."""
    task = schema_of(migrated(place))["workq_task"]

    assert set(task["checks"]) == {
        f"workq_task_{rule}"
        for rule in (
            "state",
            "running_has_a_fence",
            "settled_has_a_time",
            "settled_frees_its_key",
            "counts_are_not_negative",
        )
    }
    assert "'waiting'" in task["checks"]["workq_task_state"]
    names = {"open", "unpublished", "expiring", "running", "settled"}
    if place.dialect != "mysql":  # where it would have a place for each row, not for the dead alone
        names.add("dead")
    assert {name for name in task["indexes"] if name != "workq_task_live_key"} == {f"workq_task_{one}" for one in names}
    if place.dialect != "mysql":
        assert "'running'" in task["indexes"]["workq_task_running"][2]
    assert task["columns"]["attempt"][2] == "0"
    assert task["columns"]["token"][1] is True
    assert task["columns"]["payload"][1] is False


NONSENSE = [
    ("state = 'foo'", "state"),
    ("state = 'running'", "running_has_a_fence"),
    ("state = 'running', token = 'x'", "running_has_a_fence"),
    ("state = 'running', worker = 'x'", "running_has_a_fence"),
    ("state = 'succeeded'", "settled_has_a_time"),
    ("settled_at = created_at", "settled_has_a_time"),
    ("state = 'dead', settled_at = created_at, live_key = 'n:k'", "settled_frees_its_key"),
    ("attempt = -1", "counts_are_not_negative"),
    ("failures = -1", "counts_are_not_negative"),
    ("crashes = -1", "counts_are_not_negative"),
]
"""Changes of a task, and the rule that each breaks."""


def test_the_database_refuses_nonsense_and_names_the_rule(place: Place) -> None:
    database = migrated(place)
    insert_task(database, new_task_id())

    for change, rule in NONSENSE:
        with pytest.raises(DBAPIError, match=f"workq_task_{rule}"):
            execute(database, f"UPDATE workq_task SET {change}")

    execute(database, "UPDATE workq_task SET state = 'running', token = 'x', worker = 'x', live_key = 'n:k'")


def test_one_live_key_is_held_once_and_capitals_count(place: Place) -> None:
    database = migrated(place)
    insert_task(database, new_task_id(), live_key="n:k")
    insert_task(database, new_task_id(), live_key="n:K")
    insert_task(database, new_task_id(), live_key=None)
    insert_task(database, new_task_id(), live_key=None)

    with pytest.raises(DBAPIError, match="live_key"):
        insert_task(database, new_task_id(), live_key="n:k")


def test_the_longest_names_fit(place: Place) -> None:
    database = migrated(place, namespace="x" * 31)

    insert_task(database, new_task_id(), name="n" * 200, queue="q" * 100, live_key="n" * 200 + ":" + "😀" * 200)

    assert len(schema_of(database)) == len(every_table(database.tables).tables)


def test_mysql_refuses_what_is_too_long_whatever_the_server_is_set_to(mariadb_server: MariaDB) -> None:
    url = mariadb_server.create_database()
    admin = Database(url)
    (usual,) = rows(admin, "SELECT @@global.sql_mode")
    try:
        for mode in ("", "ANSI_QUOTES", usual[0]):
            execute(admin, "SET GLOBAL sql_mode = :mode", {"mode": mode})
            database = Database(url)
            migrate(database)
            with pytest.raises(DBAPIError, match="too long"):
                insert_task(database, new_task_id(), queue="q" * 101)
            database.close()
    finally:
        execute(admin, "SET GLOBAL sql_mode = :mode", {"mode": usual[0]})
        admin.close()


# -------------------------------------------------------------------------------------------------------------- migrate


def test_migrating_twice_changes_nothing_the_second_time(place: Place) -> None:
    database = place.open()
    assert status(database) == Status(0, SCHEMA_VERSION, tuple(NEW))

    assert migrate(database) == NEW
    insert_task(database, new_task_id())
    before = schema_of(database)
    assert migrate(database) == []

    assert schema_of(database) == before
    assert status(database) == Status(SCHEMA_VERSION, SCHEMA_VERSION, ())
    assert rows(database, "SELECT COUNT(*) FROM workq_task") == [(1,)]
    require_current(database)


def test_every_dialect_has_a_file_for_every_version() -> None:
    for dialect in DIALECTS:
        assert [path.name for path in sorted((ROOT / "sql" / dialect).iterdir())] == FILES + NEW
    assert [int(name[:4]) for name in FILES] == list(range(1, SCHEMA_VERSION + 1))


def test_what_was_released_is_never_edited() -> None:
    found = sha256()
    for dialect in DIALECTS:
        for name in FILES[:FROZEN]:
            found.update((ROOT / "sql" / dialect / name).read_bytes())

    assert found.hexdigest() == LANDED


def test_two_namespaces_live_beside_each_other_in_one_database(place: Place) -> None:
    url = place.make()
    shop, mail = place.open(url, namespace="shop"), place.open(url, namespace="mail2")

    assert migrate(shop) == NEW
    assert status(mail).version == 0
    assert migrate(mail) == NEW
    insert_task(shop, new_task_id())

    require_current(shop)
    require_current(mail)
    assert rows(mail, "SELECT COUNT(*) FROM mail2_task") == [(0,)]
    assert not any(name.startswith("workq_") for name in inspect(shop.engine).get_table_names())


def test_of_several_threads_that_migrate_at_once_one_does_it(place: Place) -> None:
    url = place.make()
    databases = [place.open(url) for _ in range(4)]
    together = threading.Barrier(len(databases))

    def one(database: Database) -> list[str]:
        together.wait(WAIT_S)
        return migrate(database)

    with ThreadPoolExecutor(len(databases)) as pool:
        answers = list(pool.map(one, databases))

    assert sorted(answers) == [[], [], [], NEW]
    require_current(databases[0])


def test_of_several_processes_that_open_an_empty_ledger_at_once_one_makes_the_schema(place: Place) -> None:
    url = place.make()

    answers = in_processes(3, "answer = migrate(Database(url)); require_current(Database(url))", url)

    assert sorted(answers) == sorted(["[]", "[]", str(NEW)])


def test_a_migrator_waits_for_another_one_that_is_under_way(place: Place) -> None:
    url = place.make()
    first, second = place.open(url), place.open(url, statement_timeout_s=1.0)
    is_inside, may_go_on = threading.Event(), threading.Event()

    def halt() -> None:
        is_inside.set()
        assert may_go_on.wait(WAIT_S)

    with ThreadPoolExecutor(2) as pool:
        with stopping(first, after=3, by=halt, once=True):
            one = pool.submit(migrate, first)
            assert is_inside.wait(WAIT_S)
            two = pool.submit(migrate, second)
            # longer than a statement may take, so that it is a wait and not luck
            assert not is_done_within(two, 1.5)
            may_go_on.set()
            assert one.result(WAIT_S) == NEW
        assert two.result(WAIT_S) == []


# -------------------------------------------------------------------------------------------------------------- crashes


@only(
    ("place", "version"),
    [
        ("sqlite", 0),
        ("sqlite", 1),
        ("postgresql", 0),
        ("postgresql", 1),
        ("mysql", 0),
    ],  # there 0 has the files of 1 too
    indirect=["place"],
)
def test_stopped_again_and_again_each_time_a_statement_later_a_migration_completes_in_the_end(
    place: Place, version: int
) -> None:
    """Where DDL commits by itself, each begins on what the one before has left; elsewhere, on what was there before.

    There what a statement has left would still be there at a later stop: it stops behind every tenth, and the last.
    """
    whole = schema_of(migrated(place))
    database = at_version(place, version)
    standing, complete = schema_of(database), version
    numbered = place.dialect == "mysql" or version  # MySQL completes by them what was left of a new ledger
    files = migrations._migrations(place.dialect)[version:] if numbered else [migrations._whole(place.dialect)]
    total = sum(len(one.statements()) for one in files)
    leap = 1 if place.dialect == "mysql" else 10
    stops = done = 0

    while True:
        with stopping(database, after=done, by=_raise):
            try:
                answer = migrate(database)
            except _Stopped:
                stops += 1
            else:
                break
        before, complete = complete, status(database).version or 0
        assert complete == version or (place.dialect == "mysql" and complete < SCHEMA_VERSION), done
        assert place.dialect == "mysql" or schema_of(database) == standing, done
        # else it was stopped before the first statement of the next file
        done = max(done + 1, min(done + leap, total - 1)) if complete == before else 1

    assert stops >= total // leap
    assert total > len(whole)
    assert answer == (FILES[complete:] if numbered else NEW)
    assert schema_of(database) == whole


def test_after_the_death_of_the_process_in_the_middle_migrating_again_completes_it(place: Place) -> None:
    total = len(migrations._whole(place.dialect).statements())
    url = place.make()
    program = f"""
from sqlalchemy import event
database, seen = Database(url), 0
@event.listens_for(database.engine, "before_cursor_execute")
def _count(_connection, _cursor, statement, *_):
    global seen
    seen += statement.startswith(("CREATE", "DROP", "INSERT", "ALTER", "UPDATE"))
    if seen > {total // 2}:
        os._exit(99)
answer = migrate(database)
"""
    with pytest.raises(ProcessDied, match="99"):
        in_processes(1, program, url)

    database = place.open(url)
    assert status(database).version == 0
    assert migrate(database) == (FILES if place.dialect == "mysql" else NEW)
    require_current(database)


def test_what_an_older_workq_has_left_of_a_migration_that_broke_off_is_completed(mariadb_server: MariaDB) -> None:
    place = Place("mysql", mariadb_server.create_database)
    database = place.open()
    for statement in migrations._migrations("mysql")[0].statements()[:3]:
        execute(database, statement)

    assert status(database) == Status(0, SCHEMA_VERSION, tuple(FILES))
    assert migrate(database) == FILES

    assert schema_of(database) == schema_of(migrated(place))
    place.close()


def test_every_statement_of_mysql_may_be_repeated() -> None:
    """Its DDL commits by itself, so a migration that broke off starts again at the first statement of its file."""
    # that a column or an index is there already is forgiven by the migrator
    repeatable = re.compile(
        r"(CREATE TABLE IF NOT EXISTS|DROP TABLE IF EXISTS|INSERT IGNORE|UPDATE"
        r"|ALTER TABLE \w+ ADD (COLUMN|(UNIQUE )?KEY)) "
    )

    for migration in (migrations._whole("mysql"), *migrations._migrations("mysql")):
        for statement in migration.statements():
            assert repeatable.match(statement), statement[:80]


# ------------------------------------------------------------------------------------------------------ missing, newer


def test_a_missing_schema_is_named_with_the_command_that_makes_it(place: Place) -> None:
    database = place.open()

    with pytest.raises(SchemaMismatch, match=r"no schema yet. Run: workq db migrate"):
        require_current(database)


def test_a_newer_schema_is_left_alone(place: Place) -> None:
    database = migrated(place)
    newer = SCHEMA_VERSION + 1
    execute(database, f"UPDATE workq_meta SET value = '{newer}' WHERE name = 'schema_version'")

    for refused in (require_current, migrate, ensure):
        with pytest.raises(
            SchemaMismatch, match=rf"this code knows schema {SCHEMA_VERSION}; .* has {newer}. Upgrade workq"
        ):
            refused(database)

    assert status(database) == Status(newer, SCHEMA_VERSION, ())
    assert rows(database, "SELECT value FROM workq_meta") == [(str(newer),)]


def test_an_older_schema_is_named_with_the_command_that_brings_it_up(place: Place) -> None:
    database = place.open()

    with pytest.raises(SchemaMismatch, match=r"has schema 1; this code needs 2. Run: workq db migrate"):
        migrations._refuse_other(Status(1, 2, ("0002_more.sql",)), database)


def test_a_version_that_is_no_number_is_not_guessed_at(place: Place) -> None:
    database = migrated(place)
    for value in ("", "one", "0", "-1", "1.0", "9" * 30):
        execute(database, f"UPDATE workq_meta SET value = '{value}' WHERE name = 'schema_version'")

        for refused in (status, require_current, migrate):
            with pytest.raises(SchemaMismatch, match="not a number"):
                refused(database)


# ------------------------------------------------------------------------------------------------------- not our own


def test_a_table_of_somebody_else_under_our_name_is_not_taken_over(place: Place) -> None:
    for name in ("workq_task", "workq_hint", "workq_job"):
        database = place.open()
        execute(database, f"CREATE TABLE {name} (id INTEGER NOT NULL, colour INTEGER)")

        with pytest.raises(SchemaMismatch, match=r"not workq's.* Choose another namespace"):
            migrate(database)

        assert columns(database, name) == {"id", "colour"}


def test_a_user_who_may_not_create_tables_gets_one_clear_error(place: Place) -> None:
    url = url_without_ddl(place)
    database = place.open(url)

    with pytest.raises(SchemaMismatch) as caught:
        migrate(database)

    assert "this user may not create tables" in str(caught.value)
    assert f"workq db sql {place.dialect}" in str(caught.value)
    assert "c4nary" not in str(caught.value)
    assert status(database).version == 0


def test_a_user_who_may_not_change_tables_is_told_what_prints_the_rest_of_the_way(tmp_path: Path) -> None:
    place = Place("sqlite", lambda: f"sqlite:///{tmp_path / 'old.db'}")
    at_version(place, 2)
    database = place.open(f"sqlite:///file:{tmp_path / 'old.db'}?mode=ro&uri=true")

    with pytest.raises(SchemaMismatch, match="workq db sql sqlite --from 2"):
        migrate(database)

    place.close()


@only("dialect", ["sqlite", "postgresql", "mysql"])
def test_a_ledger_that_does_not_answer_is_unavailable_not_without_a_schema(dialect: str, tmp_path: Path) -> None:
    url = {
        "sqlite": f"sqlite:///{tmp_path}/no/such/folder/workq.db",
        "postgresql": "postgresql://app:c4nary@127.0.0.1:1/shop",
        "mysql": "mysql://app:c4nary@127.0.0.1:1/shop",
    }[dialect]
    database = Database(url)

    for asked in (status, require_current, ensure, migrate):
        with pytest.raises(LedgerUnavailable) as caught:
            asked(database)
        assert "c4nary" not in str(caught.value)


# --------------------------------------------------------------------------------------------------------------- ensure


def test_ensure_makes_the_schema_in_an_empty_sqlite_file_only(place: Place) -> None:
    database = place.open()

    if place.dialect == "sqlite":
        ensure(database)
        require_current(database)
        assert rows(database, "PRAGMA journal_mode") == [("wal",)]
    else:
        with pytest.raises(SchemaMismatch, match="workq db migrate"):
            ensure(database)
        assert schema_of(database) == {}


def test_ensure_is_content_with_a_current_schema(place: Place) -> None:
    database = migrated(place)
    insert_task(database, new_task_id())

    ensure(database)
    ensure(database)

    assert rows(database, "SELECT COUNT(*) FROM workq_task") == [(1,)]


def test_ensure_leaves_a_sqlite_file_with_other_tables_to_a_person(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/shop.db")
    execute(database, "CREATE TABLE orders (id INTEGER)")

    with pytest.raises(SchemaMismatch, match="workq db migrate"):
        ensure(database)

    assert inspect(database.engine).get_table_names() == ["orders"]
    assert migrate(database) == NEW
    database.close()


def test_several_processes_may_ensure_the_same_new_file_at_once(tmp_path: Path) -> None:
    program = """
answer = []
for number in range(3):
    answer.append(ensure(Database(f"{url}{number}.db")))
    print("made", flush=True)
    sys.stdin.readline()
"""

    answers = in_processes(4, program, f"sqlite:///{tmp_path}/new", rounds=3)

    assert answers == [str([None] * 3)] * 4


# ---------------------------------------------------------------------------------------------------------- SQL to read


@only("namespace", ["workq", "shop"])
def test_the_printed_sql_makes_a_current_schema_without_our_runner(place: Place, namespace: str) -> None:
    url = place.make()
    by_hand = place.open(url, namespace=namespace)
    sql = statements({"postgresql": "postgres", "mysql": "mariadb"}.get(place.dialect, place.dialect), namespace)

    apply_as_a_dba(by_hand, sql)

    require_current(by_hand)
    assert migrate(by_hand) == []
    assert schema_of(by_hand) == schema_of(migrated(place, namespace=namespace)) or place.dialect == "sqlite"
    assert namespace == "workq" or "workq_" not in sql


@only("version", [1, 12, SCHEMA_VERSION - 1])
def test_the_printed_sql_brings_up_an_older_ledger_without_our_runner(place: Place, version: int) -> None:
    by_hand = at_version(place, version)

    apply_as_a_dba(by_hand, statements(place.dialect, after=version))

    require_current(by_hand)
    assert migrate(by_hand) == []


def test_the_printed_sql_is_refused_for_what_is_no_dialect_or_namespace() -> None:
    with pytest.raises(ConfigError, match="sqlite, postgresql, mysql"):
        statements("oracle")
    with pytest.raises(ConfigError, match="namespace"):
        statements("sqlite", 'x"; drop')
    for after in (-1, SCHEMA_VERSION):
        with pytest.raises(ConfigError, match=rf"nothing follows version {after}"):
            statements("sqlite", after=after)


def test_the_wheel_carries_the_files(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=WAIT_S)
    (wheel,) = tmp_path.glob("*.whl")  # a wheel is a zip file, and Python imports from one as it is

    url = f"sqlite:///{tmp_path}/workq.db"
    done = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM_HEAD}\nimport workq; print(workq.__file__)\nensure(Database({url!r}))"],
        env={**os.environ, "PYTHONPATH": str(wheel)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )

    assert done.stdout.startswith(str(wheel))


# ------------------------------------------------------------------------------------------------------ what they use


def migrated(place: Place, *, namespace: str = "workq") -> Database:
    database = place.open(namespace=namespace)
    migrate(database)
    return database


META = "SELECT name, value FROM workq_meta ORDER BY name"
_new: dict[str, tuple[dict[str, dict[str, Any]], list[tuple[Any, ...]]]] = {}


def of_a_new_ledger(place: Place) -> tuple[dict[str, dict[str, Any]], list[tuple[Any, ...]]]:
    """The schema, and the rows of workq_meta: looked at once."""
    if place.dialect not in _new:
        new = migrated(place)
        _new[place.dialect] = schema_of(new), rows(new, META)
    return _new[place.dialect]


def at_version(place: Place, version: int) -> Database:
    """A ledger that an older workq has made, and brought up file by file."""
    database = place.open()
    files = migrations._migrations(place.dialect)[:version]

    def apply(tx: Connection) -> None:
        for one in files:
            for statement in migrations._split(one, database.namespace):
                tx.exec_driver_sql(statement, execution_options={"no_parameters": True})

    database.run(apply)
    return database


def execute(database: Database, statement: str, values: dict[str, Any] | None = None) -> None:
    with database.engine.begin() as tx:
        tx.execute(text(statement), values or {})


def rows(database: Database, statement: str) -> list[tuple[Any, ...]]:
    with database.read() as tx:
        return [tuple(row) for row in tx.execute(text(statement))]


def columns(database: Database, table: str) -> set[str]:
    return {column["name"] for column in inspect(database.engine).get_columns(table)}


def insert_task(database: Database, task_id: str, **values: Any) -> None:
    t, now = database.tables.task, database.now
    some = {"name": "n", "queue": "q", "state": "ready", "failures_max": 5, "crashes_max": 3, "payload": "{}"}
    with database.engine.begin() as tx:
        tx.execute(t.insert().values(id=task_id, due_at=now(), created_at=now(), queued_at=now(), **(some | values)))


_CHARSET = re.compile(r" CHARACTER SET (\w+)(?= COLLATE \1_)")


def schema_of(database: Database) -> dict[str, dict[str, Any]]:
    """Everything the database says about the tables of the namespace, in words that can be compared."""
    inspector = inspect(database.engine)
    prefix = f"{database.namespace}_"
    names = sorted(name for name in inspector.get_table_names() if name.startswith(prefix))
    columns = inspector.get_multi_columns(filter_names=names)
    primary_keys = inspector.get_multi_pk_constraint(filter_names=names)
    uniques = inspector.get_multi_unique_constraints(filter_names=names)
    checks = inspector.get_multi_check_constraints(filter_names=names)
    indexes = inspector.get_multi_indexes(filter_names=names)
    foreign_keys = inspector.get_multi_foreign_keys(filter_names=names)
    options = _options(database, names)
    predicate = f"{database.dialect}_where"
    return {
        name: {
            "columns": {
                column["name"]: (
                    # the name of a collation begins with that of its character set, which MySQL tells only of
                    # a column whose statement has named one
                    _CHARSET.sub("", column["type"].compile(dialect=database.engine.dialect)),
                    column["nullable"],
                    None if column["default"] is None else str(column["default"]).strip("'"),
                    column.get("autoincrement"),
                )
                for column in columns[None, name]
            },
            "primary key": _plain(dict(primary_keys[None, name])),
            "unique": sorted((one["name"], one["column_names"]) for one in uniques[None, name]),
            "checks": {str(one["name"]): _plain(one["sqltext"]) for one in checks[None, name]},
            "indexes": {
                str(one["name"]): (
                    one["column_names"],
                    one["unique"],
                    _plain(one["dialect_options"].get(predicate)) if one.get("dialect_options") else "",
                )
                for one in indexes[None, name]
            },
            "foreign keys": foreign_keys[None, name],
            "options": sorted(row[1:] for row in options if row[0] == name),
        }
        for name in names
    }


def _options(database: Database, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """By table: engine, character set, fillfactor, and the server's own words for constraints and indexes, if any."""
    among = ", ".join(f"'{name}'" for name in names) or "''"
    match database.dialect:
        case "postgresql":
            return rows(
                database,
                "SELECT t.relname, c.conname, pg_get_constraintdef(c.oid) FROM pg_constraint c "
                f"JOIN pg_class t ON t.oid = c.conrelid WHERE t.relname IN ({among}) "
                f"UNION SELECT tablename, indexname, indexdef FROM pg_indexes WHERE tablename IN ({among}) "
                f"UNION SELECT relname, relname, reloptions::text FROM pg_class WHERE relname IN ({among})",
            )
        case "mysql":
            return rows(
                database,
                "SELECT table_name, engine, table_collation, row_format FROM information_schema.tables "
                f"WHERE table_schema = DATABASE() AND table_name IN ({among})",
            )
        case _:
            return []


def _plain(value: Any) -> str:
    return re.sub(r"\s+", " ", str(value)).replace("( ", "(").replace(" )", ")")


class _Stopped(Exception):
    """What a test throws into a migration. Not an error of a database, so nothing tries again."""


def _raise() -> None:
    raise _Stopped


@contextmanager
def stopping(database: Database, *, after: int, by: Callable[[], None], once: bool = False) -> Iterator[None]:
    """Call `by` before the statement that follows the first `after` ones of the schema files.

    Unless `once`, it is called before each later statement too, as if the connection were gone.
    """
    seen = 0
    is_over = False

    def before(_connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal seen, is_over
        if is_of_a_file(statement):
            seen += 1
        if seen > after and not is_over:
            is_over = once
            by()

    event.listen(database.engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        event.remove(database.engine, "before_cursor_execute", before)


def is_of_a_file(statement: str) -> bool:
    return statement.startswith(("CREATE", "DROP", "INSERT", "ALTER", "UPDATE"))


def is_done_within(future: Any, seconds: float) -> bool:
    try:
        future.result(seconds)
    except TimeoutError:
        return False
    return True


PROGRAM_HEAD = """
import os, sys
from workq.ledger.engine.database import Database
from workq.ledger.engine.migrate import ensure, migrate, require_current
"""


class ProcessDied(Exception):
    """A process of a test ended otherwise than it should."""


def in_processes(number: int, program: str, url: str, *, rounds: int = 0) -> list[str]:
    """Run a program in so many processes, which begin at the same moment; what each has left in `answer`.

    A program of several rounds says a line at the end of each, and goes on when it reads one: again all at one moment.
    """
    at_once = "url = sys.argv[1]\nprint('here', flush=True)\nsys.stdin.readline()"
    whole = f"{PROGRAM_HEAD}\n{at_once}\n{program}\nprint(answer)"
    started = [
        Forked(
            [sys.executable, "-c", whole, url],
            cwd=ROOT,
            env=os.environ | FORKED_WITH,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(number)
    ]
    try:
        for _ in range(1 + rounds):
            for process in started:
                assert process.stdout is not None
                process.stdout.readline()
            for process in started:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
        ended = [(process, *process.communicate(timeout=WAIT_S)) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, _, err in ended:
        if process.returncode != 0:
            raise ProcessDied(f"ended with {process.returncode}: {err}")
    return [out.strip() for _, out, _ in ended]


def url_without_ddl(place: Place) -> str:
    """The URL of an empty database for a user who may do anything but change its schema."""
    url = place.make()
    user = f"u{secrets.token_hex(6)}"
    admin = place.open(url)
    name, where = admin.url.database, f"127.0.0.1:{admin.url.port}"
    match place.dialect:
        case "postgresql":  # since version 15 only the owner of a database may create in its schema public
            execute(admin, f"CREATE ROLE {user} LOGIN PASSWORD 'c4nary'")
            return f"postgresql://{user}:c4nary@{where}/{name}"
        case "mysql":
            execute(admin, f"CREATE USER {user} IDENTIFIED BY 'c4nary'")
            execute(admin, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {user}")
            return f"mysql://{user}:c4nary@{where}/{name}"
        case _:
            execute(admin, "CREATE TABLE orders (id INTEGER)")
            return f"sqlite:///file:{name}?mode=ro&uri=true"


def apply_as_a_dba(database: Database, sql: str) -> None:
    """The whole text at once, as a person's client would send it."""
    match database.dialect:
        case "postgresql":
            with database.engine.connect() as connection:
                raw: Any = connection.connection.dbapi_connection
                raw.autocommit = True
                raw.execute(sql)
        case "mysql":
            where = database.url
            client = pymysql.connect(
                host=where.host or "",
                port=where.port or 0,
                user=where.username,
                password=where.password or "",
                database=where.database,
                client_flag=CLIENT.MULTI_STATEMENTS,
            )
            with client, client.cursor() as cursor:
                cursor.execute(sql)
                while cursor.nextset():
                    pass
                client.commit()
        case _:
            file = sqlite3.connect(str(database.url.database))
            file.executescript(sql)
            file.close()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_postgresql_database_that_is_not_utf8_is_refused_in_words_by_migrate_and_doctor(
    postgres_server: PostgreSQL, encoding: str
) -> None:
    beside = postgres_server.create_database()
    name = f"{beside.rpartition('/')[2]}_{encoding.lower()}"
    admin = create_engine(ledger_url(beside), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
    url = f"{beside.rpartition('/')[0]}/{name}"
    database = Database(url)

    with pytest.raises(ConfigError, match=f"its encoding is {encoding}.* workq needs UTF8: CREATE DATABASE"):
        migrate(database)
    with database.read() as tx:
        assert inspect(tx).get_table_names() == []
    database.close()
    assert any(encoding in check.message for check in look(Settings.load(ledger=url)) if check.level is Level.ERROR)


def test_what_the_environment_says_of_encodings_does_not_matter(
    postgres_server: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    database = Database(postgres_server.create_database())

    assert database.ask(lambda tx: tx.execute(select(literal("\U0001f600"))).scalar()) == "\U0001f600"
    database.close()
