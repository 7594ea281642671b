"""How many names a finding tells, and how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NAMED_MAX: Final = 5
COUNTED_MAX: Final = 1000


def named(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:NAMED_MAX]) + (f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else "")
