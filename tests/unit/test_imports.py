"""Importing workq is cheap: no client library, no database toolkit, nothing for terminals."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import workq
from workq.ledger.schema import Tables
from workq.slices import every_table

HEAVY = {
    "pika",
    "redis",
    "sqlalchemy",
    "aiohttp",
    "rich",
    "click",
    "apscheduler",
    "psycopg",
    "pymysql",
    "confluent_kafka",
}


@pytest.mark.parametrize("statement", ["import workq", "from workq import WorkQueue, current, State"])
def test_importing_pulls_in_no_heavy_module(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint(' '.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & HEAVY, loaded & HEAVY


def test_a_queue_can_be_made_and_tasks_registered_without_them() -> None:
    code = """
from workq import WorkQueue
wq = WorkQueue(ledger='postgresql://u:p@h/d', broker='amqp://u:p@h', inflight='redis://h')
@wq.task(name='a')
def a(): ...
import sys
print(' '.join(sorted(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & HEAVY, loaded & HEAVY


def test_a_process_loads_what_counts_jobs_and_webhooks_when_it_settles_some() -> None:
    code = "import workq.slices, workq.worker.process, sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.split())

    assert "workq.ledger.sql" in loaded
    assert not loaded & {"workq.jobs.ledger.sql", "workq.webhooks.ledger.sql"}


def test_a_supervisor_loads_nothing_that_runs_tasks() -> None:
    code = "import workq.supervisor.supervisor, sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name for name in done.stdout.split() if name.startswith(("workq.worker", "workq.handlers"))}

    assert "workq.worker.readiness" in loaded
    assert not loaded & {"workq.worker.process", "workq.worker.pool", "workq.worker.dispatch", "workq.handlers.handler"}


def test_a_worker_on_one_file_loads_nothing_of_the_other_databases(tmp_path: Path) -> None:
    code = """
import sys
import workq.worker.process
from workq import WorkQueue
from workq.ledger.engine import migrate
with WorkQueue(ledger=sys.argv[1]) as wq:
    database = wq.database()
    migrate.migrate(database)
    database.close()
    wq.stores.ledger.questions.workers()
print(' '.join(name for name in sys.modules if name.startswith("sqlalchemy.dialects.")))
"""
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path}/workq.db"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.split(".")[2] for name in done.stdout.split()}
    assert "sqlite" in loaded
    assert not loaded & {"postgresql", "mysql"}


def test_no_part_of_workq_draws_from_the_random_numbers_of_the_application() -> None:
    """An application that has seeded them, or a test that watches them, gets those that it would get without workq."""
    drawn = [
        f"{path}:{node.lineno}"
        for path in sorted(Path(workq.__file__).parent.rglob("*.py"))
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and hasattr(random, node.attr)  # of this module, not of another by that name
        and node.attr not in ("Random", "SystemRandom")
    ]
    assert drawn == []


def test_the_layers_have_no_exceptions() -> None:
    settings = tomllib.loads((Path(workq.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    [layers] = [one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers"]

    assert "ignore_imports" not in layers


LIBRARIES: Final = {
    "aiohttp": ("outbound/", "webhooks/", "demo/"),
    "apscheduler": ("supervisor/ticker.py",),
    "click": ("cli/", "demo/"),
    "confluent_kafka": (
        "broker/kafka/",
        "messages/kinds/kafka.py",
        "messages/intake/kafka",
        "outbound/kafka_headers.py",
        "lab/",
        "demo/",
    ),
    "pika": (
        "broker/rabbitmq/",
        "diagnose/doctor/",
        "lab/",
        "demo/",
        "messages/kinds/amqp.py",
        "messages/kinds/amqp_session.py",
        "messages/intake/amqp",
        "outbound/amqp_loop.py",
        "outbound/amqp_tables.py",
    ),
    "psycopg": ("ledger/engine/",),
    "redis": ("inflight/redis/", "diagnose/doctor/", "lab/", "messages/kinds/redis.py"),
    "sqlalchemy": (
        "ledger/",
        *(f"{slice_}/ledger" for slice_ in ("jobs", "limits", "messages", "order", "schedules", "webhooks")),
        "broker/embedded/",
        "broker/later/",
        "inflight/embedded.py",
        "jobs/sources.py",  # rows of the user's own table as items
        "enqueue/producer.py",  # listens to the commit of a caller's connection
        "diagnose/doctor/",
        "lab/",
        "demo/",
    ),
}
"""Where each library is imported, and nowhere else."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_where_it_belongs_and_nowhere_else(library: str) -> None:
    package = Path(workq.__file__).parent
    importing = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if library in _imported(path)}

    assert [one for one in sorted(importing) if not one.startswith(LIBRARIES[library])] == []
    assert importing


@cache
def _tree(path: Path) -> ast.Module:
    """Read once for all that look at it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imported(path: Path) -> frozenset[str]:
    """The packages that a module imports when it runs, also inside of functions; not for annotations alone."""
    return frozenset(_imports(_tree(path)))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import(names=names):
                yield from (one.name.partition(".")[0] for one in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case _:
                yield from _imports(node)


TABLES: Final = {
    "jobs": {"job", "subtask", "failed_item", "job_result"},
    "webhooks": {"endpoint", "webhook", "delivery", "delivery_attempt"},
    "limits": {"throttle", "permit", "parked"},
    "order": {"sequence", "position"},
    "schedules": {"schedule"},
    "messages": {"destination", "message", "waiting_message", "intake", "intake_offset"},
}
"""Of each slice. The ticks of schedules are removed with the core's own old rows."""
CORE: Final = ("broker", "enqueue", "handlers", "inflight", "ledger", "supervisor", "worker")
SLICE_WORDS: Final = {word for name in TABLES for word in (name, name.removesuffix("s"))}
ABOUT_SLICES: Final = {
    "task": {"job_id", "limit_key", "limit_most", "limit_rate", "order_key"},  # what a claim and a settlement decide by
    "tick": {"schedule"},  # removed with the core's own old rows
    "marker": {"position"},  # of a broker's line; it has nothing to do with the positions of an order
}
"""The columns of the core that are called as a slice or as one of its tables is."""
WORDS: Final = {
    "handlers/context.py": {"job"},  # the field of a log record
    "ledger/engine/cures.py": {"sequence"},  # of PostgreSQL, in one of its messages
    "ledger/log_lines.py": {"delivery", "endpoint", "job"},  # the fields of an event
    "ledger/schema.py": {"position", "schedule"},  # columns: ABOUT_SLICES
    "recovery/retention.py": {  # the names of counts, for what a sweep reports
        *("delivery", "delivery_attempt", "failed_item", "job", "job_result", "message", "subtask", "webhook"),
    },
}
"""Strings of the core and of the sweep that happen to be the name of a slice's table, and what they are."""


@cache
def _core_tables() -> dict[str, set[str]]:
    """The tables of the core, each with its columns, without the namespace."""
    made = Tables("workq", "postgresql").task.metadata.tables.values()
    return {table.name.removeprefix("workq_"): set(table.columns.keys()) for table in made}


@cache
def _slice_tables() -> frozenset[str]:
    """The tables of all slices, without the namespace."""
    made = every_table(Tables("workq", "postgresql")).tables
    return frozenset(name.removeprefix("workq_") for name in made) - _core_tables().keys()


def test_the_tables_of_a_slice_are_written_in_its_folder_and_nowhere_else() -> None:
    """The core cannot ask one: `database.tables` has no such name, so that the type checker refuses it."""
    package = Path(workq.__file__).parent
    written: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(_tree(path)):
            match node:
                case ast.Call(func=ast.Attribute(attr="table"), args=[ast.Constant(value=str(table)), *_]):
                    written.setdefault(path.relative_to(package).parts[0], set()).add(table)

    core = written.pop("ledger")
    assert written == TABLES
    assert core == _core_tables().keys()
    assert set().union(*TABLES.values()) == _slice_tables()


def test_the_core_names_no_table_of_a_slice() -> None:
    package = Path(workq.__file__).parent
    makers = {f"{slice_.removesuffix('s')}_tables" for slice_ in TABLES}
    named = [
        f"{path.relative_to(package)}:{node.lineno}: {node.id}"
        for part in CORE
        for path in (package / part).rglob("*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Name) and node.id in makers
    ]

    assert named == []


def test_no_string_of_the_core_names_a_table_of_a_slice() -> None:
    """Neither alone, as `job`, nor with the namespace before it, as `workq_job` or `{namespace}_job`."""
    package = Path(workq.__file__).parent
    any_table = "|".join(sorted(_slice_tables()))
    in_full = re.compile(rf"(?:\bworkq_|(?<!\w)_)({any_table})\b")
    alone: dict[str, set[str]] = {}
    named = []
    for path in (path for part in (*CORE, "recovery") for path in (package / part).rglob("*.py")):
        where = path.relative_to(package).as_posix()
        for text in _strings(_tree(path)):
            if text in _slice_tables():
                alone.setdefault(where, set()).add(text)
            named += [f"{where}: {found[0]}" for found in in_full.finditer(text)]

    assert named == []
    assert alone == WORDS


def _strings(tree: ast.Module) -> Iterator[str]:
    """The strings of a module, the constant parts of an f-string too; no docstrings."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def test_no_table_of_the_core_is_called_as_a_slice_is() -> None:
    words = SLICE_WORDS | _slice_tables()
    columns = {
        table: {column for column in columns if words & {column, *column.split("_")}}
        for table, columns in _core_tables().items()
    }

    assert [table for table in _core_tables() if words & {table, *table.split("_")}] == []
    assert {table: found for table, found in columns.items() if found} == ABOUT_SLICES


PUBLISHERS: Final = (
    "broker/each_queue.py",
    "broker/later/mover.py",
    "diagnose/audit/queues.py",
    "enqueue/relay.py",
    "recovery/lost_hints.py",
    "worker/fetch/three_stores.py",
)


def test_hints_are_published_in_these_places_and_nowhere_else() -> None:
    """What calls `publish` of a broker; a new one has to see to the rows of the ledger, and to the markers."""
    package = Path(workq.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and (
            ast.unparse(node.func) == "publish_each"
            or (
                isinstance(node.func, ast.Attribute)
                and node.func.attr == "publish"
                and "broker" in ast.unparse(node.func.value).lower()
            )
        )
    }

    assert sorted(found) == list(PUBLISHERS)
