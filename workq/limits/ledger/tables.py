"""The tables of limits: each limit in use, its permits, and the tasks that wait in its line."""

from __future__ import annotations

from workq.ledger.columns import TableSpace, bigint, identity, instant, integer, numbered, optional, required, word
from workq.ledger.engine.database import Database


class LimitTables:
    """The limits in use, the permits of each, and the tasks that wait for one."""

    def __init__(self, space: TableSpace) -> None:
        self.throttle = space.table(
            "throttle",
            "The limits that are in use: the last number in the line of each.",
            required("id", word(200), "the limit's key"),
            required("last", bigint()),
            required("changed_at", instant()),
            optional(
                "closed_until",
                instant(),
                "nothing of it starts until then, afterwards one at a time until it is opened; NULL: it is open",
            ),
        )

        self.permit = space.table(
            "permit",
            "Which task may run, in which attempt, claimed when; without an attempt: promised to it, and from when on.",
            numbered(),
            required("limit_key", word(200)),
            required("task_id", identity()),
            optional("attempt", integer()),
            required("at", instant()),
            space.index("permit_by_limit", "limit_key"),
        )

        self.parked = space.table(
            "parked",
            "Tasks that wait for a permit, in this order.",
            required("limit_key", word(200)),
            required("number", bigint()),
            required("task_id", identity()),
            key=(
                "limit_key",
                "number",
            ),
        )


def limit_tables(database: Database) -> LimitTables:
    """The tables of this slice in one database, under its namespace."""
    return database.tables.part(LimitTables)
