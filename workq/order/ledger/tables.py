"""The tables of order: each order key with open tasks, and the position of each task."""

from __future__ import annotations

from workq.ledger.columns import TableSpace, bigint, identity, instant, required, word
from workq.ledger.engine.database import Database


class OrderTables:
    """The order keys with open tasks, and the positions of their tasks."""

    def __init__(self, space: TableSpace) -> None:
        self.sequence = space.table(
            "sequence",
            "The order keys with open tasks: the last position that was given, and the task that stands first.",
            required("id", word(200), "the order key"),
            required("last", bigint()),
            required("head_position", bigint()),
            required("head_task", identity()),
        )

        self.position = space.table(
            "position",
            "The positions of the tasks of order keys.",
            required("order_key", word(200)),
            required("position", bigint()),
            required("task_id", identity()),
            required("due_at", instant()),
            required("after_death", word(5), "block or skip"),
            key=(
                "order_key",
                "position",
            ),
        )


def order_tables(database: Database) -> OrderTables:
    """The tables of this slice in one database, under its namespace."""
    return database.tables.part(OrderTables)
