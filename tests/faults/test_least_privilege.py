"""Producer, worker and operator with the rights that docs/how-to/least-privilege.md gives them, and no others.

The statements are taken from the page. What a role may not do the servers refuse, and the message names the right.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from sqlalchemy import Connection, create_engine

import workq.inflight
from tests.cli.conftest import ran_in
from tests.conftest import Private
from tests.docs.page import blocks
from tests.faults.kafka_topic import AUTHORIZED
from tests.zygote import FORKED_WITH, ran
from workq.broker import Hint
from workq.broker.rabbitmq import RabbitMQBroker
from workq.config import Settings
from workq.diagnose.doctor import examine
from workq.diagnose.doctor.check import Check, Level
from workq.errors import ConfigError, LedgerUnavailable
from workq.lab.servers import Kafka, RabbitMQ, Redis, start_kafka, start_redis
from workq.lab.servers.jars import find_jars, java
from workq.lab.servers.kafka import chosen_version
from workq.ledger.engine import migrate
from workq.ledger.engine.database import Database
from workq.ledger.engine.url import ledger_url
from workq.webhooks.ledger.tables import webhook_tables

PAGE = "docs/how-to/least-privilege.md"
ROLES = ("producer", "worker", "operator")
BOUND_S = 120.0
HEAP_MB = 64
REFUSED = "denied|refused for user|lacks a right|does not allow|authorization failed"
APP = """
import workq
from workq import Times, WorkQueue
from workq.webhooks import Webhooks

wq = WorkQueue(times=Times().divided_by(10))
webhooks = Webhooks(wq)

@wq.task(name="shop.add")
def add(a: int = 0) -> int:
    return a

@wq.task(name="shop.fail", failures_max=2, retry=workq.Fixed(0.1))
def fail() -> None:
    raise ValueError("no")

@wq.task(name="shop.limited", limit="partners", concurrency=1, rate="100/s")
def limited() -> None:
    pass

@wq.job(name="shop.job", chunk=2, failures_max=1)
def job(ids: list[int], *, index: str) -> dict[int, str]:
    return {one: "bad" for one in ids if one == 3}

@job.source
def numbers() -> list[int]:
    return [1, 2, 3, 4, 5]

wq.schedule("nightly", add, cron="30 2 * * *", tz="UTC")
"""
PRODUCE = """
import json, sqlalchemy
from shop import add, fail, job, limited, webhooks, wq
from workq.ledger.engine.url import ledger_url

first = add.enqueue(1)
add.options(delay_s=0.2).enqueue(2)
add.options(key="k", key_for_s=0.01).enqueue(3)
add.options(key="k").enqueue(3)
add.options(order_key="o").enqueue(4)
add.options(order_key="o").enqueue(5)
add.options(priority="high").enqueue(6)
add.options(expires_s=100).enqueue(7)
add.enqueue_many([{"a": 8}, {"a": 9}])
fail.enqueue()
limited.enqueue()
begun = job.options(if_running="queue").run(index="x")
job.options(if_running="queue").feed([1, 3], index="y")
webhooks.send("invoice.paid", {"id": 1})
engine = sqlalchemy.create_engine(ledger_url(wq.settings.ledger))
with engine.begin() as connection:
    add.options(connection=connection).enqueue(10)
    webhooks.send("invoice.paid", {"id": 2}, connection=connection)
engine.dispose()
print(json.dumps([first.id, wq.get(first.id).id]))
wq.close()
"""

KAFKA_APP = """
from workq import WorkQueue

wq = WorkQueue()

@wq.task(name="shop.add")
def add(a: int = 0) -> int:
    return a
"""
PRODUCE_ON_KAFKA = """
import json
import shop

task = shop.add.enqueue(1)
print(json.dumps([task.id, shop.wq.producer.relay.flush(timeout_s=60)]))
shop.wq.close()
"""


RUN = """
import contextlib, io, json, sys
from workq.cli.root import run

for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = run(json.loads(line))
    print(json.dumps([status, said.getvalue()]), flush=True)
