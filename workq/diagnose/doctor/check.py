"""What a check of the doctor answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a check ended. `warning` and `error` are findings; `unreachable` says that a server is away.

    `unchecked` is neither: it could not be looked at, and the message says how it can be.
    """

    OK = "ok"
    UNCHECKED = "unchecked"
    WARNING = "warning"
    ERROR = "error"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    area: str
    level: Level
    message: str


def line(error: Exception) -> str:
    """An error in one line. Where it proposes doctor itself, the person is there already."""
    return re.sub(r" (?:Try|Look): workq doctor$", "", " ".join(str(error).split()))
