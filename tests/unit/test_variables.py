"""A `WORKQ_` variable that nothing reads is told, and one that something reads never is."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import workq
from workq import WorkQueue
from workq.config import Settings
from workq.config.variables import KNOWN, log_unread, unread

REPOSITORY = Path(workq.__file__).parents[1]
PLACES = ("workq/**/*.py", "docs/**/*.md", "benchmarks/*", "scripts/*", "Makefile", "docker-compose.yml", "README.md")
NOT_READ = {"WORKQ_LEDGR_URL"}
"""What the pages name as a typing error."""


def test_every_variable_that_the_repository_names_is_known_and_every_known_one_is_named() -> None:
    named: set[str] = set()
    for path in {path for place in PLACES for path in REPOSITORY.glob(place) if path.is_file()}:
        if path.name != "variables.py" and path.suffix != ".png":
            named |= set(re.findall(r"(?<![A-Z_])WORKQ_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8")))

    assert named - NOT_READ == KNOWN


def test_the_nearest_name_that_is_read_is_proposed() -> None:
    environ = {
        "WORKQ_LEDGR_URL": "x",
        "WORKQ_ZZZZZZZZZZ": "x",
        "WORKQ_EMPTY": " ",
        "OTHER": "x",
        "WORKQ_WEBHOOK_PORT": "1",
    }

    assert unread(environ) == [
        "WORKQ_LEDGR_URL is set, and nothing reads it; did you mean WORKQ_LEDGER_URL?",
        "WORKQ_WEBHOOK_PORT is set, and nothing reads it; did you mean WORKQ_WEBHOOK_PORTS?",
        "WORKQ_ZZZZZZZZZZ is set, and nothing reads it",
    ]
    assert list(Settings.load(environ=environ, folder=REPOSITORY / "sql").warnings) == unread(environ)
    assert unread(dict.fromkeys(KNOWN, "x")) == []


def test_of_a_time_it_is_told_where_it_is_set() -> None:
    for name in ("TIMES_ABSENCE_S", "LEASE_S"):
        time = name.removeprefix("TIMES_").lower()
        told = f"WORKQ_{name} is set, and nothing reads it; write {time} into the table times of workq.toml"
        assert unread({f"WORKQ_{name}": "8"}) == [told]


def test_what_kubernetes_sets_for_a_service_of_this_name_is_no_error() -> None:
    environ = {
        "WORKQ_SERVICE_HOST": "10.0.0.7",
        "WORKQ_SERVICE_PORT": "80",
        "WORKQ_SERVICE_PORT_HTTP": "80",
        "WORKQ_PORT": "tcp://10.0.0.7:80",
        "WORKQ_WEB_PORT_80_TCP": "tcp://10.0.0.7:80",
        "WORKQ_WEB_PORT_80_TCP_ADDR": "10.0.0.7",
    }

    assert unread(environ) == []


def test_a_library_logs_it_once_in_a_process_and_not_what_a_command_has_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORKQ_QUEU_TYPE", "x")
    caplog.set_level(logging.WARNING)

    for _ in range(2):
        WorkQueue(ledger=f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setenv("WORKQ_NAMESPAC", "x")
    log_unread(is_said=True)
    WorkQueue(ledger=f"sqlite:///{tmp_path}/shop.db")

    told = [one.getMessage() for one in caplog.records if one.name == "workq.settings"]
    assert told == ["settings.unread: WORKQ_QUEU_TYPE is set, and nothing reads it; did you mean WORKQ_QUEUE_TYPE?"]
