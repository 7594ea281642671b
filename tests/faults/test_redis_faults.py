"""What happens to the in-flight store when its Redis stops, dies, is wiped, is full, or is not the one we asked for.

Each test has a private Redis. Nothing here is timed but for one bound: no call may hang.
"""

from __future__ import annotations

import os
import secrets
import select
import shlex
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from tests.conftest import Private
from tests.contract.inflight import LONG_S, claimed, ids, pairs, until
from tests.contract.test_inflight_contract import disagreements
from tests.faults import silence
from workq import WorkQueue
from workq.config import Settings
from workq.diagnose.doctor.check import Level
from workq.diagnose.doctor.redis import look
from workq.errors import ConfigError, InFlightUnavailable, LeaseLost
from workq.inflight import Entry
from workq.inflight.redis import RedisInFlight
from workq.lab.servers import Redis, start_redis
from workq.ledger import Reaped
from workq.recovery.deaths import look_for_the_dead
from workq.recovery.reap import free
from workq.recovery.swept import Swept
from workq.values.incarnation import ID_MAX

SOCKET_S = 0.3
HANG_S = 10.0
"""Much more than any call may take, and less than redis-py's hidden retries would."""
CANARY = "c4n4ry-p/w@#?"
NAMESPACE = "faults"


def entries(count: int) -> list[Entry]:
    return [Entry(secrets.token_hex(18), "mail", 1) for _ in range(count)]


@pytest.fixture
def server(private: Private) -> Iterator[Redis]:
    with private(start_redis) as started:
        yield started


@pytest.fixture
def admin(server: Redis) -> Iterator[Any]:
    """A client of the test's own; it may be asked again after a restart."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def inflight(server: Redis) -> Iterator[RedisInFlight]:
    store = RedisInFlight(server.url, namespace=NAMESPACE, socket_s=SOCKET_S)

    def has_joined() -> bool:
        with suppress(InFlightUnavailable):  # a busy machine may take longer than it may wait
            store.join("ada", lease_s=LONG_S)
            return True
        return False

    until(has_joined, "it has joined")
    yield store
    store.close()


fails = partial(silence.fails, within_s=HANG_S)


def kill_when_written(server: Redis, admin: Any) -> None:
    """SIGKILL, once what was answered is in the file: while the disk syncs, Redis keeps it for up to two seconds."""
    until(lambda: admin.info("persistence")["aof_buffer_length"] == 0, "all is written")
    server.kill()


def scripts_run(admin: Any) -> int:
    return int(admin.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


# It does not answer.


def test_a_stopped_redis_fails_a_call_in_time_and_runs_it_at_most_once(
    server: Redis, admin: Any, inflight: RedisInFlight
) -> None:
    """PF-1: with its defaults redis-py sends such a call again and again, and Redis runs each of them when it wakes."""
    batch = entries(3)
    admin.config_resetstat()
    server.pause()

    message = fails(lambda: inflight.hold(batch, by="ada"))

    server.resume()
    until(lambda: answers(server), "Redis answers")
    assert "did not answer within 0.3 s" in message
    assert scripts_run(admin) <= 1
    assert inflight.hold(batch, by="ada") == ids(batch)
    assert disagreements(admin, NAMESPACE) == []


@dataclass
class Mute:
    """A way to Redis on which requests arrive, but no answer to a script: Redis is slower than its caller."""

    port: int
    target: int
    is_mute: bool = False

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.forward, args=(client,), daemon=True).start()

    def forward(self, client: socket.socket) -> None:
        asked_for_script = False
        with client, socket.create_connection(("127.0.0.1", self.target)) as redis_side:
            while True:
                for source in select.select([client, redis_side], [], [])[0]:
                    try:
                        data = source.recv(65536)
                    except OSError:
                        data = b""
                    if not data:
                        return
                    if source is client:
                        asked_for_script = asked_for_script or b"EVALSHA" in data
                        redis_side.sendall(data)
                    elif not (self.is_mute and asked_for_script):
                        client.sendall(data)


@pytest.fixture
def mute(server: Redis) -> Iterator[Mute]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Mute(listener.getsockname()[1], server.port)
        thread = threading.Thread(target=proxy.serve, args=(listener,))
        thread.start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_call_that_times_out_was_sent_exactly_once(server: Redis, admin: Any, mute: Mute) -> None:
    """PF-1: redis-py's own retries would connect again, be greeted, and run the script again, time after time."""
    store = RedisInFlight(f"redis://127.0.0.1:{mute.port}/0", namespace=NAMESPACE, socket_s=SOCKET_S)
    store.join("ada", lease_s=LONG_S)
    batch = entries(3)
    store.hold(batch, by="ada")  # the script is known from now on
    store.release(pairs(batch), by="ada")
    admin.config_resetstat()
    mute.is_mute = True

    assert "did not answer within 0.3 s" in fails(lambda: store.hold(batch, by="ada"))

    assert scripts_run(admin) == 1
    mute.is_mute = False
    assert store.hold(batch, by="ada") == ids(batch)  # it had been carried out, and is simply made again
    assert disagreements(admin, NAMESPACE) == []
    store.close()


