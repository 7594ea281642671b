"""Kafka and Artemis, which run on Java: what test_private_servers.py shows of the others, as far as it is cheap.

That they keep what they have confirmed through a kill is in the contract of the destinations.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.conftest import Private
from workq.lab.servers import Kafka, Server, ServerMissing, jars, start_artemis, start_kafka
from workq.lab.servers import kafka as kafka_module
from workq.lab.servers.guardian import with_children
from workq.lab.servers.kafka import META, format_of

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


class Formatted:
    """A folder that a node of Kafka was given: what is in it."""

    def __init__(self, node: Kafka) -> None:
        node._choose_ports()
        node._prepare()
        lines = (node._data / META).read_text().splitlines()
        self.meta = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
        files = [one for one in node._data.rglob("*") if one.is_file() and one.name != META]
        self.files = {one.relative_to(node._data): one.read_bytes() for one in files}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the format of any version is kept, in this test alone."""
    place = tmp_path / "kept"
    monkeypatch.setattr(kafka_module, "format_of", lambda *_: place)
    return place


@pytest.mark.usefixtures("kafka_server")  # it skips where Kafka is not installed
def test_a_folder_from_a_kept_format_is_as_kafkas_own_program_makes_it(kept: Path) -> None:
    def formatted() -> Formatted:
        with Kafka(None, ()) as node:
            return Formatted(node)

    by_program = formatted()
    for file, content in by_program.files.items():
        (kept / file).parent.mkdir(parents=True, exist_ok=True)
        (kept / file).write_bytes(content)
    others = [formatted() for _ in range(2)]

    ids = [by_program.meta[name] for name in ("cluster.id", "directory.id")]
    own = [*(one.encode() for one in ids), *(base64.urlsafe_b64decode(f"{one}==") for one in ids)]
    assert by_program.files
    assert not [file for file, content in by_program.files.items() if any(one in content for one in own)]
    for one in others:
        assert one.files == by_program.files
        assert one.meta.keys() == by_program.meta.keys()
    everyone = [by_program.meta, *(one.meta for one in others)]
    assert {(one["version"], one["node.id"]) for one in everyone} == {("1", "1")}
    assert len({one["cluster.id"] for one in everyone}) == len({one["directory.id"] for one in everyone}) == 3


@pytest.mark.usefixtures("kafka_server")
def test_kafkas_own_program_formats_where_options_have_a_say_or_the_version_is_another(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.mkdir()
    ran: list[Sequence[str]] = []
    monkeypatch.setattr(Kafka, "_prepare_with", lambda _, command: ran.append(command))

    with Kafka(None, ["unstable.feature.versions.enable=true"]) as node:
        node._choose_ports()
        node._prepare()

    assert ["kafka.tools.StorageTool" in one for one in ran] == [True]
    assert format_of(Path("jars"), "4.0.2") != format_of(Path("jars"), "4.4.0")
