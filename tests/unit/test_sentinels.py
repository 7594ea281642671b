"""How the primary is found, with Sentinels and Redis servers that are played: what a real failover shows by chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from workq.inflight.redis import sentinels as module
from workq.inflight.redis.nodes import Address, NodeFailed
from workq.inflight.redis.sentinels import Sentinels

OLD, NEW = ("old", 6379), ("new", 6379)


class Played:
    """A Sentinel that names `names`, or a Redis of the role `role`; one whose `failure` is set says that alone."""

    def __init__(self, names: Address | None = None, role: str = "master") -> None:
        self.names, self.role = names, role
        self.failure: Exception | None = None
        self.asked = 0

    def _answer(self) -> None:
        self.asked += 1
        if self.failure is not None:
            raise self.failure

    def execute_command(self, *_: str) -> Any:
        self._answer()
        return self.names and [self.names[0], str(self.names[1])]

    def info(self, _: str) -> dict[str, str]:
        self._answer()
        return {"role": self.role}

    def write(self) -> str:
        self._answer()
        if self.role != "master":
            raise redis.exceptions.ResponseError("ERR Error running script: -READONLY You can't write")
        return "written"


@pytest.fixture
def servers() -> dict[Address, Played]:
    return {OLD: Played(), NEW: Played(role="slave")}


@pytest.fixture
def watching() -> list[Played]:
    return [Played(names=OLD) for _ in range(3)]


@pytest.fixture
def way(servers: dict[Address, Played], watching: Sequence[Any]) -> Sentinels:
    def connect(address: Address) -> Any:
        return servers[address]

    return Sentinels(watching, connect, service="shop")


def written(way: Sentinels) -> str:
    return way.ask(lambda client: client.write())  # type: ignore[attr-defined, no-any-return]  # a played one


def fail_over(servers: dict[Address, Played], watching: Sequence[Played]) -> None:
    servers[OLD].role, servers[NEW].role = "slave", "master"
    for one in watching:
        one.names = NEW


def test_a_primary_that_became_a_replica_costs_no_failure(
    way: Sentinels, servers: dict[Address, Played], watching: list[Played]
) -> None:
    assert written(way) == "written"
    fail_over(servers, watching)

    assert written(way) == "written"

    assert servers[NEW].asked == 2  # for its role, and for the question


def test_a_question_that_was_not_answered_is_not_repeated(
    way: Sentinels, servers: dict[Address, Played], watching: list[Played]
) -> None:
    written(way)
    servers[OLD].failure = redis.TimeoutError("no answer")
    fail_over(servers, watching)

    with pytest.raises(NodeFailed, match="no answer"):
        written(way)

    assert servers[NEW].asked == 0
    assert written(way) == "written"


def test_a_primary_that_still_answers_is_left_when_the_sentinels_name_another(
    way: Sentinels, servers: dict[Address, Played], watching: list[Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off from them, and takes itself for the primary."""
    written(way)
    fail_over(servers, watching)
    servers[OLD].role = "master"
    written(way)
    assert servers[NEW].asked == 0, "they are not asked each time"

    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
    written(way)

    assert servers[NEW].asked == 2


def test_sentinels_that_are_away_do_not_matter_while_the_primary_answers(
    way: Sentinels, watching: list[Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(way)
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
    for one in watching:
        one.failure = redis.ConnectionError("gone")

    assert [written(way) for _ in range(4)] == ["written"] * 4

    assert [one.asked for one in watching] == [3, 1, 1], "each once: the one that failed last comes last"


def test_a_sentinel_that_names_a_replica_is_not_believed(
    way: Sentinels, servers: dict[Address, Played], watching: list[Played]
) -> None:
    """It was cut off from the others, and has not heard of the new primary."""
    fail_over(servers, watching)
    watching[0].names = OLD

    assert written(way) == "written"

    assert [one.asked for one in watching] == [1, 1, 0]


def test_a_primary_that_all_of_them_name_is_asked_once_for_each_search(
    way: Sentinels, servers: dict[Address, Played], watching: list[Played]
) -> None:
    """It may hang, and each question to it takes as long as a call may."""
    servers[OLD].failure = redis.TimeoutError("no answer")

    with pytest.raises(NodeFailed, match="no answer"):
        written(way)

    assert servers[OLD].asked == 1
    assert [one.asked for one in watching] == [1, 1, 1]
