"""It has ended: as it was settled, or because nobody started it in its time."""

from __future__ import annotations

from datetime import datetime

from workq.diagnose.why.look import TaskLook
from workq.diagnose.why.reason import Code, Why, rfc3339
from workq.values.plural import counted
from workq.values.task import State


def has_ended(look: TaskLook) -> Why:
    task = look.task
    at = rfc3339(task.settled_at)
    if task.state is State.CANCELLED:
        return look.why(
            Code.CANCELLED,
            f"it was cancelled at {at}: {task.reason or 'no reason was given'}",
            f"to run it all the same: workq task retry {task.task_id}"
            if task.job_id is None
            else f"what became of its job: workq job show {task.job_id}",
            since=task.settled_at,
        )
    if task.state is State.SUCCEEDED:
        return look.why(
            Code.SETTLED,
            f"it succeeded at {at}, in attempt {task.attempt}",
            "nothing: it is done",
            since=task.settled_at,
        )
    attempts, because = counted(task.attempt, "attempt"), task.reason or "no reason is recorded"
    return look.why(
        Code.SETTLED,
        f"it is dead since {at}, after {attempts}: {because}",
        f"read its error: workq task show {task.task_id}; mend the cause, then: "
        + (f"workq task retry {task.task_id}" if task.job_id is None else f"workq job retry {task.job_id}"),
        since=task.settled_at,
    )


def has_expired(look: TaskLook, expired_at: datetime) -> Why:
    return look.why(
        Code.EXPIRED,
        f"it was to be started before {rfc3339(expired_at)}, and was not: the next sweep cancels it",
        "nothing: it will not start; if no sweep runs: workq sweep",
        since=expired_at,
    )
