"""Which stores `workq certify` reaches through a proxy, and what it says of the others."""

from __future__ import annotations

import pytest

from workq.config import Settings
from workq.lab.certify.stage import Wires
from workq.lab.namespace import Store


@pytest.mark.parametrize("nodes", ["redis-1:6379", "redis-1:6379,redis-2:6379"])
@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster"])
def test_a_redis_cluster_has_no_wire(scheme: str, nodes: str) -> None:
    """Its nodes answer with addresses of their own, so a cut of one way would be no cut."""
    url = f"{scheme}://:secret@{nodes}"

    with Wires(Settings(ledger="sqlite:///workq.db", inflight=url)) as wires:
        assert wires.urls[Store.INFLIGHT] == url
        assert wires.proxies == {}
        assert "lead around a proxy" in wires.missing[Store.INFLIGHT]


def test_a_redis_behind_sentinels_has_no_wire() -> None:
    with Wires(Settings(ledger="sqlite:///workq.db", inflight="redis+sentinel://:secret@one:26379/shop")) as wires:
        assert wires.proxies == {}
        assert "leads around a proxy" in wires.missing[Store.INFLIGHT]
