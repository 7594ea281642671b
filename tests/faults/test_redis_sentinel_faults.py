"""The in-flight store behind Sentinels: a replica that takes over, Sentinels that are away, and what is not fit for it.

One service for all: each test finds it whole, with whichever of the two as the primary.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.contract.inflight import LONG_S, ids, until
from tests.faults import silence
from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import check_once
from workq.config import Settings
from workq.diagnose.doctor import examine
from workq.diagnose.doctor.check import Level
from workq.errors import InFlightUnavailable
from workq.inflight import Entry
from workq.inflight.redis import RIGHTS, SENTINEL_RIGHTS, RedisInFlight
from workq.lab.namespace import redis_client
from workq.lab.servers import Redis, ServerFailed
from workq.lab.servers.sentinel import SERVICE, RedisService, start_redis_sentinels

SOCKET_S = 0.5
HANG_S = 10.0
"""Much more than any call may take: some times `SOCKET_S`."""
FAILOVER_S = 120.0
"""Sentinels that stand for election at the same time begin anew after some seconds."""

fails = partial(silence.fails, within_s=HANG_S)


@pytest.fixture(scope="module")
def shared(redis_server: Redis) -> Iterator[RedisService]:  # where Redis is missing, that one says so
    with start_redis_sentinels() as service:
        yield service


@pytest.fixture
def service(shared: RedisService) -> RedisService:
    for server in (shared.primary, shared.replica, *shared.sentinels):
        if not server.is_running:
            server.start()
    shared.hasten()
    shared.wait_whole()
    return shared


@pytest.fixture
def store(service: RedisService) -> Iterator[RedisInFlight]:
    """Ada holds the ten tasks of `entries`."""
    with closing(RedisInFlight(service.url, namespace=f"t{secrets.token_hex(6)}", socket_s=SOCKET_S)) as store:
        store.join("ada", lease_s=LONG_S)
        yield store


def ten() -> list[Entry]:
    return [Entry(secrets.token_hex(18), "mail", 1) for _ in range(10)]


def held(store: RedisInFlight) -> set[str]:
    return {hold.task_id for hold in store.held_by("ada")}


def is_answered(store: RedisInFlight) -> bool:
    try:
        store.leases()
    except InFlightUnavailable:
        return False
    return True


def is_copied(primary: Redis, replica: Redis) -> bool:
    """Whether the replica has all that the primary had a moment ago."""
    told = [
        dict(line.split(":", 1) for line in one.replication().splitlines() if ":" in line) for one in (primary, replica)
    ]
    if not all(told) or told[1].get("master_link_status") != "up":
        return False
    return int(told[1]["slave_repl_offset"]) >= int(told[0]["master_repl_offset"])


def is_replica(one: Redis) -> bool:
    """Whether it has handed over. In that moment a Sentinel closes each connection to it."""
    try:
        return "role:slave" in one.replication()
    except ServerFailed:
        return False


def is_ordered(service: RedisService) -> bool:
    """Whether a Sentinel lets the primary hand over. It takes no replica that it has not heard of lately."""
    try:
        service.sentinels[0].tell("SENTINEL", "FAILOVER", SERVICE)
    except ServerFailed as error:
        if "NOGOODSLAVE" not in str(error):
            raise
        return False
    return True


def test_a_primary_that_dies_under_a_fleet_costs_no_task_and_starts_none_twice(
    service: RedisService, open_leg: OpenLeg
) -> None:
    """Nobody is reaped: the leases may end meanwhile, and the heartbeats in the ledger go on."""
    leg = open_leg("servers", divide=10.0, inflight=service.url)
    leg["note"].enqueue_many({"number": number, "seconds": 0.1} for number in range(40))
    with leg.fleet(processes=2, threads=2) as fleet:
        wait_until(lambda: len(leg.starts()) >= 8, timeout_s=60, what="work goes on")
        dying, other = service.primary_and_replica()
        dying.kill()
        died = time.monotonic()
        late = leg["note"].enqueue(40)
        wait_until(lambda: service.primary_port() == other.port, timeout_s=FAILOVER_S, what="a new primary")
        chosen_s = time.monotonic() - died
        wait_until(lambda: leg.starts()[late.id] == 1, timeout_s=60, what="work goes on")
        going_on_s = time.monotonic() - died
        leg.wait_settled(timeout_s=120)
        assert "child_died" not in fleet.text()
    rows = leg.app.stores.ledger.questions.workers(live_only=False)
    assert [row.id for row in rows if row.state == "reaped"] == []
    print(f"kill -9 of the primary: another one after {chosen_s:.1f} s, tasks started again after {going_on_s:.1f} s")
    check_once(leg, 41)


def test_a_replica_that_takes_over_is_followed_and_gets_what_it_lacks_with_the_next_beat(
    service: RedisService, store: RedisInFlight
) -> None:
    dying, other = service.primary_and_replica()
    entries = ten()
    store.hold(entries[:5], by="ada")
    until(lambda: is_copied(dying, other), "it is copied", limit_s=FAILOVER_S)
    other.tell("CONFIG", "SET", "masterauth", "wrong")
    other.tell("CLIENT", "KILL", "TYPE", "master")  # from here on nothing is copied
    store.hold(entries, by="ada")
    dying.kill()
    other.tell("CONFIG", "SET", "masterauth", "")

    assert f"nothing listens at redis://127.0.0.1:{dying.port}/0, which its Sentinels call the primary" in fails(
        store.leases
    )
    until(lambda: is_answered(store), "the replica takes over", limit_s=FAILOVER_S)
    assert held(store) == ids(entries[:5])
    assert store.beat("ada", lease_s=LONG_S, entries=entries).restored == 5
    assert held(store) == ids(entries)
    assert store.primary_url() == f"redis://127.0.0.1:{other.port}/0"


def test_a_primary_that_hands_over_is_left_without_a_failure_and_no_more_is_asked_of_its_users_than_is_said(
    service: RedisService,
) -> None:
    """Redis and Sentinels have users that may do no more than the documentation asks for."""
    old, new = service.primary_and_replica()
    namespace = f"t{secrets.token_hex(6)}"
    for one in (old, new):
        one.tell("ACL", "SETUSER", "app", "on", ">p:1", *RIGHTS.format(namespace=namespace).split())
    for one in service.sentinels:
        one.tell("ACL", "SETUSER", "looks", "on", ">q@2", "-@all", *SENTINEL_RIGHTS.split())
    url = service.url.replace("://", "://app:p%3A1@") + "?sentinel_username=looks&sentinel_password=q%402"
    entries = ten()
    with closing(RedisInFlight(url, namespace=namespace, socket_s=SOCKET_S)) as store:
        store.join("ada", lease_s=LONG_S)
        store.hold(entries[:5], by="ada")
        until(lambda: is_copied(old, new), "it can hand over", limit_s=FAILOVER_S)
        until(lambda: is_ordered(service), "a Sentinel has a replica that is fit", limit_s=FAILOVER_S)
        until(partial(is_replica, old), "it has handed over", limit_s=FAILOVER_S)

        assert len(store.hold(entries, by="ada")) == 10

        assert store.missing_rights() is None
        assert store.check().endswith(f", the primary at 127.0.0.1:{new.port}")
    for one in (old, new, *service.sentinels):
        one.tell("ACL", "DELUSER", "app", "looks")


def test_one_sentinel_that_answers_is_enough(service: RedisService) -> None:
    hangs, dead, _ = service.sentinels
    hangs.pause()
    dead.kill()
    try:
        with closing(RedisInFlight(service.url, namespace=f"t{secrets.token_hex(6)}", socket_s=SOCKET_S)) as store:
            store.join("ada", lease_s=LONG_S)
            assert set(store.leases()) == {"ada"}
    finally:
        hangs.resume()


def test_what_is_not_fit_for_it_is_told_and_no_password_is(service: RedisService) -> None:
    gone = service.sentinels[0]
    gone.kill()
    for url, told in (
        (f"redis+sentinel://:c4n4ry@127.0.0.1:{gone.port}/{SERVICE}", f"redis://127.0.0.1:{gone.port}/0, a Sentinel"),
        (service.url.replace(f"/{SERVICE}/", "/other/"), "does not lead to a Redis (it watches no service of the name"),
        (service.url.replace("://", "://app:c4n4ry@"), "refused the user name or password"),
        (f"{service.url}?sentinel_username=x&sentinel_password=c4n4ry", "a Sentinel refused the user name or password"),
    ):
        with closing(RedisInFlight(url, socket_s=SOCKET_S)) as store:
            message = fails(store.leases)
        assert told in message
        assert "c4n4ry" not in message


def test_the_doctor_looks_at_each_sentinel_and_at_the_primary(service: RedisService, tmp_path: Path) -> None:
    settings = Settings(ledger=f"sqlite:///{tmp_path}/none.db", inflight=service.url)
    first = service.sentinels[0]

    well = [one for one in examine(settings) if one.area == "inflight"]
    first.kill()
    ill = findings(settings)
    dying, _ = service.primary_and_replica()
    for one in service.sentinels[1:]:
        one.tell("SENTINEL", "SET", SERVICE, "down-after-milliseconds", 600_000)
    dying.kill()
    headless = [one.message for one in examine(settings) if one.area == "inflight"]
    for one in service.sentinels[1:]:
        one.tell("SENTINEL", "SET", SERVICE, "down-after-milliseconds", one.down_after_ms)

    assert [one.level for one in well] == [Level.OK] * len(well)
    [*sentinels, primary] = [one.message for one in well][:4]
    for one, message in zip(service.sentinels, sentinels, strict=True):
        assert message.startswith(f"Sentinel redis://127.0.0.1:{one.port}: the primary of {SERVICE} is 127.0.0.1:")
        assert message.endswith("with 1 replicas and 2 other Sentinels")
    assert ", the primary at 127.0.0.1:" in primary
    assert len(ill) == 1
    assert f"Sentinel redis://127.0.0.1:{first.port}: it does not answer" in ill[0]
    assert f"nothing listens at redis://127.0.0.1:{dying.port}/0" in headless[-1]


def findings(settings: Settings) -> list[str]:
    levels = (Level.WARNING, Level.ERROR, Level.UNREACHABLE)
    return [one.message for one in examine(settings) if one.area == "inflight" and one.level in levels]


def test_a_scratch_namespace_is_removed_from_the_primary(service: RedisService, store: RedisInFlight) -> None:
    with redis_client(service.url) as client:
        assert client.exists(store._keys[1]) == 1
        client.delete(store._keys[1])

    assert store.leases() == {}
