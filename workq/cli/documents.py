"""How tasks, events and workers look in JSON. These shapes are stable: names are only added."""

from __future__ import annotations

from typing import Any

from workq.ledger import WorkerRow
from workq.task import Event, Task


def task_in_short(task: Task) -> dict[str, Any]:
    """One task in a list: everything but its arguments and result."""
    return {
        "id": task.id,
        "name": task.name,
        "queue": task.queue,
        "state": task.state,
        "attempt": task.attempt,
        "failures": task.failures,
        "failures_max": task.failures_max,
        "crashes": task.crashes,
        "crashes_max": task.crashes_max,
        "key": task.key,
        "job_id": task.job_id,
        "worker": task.worker,
        "cancel_requested": task.is_cancel_requested,
        "reason": task.reason,
        "error": task.error,
        "created_at": task.created_at,
        "due_at": task.due_at,
        "started_at": task.started_at,
        "settled_at": task.settled_at,
    }


def task_in_full(task: Task, history: list[Event]) -> dict[str, Any]:
    """One task with its arguments, its result and its history."""
    return {
        **task_in_short(task),
        "args": task.args,
        "kwargs": task.kwargs,
        "result": task.result,
        "history": [event(one) for one in history],
    }


def event(one: Event) -> dict[str, Any]:
    """One line of a task's history."""
    return {"at": one.at, "kind": one.kind, "attempt": one.attempt, "worker": one.worker, "detail": one.detail}


def worker(one: WorkerRow) -> dict[str, Any]:
    """One incarnation."""
    return {
        "id": one.id,
        "state": one.state,
        "host": one.host,
        "pid": one.pid,
        "queues": one.queues,
        "threads": one.threads,
        "started_at": one.started_at,
        "beat_at": one.beat_at,
        "beat_age_s": round(one.beat_age_s, 3),
        "ended_at": one.ended_at,
        "evidence": one.evidence,
    }
