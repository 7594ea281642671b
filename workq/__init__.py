"""workq: a reliable work queue for Python.

It starts as one SQLite file and moves to RabbitMQ + Redis + PostgreSQL/MySQL without a code change. A task whose
`enqueue()` returned is recorded in the ledger; it is run at least once and settled exactly once.

Importing this module is cheap: the client libraries of the servers are loaded when they are first needed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workq.app import WorkQueue
    from workq.config import Times
    from workq.errors import (
        BrokerUnavailable,
        Cancel,
        CommitUnknown,
        ConfigError,
        InFlightUnavailable,
        KeyConflict,
        LedgerUnavailable,
        MissingExtra,
        NotFound,
        NotInTask,
        PayloadError,
        Refused,
        Retry,
        SchemaMismatch,
        Snooze,
        SoftTimeLimit,
        UnknownTask,
        WorkqError,
    )
    from workq.handlers.context import Current, TaskFields, current
    from workq.handlers.retry import Exponential, Fixed, Schedule, timeline
    from workq.handlers.verdict import Verdict
    from workq.jobs.sources import CsvFile, JsonLines, Keyset, Range
    from workq.values.task import Enqueued, State, Task

_HOMES = {
    "Verdict": "handlers.verdict",
    "Range": "jobs.sources",
    "Keyset": "jobs.sources",
    "JsonLines": "jobs.sources",
    "CsvFile": "jobs.sources",
    "WorkQueue": "app",
    "Times": "config",
    "Current": "handlers.context",
    "current": "handlers.context",
    "TaskFields": "handlers.context",
    "Exponential": "handlers.retry",
    "Fixed": "handlers.retry",
    "Schedule": "handlers.retry",
    "timeline": "handlers.retry",
    "Enqueued": "values.task",
    "State": "values.task",
    "Task": "values.task",
}

__all__ = [
    "Verdict",
    "Range",
    "Keyset",
    "JsonLines",
    "CsvFile",
    "BrokerUnavailable",
    "Cancel",
    "CommitUnknown",
    "ConfigError",
    "Current",
    "Enqueued",
    "Exponential",
    "Fixed",
    "InFlightUnavailable",
    "KeyConflict",
    "LedgerUnavailable",
    "MissingExtra",
    "NotFound",
    "NotInTask",
    "PayloadError",
    "Refused",
    "Retry",
    "Schedule",
    "SchemaMismatch",
    "Snooze",
    "SoftTimeLimit",
    "State",
    "Task",
    "TaskFields",
    "Times",
    "UnknownTask",
    "WorkQueue",
    "WorkqError",
    "current",
    "timeline",
]

__version__ = "0.1.0"

logging.getLogger("workq").addHandler(logging.NullHandler())  # a library says nothing until it is asked to


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'workq' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"workq.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
