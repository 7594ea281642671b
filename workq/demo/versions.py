"""The versions of the demo's index: which one is searched, and which items cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

CHUNK: Final = 500
"""Items of one subtask."""
OLD: Final = "catalog_v1"
NEW: Final = "catalog_v2"
UNREADABLE: Final = 7
"""So many documents cannot be read, until they are mended."""
_FILE: Final = "unreadable.json"


def alias(folder: Path) -> str:
    """The version that is searched."""
    return (folder / "alias").read_text(encoding="utf-8")


def point(folder: Path, version: str) -> None:
    """Let it be searched from now on. Atomic."""
    new = folder / f"alias.{os.getpid()}"
    new.write_text(version, encoding="utf-8")
    new.replace(folder / "alias")


def unreadable(folder: Path) -> list[int]:
    """The items whose text cannot be read now."""
    try:
        found: list[int] = json.loads((folder / _FILE).read_bytes())
    except FileNotFoundError:  # somebody has mended it
        return []
    return found


def make_unreadable(folder: Path, items: list[int]) -> None:
    """Some from all over these, none the first of its chunk: that one names the chunk."""
    step = max(1, len(items) // UNREADABLE)
    places = [place + 1 if place % CHUNK == 0 else place for place in range(step // 2, len(items), step)]
    found = [items[min(place, len(items) - 1)] for place in places[:UNREADABLE]]
    (folder / _FILE).write_text(json.dumps(found), encoding="utf-8")


def mend(folder: Path) -> None:
    """All can be read from now on."""
    (folder / _FILE).unlink(missing_ok=True)
