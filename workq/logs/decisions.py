"""Decisions about tasks, jobs and endpoints, as log lines: one function, and event names that stay.

The ledger tells each decision once its transaction stands (see ledger/engine/after_commit.py), whoever has asked for
it: a worker, its supervisor, a sweep, a plan. What a task was called with is never in a line; what its error says is.

Of each event ten lines a minute are written for each handler and class of error, and then one with the exact count of
the others. The loggers are `workq.task`, `workq.job` and `workq.webhook`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from workq.logs.forms import in_one_line
from workq.logs.seldom import Seldom

LINES: Final = 10
EVERY_S: Final = 60.0
FIELD_MAX: Final = 500
"""So many characters of a text are on the line."""

EVENTS: Final[Mapping[str, int]] = {
    "task.retry": logging.WARNING,
    "task.dead": logging.ERROR,
    "task.crashed": logging.WARNING,
    "task.returned": logging.INFO,
    "task.expired": logging.WARNING,
    "task.cancelled": logging.INFO,
    "job.failed": logging.ERROR,
    "job.completed_with_failures": logging.WARNING,
    "webhook.endpoint_failing": logging.WARNING,
    "webhook.endpoint_disabled": logging.ERROR,
}
"""With their levels."""

_seldom: Final = Seldom(logging.getLogger("workq"), lines=LINES, every_s=EVERY_S)


def log_decision(
    event: str, fields: Mapping[str, Any], *, of: str, kind: str = "", traceback: str | None = None
) -> None:
    """Write one line, or count it: `of` (a handler's name) and `kind` (a class of error) say with which others."""
    log, level = logging.getLogger(f"workq.{event.partition('.')[0]}"), EVENTS[event]
    if not log.isEnabledFor(level):
        return

    def write(_count: int) -> None:
        said = {name: in_one_line(one)[:FIELD_MAX] if isinstance(one, str) else one for name, one in fields.items()}
        record = log.makeRecord(log.name, level, "", 0, event, (), None, extra=said)
        record.exc_text = traceback
        log.handle(record)

    def write_rest(count: int) -> None:
        log.log(level, event, extra={"count": count, "of": of, **({"kind": kind} if kind else {})})

    _seldom.note((event, of, kind), write, rest=write_rest)
