"""Private servers for the tests that need them: started on first use, one of each for the whole run, ended with it.

Of a distributed run, each process has its own PostgreSQL, MariaDB and Redis. What takes long to start, or is never
idle, all of them share: RabbitMQ, Kafka and Artemis (lender.py, shared_servers.py).

A server that is not installed skips the tests that ask for it. `--require=all`, or some of `rabbitmq,redis,postgres,
mysql,pgbouncer,kafka,artemis`, makes that a failure: CI must not pass by skipping. The end of the report lists which
servers were really used.

The `..._server` fixtures are shared. A test that kills, pauses or wipes a server starts one of its own (RabbitMQ, which
takes long to start, has `mortal_rabbitmq` for them):

    def test_...(private: Private) -> None:
        with private(start_redis) as redis: ...
"""

from __future__ import annotations

import gc
import logging
import platform
import signal
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, cast

import pytest
from hypothesis import settings

from tests.authority import write_authority
from tests.lender import Lender, borrow
from tests.shared_servers import SHARED, SharedArtemis, SharedKafka, SharedRabbitMQ
from tests.standstill import Standstill, ToDisk
from tests.zygote import use, zygote
from workq import logs
from workq.lab.servers import (
    MariaDB,
    PgBouncer,
    PostgreSQL,
    RabbitMQ,
    Redis,
    Server,
    ServerMissing,
    start_artemis,
    start_kafka,
    start_mariadb,
    start_pgbouncer,
    start_postgres,
    start_rabbitmq,
    start_redis,
)
from workq.logs.buffer import Buffer

settings.register_profile("workq", deadline=None)  # a machine that is busy elsewhere breaks no promise
settings.load_profile("workq")

QUICK: Final = ("cli", "simulation", "unit")
"""The folders that have short tests only."""
SERVERS = ("rabbitmq", "redis", "postgres", "mysql", "pgbouncer", "kafka", "artemis")
_used = pytest.StashKey[list[str]]()
_machine = pytest.StashKey[Standstill]()
_lender = pytest.StashKey[Lender]()
_authority = pytest.StashKey[Path]()
_whole = pytest.StashKey[frozenset[str]]()
_LENT_BY: Final = "lender"
"""Under which name a process of a distributed run is told of the lender."""
_AUTHORITY: Final = "authority"
"""Likewise of the folder with the certificates that the lender's servers show."""
_FORKED_BY: Final = "zygote"
"""Under which name it is told of the zygote."""

AnyServer = TypeVar("AnyServer", bound=Server)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        default="",
        metavar="NAMES",
        type=_server_names,
        help=f"servers whose absence is a failure, not a skip: 'all', or some of {','.join(SERVERS)}",
    )
    parser.addoption("--long", action="store_true", help="the full sizes and durations: see `make long`")
    parser.addoption(
        "--pooled", action="store_true", help="reach the run's PostgreSQL through PgBouncer: see `make long`"
    )
    parser.addoption("--classic", action="store_true", help="join Kafka by its classic group protocol: make test-kafka")
    parser.addoption("--both-legs", action="store_true", help="also what is marked one_leg on SQLite: see `make test`")


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """A command that ran in this process leads its log elsewhere; the next test finds it as it was."""
    names = ("", "workq", "pika")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one.level, one.propagate, one.disabled, list(one.handlers)) for one in loggers]
    buffers = list(logs._buffers)
    yield
    logs._buffers[:] = buffers
    for one, (level, propagate, disabled, handlers) in zip(loggers, before, strict=True):
        one.setLevel(level)
        one.propagate, one.disabled = propagate, disabled
        for handler in [each for each in one.handlers if isinstance(each, Buffer) and each not in handlers]:
            one.removeHandler(handler)


@pytest.fixture(scope="session")
def long_run(request: pytest.FixtureRequest) -> bool:
    """Whether to run at full size: hours are not for CI, and a short run proves that the long one would start."""
    return bool(request.config.getoption("--long"))


