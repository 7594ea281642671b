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


def test_no_contract_has_an_exception() -> None:
    settings = tomllib.loads((Path(workq.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]

    assert "layers" in [one["id"] for one in contracts]
    assert [one["id"] for one in contracts if "ignore_imports" in one] == []


LIBRARIES: Final = {
    "aiohttp": ("outbound/", "webhooks/receiver.py", "demo/"),
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
    "cronsim": ("schedules/timetable.py",),
    "cryptography": ("outbound/vault.py",),
    "msgspec": ("",),  # JSON: everywhere
    "multidict": ("outbound/post.py",),  # what aiohttp has headers in
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
    "psutil": (
        "diagnose/doctor/",
        "lab/",
        "demo/stage.py",
        "recovery/deaths.py",
        "supervisor/",
        "values/incarnation.py",
        "worker/lease.py",
        "worker/process.py",
    ),
    "psycopg": ("ledger/engine/postgresql.py",),
    "pymysql": ("ledger/engine/mysql.py",),
    "redis": ("inflight/redis/", "diagnose/doctor/", "lab/", "messages/kinds/redis.py"),
    "rich": ("cli/job/look.py", "cli/show.py", "demo/voice.py"),
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
    "standardwebhooks": ("outbound/signing.py", "demo/webhooks/receivers.py"),
    "tantivy": ("demo/index.py",),
    "uuid_utils": ("values/codec.py",),
    "yarl": ("outbound/post.py",),  # what aiohttp has addresses in
}
"""Where each library is imported, and nowhere else."""


def test_every_library_that_is_imported_has_its_places() -> None:
    """A library is what is neither of Python nor ours."""
    imported = set().union(*(_imported(path) for path in Path(workq.__file__).parent.rglob("*.py")))

    assert imported - sys.stdlib_module_names - {"workq"} == LIBRARIES.keys()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_where_it_belongs_and_nowhere_else(library: str) -> None:
    package = Path(workq.__file__).parent
    importing = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if library in _imported(path)}

    assert [one for one in sorted(importing) if not one.startswith(LIBRARIES[library])] == []
    assert [place for place in LIBRARIES[library] if not any(one.startswith(place) for one in importing)] == []


BY_NAME: Final = {
    "__init__.py": "workq.",  # what is public is imported when it is asked for
    "messages/__init__.py": "workq.",
    "webhooks/__init__.py": "workq.",
    "messages/kinds/registry.py": "workq.messages.kinds.",
    "messages/intake/registry.py": "workq.messages.intake.",
    "inflight/embedded.py": "sqlalchemy.dialects.",
    "cli/group.py": "",  # a command, by its target
    "application.py": "",  # the user's module
    "messages/kinds/call.py": "",  # the user's function
}
"""The places that import what a string names, and how that begins as far as it is written there."""


def test_a_module_is_imported_by_a_string_in_these_places_and_nowhere_else() -> None:
    """The contracts see statements alone; so a string must not name what no statement there may import."""
    package = Path(workq.__file__).parent
    found = [
        (path.relative_to(package).as_posix(), _beginning(call.args[0]))
        for path in package.rglob("*.py")
        for call in ast.walk(_tree(path))
        if isinstance(call, ast.Call) and _is_import(call)
    ]
    renamed = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for one in node.names
        if one.asname is not None and one.name in ("importlib", "import_module", "__import__", "builtins")
    ]

    assert sorted(found) == sorted(BY_NAME.items())
    assert renamed == []


def _is_import(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, *_]):
            return name in ("import_module", "__import__")
        case _:
            return False


def _beginning(name: ast.expr) -> str:
    """A string as far as it is written there; nothing of a variable."""
    match name:
        case ast.Constant(value=str(text)) | ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text
        case _:
            return ""


@cache
def _tree(path: Path) -> ast.Module:
    """Read once for all that look at it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imported(path: Path) -> frozenset[str]:
    """The packages that a module imports when it runs, also inside of functions; not for annotations alone."""
    return frozenset(name.partition(".")[0] for name in _imports(_tree(path)))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Each module that runs, and with its module what is taken from one: it may be a module, too."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=otherwise):
                yield from _imports(ast.Module(body=otherwise, type_ignores=[]))
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{one.name}" for one in names)
            case ast.Call() if _is_import(node) and (name := _beginning(node.args[0])):
                yield name
            case _:
                yield from _imports(node)


@pytest.mark.parametrize(
    "text",
    [
        "import pika.spec",
        "def f():\n    from pika import spec",
        "if TYPE_CHECKING:\n    import redis\nelse:\n    import pika",
        "made = import_module('pika')",
        "def f():\n    return importlib.import_module('pika.spec').Basic",
        "made = __import__('pika')",
        "made = import_module(f'pika.{name}')",
    ],
)
def test_each_way_to_import_counts(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(text)

    assert _imported(tmp_path / "a.py") == {"pika"}


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
    slices = [slice_.removesuffix("s") for slice_ in TABLES]
    makers = {f"{one}_tables" for one in slices} | {f"{one.capitalize()}Tables" for one in slices}
    named = [
        f"{path.relative_to(package)}: {name}"
        for part in CORE
        for path in (package / part).rglob("*.py")
        for node in ast.walk(_tree(path))
        for name in _named(node)
        if name in makers
    ]

    assert named == []


def _named(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return (name,)
        case _:
            return ()


def test_no_import_is_relative() -> None:
    """The tests of this file read whole names."""
    package = Path(workq.__file__).parent
    relative = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]

    assert relative == []


LEDGERS_ASKED: Final = {
    "supervisor/supervisor.py": {"workq.schedules.ledger.Schedules"},  # its ticker waits for the next tick
    "worker/settle.py": {"workq.limits.ledger.limits.Limits", "workq.order.ledger.order.Order"},  # who may start now
}
"""What the core takes of the slices' ledgers."""


def test_the_core_takes_these_parts_of_the_slices_ledgers_and_no_more() -> None:
    package = Path(workq.__file__).parent
    ledgers = tuple(f"workq.{slice_}.ledger" for slice_ in TABLES)
    taken: dict[str, set[str]] = {}
    for path in (path for part in CORE for path in (package / part).rglob("*.py")):
        if found := {name for name in _imports(_tree(path)) if name.startswith(ledgers)}:
            taken[path.relative_to(package).as_posix()] = found

    assert taken == LEDGERS_ASKED


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
