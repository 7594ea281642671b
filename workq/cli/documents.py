"""How tasks, events and workers look in JSON. These shapes are stable: names are only added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from workq.ledger import WorkerRow
from workq.values.certificate import Certificate
from workq.values.options import SHOWN
from workq.values.task import Event, Task


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
        "waits_for": task.waits_for,
        "started_at": task.started_at,
        "settled_at": task.settled_at,
        "expires_at": task.expires_at,
        **{one.name: msgspec.to_builtins(getattr(task, one.name)) for one in SHOWN},
        "priority": task.priority,
    }


def task_in_full(
    task: Task, history: list[Event], certificates: Mapping[str, Certificate] | None = None
) -> dict[str, Any]:
    """One task with its arguments, its result, its history, and the deaths of its workers."""
    return {
        **task_in_short(task),
        "args": task.args,
        "kwargs": task.kwargs,
        "result": task.result,
        "history": [event(one) for one in history],
        "deaths": [death(one, (certificates or {}).get(one.worker or "")) for one in history if one.kind == "reaped"],
    }


def event(one: Event) -> dict[str, Any]:
    """One line of a task's history."""
    return {"at": one.at, "kind": one.kind, "attempt": one.attempt, "worker": one.worker, "detail": one.detail}


def death(one: Event, of: Certificate | None) -> dict[str, Any]:
    """One death of a task's worker: the essentials, and the whole certificate as long as it is kept."""
    return {
        "at": one.at,
        "attempt": one.attempt,
        "worker": one.worker,
        **one.detail,
        "certificate": None if of is None else certificate(of),
    }


def certificate(of: Certificate) -> dict[str, Any]:
    """The certificate of a death; what is not known is null."""
    return {
        **{name: getattr(of, name) for name in of.__struct_fields__},
        "oom": None if of.oom is None else {name: getattr(of.oom, name) for name in of.oom.__struct_fields__},
        "claims": [{name: getattr(one, name) for name in one.__struct_fields__} for one in of.claims],
    }


def worker_in_full(one: WorkerRow, running: list[Task]) -> dict[str, Any]:
    """One incarnation with what it runs now, and the certificate of its death."""
    return {
        **worker(one),
        "running": [task_in_short(task) for task in running],
        "certificate": None if one.certificate is None else certificate(one.certificate),
    }


def worker(one: WorkerRow) -> dict[str, Any]:
    """One incarnation."""
    return {
        "id": one.id,
        "state": one.state,
        "host": one.host,
        "pid": one.pid,
        "machine": one.machine,
        "parent": one.parent,
        "memory_bytes": one.memory_bytes,
        "queues": one.queues,
        "threads": one.threads,
        "started_at": one.started_at,
        "beat_at": one.beat_at,
        "beat_age_s": round(one.beat_age_s, 3),
        "ended_at": one.ended_at,
        "evidence": one.evidence,
    }
