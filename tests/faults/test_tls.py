"""TLS of every store: another authority, another name, a time that is over, no TLS at all: an error, and no way around.

The right authority and name are accepted, by the real servers. amqps, rediss and rediss+cluster with them: see the
faults of each. Kafka is here as a whole, with logins.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from tests.conftest import Private
from tests.contract.broker import LONG_S, collect, hints, ids
from tests.faults.receivers import stranger
from tests.shared_servers import CANARY, SharedKafka
from tests.system.fleet import wait_until
from workq.broker.kafka import KafkaBroker
from workq.broker.rabbitmq import RabbitMQBroker
from workq.errors import BrokerUnavailable, ConfigError, InFlightUnavailable, LedgerUnavailable
from workq.inflight.redis import RedisInFlight
from workq.lab.servers import MariaDB, PostgreSQL, start_mariadb, start_postgres
from workq.ledger.engine.database import Database

FAULTS = {
    "another authority": ("127.0.0.1", "other.pem", "server.pem"),
    "another name": ("localhost", "ca.pem", "server.pem"),
    "a time that is over": ("127.0.0.1", "ca.pem", "expired.pem"),
}
"""The host that is asked for, the authority that is trusted, and the certificate that is shown."""


def is_encrypted(url: str) -> bool:
    """Whether the ledger's own connection is, as the server says."""
    database = Database(url)
    try:
        with database.read() as tx:
            if database.dialect == "postgresql":
                return bool(tx.execute(text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")).scalar())
            return bool(tx.execute(text("SHOW STATUS LIKE 'Ssl_cipher'")).one()[1])
    finally:
        database.close()


class Secured:
    """A database with TLS. `url`: as its user, with what verifies the server; `show`: another certificate."""

    def __init__(self, url: Callable[[str, Path], str], show: Callable[[str], None], authority: Path) -> None:
        self._url, self.show, self.authority = url, show, authority

    def url(self, host: str = "127.0.0.1", trusted: str = "ca.pem") -> str:
        return self._url(host, self.authority / trusted)


@pytest.fixture(scope="module")
def readable(authority: Path) -> Iterator[Path]:
    """A folder that the accounts of the servers may read, for their key and what they show."""
    folder = Path(tempfile.mkdtemp(prefix="workq-tls-"))
    folder.chmod(0o755)
    for name in ("server.pem", "server.key"):
        shutil.copy(authority / name, folder / name)
        (folder / name).chmod(0o644)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def postgresql(request: pytest.FixtureRequest, authority: Path) -> Iterator[Secured]:
    with Private(request.config)(start_postgres) as server:

        def tell(*statements: str) -> None:
            with psycopg.connect(server.url, autocommit=True) as admin:
                for statement in statements:
                    admin.execute(statement)

        def show(name: str) -> None:
            for source, target in ((name, "shown.pem"), ("server.key", "shown.key")):
                shutil.copy(authority / source, server.folder / target)
                (server.folder / target).chmod(0o600)
                owner = server.folder.stat()
                shutil.chown(server.folder / target, owner.st_uid, owner.st_gid)
            tell("SELECT pg_reload_conf()")

        show("server.pem")
        tell(
            f"ALTER SYSTEM SET ssl_cert_file = '{server.folder}/shown.pem'",
            f"ALTER SYSTEM SET ssl_key_file = '{server.folder}/shown.key'",
            "ALTER SYSTEM SET ssl = on",
            "SELECT pg_reload_conf()",
        )

        def url(host: str, trusted: Path) -> str:
            return f"postgresql://workq:{CANARY}@{host}:{server.port}/workq?sslmode=verify-full&sslrootcert={trusted}"

        yield Secured(url, show, authority)


@pytest.fixture(scope="module")
def mysql(request: pytest.FixtureRequest, authority: Path, readable: Path) -> Iterator[Secured]:
    options = [f"--ssl-cert={readable / 'server.pem'}", f"--ssl-key={readable / 'server.key'}"]
    with Private(request.config)(start_mariadb, options=options) as server:

        def show(name: str) -> None:
            shutil.copy(authority / name, readable / "server.pem")
            admin = Database(server.url)
            with admin.engine.begin() as tx:
                tx.exec_driver_sql("FLUSH SSL")
            admin.close()

        def url(host: str, trusted: Path) -> str:
            return f"mysql://workq:workq@{host}:{server.port}/workq?ssl_ca={trusted}&ssl_verify_identity=true"

        yield Secured(url, show, authority)


@pytest.mark.parametrize("store", ["postgresql", "mysql"])
def test_a_database_is_verified_by_its_authority_its_name_and_its_time(
    request: pytest.FixtureRequest, store: str
) -> None:
    secured: Secured = request.getfixturevalue(store)

    assert is_encrypted(secured.url())
    for host, trusted, shown in FAULTS.values():
        secured.show(shown)
        with pytest.raises(LedgerUnavailable, match="TLS could not verify it") as failed:
            is_encrypted(secured.url(host, trusted))
        secured.show("server.pem")
        assert CANARY not in str(failed.value)
    with pytest.raises((LedgerUnavailable, ConfigError), match=r"(?i)no such file|does not exist"):
        is_encrypted(secured.url(trusted="missing.pem"))


def test_a_database_without_tls_is_refused_where_the_url_requires_it(
    postgres_server: PostgreSQL, mariadb_server: MariaDB, authority: Path
) -> None:
    for url in (
        f"{postgres_server.url}?sslmode=verify-full&sslrootcert={authority / 'ca.pem'}",
        f"{postgres_server.url}?sslmode=require",
        f"{mariadb_server.url}?ssl_ca={authority / 'ca.pem'}",
        f"{mariadb_server.url}?ssl_verify_cert=true",
    ):
        with pytest.raises(LedgerUnavailable, match="does not offer TLS"):
            is_encrypted(url)


@pytest.mark.parametrize(
    "query",
    [
        "ssl_ca={other}",
        "ssl_verify_identity=true",
        "ssl_verify_cert=true",
        "ssl_check_hostname=true",
        "ssl_cert={server}&ssl_key={key}",
        "ssl_ca={other}&ssl_verify_cert=true&ssl_check_hostname=false",
    ],
)
def test_no_combination_of_mysqls_options_verifies_less_than_it_says(
    mysql: Secured, authority: Path, query: str
) -> None:
    """Its certificate is signed by an authority that neither the system nor `other` knows."""
    named = query.format(other=authority / "other.pem", server=authority / "server.pem", key=authority / "server.key")

    with pytest.raises(LedgerUnavailable, match="TLS could not verify it"):
        is_encrypted(f"{mysql.url().partition('?')[0]}?{named}")


def test_what_mysql_is_told_not_to_verify_is_encrypted_still(mysql: Secured, authority: Path) -> None:
    place = mysql.url("localhost").partition("?")[0]

    assert is_encrypted(f"{place}?ssl_verify_cert=false")
    assert is_encrypted(f"{place}?ssl_ca={authority / 'ca.pem'}&ssl_check_hostname=false")
    assert is_encrypted(f"{place}?ssl_ca={authority / 'ca.pem'}&ssl_verify_identity=false")
    with pytest.raises(ConfigError, match="ssl_verify_cert in the URL is true or false"):
        Database(f"{place}?ssl_verify_cert=maybe")


def test_a_certificate_whose_time_is_over_is_refused_by_amqps_and_rediss(authority: Path, over: int) -> None:
    broker = RabbitMQBroker(f"amqps://u:{CANARY}@127.0.0.1:{over}/?cacertfile={authority / 'ca.pem'}")
    inflight = RedisInFlight(f"rediss://:{CANARY}@127.0.0.1:{over}/0?ssl_ca_certs={authority / 'ca.pem'}")

    with pytest.raises(BrokerUnavailable, match=r"could not be verified by TLS.*expired"):
        broker.check()
    with pytest.raises(InFlightUnavailable, match=r"certificate that is not trusted.*expired"):
        inflight.check()
    broker.close()
    inflight.close()


LOGIN = "workq:" + CANARY


@pytest.fixture
def come_to(
    kafka_server: SharedKafka, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., KafkaBroker]]:
    """A broker on the listener that wants a certificate. By default with the right login, certificate and authority."""
    namespace = f"tls{secrets.token_hex(4)}"
    monkeypatch.setattr("workq.broker.kafka.CHECK_S", LONG_S)  # on a busy machine; what is refused waits for no more
    with contextlib.ExitStack() as opened:

        def come(
            *,
            scheme: str = "kafkas",
            login: str = LOGIN,
            host: str = "127.0.0.1",
            port: int = kafka_server.mutual_tls_port,
            ca: str = "ca.pem",
            cert: str | None = "server.pem",
            mechanism: str = "PLAIN",
        ) -> KafkaBroker:
            files = {"ca_file": ca} | ({"cert_file": cert, "key_file": "server.key"} if cert is not None else {})
            named = "".join(f"&{option}={authority / name}" for option, name in files.items())
            query = f"?mechanism={mechanism}{named if scheme == 'kafkas' else ''}"
            broker = KafkaBroker(f"{scheme}://{login}@{host}:{port}{query}", namespace=namespace)
            opened.callback(broker.close)
            return broker

        yield come


@pytest.mark.parametrize(("user", "mechanism"), [("workq", "PLAIN"), ("scrammed", "SCRAM-SHA-512")])
def test_kafka_carries_hints_over_tls_for_who_logs_in_and_shows_a_certificate(
    come_to: Callable[..., KafkaBroker], user: str, mechanism: str
) -> None:
    broker = come_to(login=f"{user}:{CANARY}", mechanism=mechanism)
    sent = hints(user, 3)

    assert all(broker.publish(sent, deadline_s=LONG_S))

    consumer = broker.consumer([user], name="one", prefetch=10)
    assert sorted(ids(collect(consumer, 3))) == sorted(ids(sent))
    assert consumer.trouble is None


NOT_VERIFIED = "could not be verified by TLS.*ca_file"
KAFKA_REFUSALS: dict[str, tuple[dict[str, str | None], str]] = {
    "another authority": ({"ca": "other.pem"}, NOT_VERIFIED),
    "another name": ({"host": "localhost"}, NOT_VERIFIED),
    "no certificate of ours": ({"cert": None}, "no TLS in common.*bad certificate.*cert_file"),
    "another password": ({"login": f"workq:{CANARY}-other"}, "refused the login.*Check user, password"),
    "another password, SCRAM": (
        {"login": f"scrammed:{CANARY}-other", "mechanism": "SCRAM-SHA-512"},
        "refused the login.*Check user, password",
    ),
    "a mechanism that it lacks": ({"mechanism": "SCRAM-SHA-256"}, "refused the login.*PLAIN,SCRAM-SHA-512"),
}


@pytest.mark.parametrize("why", KAFKA_REFUSALS)
def test_kafka_that_does_not_let_us_in_is_told_in_one_line(
    come_to: Callable[..., KafkaBroker], why: str, authority: Path
) -> None:
    other, said = KAFKA_REFUSALS[why]
    broker = come_to(**other)

    with pytest.raises(BrokerUnavailable, match=said) as failed:
        broker.check()

    assert failed.value.patience_s == 0.0, "waiting does not mend it"
    assert "\n" not in str(failed.value)
    assert CANARY not in str(failed.value)


def test_a_certificate_of_kafka_whose_time_is_over_is_refused(come_to: Callable[..., KafkaBroker], over: int) -> None:
    broker = come_to(port=over)
    consumer = broker.consumer(["mail"], name="one", prefetch=10)

    with pytest.raises(BrokerUnavailable, match=NOT_VERIFIED):
        broker.check()
    wait_until(lambda: bool(re.search(NOT_VERIFIED, consumer.trouble or "")), timeout_s=LONG_S, what="a worker is told")


def test_tls_and_its_absence_do_not_meet_and_nothing_of_ours_goes_out_in_the_clear(
    come_to: Callable[..., KafkaBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workq.broker.kafka.CHECK_S", 1.0)
    with pytest.raises(BrokerUnavailable, match=r"did not answer.*is that port one without TLS\?"):
        come_to(scheme="kafka").check()

    with stranger(b"no TLS here") as (port, heard):
        broker = come_to(port=port)
        with pytest.raises(BrokerUnavailable):
            broker.check()
        assert broker.publish(hints("mail", 1), deadline_s=0.2) == [False]
    assert heard
    assert all(piece[:1] == b"\x16" for piece in heard), "a handshake of TLS, and nothing else"
