"""What a worker that starts waits for, and what ends it, as each server says it; and PostgreSQL at several hosts."""

from __future__ import annotations

import math
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from tests.conftest import Private
from tests.system.legs import Leg
from workq import State, WorkQueue
from workq.broker.rabbitmq import RabbitMQBroker
from workq.config import Settings, masked
from workq.diagnose.doctor import examine
from workq.diagnose.doctor.check import Level
from workq.errors import NAME_PATIENCE_S, SchemaMismatch, Unavailable
from workq.inflight.redis import RedisInFlight
from workq.lab.servers import MariaDB, PostgreSQL, RabbitMQ, Redis, start_postgres
from workq.ledger.callers_transaction import _places
from workq.ledger.engine.url import ledger_url

CANARY = "canary-2b9c"


@pytest.fixture(scope="module")
def dead_port() -> Iterator[int]:
    """A port on which nothing listens: bound, so that nobody else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        yield port


def ledger(url: str) -> float:
    return patience_s(lambda: WorkQueue(ledger=url).stores)


def broker(url: str) -> float:
    return patience_s(RabbitMQBroker(url, namespace="t").check)


def inflight(url: str) -> float:
    return patience_s(RedisInFlight(url).check)


def patience_s(ask: Callable[[], object]) -> float:
    with pytest.raises(Unavailable) as caught:
        ask()
    seconds: float = caught.value.patience_s
    return seconds


def test_postgresql_tells_what_waiting_mends(postgres_server: PostgreSQL, dead_port: int) -> None:
    at = f"127.0.0.1:{postgres_server.port}"
    name = postgres_server.create_database().rpartition("/")[2]

    assert ledger(f"postgresql://workq@127.0.0.1:{dead_port}/{name}") == math.inf
    assert ledger(f"postgresql://workq@no-such-host.invalid/{name}") == NAME_PATIENCE_S
    assert ledger(f"postgresql://workq@{at}/no_such_database") == 0.0
    assert ledger(f"postgresql://no_such_role@{at}/{name}") == 0.0
    assert ledger(f"postgresql://workq@{at}/{name}?sslmode=require") == 0.0
    several = f"127.0.0.1:{dead_port},{at}"
    assert ledger(f"postgresql://workq@{several}/no_such_database") == math.inf, "the other host may know it"


def test_postgresql_that_asks_for_a_password_ends_it_without_the_right_one(private: Private) -> None:
    with tempfile.TemporaryDirectory(prefix="workq-hba-") as folder:
        Path(folder).chmod(0o755)  # for the account that PostgreSQL runs as
        rules = Path(folder) / "rules"
        rules.write_text("host all workq 127.0.0.1/32 trust\nhost all ann 127.0.0.1/32 scram-sha-256\n")
        with private(start_postgres, options=("-c", f"hba_file={rules}")) as server:
            owner = create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
            with owner.begin() as tx:
                tx.exec_driver_sql("CREATE ROLE ann LOGIN PASSWORD 'right'")
            owner.dispose()
            at = f"127.0.0.1:{server.port}/workq"

            assert ledger(f"postgresql://ann:{CANARY}@{at}") == 0.0
            assert ledger(f"postgresql://ann@{at}") == 0.0, "none was given"
            with pytest.raises(Unavailable) as caught, WorkQueue(ledger=f"postgresql://ann:{CANARY}@{at}") as wq:
                wq.stores.ledger.questions.counts()
            assert CANARY not in str(caught.value)
            with pytest.raises(SchemaMismatch), WorkQueue(ledger=f"postgresql://ann:right@{at}") as wq:  # it is let in
                wq.stores.ledger.questions.counts()


def test_mariadb_tells_what_waiting_mends(mariadb_server: MariaDB, dead_port: int) -> None:
    at = f"127.0.0.1:{mariadb_server.port}"

    assert ledger(f"mysql://workq:workq@127.0.0.1:{dead_port}/workq") == math.inf
    assert ledger("mysql://workq:workq@no-such-host.invalid/workq") == NAME_PATIENCE_S
    assert ledger(f"mysql://workq:workq@{at}/no_such_database") == 0.0
    assert ledger(f"mysql://workq:wrong@{at}/workq") == 0.0


def test_rabbitmq_tells_what_waiting_mends(rabbitmq_server: RabbitMQ, dead_port: int) -> None:
    given = pika.URLParameters(rabbitmq_server.url)
    assert isinstance(given.credentials, pika.PlainCredentials)
    user, password, at = given.credentials.username, given.credentials.password, f"127.0.0.1:{given.port}"

    assert broker(f"amqp://{user}:{password}@127.0.0.1:{dead_port}/") == math.inf
    assert broker(f"amqp://{user}:{password}@no-such-host.invalid/") == NAME_PATIENCE_S
    assert broker(f"amqp://{user}:{password}@{at}/no_such_vhost") == 0.0
    assert broker(f"amqp://{user}:wrong@{at}/") == 0.0


def test_redis_tells_what_waiting_mends(redis_server: Redis, dead_port: int) -> None:
    at = f"127.0.0.1:{redis_server.port}"

    assert inflight(f"redis://127.0.0.1:{dead_port}/0") == math.inf
    assert inflight("redis://no-such-host.invalid/0") == NAME_PATIENCE_S
    assert inflight(f"redis://{at}/99") == 0.0
    assert inflight(f"redis://ann:wrong@{at}/0") == 0.0


def test_a_file_that_is_no_sqlite_database_ends_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be looked at" * 100)

    assert ledger(f"sqlite:///{tmp_path}/notes.txt") == 0.0


# ------------------------------------------------------------------------------------------------------ several hosts


def test_a_ledger_at_two_hosts_of_which_the_first_is_dead_works_everywhere(
    postgres_server: PostgreSQL, dead_port: int, tmp_path: Path
) -> None:
    database = postgres_server.create_database().rpartition("/")[2]
    place = f"127.0.0.1:{dead_port},127.0.0.1:{postgres_server.port}"
    url = f"postgresql://workq@{place}/{database}?target_session_attrs=read-write"
    leg = Leg.open("two hosts", tmp_path, ledger=url, divide=5.0)
    one_host = create_engine(f"postgresql+psycopg://workq@127.0.0.1:{postgres_server.port}/{database}")

    with leg.fleet(processes=1, threads=2):
        leg["note"].enqueue(0)
        for engine in (one_host, create_engine(ledger_url(url))):
            with engine.begin() as theirs:
                leg["note"].options(connection=theirs).enqueue(1)
            engine.dispose()
        leg.wait_settled(timeout_s=60)
    checks = examine(Settings.load(ledger=url, namespace=leg.app.settings.namespace))
    states = leg.states()
    leg.close()

    assert states[State.SUCCEEDED] == 3
    assert [check.message for check in checks if check.level in (Level.ERROR, Level.UNREACHABLE)] == []
    assert any(place in check.message for check in checks)


def test_a_ledger_at_two_hosts_of_which_the_first_is_silent_is_reached_at_the_other(
    postgres_server: PostgreSQL,
) -> None:
    """It accepts and says nothing, as a stopped server does: after three seconds the next one is tried."""
    database = postgres_server.create_database().rpartition("/")[2]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{postgres_server.port}"
        app = WorkQueue(ledger=f"postgresql://workq@{place}/{database}?target_session_attrs=read-write")

        with pytest.raises(SchemaMismatch):  # it was asked, and has no tables yet
            _ = app.stores


def test_a_transaction_at_another_host_than_those_of_the_ledger_is_refused() -> None:
    """Which databases a connection leads to is told by its URL alone: none is opened here."""
    ours = ledger_url("postgresql://ann@one:5432,two:5433/shop")

    def leads_there(theirs: str) -> bool:
        return not _places(ours).isdisjoint(_places(make_url(theirs)))

    assert leads_there("postgresql://bob@two:5433/shop")
    assert leads_there("postgresql://bob@/shop?host=one,two&port=5432,5433")
    assert leads_there("postgresql://bob@/shop?host=three:5432&host=two:5433")
    assert leads_there("postgresql://bob@one/shop")
    assert not leads_there("postgresql://bob@two:5432/shop")
    assert not leads_there("postgresql://bob@one:5432/other")


def test_of_two_hosts_that_are_both_away_both_are_shown_and_no_password(dead_port: int) -> None:
    url = f"postgresql://ann:{CANARY}@127.0.0.1:{dead_port},127.0.0.1:{dead_port}/shop"

    with pytest.raises(Unavailable) as caught:
        _ = WorkQueue(ledger=url).stores

    assert CANARY not in str(caught.value) + masked(url)
    assert f"//ann:***@127.0.0.1:{dead_port},127.0.0.1:{dead_port}/shop" in str(caught.value)
