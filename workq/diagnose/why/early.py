"""Its time has not come, and why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from workq.diagnose.why.look import TaskLook
from workq.diagnose.why.reason import Code, Why, rfc3339
from workq.ledger.unhandled import NO_HANDLER, looks
from workq.values.task import Event
from workq.webhooks import resting
from workq.webhooks.values import endpoint_of
from workq.worker.attempt import ALIKE


def is_early(look: TaskLook) -> Why:
    task = look.task
    if task.reason == NO_HANDLER and (seen := looks(look.stores.ledger.questions.history(task.task_id))):
        return _has_no_handler(look, seen)
    if task.failures:
        why = resting.asked_for(task.error) if endpoint_of(task.limit_key) else ""
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
