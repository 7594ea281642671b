"""The way to the node that serves a namespace, where nodes answer as a test says: what is asked again, what never."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import pytest
import redis
from redis.exceptions import ClusterDownError, MovedError, TryAgainError

from workq.inflight.redis.cluster import REDIRECTS_MAX, Cluster
from workq.inflight.redis.nodes import Address, NodeFailed

A, B = ("10.0.0.1", 7000), ("10.0.0.2", 7000)


class Node:
    """A client that knows of every key that it is asked for."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def exists(self, _key: str) -> int:
        return 1


def way(connect: Callable[[Address], object] = Node, *, patience_s: float = 5.0) -> Cluster:
    return Cluster([A, B], connect, key="{t}:epoch", patience_s=patience_s)  # type: ignore[arg-type]  # a stand-in


class Question:
    """Answers with what comes next, or raises it; remembers whom it was put to."""

    def __init__(self, *answers: object) -> None:
        self.answers: Iterator[object] = cycle(answers)
        self.asked: list[Address] = []

    def __call__(self, client: object) -> object:
        assert isinstance(client, Node)
        self.asked.append(client.address)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("error", [redis.TimeoutError("?"), redis.ConnectionError("?"), ClusterDownError("?")])
def test_what_may_have_been_done_is_not_asked_again(error: Exception) -> None:
    question = Question(error)

    with pytest.raises(NodeFailed) as caught:
        way().ask(question)

    assert caught.value.error is error
    assert question.asked == [A]


def test_after_no_answer_another_node_is_asked_first_who_serves_the_key() -> None:
    cluster = way()
    question = Question(redis.TimeoutError("?"), "answer")
    with pytest.raises(NodeFailed):
        cluster.ask(question)

    assert cluster.ask(question) == "answer"

    assert question.asked == [A, B]


def test_where_a_node_sends_us_is_asked_first_from_then_on() -> None:
    cluster = way()
    question = Question(MovedError("7 10.0.0.3:7001"), "answer")

    assert cluster.ask(question) == "answer"
    assert cluster.ask(Question("again")) == "again"

    assert question.asked == [A, ("10.0.0.3", 7001)]
    once_more = Question("answer")
    cluster.ask(once_more)
    assert once_more.asked == [("10.0.0.3", 7001)]


def test_a_node_that_does_not_know_its_host_is_where_it_was_asked() -> None:
    question = Question(MovedError("7 :7001"), "answer")

    way().ask(question)

    assert question.asked == [A, (A[0], 7001)]


def test_nodes_that_send_us_in_a_circle_are_left() -> None:
    question = Question(MovedError("7 10.0.0.2:7000"), MovedError("7 10.0.0.1:7000"))

    with pytest.raises(NodeFailed):
        way().ask(question)

    assert len(question.asked) == REDIRECTS_MAX + 1


def test_a_slot_that_is_moving_is_asked_for_until_patience_ends() -> None:
    assert way().ask(Question(TryAgainError("?"), TryAgainError("?"), "answer")) == "answer"
    with pytest.raises(NodeFailed):
        way(patience_s=0.02).ask(Question(TryAgainError("?")))


def test_a_node_that_does_not_answer_is_passed_over_in_the_search() -> None:
    class Silent(Node):
        def exists(self, _key: str) -> int:
            if self.address == A:
                raise redis.ConnectionError("?")
            return 1

    question = Question("answer")

    assert way(Silent).ask(question) == "answer"

    assert question.asked == [B]