def answers(server: Redis) -> bool:
    probe: Any = redis.Redis.from_url(server.url, socket_timeout=0.1)
    try:
        return bool(probe.ping())
    except redis.exceptions.TimeoutError:
        return False
    finally:
        probe.close()


def test_many_threads_share_the_pool_and_none_hangs_on_a_stopped_redis(server: Redis, inflight: RedisInFlight) -> None:
    """More threads than connections: whoever waits for one gives up in time as well."""
    failures: list[str] = []
    server.pause()

    def call() -> None:
        failures.append(fails(lambda: inflight.leases()))

    threads = [threading.Thread(target=call) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S * 2)

    server.resume()
    assert len(failures) == 50
    until(lambda: "ada" in inflight.leases(), "it works again")


def test_a_stopped_redis_cannot_be_connected_to_either(server: Redis) -> None:
    server.pause()
    fresh = RedisInFlight(server.url, socket_s=SOCKET_S)

    message = fails(fresh.check)

    fresh.close()
    server.resume()
    assert "did not answer within 0.3 s" in message


# It dies, and comes back with or without its data.


def test_after_a_restart_calls_work_again_by_themselves_and_holds_are_kept(
    server: Redis, admin: Any, inflight: RedisInFlight
) -> None:
    """The new process knows no script; the old connections are dead."""
    batch = entries(5)
    inflight.hold(batch, by="ada")
    kill_when_written(server, admin)
    assert "nothing listens" in fails(lambda: inflight.leases())

    server.start()

    assert {hold.task_id for hold in inflight.held_by("ada")} == ids(batch)
    assert inflight.beat("ada", lease_s=LONG_S, entries=batch).restored == 0
    assert inflight.release(pairs(batch), by="ada") == 5
    assert disagreements(admin, NAMESPACE) == []


def test_a_restart_between_two_calls_is_not_noticed(server: Redis, admin: Any, inflight: RedisInFlight) -> None:
    """A dead connection of the pool is replaced before the call is sent."""
    for _ in range(3):
        kill_when_written(server, admin)
        server.start()

        assert list(inflight.leases()) == ["ada"]


def test_scripts_that_were_flushed_are_loaded_again(admin: Any, inflight: RedisInFlight) -> None:
    admin.script_flush()

    assert inflight.extend("ada", lease_s=LONG_S) is True
    assert len(inflight.hold(entries(3), by="ada")) == 3


def test_after_a_loss_of_all_data_the_next_beats_restore_everything(server: Redis, admin: Any) -> None:
    """F45, F48: 100 run; nothing of it is lost, and the epoch says that the store is young."""
    stores = [RedisInFlight(server.url, namespace=NAMESPACE) for _ in range(4)]
    held = {f"worker-{number}": entries(25) for number in range(4)}
    for store, (worker, batch) in zip(stores, held.items(), strict=True):
        store.join(worker, lease_s=LONG_S)
        store.hold(batch, by=worker)
    server.kill()
    server.wipe()
    server.start()
    began = time.monotonic()
    assert stores[0].leases() == {}

    restored = [
        store.beat(worker, lease_s=LONG_S, entries=batch).restored
        for store, (worker, batch) in zip(stores, held.items(), strict=True)
    ]

    assert restored == [25, 25, 25, 25]
    assert len(stores[0].holds("mail")) == 100
    assert set(stores[0].leases()) == set(held)
    assert stores[0].epoch_age_s() <= time.monotonic() - began + 1.0
    assert disagreements(admin, NAMESPACE) == []
    for store in stores:
        store.close()