def _server_names(text: str) -> frozenset[str]:
    names = frozenset(filter(None, text.split(",")))
    if names == {"all"}:
        return frozenset(SERVERS)
    if unknown := sorted(names.difference(SERVERS)):
        raise pytest.UsageError(f"--require: unknown server {', '.join(unknown)}; known: all, {', '.join(SERVERS)}")
    return names


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # what a shell starts behind it is deaf to SIGINT, and so would be what a test starts and interrupts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers",
        "one_leg: what a fleet of processes does here has little to do with its stores: on the servers, and only with "
        "--both-legs on SQLite too",
    )
    config.addinivalue_line("markers", "only_long: with --long alone: what is short is held by other tests")
    if (forks := getattr(config, "workerinput", {}).get(_FORKED_BY)) is not None:
        use(*forks)
    config.stash[_used] = []
    config.pluginmanager.register(UsedElsewhere(config.stash[_used]))
    config.stash[_machine] = Standstill(ToDisk())
    config.stash[_machine].start()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the process that distributes, before it starts another one."""
    stash = node.config.stash
    if _lender not in stash:
        folder = stash[_authority] = node.config._tmp_path_factory.mktemp("authority")
        write_authority(folder)
        stash[_lender] = Lender({name: partial(_started, kind, folder) for kind, name in SHARED.items()})
    node.workerinput |= {_LENT_BY: stash[_lender].token, _AUTHORITY: str(stash[_authority])}
    forks = zygote()
    node.workerinput[_FORKED_BY] = (forks.path, forks.env, forks.pid)


def _started(kind: Callable[[Path], AnyServer], authority: Path) -> AnyServer:
    return kind(authority).first_start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if (lender := config.stash.get(_lender, None)) is not None:
        lender.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says how the machine was meanwhile."""
    report = yield
    if report.failed:
        since = time.monotonic() - call.duration
        report.sections.append(("the machine meanwhile", item.config.stash[_machine].told(since)))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Starting processes is what the suite spends most of its time with: what is marked does it on one leg alone, or
    in the long run alone."""
    if [Path(one).name for one in config.args] == ["tests"]:
        config.stash[_whole] = frozenset(item.nodeid for item in items)
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("only_long")]
        if not config.getoption("--both-legs"):
            left_out += [item for item in items if item.get_closest_marker("one_leg") and _is_on_sqlite(item)]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    yield  # they are shuffled
    if (processes := getattr(config, "workerinput", {}).get("workercount", 1)) > 1:
        items[:] = _quick_ones_last(items, processes)


def _quick_ones_last(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Put the quick tests at the end of each process's part.

    Each process of a distributed run gets a contiguous part. A process that has finished takes tests from the end of
    another's part, so a long test at an end would run while all other processes have nothing left to do.
    """
    quick = [item for item in items if item.path.parent.name in QUICK]
    longer = [item for item in items if item.path.parent.name not in QUICK]
    parts = ((_part(longer, one, processes), _part(quick, one, processes)) for one in range(processes))
    return [item for part in parts for items in part for item in items]


