"""The servers that all processes of a distributed run share: started once, used by all, ended by none of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest
import redis

from tests.lender import Lender, alone, borrow
from workq.lab.servers import Server, ServerFailed, ServerMissing, start_redis

BOUND_S = 60.0


def missing() -> Server:
    raise ServerMissing("not here: apt-get install it")


@pytest.fixture
def lender() -> Iterator[Lender]:
    made = Lender({"redis": start_redis, "missing": missing})
    yield made
    made.close()


def test_all_who_ask_get_the_one_server_which_none_of_them_can_end(lender: Lender) -> None:
    found = [borrow(lender.token, "redis") for _ in range(2)]

    assert found[0].pid == found[1].pid
    for one in found:
        assert one.is_running
        assert redis.Redis.from_url(one.url).ping()
        for refused in (one.stop, one.kill, one.pause, one.restart, one.wipe):
            with pytest.raises(RuntimeError, match="is lent to all"):
                refused()
    assert redis.Redis.from_url(found[0].url).ping()


def test_it_ends_with_the_lender_and_starts_no_more(lender: Lender) -> None:
    server = borrow(lender.token, "redis")

    lender.close()

    assert not psutil.pid_exists(server.pid)
    assert not server.folder.exists()
    with pytest.raises(ServerFailed, match="the run is over"):
        borrow(lender.token, "redis")


def test_one_that_is_not_installed_is_missing_for_all_who_ask(lender: Lender) -> None:
    for _ in range(2):
        with pytest.raises(ServerMissing, match="apt-get install it"):
            borrow(lender.token, "missing")


def test_one_at_a_time_is_alone_with_a_name(lender: Lender) -> None:
    told: list[str] = []
    asks = threading.Event()

    def other() -> None:
        asks.set()
        with alone(lender.token, "shop"):
            told.append("other")

    thread = threading.Thread(target=other)
    with alone(lender.token, "shop"), alone(lender.token, "another name"):
        thread.start()
        assert asks.wait(BOUND_S)
        thread.join(0.2)
        told.append("first")
    thread.join(BOUND_S)

    assert told == ["first", "other"]
