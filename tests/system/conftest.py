"""The legs as fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.legs import Leg

OpenLeg = Callable[..., Leg]


@pytest.fixture
def open_leg(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLeg]:
    """Call it with `sqlite`, `postgres`, `mariadb` or `servers` (and what `Leg.open` takes) to get a fresh leg."""
    opened: list[Leg] = []

    def open_one(name: str, *, divide: float = 1.0, queue_type: str = "quorum") -> Leg:
        if name == "sqlite":
            leg = Leg.open(name, tmp_path, ledger=f"sqlite:///{tmp_path / 'workq.db'}", divide=divide)
        elif name in ("postgres", "mariadb"):  # that database alone is ledger, broker and in-flight store
            server = request.getfixturevalue(f"{name}_server")
            leg = Leg.open(name, tmp_path, ledger=server.url, divide=divide)
        else:
            leg = Leg.open(
                name,
                tmp_path,
                ledger=request.getfixturevalue("postgres_server").url,
                broker=request.getfixturevalue("rabbitmq_server").url,
                inflight=request.getfixturevalue("redis_server").url,
                divide=divide,
                queue_type=queue_type,
            )
        opened.append(leg)
        return leg

    yield open_one
    for leg in opened:
        leg.close()


@pytest.fixture(params=["sqlite", "servers"])
def leg(request: pytest.FixtureRequest, open_leg: OpenLeg) -> Leg:
    """Each leg in turn, with the default times."""
    return open_leg(request.param)


@pytest.fixture(params=["sqlite", "servers"])
def fast_leg(request: pytest.FixtureRequest, open_leg: OpenLeg) -> Leg:
    """Each leg in turn, with a tenth of the default times."""
    return open_leg(request.param, divide=10.0)