"""
"""Commands of workq, one a line, in one process."""


def statements(language: str, word: str) -> str:
    """The block of the page with this word in it."""
    [found] = [block.text for block in blocks(PAGE) if block.language == language and word in block.text]
    return found


@dataclass(frozen=True)
class Shop:
    """An application whose three roles have what the page gives them."""

    folder: Path
    env: dict[str, str]
    ledgers: dict[str, str]

    def settings(self, role: str) -> dict[str, str]:
        user = f"shop_{role}"
        login = "" if role == "producer" else f"{user}:password@"
        return {
            "WORKQ_LEDGER_URL": self.ledgers[role],
            "WORKQ_BROKER_URL": self.env["BROKER"].replace("USER", user),
            "WORKQ_INFLIGHT_URL": self.env["INFLIGHT"].replace("LOGIN", login),
        }

    def python(self, role: str, code: str, given: str = "") -> list[str]:
        """What a program prints that runs as this role."""
        command = [sys.executable, "-c", code]
        environ = self.env | self.settings(role)
        done = ran(command, cwd=self.folder, env=environ, read=given, timeout_s=BOUND_S)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    def run(self, role: str, *commands: str) -> list[str]:
        """Commands of workq, in one process; answers what each has printed."""
        given = "".join(f"{json.dumps(command.split())}\n" for command in commands)
        answers = [json.loads(line) for line in self.python(role, RUN, given)]
        for command, (status, said) in zip(commands, answers, strict=True):
            assert not re.search(REFUSED, said), (command, said)
            assert status in (0, 3), (command, said)
        return [said for _, said in answers]

    def work(self) -> None:
        """Run a worker until nothing is due."""
        env = self.env | self.settings("worker")
        status, _, err = ran_in(["worker", "--drain"], cwd=self.folder, env=env, stdin=b"")
        assert not re.search(REFUSED, err.decode()), err.decode()
        assert status == 0


@pytest.fixture(scope="module")
def broker(rabbitmq_server: RabbitMQ) -> Iterator[str]:
    """The URL of a vhost of the shop, but for the user. It and its users are marked: other processes have theirs."""
    [patterns] = re.findall(r"set_permissions -p shop \$user '(.+)' '(.+)' '(.+)'", statements("sh", "rabbitmqctl"))
    mark = secrets.token_hex(4)
    vhost = f"shop_{mark}"
    rabbitmq_server.operator.add_vhost(vhost)
    for role in ROLES:
        rabbitmq_server.operator.add_user(f"shop_{role}_{mark}", "password")
        rabbitmq_server.operator.set_permissions(f"shop_{role}_{mark}", *patterns, vhost=vhost)
    yield f"amqp://USER_{mark}:password@127.0.0.1:{rabbitmq_server.port}/{vhost}"
    rabbitmq_server.operator.delete_vhost(vhost)


@pytest.fixture(scope="module")
def inflight(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a Redis that lets nobody in without a login, but for the login."""
    with Private(request.config)(start_redis) as server, redis.Redis.from_url(server.url) as admin:
        for line in statements("sh", "redis-cli").splitlines():
            admin.execute_command(*shlex.split(line)[1:])
        admin.execute_command("ACL", "SETUSER", "default", "-@all", "resetkeys", "+acl")
        yield f"redis://LOGIN127.0.0.1:{server.port}/0"


@contextlib.contextmanager
def as_owner(url: str) -> Iterator[Connection]:
    """A transaction of the user who owns the tables."""
    engine = create_engine(ledger_url(url))
    with engine.begin() as tx:
        yield tx
    engine.dispose()


def on_postgresql(owner: str) -> dict[str, str]:
    database = Database(owner)
    migrate.migrate(database)
    database.close()
    with as_owner(owner) as tx:
        for role in ROLES:
            tx.exec_driver_sql(f"CREATE ROLE shop_{role} LOGIN")
        tx.exec_driver_sql(statements("sql", "GRANT USAGE ON SEQUENCE"))
    return {role: owner.replace("//workq@", f"//shop_{role}@") for role in ROLES}


def on_mysql(owner: str, folder: Path) -> dict[str, str]:
    database = Database(owner)
    migrate.migrate(database)
    name = database.url.database
    subprocess.run(["bash", "-c", statements("sh", "grants.sql")], cwd=folder, check=True)
    with database.engine.begin() as tx:
        for role in ROLES:
            tx.exec_driver_sql(f"CREATE USER shop_{role} IDENTIFIED BY 'password'")
        for line in (folder / "grants.sql").read_text().splitlines():
            tx.exec_driver_sql(line.replace("ON shop.", f"ON {name}.").rstrip(";"))
    database.close()
    return {role: owner.replace("//workq:workq@", f"//shop_{role}:password@") for role in ROLES}


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str, inflight: str
) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(APP)
    server = request.getfixturevalue("postgres_server" if request.param == "postgresql" else "mariadb_server")
    owner = server.create_database()
    ledgers = on_postgresql(owner) if request.param == "postgresql" else on_mysql(owner, folder)
    env = {name: value for name, value in os.environ.items() if not name.startswith("WORKQ_")}
    env |= FORKED_WITH | {"WORKQ_APP": "shop:wq", "BROKER": broker, "INFLIGHT": inflight}
    env |= {"WORKQ_WEBHOOK_ALLOW": "loopback", "WORKQ_WEBHOOK_PORTS": "1-65535", "WORKQ_QUEUE_TYPE": "classic"}
    yield Shop(folder, env, ledgers)
    with as_owner(owner) as tx:
        for role in ROLES:
            if request.param == "postgresql":
                tx.exec_driver_sql(f"DROP OWNED BY shop_{role}")
                tx.exec_driver_sql(f"DROP ROLE shop_{role}")
            else:
                tx.exec_driver_sql(f"DROP USER shop_{role}")


