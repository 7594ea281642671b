"""Every statement that a database is sent, for tests that look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event

from workq.ledger.engine.database import Database


def listen(database: Database, told: Callable[[str, Any], None]) -> None:
    """Tell of each text and its parameters (of one row), whether SQLAlchemy sends it or workq itself."""
    database.trace = told
    for engine in database.engines:

        @event.listens_for(engine, "before_cursor_execute")
        def _sent(_c: Any, _cursor: Any, statement: str, parameters: Any, _x: Any, many: bool) -> None:
            told(statement, parameters[0] if many else parameters)
