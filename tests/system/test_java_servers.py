"""Kafka and Artemis, which run on Java: what test_private_servers.py shows of the others, as far as it is cheap.

That they keep what they have confirmed through a kill is in the contract of the destinations.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import Private
from workq.lab.servers import Server, ServerMissing, jars, start_artemis, start_kafka
from workq.lab.servers.guardian import with_children

STARTERS: dict[str, Callable[..., Server]] = {"kafka": start_kafka, "artemis": start_artemis}


@pytest.fixture(params=STARTERS)
def starter(request: pytest.FixtureRequest) -> Callable[..., Server]:
    return STARTERS[request.param]


def test_it_is_on_loopback_alone_and_leaves_nothing_behind(private: Private, starter: Callable[..., Server]) -> None:
    with private(starter) as server:
        processes = list(with_children(server.pid))
        connections = psutil.Process(server.pid).net_connections("inet")
        listening = {one.laddr[0] for one in connections if one.status == psutil.CONN_LISTEN}

        assert listening == {"127.0.0.1"}
        assert server.version[0].isdigit()
        assert f"127.0.0.1:{server.port}" in server.url

    assert [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    assert not server.folder.exists()
    server.stop()  # repeatable


def test_jars_that_were_not_fetched_are_said(
    starter: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "JARS", tmp_path)

    with pytest.raises(ServerMissing, match="make servers"):
        starter()
