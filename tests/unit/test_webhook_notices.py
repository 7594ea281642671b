"""Notices are told: to the endpoints of operators, to the application's function, and never in a circle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.unit.test_attempt import Nobody
from workq.errors import ConfigError
from workq.handlers import context
from workq.values import codec
from workq.values.task import Claim
from workq.webhooks.notices import Herald, Notice


@dataclass
class Row:
    """As much of an endpoint, or of a delivery, as is asked for."""

    topic: str = "acme"
    webhook_id: str = "msg_1"
    type: str = "invoice.paid"


@dataclass
class FakeLedger:
    """Knows an endpoint of each topic, and every delivery."""

    topics: dict[str, str] = field(default_factory=lambda: {"a": "acme"})

    def __post_init__(self) -> None:
        self.endpoints = self.deliveries = self

    def endpoint(self, endpoint_id: str) -> Row | None:
        return Row(self.topics[endpoint_id]) if endpoint_id in self.topics else None

    def all(self, *, topic: str, limit: int) -> list[str]:
        return [name for name, its in self.topics.items() if its == topic][:limit]

    def delivery(self, delivery_id: str) -> Row | None:
        return Row() if delivery_id == "d1" else None


def told(
    topics: dict[str, str], kind: str, endpoint: str, facts: dict[str, Any], *, error: Exception | None = None
) -> tuple[list[Notice], list[Notice]]:
    """One notice: what the function got, and what was forwarded."""
    heard: list[Notice] = []
    forwarded: list[Notice] = []

    def hook(notice: Notice) -> None:
        heard.append(notice)
        if error is not None:
            raise error

    herald = Herald(lambda: cast(Any, FakeLedger(topics)), hook=hook, forward=forwarded.append)
    context.enter(Claim("t1", "workq.webhook.notice", "webhooks", "{}", 1, "token", 0, 0, 1000, 3, None), Nobody())
    try:
        herald.tell(kind, endpoint, facts)
    except RuntimeError:
        assert error is not None
    finally:
        context.leave()
    return heard, forwarded


def test_the_function_is_told_of_what_and_of_which_event_it_is() -> None:
    [notice], forwarded = told(
        {"a": "acme"}, "delivery.exhausted", "a", {"delivery": "d1", "attempts": 10, "error_class": "tls"}
    )

    assert codec.decode(codec.encode(notice.as_json(), path="notice")) == {
        "id": "t1",
        "kind": "delivery.exhausted",
        "endpoint": "a",
        "topic": "acme",
        "delivery": "d1",
        "event_id": "msg_1",
        "event_type": "invoice.paid",
        "attempts": 10,
        "error_class": "tls",
    }
    assert forwarded == []


def test_operators_who_have_an_endpoint_get_it_also_while_the_function_fails() -> None:
    topics = {"a": "acme", "ops": "workq"}

    heard, forwarded = told(topics, "endpoint.failing", "a", {"percent": 50}, error=RuntimeError("no pager"))

    assert heard == forwarded
    assert (forwarded[0].kind, forwarded[0].percent) == ("endpoint.failing", 50)


def test_what_concerns_an_endpoint_of_operators_is_not_sent_to_them() -> None:
    heard, forwarded = told({"ops": "workq"}, "endpoint.disabled", "ops", {"who": "workq", "why": "410"})

    assert (len(heard), forwarded) == (1, [])


def test_what_was_removed_meanwhile_is_told_all_the_same() -> None:
    [notice], _ = told({}, "delivery.exhausted", "a", {"delivery": "d9", "attempts": 1})

    assert (notice.topic, notice.event_id, notice.delivery) == (None, None, "d9")


async def in_a_loop(_: Notice) -> None:
    return


@pytest.mark.parametrize("hook", [in_a_loop, "print"])
def test_what_is_no_plain_function_is_refused(hook: Any) -> None:
    with pytest.raises(ConfigError, match="on_notice: need a function of one Notice"):
        Herald(lambda: cast(Any, FakeLedger()), hook=hook, forward=print)
