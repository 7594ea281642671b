"""What the ledger has decided is told to the log: once, when it stands, with a task's fields and never its payload."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.contract.given import Clock
from tests.contract.ledger.job_steps import JobSteps
from tests.contract.ledger.webhook_steps import WebhookSteps, failed, sent
from workq.errors import LedgerUnavailable
from workq.handlers.said import describe
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import NewJob
from workq.ledger import Evidence
from workq.ledger.after_settle import AfterSettle, Afterwards
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.logs import decisions
from workq.values.incarnation import Incarnation
from workq.values.task import (
    Cancelled,
    Dead,
    Delivered,
    Done,
    Failed,
    FailedItem,
    HandedBack,
    Outcome,
    Settlement,
    Snoozed,
)

CANARY = "canary-payload"


class _Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def told(logger: str = "workq.task") -> Iterator[list[logging.LogRecord]]:
    """What is told meanwhile."""
    log, handler = logging.getLogger(logger), _Told()
    before = log.level
    decisions._seldom.flush()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield handler.records
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def fields(record: logging.LogRecord, *names: str) -> dict[str, Any]:
    return {"event": record.getMessage(), **{name: getattr(record, name, None) for name in names}}


def error_of(text: str) -> str:
    try:
        raise ValueError(text)
    except ValueError as error:
        return describe(error)


class BreaksOff:
    """Counts everything, and breaks the transaction."""

    def plain(self, one: Settlement) -> Settlement:
        return one

    def count_settled(self, *_: object) -> Afterwards:
        raise LedgerUnavailable("it breaks off")


class TellingContract(WebhookSteps, JobSteps):
    def test_a_retry_and_a_death_are_told_with_their_fields_and_what_goes_well_is_not(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 6, payload=f'{{"a":["{CANARY}"],"k":{{}}}}')
        claims = ledger.claims.claim(ids, by=worker.id)
        outcomes: list[Outcome] = [
            Failed(5.0, error_of("no\nluck")),
            Dead("failures_max reached: ValueError", error_of("gone")),
            Cancelled("by itself"),
            Done(),
            Snoozed(5.0),
            HandedBack(),
        ]

        with told() as records:
            ledger.outcomes.settle([Settlement(claim, one) for claim, one in zip(claims, outcomes, strict=True)])

        retry, dead, cancelled = records
        name = claims[0].name
        assert fields(retry, "task", "task_name", "queue", "attempt", "error") == {
            "event": "task.retry",
            "task": claims[0].task_id,
            "task_name": name,
            "queue": "default",
            "attempt": 1,
            "error": "ValueError: no luck",
        }
        assert (retry.levelname, retry.exc_text) == ("WARNING", None)
        assert vars(retry)["next_at"].endswith("Z")
        assert fields(dead, "task", "reason", "error") == {
            "event": "task.dead",
            "task": claims[1].task_id,
            "reason": "failures_max reached: ValueError",
            "error": "ValueError: gone",
        }
        assert dead.levelname == "ERROR"
        assert dead.exc_text is not None
        assert dead.exc_text.startswith("Traceback (most recent call last):")
        assert fields(cancelled, "reason") == {"event": "task.cancelled", "reason": "by itself"}
        assert not any(CANARY in str(vars(one)) for one in records)

    def test_what_comes_late_or_does_not_stand_is_told_to_nobody(
        self, ledger: Ledger, worker: Incarnation, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = ledger.claims.claim(self.record(ledger, 2), by=worker.id)
        dead = Dead("failures_max reached: ValueError", "no")

        with told() as records:
            with monkeypatch.context() as broken:
                broken.setattr(
                    ledger.outcomes, "_counters", (AfterSettle(lambda given: list(range(len(given))), BreaksOff),)
                )
                with pytest.raises(LedgerUnavailable):
                    ledger.outcomes.settle([Settlement(first, dead)])
            assert records == []

            ledger.outcomes.settle([Settlement(first, dead)])
            ledger.workers.reap(worker.id, Evidence("SIGKILL", started={}))
            ledger.outcomes.settle([Settlement(second, dead)])

        events = [(one.getMessage(), vars(one)["task"]) for one in records]
        assert events == [("task.dead", first.task_id), ("task.returned", second.task_id)]

    def test_what_a_death_and_a_time_have_decided_is_told(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        crashed, lost, failed, unstarted = ledger.claims.claim(
            [*self.record(ledger, crashes_max=2), *self.record(ledger, crashes_max=1), *self.record(ledger, 2)],
            by=worker.id,
        )
        [expired] = self.record(ledger, expires_s=10.0)
        clock.forward(20.0)
        evidence = Evidence(
            "SIGSEGV",
            started={one.task_id: 1 for one in (crashed, lost, failed)},
            failed={failed.task_id: ("TimeLimit: too slow", 3.0)},
        )

        with told() as records:
            ledger.workers.reap(worker.id, evidence)
            ledger.upkeep.expire(limit=10)

        by_task = {vars(one)["task"]: one for one in records}
        assert fields(by_task[failed.task_id], "error") == {"event": "task.retry", "error": "TimeLimit: too slow"}
        assert by_task[unstarted.task_id].getMessage() == "task.returned"
        assert by_task[expired].getMessage() == "task.expired"
        assert len(records) == 5

    def test_an_endpoint_that_is_disabled_and_what_did_not_arrive_there_are_told(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        claims = self.carried(ledger, worker, [*self.send(ledger), *self.send(ledger)])
        gone = sent(claims[1], error_class="gone", status=410, is_gone=True)

        with told("workq.webhook") as disabled, told() as records:
            ledger.outcomes.settle([Settlement(claims[0], failed(claims[0]))])
            ledger.outcomes.settle([Settlement(claims[1], Delivered(gone, Dead("gone", "410 Gone")))])

        retry, dead = records
        assert fields(retry, "endpoint", "delivery", "error") == {
            "event": "task.retry",
            "endpoint": "a",
            "delivery": sent(claims[0]).delivery_id,
            "error": "server_error: 503",
        }
        assert fields(dead, "endpoint", "reason", "error") == {
            "event": "task.dead",
            "endpoint": "a",
            "reason": "gone",
            "error": "410 Gone",
        }
        assert [fields(one, "endpoint", "why") for one in disabled] == [
            {
                "event": "webhook.endpoint_disabled",
                "endpoint": "a",
                "why": "the receiver has answered 410 Gone",
            }
        ]

    def test_a_job_that_has_ended_with_failures_is_told(self, ledger: Ledger, job: NewJob) -> None:
        bad = FailedItem("1", 0, "it is too large", "0" * 16)

        with told("workq.job") as records:
            ledger.part(JobLedger).jobs.split_job(job.id, [], after=0, cursor=1, is_last=True, failed=[bad])

        assert [fields(one, "job", "job_name", "failed") for one in records] == [
            {"event": "job.completed_with_failures", "job": job.id, "job_name": job.name, "failed": 1}
        ]

    def test_a_crash_is_told_and_the_last_one_is_a_death(self, ledger: Ledger, worker: Incarnation) -> None:
        [task_id] = self.record(ledger, crashes_max=1)
        [claim] = ledger.claims.claim([task_id], by=worker.id)

        with told() as records:
            ledger.workers.reap(worker.id, Evidence("SIGSEGV", started={claim.task_id: 1}))

        [dead] = records
        assert fields(dead, "task", "reason", "cause", "charged") == {
            "event": "task.dead",
            "task": claim.task_id,
            "reason": "worker_lost",
            "cause": "SIGSEGV",
            "charged": "crash",
        }
