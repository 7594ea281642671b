"""The servers that all processes of a distributed run share: started once, used by all, ended by none of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from tests.lender import Lender, borrow
from tests.system.fleet import printed_until_killed, wait_until
from workq.lab.servers import Server, ServerFailed, ServerMissing, start_redis

TRIES = itertools.count(1)


def missing() -> Server:
    raise ServerMissing("not here: apt-get install it")


def slow() -> Server:
    raise ServerFailed(f"did not answer, {next(TRIES)}")


@pytest.fixture
def lender() -> Iterator[Lender]:
    made = Lender({"redis": start_redis, "missing": missing, "slow": slow})
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


def test_one_that_did_not_start_is_tried_again_for_who_asks_next(lender: Lender) -> None:
    answers = []
    for _ in range(2):
        with pytest.raises(ServerFailed, match="did not answer") as answered:
            borrow(lender.token, "slow")
        answers.append(str(answered.value))

    assert answers[0] != answers[1]


_IS_KILLED = """
import os, signal
from tests.lender import Lender, borrow
from workq.lab.servers import start_redis

lender = Lender({"redis": start_redis})
server = borrow(lender.token, "redis")
print(server.pid, server.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_lender_that_is_killed_leaves_nothing_behind() -> None:
    pid, folder = printed_until_killed(_IS_KILLED)

    wait_until(
        lambda: not psutil.pid_exists(int(pid)) and not Path(folder).exists(), timeout_s=60, what="its guardian is done"
    )
