"""It can start: others come first, or none do; or no worker is there to start it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from workq.broker import Depth
from workq.diagnose.why.look import TaskLook
from workq.diagnose.why.reason import SUSPECTED, Code, Why
from workq.ledger import WorkerRow
from workq.values.lane import queue_of
from workq.values.plural import counted


def is_not_served(look: TaskLook) -> Why:
    task = look.task
    queue = queue_of(task.queue)
    rows = [row for row in look.stores.ledger.questions.workers() if queue in row.queues]
    silent = f" ({counted(len(rows), 'worker')} of it said nothing for a lease)" if rows else ""
    return look.why(
        Code.NO_WORKER,
        f"no live worker serves queue {queue!r}{silent}",
        f"start one: workq worker --queues {queue}",
        since=max(task.due_at, task.queued_at),
    )


def is_in_queue(look: TaskLook, serving: Sequence[WorkerRow], depth: Depth, *, older: int, since: datetime) -> Why:
    """Its hint is in the queue, behind those of `older` tasks."""
    task = look.task
    hints = f"{counted(depth.ready, 'hint')} of {task.queue!r} in the broker"
    threads = counted(sum(row.threads for row in serving), "thread")
    by = f"{counted(len(serving), 'process', 'processes')} with {threads}"
    if older:
        alone = f"; then it waits for a process that runs nothing else, since {SUSPECTED}" if look.runs_alone else ""
        return look.why(
            Code.BEHIND,
            f"it is behind {counted(older, 'older task')} of queue {task.queue!r} ({hints}), which {by} serve{alone}",
            "wait, or start more workers: workq status shows whether the queue grows",
            since=since,
        )
    return look.why(
        Code.NEXT,
        f"nothing older waits in queue {task.queue!r} ({hints}): the next free thread of {by} takes it",
        "wait a moment; if this stays, all threads are busy: workq task ls --state running",
        since=since,
    )
