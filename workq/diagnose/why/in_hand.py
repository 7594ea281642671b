"""A worker has it in hand: it runs, or is held and has not started; or that worker is gone, or says nothing.

A suspect runs alone: it waits for a process that runs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from workq.diagnose.why.look import SUSPECTED, Code, TaskLook, Why, is_seen_gone, named_worker, one_line, rfc3339
from workq.errors import InFlightUnavailable
from workq.inflight import Hold
from workq.ledger import Company, WorkerRow
from workq.values.lane import queue_of
from workq.values.plural import counted


def runs(look: TaskLook) -> Why:
    task = look.task
    row = look.worker(task.worker)
    on = named_worker(task.worker, row)
    if row is None or row.state != "live" or is_seen_gone(row):
        how = "it is gone from its host" if row is not None and row.state == "live" else "it has ended"
        return look.why(
            Code.WORKER_GONE,
            f"attempt {task.attempt} started on {on}, but {how}, and the claim is still to be taken back",
            "nothing: its supervisor or a sweep returns it; if neither runs: workq sweep",
            since=row.ended_at if row is not None else None,
            until=task.now + timedelta(seconds=look.bounds.dead_host_s),
        )
    if look.is_silent(row):
        return _silent(look, row, f"attempt {task.attempt} runs on {on}")
    if task.cancel_requested_at is not None:
        return look.why(
            Code.CANCEL_REQUESTED,
            f"it runs on {on} since {rfc3339(task.started_at)} (attempt {task.attempt}), and was asked to stop at "
            f"{rfc3339(task.cancel_requested_at)}: it ends when its handler looks, fails or returns",
            "wait for its handler; one that never looks at current().cancelled() goes on to its end",
            since=task.cancel_requested_at,
        )
    if look.runs_alone and (company := look.stores.ledger.questions.company(task)).others:
        return waits_there_alone(look, row, company)
    alone = f", alone there: {SUSPECTED}" if look.runs_alone else ""
    return look.why(
        Code.RUNNING,
        f"it does run: on {on} since {rfc3339(task.started_at)} (attempt {task.attempt}){alone}",
        "nothing: wait for its handler",
        since=task.started_at,
    )


def is_held(look: TaskLook, hold: Hold) -> Why:
    task = look.task
    since = task.now - timedelta(seconds=hold.since_s)
    row = look.worker(hold.worker)
    on = named_worker(hold.worker, row)
    if row is None or row.state != "live" or is_seen_gone(row):
        return look.why(
            Code.WORKER_GONE,
            f"{on} took it in hand at {rfc3339(since)} and has ended since; what it held is still to be freed",
            "nothing: its supervisor or a sweep frees it; if neither runs: workq sweep",
            since=since,
            until=task.now + timedelta(seconds=look.bounds.dead_host_s),
        )
    if look.is_silent(row):
        return _silent(look, row, f"it is held by {on}")
    if look.runs_alone:
        running = look.stores.ledger.questions.occupied([row.id]).get(row.id, 0)
        beside = f" ({counted(running, 'task runs', 'tasks run')} there now)" if running else ""
        return look.why(
            Code.SUSPECT,
            f"{SUSPECTED}, so it runs alone: {on} holds it since {rfc3339(since)}, "
            f"and starts it when nothing else runs there{beside}",
            "wait until that process is idle",
            since=since,
        )
    return look.why(
        Code.HELD,
        f"{on} holds it since {rfc3339(since)} and has not started it: it is next there, or its "
        f"{counted(row.threads, 'thread is', 'threads are')} busy, or a suspect runs alone there",
        "wait a moment; what cannot start soon is handed back to others",
        since=since,
    )


def _silent(look: TaskLook, row: WorkerRow, what: str) -> Why:
    return look.why(
        Code.WORKER_SILENT,
        f"{what}, whose lease has ended and which has not beaten for {row.beat_age_s:.0f} s: unless it comes back, "
        "a sweep takes back what it has",
        "nothing: a sweep looks twice and decides; if none runs: workq sweep",
        since=row.beat_at,
        until=row.beat_at + timedelta(seconds=look.bounds.dead_host_s),
    )


def nothing_is_held(look: TaskLook, error: InFlightUnavailable) -> Why:
    """The in-flight store is away."""
    return look.why(
        Code.INFLIGHT_AWAY,
        f"the in-flight store does not answer from here ({one_line(error)}): without it nothing is held, and "
        "nothing starts",
        "bring it back; workers go on by themselves. Look: workq doctor",
    )


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
