"""It is a suspect, and runs alone: it waits for a process that runs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from workq.diagnose.why.look import TaskLook, named_worker
from workq.diagnose.why.reason import SUSPECTED, Code, Why, rfc3339
from workq.ledger import Company, WorkerRow
from workq.values.lane import queue_of
from workq.values.plural import counted

NAMED_MAX: Final = 3
"""How many workers one reason names at most."""


def waits_there_alone(look: TaskLook, row: WorkerRow, company: Company) -> Why:
    """A suspect that is claimed: nothing else runs in its process while it does, and others are still there."""
    task = look.task
    if company.suspects < company.others:
        turn = f"waits there for {counted(company.others - company.suspects, 'other task')} to settle"
    else:
        turn = f"takes turns there with {counted(company.suspects, 'other suspect')}, one at a time"
    return look.why(
        Code.SUSPECT,
        f"{SUSPECTED}, so it runs alone: {named_worker(row.id, row)} claimed it at "
        f"{rfc3339(task.started_at)} (attempt {task.attempt}), and it {turn}",
        "wait for its turn; what it cannot have soon is handed back to others",
        since=task.started_at,
    )


def waits_to_run_alone(
    look: TaskLook, serving: Sequence[WorkerRow], *, since: datetime | None = None, until: datetime | None = None
) -> Why:
    """A suspect that no worker has in hand: it waits for one of the processes of its queue to be empty."""
    running = look.stores.ledger.questions.occupied([row.id for row in serving])
    named = [f"{named_worker(row.id, row)} has {running[row.id]} unsettled" for row in serving if row.id in running]
    listed = "; ".join(named[:NAMED_MAX]) + (f"; and {len(named) - NAMED_MAX} more" if named[NAMED_MAX:] else "")
    empty = len(serving) - len(named)
    state = f"{counted(empty, 'process is', 'processes are')} empty" if empty else "none is empty now"
    again = f"; its hint comes again at {rfc3339(until)} at the latest" if until is not None else ""
    return look.why(
        Code.SUSPECT,
        f"{SUSPECTED}, so it runs alone: it waits until one of the "
        f"{counted(len(serving), 'process', 'processes')} of queue {queue_of(look.task.queue)!r} is empty, and "
        f"{state}{f' ({listed})' if listed else ''}{again}",
        "nothing: a worker that takes it starts nothing else until it is done; if none gets empty, start one more: "
        f"workq worker --queues {queue_of(look.task.queue)}",
        since=since,
        until=until,
    )