def _part(items: Sequence[pytest.Item], number: int, of: int) -> Sequence[pytest.Item]:
    return items[len(items) * number // of : len(items) * (number + 1) // of]


def pytest_collection_finish() -> None:
    """No garbage collection looks again at ten thousand tests and their modules: it took a tenth of what tests take."""
    gc.collect()
    gc.freeze()


def _is_on_sqlite(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and hasattr(item, "callspec") and "sqlite" in item.callspec.params.values()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of several processes, each tells the one that reports which servers it used."""
    answers = getattr(session.config, "workeroutput", None)
    if answers is not None:
        answers["used"] = session.config.stash[_used]


class UsedElsewhere:
    """Gathers what the processes of a distributed run used."""

    def __init__(self, used: list[str]) -> None:
        self.used = used

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.used.extend(getattr(node, "workeroutput", {}).get("used", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    here = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    used = config.stash[_used]
    private = sorted(set(used)) if used else ["no private servers"]
    terminalreporter.write_line(f"used: {', '.join(here + private)}")
    terminalreporter.write_line(f"the machine: {config.stash[_machine].told()}")


class Private:
    """Starts private servers; where one is not installed, the test skips or fails, as `--require` says."""

    names: ClassVar[Mapping[Callable[..., Server], str]] = {
        start_rabbitmq: "rabbitmq",
        start_redis: "redis",
        start_postgres: "postgres",
        start_mariadb: "mysql",
        start_pgbouncer: "pgbouncer",
        start_kafka: "kafka",
        start_artemis: "artemis",
    }

    def __init__(self, config: pytest.Config) -> None:
        self.required: frozenset[str] = config.getoption("--require")
        self.used = config.stash[_used]
        self.lender: str | None = getattr(config, "workerinput", {}).get(_LENT_BY)
        """The token of the run's lender; None where one process runs all tests."""

    def __call__(
        self, start: Callable[..., AnyServer], folder: Path | None = None, *, options: Sequence[str] = (), **given: Any
    ) -> AnyServer:
        """Start one. It is the caller's to stop, best in a `with` block."""
        return self._there(self.names[start], lambda: start(folder, options=options, **given))

    @contextmanager
    def shared(self, kind: type[AnyServer], authority: Path) -> Iterator[AnyServer]:
        """One that all processes of the run share; without others, one of this process. `kind`: of `SHARED`."""
        lender, name = self.lender, SHARED[kind]
        if lender is None:
            with self._there(name, lambda: _started(kind, authority)) as server:
                yield server
            return
        yield self._there(name, lambda: cast(AnyServer, borrow(lender, name)))

    def _there(self, name: str, made: Callable[[], AnyServer]) -> AnyServer:
        try:
            server = made()
        except ServerMissing as missing:
            if name in self.required:
                pytest.fail(f"--require={name}: {missing}", pytrace=False)
            pytest.skip(str(missing))
        self.used.append(f"{server.name} {server.version}")
        return server


@pytest.fixture(scope="session")
def every_test(pytestconfig: pytest.Config) -> frozenset[str] | None:
    """The names of all tests that there are, on all legs; None where not all were collected."""
    return pytestconfig.stash.get(_whole, None)


@pytest.fixture(scope="session")
def private(request: pytest.FixtureRequest) -> Private:
    """Call it to start a server of your own."""
    return Private(request.config)


@pytest.fixture(scope="session")
def authority(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run's certificates (authority.py). What it has is only to be read."""
    if (folder := getattr(request.config, "workerinput", {}).get(_AUTHORITY)) is not None:
        return Path(folder)
    made = tmp_path_factory.mktemp("authority")
    write_authority(made)
    return made


@pytest.fixture(scope="session")
def rabbitmq_server(private: Private, authority: Path) -> Iterator[SharedRabbitMQ]:
    """The run's RabbitMQ. Use queues with names of your own, and delete them."""
    with private.shared(SharedRabbitMQ, authority) as server:
        yield server


@pytest.fixture(scope="session")
def mortal(private: Private) -> Iterator[RabbitMQ]:
    """The one of `mortal_rabbitmq`, as the last test has left it."""
    with private(start_rabbitmq) as server:
        yield server
        server.kill()  # an orderly end takes a second, for nothing


@pytest.fixture
def mortal_rabbitmq(mortal: RabbitMQ) -> RabbitMQ:
    """A RabbitMQ of this process, which a test may kill, wipe and change, if it undoes what it has changed. It runs."""
    if not mortal.is_running:
        mortal.start()
    return mortal


@pytest.fixture(scope="session")
def redis_server(private: Private) -> Iterator[Redis]:
    """The run's Redis. Use keys with a prefix of your own."""
    with private(start_redis) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(private: Private, pytestconfig: pytest.Config) -> Iterator[PostgreSQL | PgBouncer]:
    """The run's PostgreSQL. `create_database` gives a database of your own."""
    with private(start_postgres) as server:
        if not pytestconfig.getoption("--pooled"):
            yield server
            return
        with private(start_pgbouncer, server=server) as pooler:
            yield pooler


@pytest.fixture(scope="session")
def mariadb_server(private: Private) -> Iterator[MariaDB]:
    """The run's MariaDB. `create_database` gives a database of your own."""
    with private(start_mariadb) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server(private: Private, authority: Path) -> Iterator[SharedKafka]:
    """The run's Kafka. Use topics with names of your own."""
    with private.shared(SharedKafka, authority) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_protocol(pytestconfig: pytest.Config) -> str:
    """How workers join their group."""
    return "classic" if pytestconfig.getoption("--classic") else "consumer"


@pytest.fixture(scope="session")
def artemis_server(private: Private, authority: Path) -> Iterator[SharedArtemis]:
    """The run's Artemis. Use addresses with names of your own."""
    with private.shared(SharedArtemis, authority) as server:
        yield server
