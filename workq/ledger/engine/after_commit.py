"""Telling: what a transaction has decided is told to the log once it stands, and not at all when it does not.

A decision is noted with the transaction that makes it; `Database.run` forgets the notes when it begins anew, and hands
them to `log_decision` after the commit. In a transaction of the caller's nothing is noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from workq.logs.decisions import log_decision

_KEY: Final = "_workq_decisions"
"""An attribute of the connection: its `info` costs an enqueue one in a hundred."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What `log_decision` is told."""

    event: str
    fields: dict[str, Any]
    of: str
    kind: str = ""
    traceback: str | None = None


def begin(tx: Connection) -> list[Decision]:
    """The transaction begins: what is noted with it from now on."""
    noted: list[Decision] = []
    setattr(tx, _KEY, noted)
    return noted


def note(tx: Connection, decisions: Iterable[Decision]) -> None:
    """Tell these once the transaction stands."""
    noted = getattr(tx, _KEY, None)
    if noted is not None:
        noted.extend(decisions)


def tell(noted: Sequence[Decision]) -> None:
    """The transaction stands."""
    for one in noted:
        log_decision(one.event, one.fields, of=one.of, kind=one.kind, traceback=one.traceback)