def test_each_role_does_its_work_with_what_the_page_gives_it(shop: Shop) -> None:
    shop.run("operator", "webhook endpoint add http://127.0.0.1:1/ --id books --retry-schedule 0.1s", "schedule sync")
    first, again = json.loads(shop.python("producer", PRODUCE)[0])
    shop.work()
    shop.run("worker", "sweep")
    show, status, jobs = shop.run(
        "operator", f"task show {first} -o json", "status -o json", "job ls -o json --state completed_with_failures"
    )

    assert first == again
    assert json.loads(show)["state"] == "succeeded"
    counts = json.loads(status)["states"]
    assert (counts["ready"], counts["running"], counts["succeeded"] >= 12) == (0, 0, True)
    ended = json.loads(jobs)["jobs"][0]["id"]
    shop.run(
        "operator",
        *("doctor", "db status", "meters", "worker ls", "queue ls", "limit ls", "dead groups", "schedule ls"),
        *(f"why {first}", f"job show {ended}", "webhook endpoint ls", "webhook delivery ls", "audit --repair"),
        *("queue pause default --why x", "enqueue shop.add a=1", "task cancel --all --yes", "queue resume default"),
        *("enqueue shop.add a=2", "queue purge default --yes", "dead retry --all --yes", "rebuild --yes"),
        *("schedule pause nightly --why x", "schedule resume nightly", "schedule run nightly", "schedule rm nightly"),
        *(f"job retry {ended}", "job run shop.job index=z --if-running queue", "sweep --plan plan.json"),
        *("webhook endpoint edit books --rate 10/s", "webhook endpoint rotate books"),
        *("webhook endpoint disable books --why x", "webhook send a.b --data {}"),
        *("webhook endpoint enable books --release", "webhook endpoint disable books --why x"),
        *("webhook endpoint discard books --yes", "webhook recover books --since 2h --yes", "sweep"),
    )


def test_a_missing_right_on_a_table_is_named_with_what_to_grant(shop: Shop) -> None:
    database = Database(shop.ledgers["producer"])
    t = database.tables
    refused = {
        "workq_event": t.event.insert().values(task_id=None, kind="manual", at=database.now()),
        "workq_pause": t.pause.delete(),
        "workq_endpoint": webhook_tables(database).endpoint.update().values(state="disabled"),
        "workq_worker": t.worker.select(),
    }
    said = {}
    for name, statement in refused.items():
        with pytest.raises(LedgerUnavailable) as failed:
            database.run(lambda tx, statement=statement: tx.execute(statement))  # type: ignore[misc]
        said[name] = str(failed.value)
    database.close()

    for (name, text), right in zip(said.items(), ("INSERT", "DELETE", "UPDATE", "SELECT"), strict=True):
        granted = re.search(r"GRANT ([A-Z, ]+) ON `?[\w`.]*?(workq_\w+)`? TO shop_producer", text)
        assert granted is not None, text
        assert granted[2] == name
        assert right in granted[1].split(", ")


def errors_of(checks: list[Check]) -> list[str]:
    return [check.message for check in checks if check.level is Level.ERROR]


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        (("~other:*", "+@all"), "does not allow this user what workq needs"),
        (("~*", "+@all", "-hset", "-zadd"), "may not use HSET, ZADD"),
        (("~*", "+@all", "-@write"), "may not use DEL, HDEL, SREM, ZREM, ZREMRANGEBYRANK, ZREMRANGEBYSCORE"),
        (("~*", "+@all", "-evalsha"), "does not allow this user what workq needs"),
        (("~*", "+@all", "-time"), "does not allow this user what workq needs"),
    ],
)
def test_doctor_finds_a_user_of_redis_who_lacks_a_right_and_leaves_nothing_there(
    redis_server: Redis, tmp_path: Path, rights: tuple[str, ...], said: str
) -> None:
    with redis.Redis.from_url(redis_server.url, db=7) as admin:
        before = set(admin.keys())  # of other tests on this server
        admin.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">password", *rights)
        url = f"redis://narrow:password@127.0.0.1:{redis_server.port}/7"

        found = errors_of(examine(Settings(ledger=f"sqlite:///{tmp_path}/none.db", inflight=url)))

        assert [said in one and "ACL SETUSER narrow ~{workq}:* +@read" in one for one in found] == [True], found
        assert set(admin.keys()) - before <= {b"{workq}:epoch"}
        admin.execute_command("ACL", "DELUSER", "narrow")


