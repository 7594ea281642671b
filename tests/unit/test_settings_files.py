"""The settings files that demos and scratch namespaces write for others are read as they were meant."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from workq.config import Settings, Times
from workq.demo import stage
from workq.lab import namespace
from workq.lab.namespace import Store

URL = 'sqlite:////srv/O\'Brien/"old"/back\\slash/\N{SMILING CAT FACE WITH OPEN MOUTH}.db'


@pytest.mark.parametrize("of", ["demo", "scratch"])
def test_a_path_may_have_quotes_and_any_character(tmp_path: Path, of: str) -> None:
    if of == "demo":
        file = stage.write_settings(tmp_path, {"ledger": URL})
    else:
        settings = Settings(ledger=URL, namespace="bench_01234567", times=Times())
        file = namespace.write_settings(tmp_path / "workq.toml", settings, {Store.LEDGER: URL})

    assert tomllib.loads(file.read_text(encoding="utf-8"))["ledger"] == URL
