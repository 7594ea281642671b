"""Noticing: what operators should know is recorded as a task, in the transaction in which it comes to pass.

So nothing is told that did not stand, and what stands is told, whoever dies in between (see webhooks/notices.py).
What may happen thousands of times at an endpoint has a key that is kept for a time: it is told once in that time.

Locks: notices are recorded behind all that their transaction locks of endpoints, in the order of their keys.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from workq.ledger import Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.tasks import InAWindow, Tasks
from workq.values.codec import new_task_id
from workq.webhooks.values import NewNotice, task_of_notice


class Notices:
    """Records notices for operators."""

    def __init__(self, database: Database, *, tasks: Tasks) -> None:
        self.database = database
        self._tasks = tasks

    def notice(self, tx: Connection, notices: Iterable[NewNotice]) -> list[Unpublished]:
        """Record what was not told a little while ago; answers the hints. Without them, a sweep relays."""
        hints: list[Unpublished] = []
        tried: set[str] = set()
        for one in sorted(notices, key=lambda one: (one.key or "", one.endpoint_id)):
            if one.key is not None:
                if one.key in tried:  # a batch may have hundreds of them
                    continue
                tried.add(one.key)
            task = task_of_notice(new_task_id(), one)
            try:
                with tx.begin_nested():
                    self._tasks.all_at_once(tx, [task], None)
            except (IntegrityError, InAWindow):  # it was told
                continue
            hints.append(Unpublished(task.id, task.queue, 0, 0.0))
        return hints