def test_every_command_of_the_scripts_is_one_that_doctor_tries() -> None:
    folder = Path(workq.inflight.__file__).parent / "redis"
    tried = set(re.findall(r"try\('(\w+)'", (folder / "rights.lua").read_text()))
    used = {
        command for one in folder.glob("*.lua") for command in re.findall(r"redis\.p?call\('(\w+)'", one.read_text())
    }

    assert used - {"TIME"} == tried  # without TIME no script runs at all


def test_what_rabbitmq_refuses_is_told_with_what_to_grant(
    rabbitmq_server: RabbitMQ, broker: str, tmp_path: Path
) -> None:
    url = broker.replace("USER", "shop_narrow")
    at = urlsplit(url)
    vhost, user = at.path.removeprefix("/"), str(at.username)
    rabbitmq_server.operator.add_user(user, "password")
    rabbitmq_server.operator.set_permissions(user, "^$", "^$", "^$", vhost=vhost)
    nothing = RabbitMQBroker(url, namespace="workq", queue_type="classic")
    grant = rf"rabbitmqctl set_permissions -p {vhost} {user} '\^workq\\\."

    with pytest.raises(ConfigError, match=grant):
        nothing.publish([Hint("narrow", ("1",))], deadline_s=20)
    found = errors_of(examine(Settings(ledger=f"sqlite:///{tmp_path}/none.db", broker=url)))
    nothing.close()
    rabbitmq_server.operator.set_permissions(user, "^workq", "^workq", "^workq", vhost=vhost)
    unwritable = RabbitMQBroker(url, namespace="workq", queue_type="classic")
    with pytest.raises(ConfigError, match=grant):
        unwritable.publish([Hint("narrow", ("1",))], deadline_s=20)
    unwritable.close()

    assert len(found) == 1
    assert re.search(grant, found[0])
    assert "empty and delete it" not in found[0]


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka that knows the three users, and lets each do what the page gives it, by Kafka's own program."""
    users = " ".join(f'user_shop_{role}="password"' for role in ROLES)
    jaas = "listener.name.client.plain.sasl.jaas.config"
    login = f"{jaas}=org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    folder = tmp_path_factory.mktemp("acls")
    with Private(request.config)(start_kafka, options=(*AUTHORIZED, login)) as server:
        jars = find_jars(f"kafka-{chosen_version()}")
        program = [*java(HEAP_MB, jars), "-cp", f"{jars}/*", "org.apache.kafka.tools.AclCommand"]
        servers = ["--bootstrap-server", server.admin_conf["bootstrap.servers"]]
        (folder / "kafka-acls.sh").write_text(f'#!/bin/bash\nexec {shlex.join([*program, *servers])} "${{@:5}}"\n')
        (folder / "kafka-acls.sh").chmod(0o755)
        path = {"PATH": f"{folder}:{os.environ['PATH']}"}
        script = ["bash", "-ec", statements("sh", "kafka-acls.sh")]
        subprocess.run(script, env=os.environ | path, check=True, capture_output=True, timeout=BOUND_S)
        yield server


def test_each_role_does_its_work_on_kafka_with_what_the_page_gives_it(kafka: Kafka, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(KAFKA_APP)
    env = {name: value for name, value in os.environ.items() if not name.startswith("WORKQ_")}
    url = kafka.url.replace("kafka://", "kafka://USER:password@")
    ledger = f"sqlite:///{tmp_path}/shop.db"
    migrate.migrate(database := Database(ledger))
    database.close()
    shop = Shop(
        tmp_path,
        env | FORKED_WITH | {"WORKQ_APP": "shop:wq", "BROKER": url, "INFLIGHT": ""},
        dict.fromkeys(ROLES, ledger),
    )

    first, is_sent = json.loads(shop.python("producer", PRODUCE_ON_KAFKA)[0])
    shop.work()
    of_worker, _ = shop.run("worker", "doctor", "sweep")
    show, of_operator, *_ = shop.run(
        "operator",
        *(f"task show {first} -o json", "doctor", "queue ls", f"why {first}", "enqueue shop.add", "audit --repair"),
        *("rebuild --yes", "queue purge default --yes"),
    )

    assert is_sent
    assert json.loads(show)["state"] == "succeeded"
    assert not re.search("broker +error", of_worker)
    assert "topic workq.q.default: this user may not read its settings" in of_worker
    assert not re.search("broker +(error|unchecked)", of_operator)
    [refused] = errors_of(examine(Settings(ledger=ledger, broker=url.replace("USER", "shop_producer"))))
    assert "READ on the group workq" in refused
