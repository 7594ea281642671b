"""The history: events are appended, in the transaction of what they tell of, and never changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, insert

from workq.ledger.engine.database import Database
from workq.values import codec
from workq.values.names import check_said

DETAIL_MAX_BYTES = 1 << 20
REASON_MAX: Final = 200
"""Characters of who and why, and of a task's reason."""
ERROR_MAX: Final = 20_000
"""How many characters of an error are kept."""
BY_ITSELF: Final = "workq"
"""Who has decided, where no person has."""


class History:
    """Appends events."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def note(
        self, kind: str, *, detail: Mapping[str, Any], task_id: str | None = None, worker: str | None = None
    ) -> None:
        """Append an event."""
        self.database.run(lambda tx: self.append(tx, kind, detail, task_ids=[task_id], worker=worker))

    def append(
        self,
        tx: Connection,
        kind: str,
        detail: Mapping[str, Any],
        *,
        task_ids: Sequence[str | None] = (None,),
        worker: str | None = None,
    ) -> None:
        """One event for each of these tasks, all alike; None: it is of no task."""
        statement = insert(self.database.tables.event).values(
            at=self.database.now(),
            kind=kind,
            worker=worker,
            detail=codec.encode(dict(detail), path="event", max_bytes=DETAIL_MAX_BYTES),
        )
        tx.execute(statement, [{"task_id": task_id} for task_id in task_ids])

    def decided(self, tx: Connection, what: str, *, who: str, why: str) -> None:
        """One event of no task: a person has decided `what`, which names what was changed and has no value of it."""
        self.append(tx, "manual", {"what": what, **who_and_why(who, why)})


def who_and_why(who: str, why: str, *, characters_max: int = REASON_MAX) -> dict[str, str]:
    """Who has decided, and why (so many characters of it), as both are kept.

    Raises:
        ConfigError: one of them is no text, or says nothing.
    """
    return {
        "who": codec.storable(check_said(who, "who"), characters_max=REASON_MAX),
        "why": codec.storable(check_said(why, "why"), characters_max=characters_max),
    }