def test_flushall_in_the_middle_of_everything_leaves_hash_and_indexes_in_agreement(
    server: Redis, admin: Any, inflight: RedisInFlight
) -> None:
    """F45 under load: holds, beats and releases of four workers while Redis is emptied again and again."""
    stop = threading.Event()
    faults: list[BaseException] = []

    def work(name: str) -> None:
        mine: list[Entry] = []
        store = RedisInFlight(server.url, namespace=NAMESPACE, socket_s=HANG_S)
        try:
            while not stop.is_set():
                store.beat(name, lease_s=LONG_S, entries=mine)
                fresh = entries(5)
                try:
                    store.hold(fresh, by=name)
                except LeaseLost:
                    continue  # wiped since the beat
                mine = (mine + fresh)[-20:]
                store.release(pairs(mine[:3]), by=name)
                mine = mine[3:]
        except BaseException as error:
            faults.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        before = scripts_run(admin)
        until(lambda before=before: scripts_run(admin) > before + 20, "the workers work")  # type: ignore[misc]  # a lambda's default has no type
        admin.flushall()
    stop.set()
    for thread in threads:
        thread.join(30)

    assert faults == []
    assert disagreements(admin, NAMESPACE) == []


def test_an_epoch_that_lies_in_the_future_begins_again(server: Redis, admin: Any, inflight: RedisInFlight) -> None:
    """F55: the clock was set back. Else the store would count as young for an hour, and nobody be reaped."""
    epoch = f"{{{NAMESPACE}}}:epoch"
    seconds, _ = admin.time()
    admin.set(epoch, (int(seconds) + 3600) * 1000)

    assert inflight.epoch_age_s() < HANG_S
    assert int(admin.get(epoch)) < (int(seconds) + HANG_S) * 1000
    assert list(inflight.leases()) == ["ada"]


# It is full, or may drop what it holds.


def test_a_full_redis_refuses_holds_whole_but_keeps_leases_and_lets_go(
    server: Redis, admin: Any, inflight: RedisInFlight
) -> None:
    """F52. A store that takes no more holds must not end the leases of those who work."""
    held, more = entries(10), entries(500)
    inflight.hold(held, by="ada")
    before = admin.hgetall(f"{{{NAMESPACE}}}:inflight:mail")
    admin.config_set("maxmemory", "1")

    message = fails(lambda: inflight.hold(more, by="ada"))

    assert "full (maxmemory)" in message
    assert admin.hgetall(f"{{{NAMESPACE}}}:inflight:mail") == before
    assert disagreements(admin, NAMESPACE) == []
    assert inflight.beat("ada", lease_s=2 * LONG_S, entries=held).restored == 0
    assert inflight.extend("ada", lease_s=3 * LONG_S) is True
    assert inflight.leases()["ada"].left_s > 2 * LONG_S
    assert inflight.release(pairs(held[:4]), by="ada") == 4
    assert inflight.forget("bob") == 0
    inflight.join("cyd", lease_s=LONG_S)
    inflight.leave("cyd")
    admin.config_set("maxmemory", "0")
    assert inflight.hold(more, by="ada") == ids(more)
    assert disagreements(admin, NAMESPACE) == []


def test_a_full_redis_that_was_wiped_still_gets_its_leases_and_entries_back(
    server: Redis, admin: Any, inflight: RedisInFlight
) -> None:
    held = entries(10)
    inflight.hold(held, by="ada")
    admin.flushall()
    admin.config_set("maxmemory", "1")

    assert inflight.beat("ada", lease_s=LONG_S, entries=held).restored == 10

    assert len(inflight.held_by("ada")) == 10
    assert disagreements(admin, NAMESPACE) == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl"])
def test_an_evicting_policy_is_refused(admin: Any, inflight: RedisInFlight, policy: str) -> None:
    admin.config_set("maxmemory-policy", policy)

    with pytest.raises(ConfigError, match=f"maxmemory-policy is {policy}; set it to noeviction"):
        inflight.check()


def test_a_check_answers_the_version(server: Redis, inflight: RedisInFlight) -> None:
    assert inflight.check() == f"{server.name} {server.version}"


# It is not the one we asked for, or does not let us in.


