"""Who decides, and why: both are kept, so both have to say something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from workq import WorkQueue
from workq.errors import ConfigError
from workq.messages import Messages
from workq.webhooks import Endpoints


class Shop:
    """A ledger with a task that is ready, one that is cancelled, a destination and an endpoint."""

    def __init__(self, wq: WorkQueue) -> None:
        self.wq, self.messages, self.endpoints = wq, Messages(wq), Endpoints(wq)
        self.messages.destinations.add("orders", kind="call", handler="shop.orders")
        self.endpoints.add("https://example.org/hooks", endpoint_id="acme")
        add = wq.task(name="shop.add")(lambda: None)
        self.ready, self.cancelled = add.enqueue().id, add.enqueue().id
        wq.cancel(self.cancelled, why="not wanted")

    def __str__(self) -> str:
        """All that a person has decided, and what became of it."""
        ledger = self.wq.stores.ledger
        tasks = [(one, self.wq.get(one), ledger.questions.history(one)) for one in (self.ready, self.cancelled)]
        others = self.messages.destinations.get("orders"), self.endpoints.get("acme")
        return repr((tasks, ledger.pauses.all(), others))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with WorkQueue(ledger=f"sqlite:///{tmp_path}/q.db") as wq:
        yield Shop(wq)


DECISIONS: Final[dict[str, Callable[[Shop, Any], object]]] = {
    "cancel": lambda shop, why: shop.wq.cancel(shop.ready, why=why),
    "pause": lambda shop, why: shop.wq.pause_queue("mail", why=why),
    "reschedule": lambda shop, why: shop.wq.reschedule(shop.ready, delay_s=60.0, why=why),
    "revive": lambda shop, why: shop.wq.revive(shop.cancelled, why=why),
    "disable a destination": lambda shop, why: shop.messages.disable("orders", why=why),
    "disable an endpoint": lambda shop, why: shop.endpoints.disable("acme", why=why),
    "edit an endpoint": lambda shop, why: shop.endpoints.edit("acme", topic="other", why=why),
    "rotate a secret": lambda shop, why: shop.endpoints.rotate("acme", why=why),
    "remove an endpoint": lambda shop, why: shop.endpoints.remove("acme", why=why),
    "add an endpoint": lambda shop, why: shop.endpoints.add("https://example.org/", endpoint_id="b", why=why),
    "discard what is held": lambda shop, why: shop.endpoints.discard("acme", why=why),
}


@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
@pytest.mark.parametrize("why", ["", "  \n", None, 5])
def test_a_decision_without_a_reason_is_refused_and_changes_nothing(
    shop: Shop, decide: Callable[[Shop, Any], object], why: object
) -> None:
    before = str(shop)

    with pytest.raises(ConfigError, match=r"^why: need "):
        decide(shop, why)

    assert str(shop) == before


def test_who_has_to_be_said_as_well(shop: Shop) -> None:
    with pytest.raises(ConfigError, match=r"^who: need some words"):
        shop.wq.pause_queue("mail", why="moving", who=" ")
