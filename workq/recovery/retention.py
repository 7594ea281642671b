"""Prune: what sweeps remove by its age, all of it, for a person who does not wait for them.

The statements are in ledger/upkeep.py, jobs/ledger/care.py, webhooks/ledger/pruning.py and
messages/ledger/pruning.py.

Page by page, each in short transactions with a pause behind it, so that nobody waits long for a lock. Nothing is
remembered between runs: what is left, the next one removes, or a sweep.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict

from workq.config import Settings
from workq.jobs.ledger.sql import JobLedger
from workq.ledger import Retention
from workq.messages.ledger.sql import MessageLedger
from workq.webhooks.ledger.sql import WebhookLedger

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


PAGE: Final = 500
WEBHOOKS: Final = 100
PAUSE_S: Final = 0.01


def retention_of(settings: Settings, *, older_than_s: float | None = None) -> Retention:
    """What is kept for how long: as the settings say, or all for so long that has an end.

    What is dead is kept for as long as the settings say, or longer: it waits for a person.
    """
    if older_than_s is None:
        return Retention(
            settings.retention_s,
            settings.dead_retention_s,
            settings.webhook_body_retention_s,
            settings.webhook_retention_s,
        )
    return Retention(older_than_s, max(older_than_s, settings.dead_retention_s), older_than_s, older_than_s)


def prune(
    ledger: Ledger,
    retention: Retention,
    *,
    removed: Counter[str],
    held_back: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Remove all that is beyond its retention, and add it to `removed` by table: right however this ends. Repeatable.

    `held_back`: around each page; what ends the run from outside waits for its end.
    """
    for step in (_tasks, _jobs, _webhooks, _messages):
        while True:
            with held_back():
                page = step(ledger, retention)
                removed.update(page)
            if not any(page.values()):
                break
            time.sleep(PAUSE_S)


def prunable_rows(ledger: Ledger, retention: Retention) -> dict[str, int]:
    """How many rows are beyond their retention, by table; `webhook_body`: webhooks whose bodies are."""
    return {
        **ledger.plans.prunable_rows(retention),
        **ledger.part(JobLedger).care.prunable_rows(retention),
        **ledger.part(WebhookLedger).pruning.prunable_rows(retention),
        "message": ledger.part(MessageLedger).pruning.prunable_messages(),
    }


def _tasks(ledger: Ledger, retention: Retention) -> dict[str, int]:
    found = ledger.upkeep.prune(limit=PAGE, retention_s=retention.tasks_s, dead_retention_s=retention.dead_s)
    return {name.removesuffix("s"): count for name, count in asdict(found).items()}


def _jobs(ledger: Ledger, retention: Retention) -> dict[str, int]:
    found = ledger.part(JobLedger).care.prune_jobs(
        limit=PAGE, retention_s=retention.tasks_s, dead_retention_s=retention.dead_s
    )
    return {
        "job": found.jobs,
        "subtask": found.subtasks,
        "failed_item": found.failed_items,
        "job_result": found.results,
    }


def _webhooks(ledger: Ledger, retention: Retention) -> dict[str, int]:
    found = ledger.part(WebhookLedger).pruning.prune_webhooks(
        limit=WEBHOOKS, body_retention_s=retention.bodies_s, retention_s=retention.webhooks_s
    )
    return {
        "webhook": found.webhooks,
        "webhook_body": found.bodies,
        "delivery": found.deliveries,
        "delivery_attempt": found.attempts,
    }


def _messages(ledger: Ledger, _retention: Retention) -> dict[str, int]:
    return {"message": ledger.part(MessageLedger).pruning.prune_messages(limit=PAGE)}
