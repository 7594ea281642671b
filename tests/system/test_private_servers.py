"""What the private servers promise to all other tests: the same promises for each of the four, on the real binaries."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import psutil
import psycopg
import pymysql
import pytest
import redis
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from tests.conftest import Private
from workq.lab.servers import (
    MariaDB,
    PostgreSQL,
    RabbitMQ,
    Redis,
    Server,
    ServerFailed,
    ServerMissing,
    server,
    start_mariadb,
    start_postgres,
    start_rabbitmq,
    start_redis,
)
from workq.lab.servers.guardian import with_children
from workq.lab.servers.programs import ROOT

WAIT_S = 30.0

START_AND_TELL = """
import sys
from pathlib import Path
from workq.lab import servers
server = getattr(servers, sys.argv[1])(Path(sys.argv[2]))
print(server.pid, flush=True)
sys.stdin.read()
"""


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Processes of others end when the kernel gets to it; there is no signal to wait for."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


def choose_first(port: int, monkeypatch: pytest.MonkeyPatch, *more: int) -> None:
    """As if somebody took this port, and more that are chosen after it, just after we saw them free."""
    free_port, taken = server.free_port, iter([port, *more])
    monkeypatch.setattr(server, "free_port", lambda: next(taken, None) or free_port())


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


class ServerContract:
    """What every private server promises. A subclass says how to start one, and how to store and find one word."""

    starter: Callable[..., Server]
    errors: tuple[type[Exception], ...]
    """What the client raises when the server does not answer."""

    def store(self, server: Any, word: str) -> None:
        """Durably: when this returns, the server acknowledged it."""
        raise NotImplementedError

    def find(self, server: Any) -> str | None:
        """The word; None when the server is fresh. Gives up after about a second."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def running(cls, private: Private) -> Iterator[Server]:
        with private(cls.starter) as server:
            yield server

    @pytest.fixture
    def server(self, running: Server) -> Server:
        if not running.is_running:
            running.start()
        return running

    def test_it_answers_and_says_its_version(self, server: Server) -> None:
        self.store(server, "hello")

        assert self.find(server) == "hello"
        assert server.version[0].isdigit()
        assert server.url.count(f"127.0.0.1:{server.port}/") == 1

    def test_all_its_ports_are_on_loopback(self, server: Server) -> None:
        connections = psutil.Process(server.pid).net_connections("inet")

        listening = {one.laddr[0] for one in connections if one.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}

    def test_a_kill_ends_every_process_and_keeps_what_was_acknowledged(self, server: Server) -> None:
        self.store(server, "kept")
        port, everything = server.port, with_children(server.pid)
        processes = list(everything)

        server.kill()

        assert not server.is_running
        assert [one for one in processes if is_alive(one)] == []
        with pytest.raises(self.errors):
            self.find(server)

        server.start()

        assert server.port == port
        assert self.find(server) == "kept"

    def test_a_restart_keeps_port_and_data(self, server: Server) -> None:
        self.store(server, "kept too")
        port, pid = server.port, server.pid

        server.restart()

        assert (server.port, server.pid != pid) == (port, True)
        assert self.find(server) == "kept too"

    def test_a_paused_server_does_not_answer_until_it_is_resumed(self, server: Server) -> None:
        self.store(server, "patience")

        server.pause()
        try:
            assert server.is_running
            with pytest.raises(self.errors):
                self.find(server)
        finally:
            server.resume()

        assert self.find(server) == "patience"

    def test_a_wipe_gives_a_fresh_server_on_the_same_port(self, server: Server) -> None:
        self.store(server, "lost")
        port = server.port
        server.kill()

        server.wipe()
        server.start()

        assert server.port == port
        assert self.find(server) is None

    def test_a_running_server_is_neither_wiped_nor_started_again(self, server: Server) -> None:
        with pytest.raises(RuntimeError, match="kill it before"):
            server.wipe()
        with pytest.raises(RuntimeError, match="is running already"):
            server.start()

    def test_a_port_that_somebody_took_leads_to_another_try_and_stop_leaves_nothing_behind(
        self, private: Private, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as somebody:
            somebody.bind(("127.0.0.1", 0))
            taken = somebody.getsockname()[1]
            choose_first(taken, monkeypatch)

            with private(self.starter) as server:
                self.store(server, "found a place")

                assert server.port != taken
                assert self.find(server) == "found a place"
                processes = [*with_children(server.pid), psutil.Process(server._guardian._process.pid)]
                processes += [psutil.Process(helper.pid) for helper in server._helpers]

        assert [one for one in processes if is_alive(one)] == []
        assert not server.folder.exists()
        server.stop()  # repeatable
        with pytest.raises(RuntimeError, match="its folder is gone"):
            server.start()

    @pytest.mark.parametrize("state", ["running", "paused"])
    def test_a_killed_test_run_leaves_nothing_behind(self, state: str, open_folder: Path) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", START_AND_TELL, self.starter.__name__, str(open_folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as run:
            assert run.stdout is not None
            pid = int(run.stdout.readline())
            processes = [one for child in psutil.Process(run.pid).children() for one in with_children(child.pid)]
            assert pid in {one.pid for one in processes}
            assert list(open_folder.iterdir())
            if state == "paused":
                os.kill(pid, signal.SIGSTOP)

            run.kill()
            run.wait()

        wait_until(lambda: not any(map(is_alive, processes)), "all processes of the killed run are gone")
        wait_until(lambda: not list(open_folder.iterdir()), "the server's folder is removed")

    @pytest.fixture
    def open_folder(self) -> Iterator[Path]:
        """Not `tmp_path`: its parents are closed to the accounts that servers run as."""
        with tempfile.TemporaryDirectory(prefix="workq-test-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            yield folder


class TestRedis(ServerContract):
    starter = staticmethod(start_redis)
    errors = (redis.ConnectionError, redis.TimeoutError)

    def store(self, server: Any, word: str) -> None:
        with closing(self.client(server)) as client:
            client.set("word", word)

    def find(self, server: Any) -> str | None:
        with closing(self.client(server)) as client:
            found = client.get("word")
        return found if found is None else str(found)

    def client(self, server: Redis) -> redis.Redis:
        return redis.Redis.from_url(
            server.url, socket_timeout=1, socket_connect_timeout=1, retry=None, decode_responses=True
        )

    def test_the_server_of_somebody_else_is_never_taken_for_ours(
        self, private: Private, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with private(start_redis) as theirs:
            choose_first(theirs.port, monkeypatch)

            with private(start_redis) as ours:
                self.store(ours, "here only")

                assert self.find(theirs) is None


class TestPostgreSQL(ServerContract):
    starter = staticmethod(start_postgres)
    errors = (psycopg.OperationalError,)

    def store(self, server: Any, word: str) -> None:
        with closing(self.client(server.url)) as client, client.transaction():
            client.execute("CREATE TABLE IF NOT EXISTS word (word text)")
            client.execute("DELETE FROM word")
            client.execute("INSERT INTO word VALUES (%s)", [word])

    def find(self, server: Any) -> str | None:
        with closing(self.client(server.url)) as client:
            row = client.execute("SELECT to_regclass('word') IS NOT NULL").fetchone()
            if row != (True,):
                return None
            return str(client.execute("SELECT word FROM word").fetchone()[0])  # type: ignore[index]  # there is one row

    def client(self, url: str) -> psycopg.Connection:
        return psycopg.connect(url, connect_timeout=2, autocommit=True)

    def test_a_database_of_ones_own_is_empty(self, server: PostgreSQL) -> None:
        self.store(server, "elsewhere")

        url = server.create_database()

        with closing(self.client(url)) as client:
            assert client.execute("SELECT to_regclass('word')").fetchone() == (None,)

    def test_a_killed_server_leaves_no_shared_memory_behind(self, private: Private) -> None:
        def segments(*, of: int) -> set[str]:  # other tests start servers meanwhile: theirs are not counted
            lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
            return {fields[1] for fields in map(str.split, lines) if int(fields[4]) == of}

        with private(self.starter) as server:
            pid = server.pid
            mapped = Path(f"/proc/{pid}/maps").read_text()
            assert segments(of=pid)
            server.kill()

        assert not segments(of=pid)
        assert "/dev/shm/PostgreSQL." not in mapped


class TestMariaDB(ServerContract):
    starter = staticmethod(start_mariadb)
    errors = (pymysql.OperationalError,)

    def store(self, server: Any, word: str) -> None:
        with closing(self.client(server)) as client, client.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS word (word varchar(50))")
            cursor.execute("DELETE FROM word")
            cursor.execute("INSERT INTO word VALUES (%s)", [word])
            client.commit()

    def find(self, server: Any) -> str | None:
        with closing(self.client(server)) as client, client.cursor() as cursor:
            if not cursor.execute("SHOW TABLES LIKE 'word'"):
                return None
            cursor.execute("SELECT word FROM word")
            return str(cursor.fetchall()[0][0])

    def client(self, server: MariaDB, database: str = "workq") -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(
            host="127.0.0.1",
            port=server.port,
            user="workq",
            password="workq",
            database=database,
            connect_timeout=1,
            read_timeout=1,
        )

    def test_a_database_of_ones_own_is_empty(self, server: MariaDB) -> None:
        self.store(server, "elsewhere")
        name = f"own_{server.pid}"

        url = server.create_database(name)

        assert url.endswith(f"/{name}")
        with closing(self.client(server, name)) as client, client.cursor() as cursor:
            assert cursor.execute("SHOW TABLES") == 0


class TestRabbitMQ(ServerContract):
    starter = staticmethod(start_rabbitmq)
    errors = (pika.exceptions.AMQPError, AMQPConnectorException, OSError)  # the second is no subclass of the first

    @pytest.fixture(scope="class")
    @classmethod
    def running(cls, mortal: RabbitMQ) -> RabbitMQ:
        """That of other tests which harm it: it takes long to start."""
        return mortal

    @pytest.mark.parametrize("state", ["running"])  # how one ends that is paused does not depend on what it serves
    def test_a_killed_test_run_leaves_nothing_behind(self, state: str, open_folder: Path) -> None:
        super().test_a_killed_test_run_leaves_nothing_behind(state, open_folder)

    def store(self, server: Any, word: str) -> None:
        with closing(self.client(server)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("word", durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_purge("word")
            server.wait_registered("word")
            channel.basic_publish("", "word", word.encode(), pika.BasicProperties(delivery_mode=2))

    def find(self, server: Any) -> str | None:
        with closing(self.client(server)) as connection:
            channel = connection.channel()
            try:
                _, _, body = channel.basic_get("word")
            except pika.exceptions.ChannelClosedByBroker:
                return None
            return None if body is None else body.decode()

    def client(self, server: RabbitMQ) -> pika.BlockingConnection:
        parameters = pika.URLParameters(server.url)
        parameters.socket_timeout = 1
        parameters.stack_timeout = 1
        parameters.blocked_connection_timeout = 1
        return pika.BlockingConnection(parameters)

    def test_a_port_for_other_nodes_that_somebody_took_leads_to_another_try(
        self, private: Private, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as somebody:
            somebody.bind(("127.0.0.1", 0))
            somebody.listen()
            choose_first(server.free_port(), monkeypatch, somebody.getsockname()[1])

            with private(self.starter) as found:
                assert found.is_running
                assert found._dist_port != somebody.getsockname()[1]

    def test_ctl_speaks_with_this_node_alone(self, server: RabbitMQ) -> None:
        self.store(server, "counted")

        told = [line.split() for line in server.ctl("list_queues", "name", "type", "leader").splitlines()]
        assert ["word", "quorum", server.node] in told

    def test_what_it_evaluates_is_told_and_so_is_why_that_failed(self, server: RabbitMQ) -> None:
        assert server.evaluate("[node(), 1 + 1].") == f"['{server.node}', 2]"
        with pytest.raises(ServerFailed, match="undef"):
            server.evaluate("no_such_module:call().")
        with pytest.raises(ServerFailed, match="Incomplete form"):
            server.evaluate("1 + 1")

    def test_an_operator_is_told_what_is_there_and_why_the_node_refuses(self, server: RabbitMQ) -> None:
        self.store(server, "listed")

        assert server.operator.queues("wor") == ["word"]
        assert server.operator.exchanges("amq.d") == ["amq.direct"]
        assert server.operator.queues("no such") == []
        with pytest.raises(ServerFailed, match=r"Validation failed.*no-such-key"):
            server.operator.set_policy("none", "^$", '{"no-such-key":1}')

    def test_ctl_tells_why_it_failed(self, server: RabbitMQ) -> None:
        with pytest.raises(ServerFailed, match=r"not[_ ]found"):
            server.ctl("purge_queue", "no_such_queue")


def test_a_missing_program_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)

    with pytest.raises(ServerMissing, match="apt-get install redis-server"):
        start_redis()


def test_a_server_that_refuses_its_settings_says_why_and_leaves_nothing(private: Private, tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="Bad directive"):
        private(start_redis, tmp_path, options=["--no-such-setting", "1"])

    assert list(tmp_path.iterdir()) == []


def test_a_server_survives_the_thread_that_started_it(redis_server: Redis) -> None:
    started: list[Redis] = []
    thread = threading.Thread(target=lambda: started.append(start_redis()))
    thread.start()
    thread.join()

    with started[0] as server:
        assert redis.Redis.from_url(server.url).ping()


def test_the_environment_of_the_user_does_not_reach_a_private_server(
    private: Private, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nonexistent")

    with private(start_postgres) as server:
        assert server.create_database("mine").endswith(f":{server.port}/mine")


def test_a_server_from_a_folder_has_mounts_that_nobody_else_sees(
    private: Private, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the folder is /: this machine's own Debian, entered as another one would be."""
    monkeypatch.setenv(ROOT, "/")
    if os.geteuid() != 0:
        with pytest.raises(ServerMissing, match="needs root"):
            start_postgres()
        return

    def mounted(process: int | str) -> list[str]:
        points = [line.split()[1] for line in Path(f"/proc/{process}/mounts").read_text().splitlines()]
        return sorted(point for point in points if point in ("/etc", "/usr"))

    before = mounted("self")

    with private(start_postgres) as server:
        inside, meanwhile = mounted(server.pid), mounted("self")

    assert inside == sorted([*before, "/etc", "/usr"])
    assert meanwhile == mounted("self") == before
