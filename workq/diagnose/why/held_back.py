"""It may not start yet: its job, its order key, its limit, the pause of its queue or its time keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from workq.diagnose.why.look import Code, TaskLook, Why, rfc3339
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JobState
from workq.ledger import Pause
from workq.ledger.unhandled import NO_HANDLER, looks
from workq.ledger.waiting import is_behind
from workq.limits.ledger.limits import Limits
from workq.order.ledger.order import Order
from workq.values.plural import counted
from workq.values.task import Event
from workq.webhooks.ledger import held
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import endpoint_of, wait_asked_for, why_it_rests
from workq.worker.attempt import ALIKE


def by_job(look: TaskLook, job_id: str) -> Why | None:
    """What its job says; None when that lets it start."""
    task, job = look.task, look.stores.ledger.part(JobLedger).questions.job(job_id)
    is_parked = is_behind(task.due_at, task.now)
    if job is None:
        if not is_parked:
            return None
        return look.why(
            Code.JOB,
            f"its job {job_id} held it back, and somebody has removed that job's row",
            f"let it run as a task like any other: workq job resume {job_id}",
        )
    if job.state in (JobState.PAUSING, JobState.PAUSED):
        return look.why(
            Code.JOB,
            f"{job.who} paused its job {job_id} at {rfc3339(job.state_at)}: {job.why}",
            f"to let it go on: workq job resume {job_id}",
            since=job.state_at,
        )
    if is_parked and job.state is JobState.PLANNING:
        return look.why(
            Code.JOB,
            f"its job {job_id} begins when the one before it of the same name and key has ended",
            f"wait; which one that is: workq job ls --name {job.name}",
            since=job.created_at,
        )
    if job.rate_max is not None and not task.failures and not is_parked:
        return look.why(
            Code.JOB,
            f"its job {job_id} starts {job.rate_max:g} items a second, and its turn is at {rfc3339(task.due_at)}",
            f"wait, or say another rate: workq job throttle {job_id}",
            until=task.due_at,
        )
    return None


def by_order_key(look: TaskLook, key: str) -> Why:
    line = next(iter(look.stores.ledger.part(Order).sequences(key=key)), None)
    if line is not None and line.head == look.task.task_id and look.task.limit_key is not None:
        return by_limit(look, look.task.limit_key)
    if line is None:
        return look.why(Code.IN_LINE, f"its turn in order key {key!r} comes just now", "nothing")
    if line.blocked_since is not None:
        return look.why(
            Code.IN_LINE,
            f"task {line.head}, which comes before it in order key {key!r}, died at {rfc3339(line.blocked_since)}: "
            "what comes after it waits for a person",
            f"workq task retry {line.head}, or give it up: workq dead discard {line.head}",
            since=line.blocked_since,
        )
    if line.moves_on:
        return look.why(
            Code.IN_LINE,
            f"task {line.head}, which came before it in order key {key!r}, has ended "
            f"({line.state or 'it is gone'}), and the line moves up with the next sweep",
            "nothing: the sweep lets the next one go on; if none runs: workq sweep",
        )
    return look.why(
        Code.IN_LINE,
        f"it stands in line for order key {key!r}: it is the turn of task {line.head} ({line.state or 'gone'}), "
        f"and {counted(line.behind, 'task')} of the key come after that one",
        f"wait; why that one is not done: workq why {line.head}",
    )


def by_limit(look: TaskLook, key: str) -> Why:
    limit = next(iter(look.stores.ledger.part(Limits).all(key=key)), None)
    if limit is None:
        return look.why(Code.LIMITED, f"its turn in limit {key!r} comes just now", "nothing")
    if limit.closed_until is not None and limit.closed_until > look.task.now:
        endpoint = look.stores.ledger.part(WebhookLedger).endpoints.endpoint(endpoint_of(key) or "")
        if endpoint is not None and endpoint.rests_until is not None:
            return look.why(
                Code.LIMITED,
                f"endpoint {endpoint.id!r} rests until {rfc3339(endpoint.rests_until)}: {why_it_rests(endpoint)}",
                f"wait: one is sent then, and the others when it has arrived; workq webhook endpoint show "
                f"{endpoint.id}",
                until=endpoint.rests_until,
            )
        is_for_good = is_behind(limit.closed_until, look.task.now)
        until = "until somebody opens it" if is_for_good else f"until {rfc3339(limit.closed_until)}"
        return look.why(
            Code.LIMITED,
            f"limit {key!r} is closed {until}: what it stands for has failed again and again, or is disabled",
            "for webhooks, see its endpoint: workq webhook endpoint ls",
        )
    if look.task.waits_for == held.WAITS or not limit.running + limit.coming + limit.parked:
        return look.why(
            Code.LIMITED,
            "it is held: its endpoint was disabled when it waited",
            "workq webhook endpoint release, or discard",
        )
    return look.why(
        Code.LIMITED,
        f"limit {key!r} is reached: {counted(limit.running, 'task of it runs', 'tasks of it run')}, "
        f"{limit.coming} more are about to start, and {limit.parked} wait, this one among them",
        "wait: it starts when its turn comes; which tasks run: workq task ls --state running",
    )


def by_pause(look: TaskLook, pause: Pause) -> Why:
    until = "until somebody resumes it" if pause.ends_at is None else f"until {rfc3339(pause.ends_at)}"
    return look.why(
        Code.PAUSED,
        f"{pause.who} paused queue {pause.queue!r} at {rfc3339(pause.paused_at)}, {until}: {pause.why}",
        f"to let its tasks run: workq queue resume {pause.queue}",
        since=pause.paused_at,
        until=pause.ends_at,
    )


def is_early(look: TaskLook) -> Why:
    task = look.task
    if task.reason == NO_HANDLER and (seen := looks(look.stores.ledger.questions.history(task.task_id))):
        return _has_no_handler(look, seen)
    if task.failures:
        why = wait_asked_for(task.error) if endpoint_of(task.limit_key) else ""
        count = f"{task.failures} of {task.failures_max}"
        text = f"attempt {task.attempt} failed{why} ({count}), and the next one is due at "
    elif task.attempt:
        text = f"attempt {task.attempt} has ended, and the next one is due at "
    else:
        text = "it is not due until "
    return look.why(Code.NOT_DUE, f"{text}{rfc3339(task.due_at)}", "nothing: it starts then", until=task.due_at)


def _has_no_handler(look: TaskLook, seen: Sequence[Event]) -> Why:
    task, since, wait_s = look.task, seen[0].at, look.times.no_handler_wait_s
    _, begins, alike = (task.error or "").partition(ALIKE)
    return look.why(
        Code.NO_HANDLER,
        f"no worker that has looked since {rfc3339(since)} knows a handler named {task.name!r} "
        f"({', '.join(str(one.worker) for one in seen)}); a look costs it nothing, and the next is at "
        f"{rfc3339(task.due_at)}{begins}{alike}",
        f"start workers of the application that registers {task.name!r}; {wait_s:g} s after the first look "
        "(times.no_handler_wait_s) it is dead as no_handler",
        since=since,
        until=since + timedelta(seconds=wait_s),
    )