def test_each_way_to_miss_redis_has_its_own_message(server: Redis) -> None:
    """B10."""
    port = server.port
    urls = {
        "cannot find the host": "redis://no-such-host.invalid:6379/0",
        "nothing listens": f"redis://127.0.0.1:{unused_port()}/0",
        "refused the user name or password": f"redis://nobody:wrong@127.0.0.1:{port}/0",
        "has no database of that number": f"redis://127.0.0.1:{port}/99",
        "If this is not its TLS port": f"rediss://127.0.0.1:{port}/0",
    }
    for expected, url in urls.items():
        store = RedisInFlight(url, socket_s=2.0)

        message = fails(store.check)

        store.close()
        assert expected in message
        assert sum(other in message for other in urls) == 1


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_is_no_redis_is_named_as_unusable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        store = RedisInFlight(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", socket_s=2.0)

        message = fails(store.check)

        thread.join()
        store.close()
    assert "Is it a healthy Redis?" in message


def test_a_replica_is_refused_with_the_cure(admin: Any, inflight: RedisInFlight) -> None:
    admin.replicaof("127.0.0.1", unused_port())

    message = fails(lambda: inflight.beat("ada", lease_s=LONG_S, entries=entries(1)))

    assert "read-only replica" in message


@pytest.mark.parametrize("rights", ["-evalsha", "-time", "-hset"])
def test_a_missing_right_is_named(server: Redis, admin: Any, rights: str) -> None:
    user = "narrow"
    admin.execute_command("ACL", "SETUSER", user, "on", ">pass", "~*", "+@all", rights)
    store = RedisInFlight(server.url.replace("redis://", f"redis://{user}:pass@"), namespace=NAMESPACE)

    message = fails(lambda: store.beat("ada", lease_s=LONG_S, entries=claimed(entries(2), 1)))

    store.close()
    assert "does not allow this user" in message


def test_settings_that_are_hidden_from_the_user_are_said_to_be(server: Redis, admin: Any) -> None:
    admin.execute_command("ACL", "SETUSER", "blind", "on", ">pass", "~*", "+@all", "-info", "-config")
    store = RedisInFlight(server.url.replace("redis://", "redis://blind:pass@"))

    assert store.check() == f"{server.name} {server.version} (its maxmemory-policy is hidden from this user)"

    store.close()


def test_config_tells_the_policy_where_info_is_forbidden(server: Redis, admin: Any) -> None:
    admin.execute_command("ACL", "SETUSER", "shy", "on", ">pass", "~*", "+@all", "-info")
    store = RedisInFlight(server.url.replace("redis://", "redis://shy:pass@"))
    assert store.check() == f"{server.name} {server.version}"
    admin.config_set("maxmemory-policy", "allkeys-lru")

    with pytest.raises(ConfigError, match="allkeys-lru"):
        store.check()

    store.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_either_protocol_can_be_asked_for_in_the_url(server: Redis, protocol: int) -> None:
    """PF-2."""
    store = RedisInFlight(f"{server.url}?protocol={protocol}", namespace=NAMESPACE)
    store.join("ada", lease_s=LONG_S)
    batch = entries(3)

    assert store.check() == f"{server.name} {server.version}"
    assert store.hold(batch, by="ada") == ids(batch)
    assert {hold.task_id for hold in store.holds("mail")} == ids(batch)
    assert store.leases()["ada"].left_s > 0
    assert store.release(pairs(batch), by="ada") == 3

    store.close()


# Nobody learns the password.


def test_a_password_of_redis_appears_in_no_exception(server: Redis, admin: Any, tmp_path: Path) -> None:
    """Neither as it is nor as it stands in the URL, wherever in the chain, and in no traceback."""
    written = "c4n4ry-p%2Fw%40%23%3F"
    where = f"127.0.0.1:{server.port}"
    admin.execute_command("ACL", "SETUSER", "known", "on", f">{CANARY}", "~*", "+@all", "-evalsha")
    admin.execute_command("ACL", "SETUSER", "default", ">another")
    urls = [
        f"redis://:{written}@no-such-host.invalid/0",
        f"redis://user:{written}@127.0.0.1:{unused_port()}/0",
        f"redis://user:{written}@{where}/0",
        f"redis://:{written}@{where}/0",
        f"redis://known:{written}@{where}/99",
        f"redis://known:{written}@{where}/0",
        f"rediss://user:{written}@{where}/0",
        f"unix://user:{written}@{tmp_path}/nothing.sock",
        f"unix://{tmp_path}/nothing.sock?password={written}",
        f"redis://user:{CANARY}@{where}/0",  # not escaped, so no URL at all
        f"redis://user:{written}@{where}:{written}/0",
        f"redis://user:{written}@{where}/{written}",
        f"redis://user:{written}@{where}/0?no_such_option={written}",
        f"redis://user:{written}@{where}/0?protocol={written}",
        f"redis://:1234?{CANARY}@{where}/0",
        f"redis://:1234?c4n4ry=c4n4ry&x@{where}/0",
        f"http://user:{written}@{where}/0",
    ]
    for url in urls:
        with pytest.raises((InFlightUnavailable, ConfigError)) as caught:
            open_and_extend(url)

        assert "c4n4ry" not in "".join(texts_of(caught.value)), url.replace("c4n4ry", "CANARY")


@pytest.mark.parametrize("command", ["HELLO", "AUTH"])
def test_a_server_that_repeats_the_login_in_its_error_gives_no_password_away(command: str) -> None:
    """So does one that does not know the command, for example because it is too old."""
    with start_redis(options=["--rename-command", command, ""]) as server:
        written = quote(CANARY, safe="")
        for protocol in (2, 3):
            url = f"redis://user:{written}@127.0.0.1:{server.port}/0?protocol={protocol}"
            with pytest.raises(InFlightUnavailable) as caught:
                open_and_extend(url)

            assert "c4n4ry" not in "".join(texts_of(caught.value))


def texts_of(error: BaseException | None) -> Iterator[str]:
    """All that may be printed of an exception and of what led to it."""
    if error is not None:
        yield from traceback.format_exception(error, limit=0)
    while error is not None:
        yield from (str(error), repr(error), repr(error.args))
        error = error.__cause__ or error.__context__


def open_and_extend(url: str) -> None:
    store = RedisInFlight(url, socket_s=2.0)
    try:
        store.extend("ada", lease_s=1)
    finally:
        store.close()


# TLS.


def test_rediss_verifies_who_answers(private: Private, authority: Path) -> None:
    """An unknown authority and a wrong name are refused; neither is passed over in silence."""
    port = unused_port()
    files = {"cert": "server.pem", "key": "server.key", "ca-cert": "ca.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(authority / file))]
    with private(start_redis, options=["--tls-port", str(port), "--tls-auth-clients", "no", *options]) as server:
        trusting = f"?ssl_ca_certs={authority / 'ca.pem'}"

        unknown = RedisInFlight(f"rediss://127.0.0.1:{port}/0")
        assert "?ssl_ca_certs=/path/to/ca.pem" in fails(unknown.check)
        misnamed = RedisInFlight(f"rediss://localhost:{port}/0{trusting}")
        assert "certificate that is not trusted" in fails(misnamed.check)
        right = RedisInFlight(f"rediss://127.0.0.1:{port}/0{trusting}")
        assert right.check() == f"{server.name} {server.version}"
        for store in (unknown, misnamed, right):
            store.close()


# The clock of Redis, and the missing package.


def test_a_fork_opens_connections_of_its_own(server: Redis, admin: Any, inflight: RedisInFlight) -> None:
    """The parent's connections must not be shared: answers would get mixed up."""
    program = f"""
import os, sys
from workq.inflight.redis import RedisInFlight
store = RedisInFlight({server.url!r}, namespace={NAMESPACE!r})
store.join("parent", lease_s=600)
child = os.fork()
for number in range(300):
    name = "child" if child == 0 else "parent"
    store.beat(name, lease_s=600, entries=[])
    assert store.extend(f"nobody-{{name}}", lease_s=1) is False
    assert name in store.leases()
store.close()
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert set(inflight.leases()) == {"ada", "parent", "child"}


def test_without_the_package_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["redis"] = None
from workq.errors import MissingExtra
try:
    import workq.inflight.redis
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ)
    )

    assert done.stdout.strip() == "in-flight: redis:// needs a client library; install the extra [redis]"


def test_the_log_cuts_a_name_that_a_stranger_has_written_into_redis(
    tmp_path: Path, server: Redis, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = "x" * 50_000
    with WorkQueue(ledger=f"sqlite:///{tmp_path}/shop.db", broker=None, inflight=server.url, namespace=NAMESPACE) as wq:
        admin.set(f"{{{NAMESPACE}}}:epoch", 1)
        admin.zadd(f"{{{NAMESPACE}}}:leases", {name: 1})
        with caplog.at_level("WARNING", logger="workq"):
            look = look_for_the_dead(wq.stores, wq.settings)
            done = Swept()
            for worker in look.half_reaped:
                free(wq.stores, wq.settings, Reaped(worker, 0, 0, ()), done)

    assert done.reaped_workers == 1
    assert [record.__dict__["worker"] for record in caplog.records] == [name[:ID_MAX]]
    assert admin.zcard(f"{{{NAMESPACE}}}:leases") == 0


# Another hand writes there.


def spoil(admin: Any, *names: str) -> None:
    """Make each of these keys of workq's a list, which none of them is."""
    for name in names:
        key = f"{{{NAMESPACE}}}:{name}"
        admin.delete(key)
        admin.rpush(key, "theirs")


@pytest.mark.parametrize("name", ["epoch", "leases", "lost", "inflight:mail", "held:ada", "held:bob"])
def test_a_key_that_another_hand_has_made_one_of_another_type_is_moved_aside_and_what_is_held_is_written_again(
    admin: Any, inflight: RedisInFlight, name: str
) -> None:
    held, of_bob = entries(10), entries(1)
    inflight.join("bob", lease_s=0.0)  # so ada may take what he holds
    admin.hset(f"{{{NAMESPACE}}}:inflight:mail", of_bob[0].task_id, "1|5|bob")
    admin.set(f"{{{NAMESPACE}}}:epoch", 1000)
    inflight.hold(held, by="ada")
    spoil(admin, name)

    inflight.beat("ada", lease_s=LONG_S, entries=[*held, *of_bob])

    assert {hold.task_id for hold in inflight.held_by("ada")} == ids([*held, *of_bob])
    assert list(inflight.leases())[-1] == "ada"
    assert inflight.epoch_age_s() < HANG_S * 60, "nobody is reaped for three beats, as after a wipe"
    [aside] = admin.keys(f"{{{NAMESPACE}}}:{name}:aside:*")
    assert admin.lrange(aside, 0, -1) == ["theirs"]
    assert inflight.of_another_type() == ([], [aside])
    admin.delete(aside)
    assert inflight.of_another_type() == ([], [])


ALL_OURS = ("epoch", "leases", "lost", "aside", "inflight:mail", "held:ada")
CALLS: dict[str, Callable[[RedisInFlight], object]] = {
    "hold": lambda store: store.hold(entries(1), by="ada"),
    "beat": lambda store: store.beat("ada", lease_s=LONG_S, entries=entries(1)),
    "extend": lambda store: store.extend("ada", lease_s=LONG_S),
    "release": lambda store: store.release(pairs(entries(1)), by="ada"),
    "leave": lambda store: store.leave("ada"),
    "forget": lambda store: store.forget("ada"),
    "leases": lambda store: store.leases(),
    "held_by": lambda store: store.held_by("ada"),
    "holds": lambda store: store.holds("mail"),
    "epoch_age_s": lambda store: store.epoch_age_s(),
}


@pytest.mark.parametrize("first", CALLS)
def test_whichever_call_meets_keys_of_another_type_first_all_calls_go_on(
    admin: Any, inflight: RedisInFlight, first: str
) -> None:
    inflight.hold(entries(3), by="ada")
    spoil(admin, *ALL_OURS)
    wrong, _ = inflight.of_another_type()

    with suppress(LeaseLost):  # it is one of those that are moved
        CALLS[first](inflight)
    for call in CALLS.values():
        with suppress(LeaseLost):
            call(inflight)

    assert {"{faults}:epoch", "{faults}:leases", "{faults}:lost", "{faults}:aside"} <= set(wrong)
    assert sorted(name.rpartition(":aside:")[0] for name in admin.keys("*:aside:*")) == sorted(
        f"{{{NAMESPACE}}}:{name}" for name in ALL_OURS
    )


def test_doctor_names_keys_of_another_type_and_those_that_were_moved_aside(
    server: Redis, admin: Any, inflight: RedisInFlight
) -> None:
    def told() -> dict[Level, str]:
        found = look(Settings.load(inflight=server.url, namespace=NAMESPACE))
        return {check.level: check.message for check in found if f"{NAMESPACE}}}:leases" in check.message}

    assert told() == {}
    spoil(admin, "leases")
    before = told()
    inflight.leases()
    after = told()

    assert "of another type" in before[Level.ERROR]
    assert "moved aside" in after[Level.WARNING]
    command = shlex.split(after[Level.WARNING].partition("then delete it: ")[2])
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert told() == {}
