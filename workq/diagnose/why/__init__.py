"""Why a task is not running: one true reason from a closed list, computed at the moment of asking and never stored.

The checks follow the life of a task from its end to its beginning, and the first that holds is the answer: what comes
later cannot matter before it is gone. A task that changes while it is looked at is looked at again.

    settled, cancelled                        it has ended
    running, cancel_requested                 it does run
    worker_gone, worker_silent                it seems to run or to be held, but its worker is gone, or says nothing
    expired                                   nobody started it in its time, and the sweep is about to cancel it
    job                                       its job is paused, waits for another, or has a rate
    in_line                                   others of its order key come first
    limited                                   its limit is reached
    not_due, no_handler                       its time has not come; why it waits
    paused                                    somebody has paused its queue
    inflight_away                             nothing can be held, so nothing starts
    held, suspect                             a worker has it in hand and has not started it; a suspect waits for a
                                              process that runs nothing else
    no_worker                                 nobody serves its queue
    unpublished                               its hint has not been confirmed by the broker
    delayed                                   a worker sent its hint on, to come again a little later
    lost                                      its hint is proved lost, or seems to be
    broker_away                               its hint cannot be fetched
    behind, next                              others come first, or nobody does

Who decides: the ledger, by its own clock. The broker and the in-flight store are asked from this host: that they do not
answer here is what the reason says then, and it holds for the workers as far as they see the same.

The order is here. What a reason says is in the file of its family.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, assert_never

from workq.broker.later.due_rows import DueRows
from workq.config import Settings
from workq.diagnose.why.destination import by_destination
from workq.diagnose.why.held_back import by_job, by_limit, by_order_key, by_pause, is_early
from workq.diagnose.why.hint import (
    is_delayed,
    is_in_queue,
    is_not_served,
    is_out_of_reach,
    is_proved_lost,
    is_still_a_row,
    is_unpublished,
    proof_of_loss,
    seems_lost,
)
from workq.diagnose.why.in_hand import is_held, nothing_is_held, runs, waits_to_run_alone
from workq.diagnose.why.look import Code, TaskLook, Why, rfc3339
from workq.errors import InFlightUnavailable
from workq.ledger import Standing, WorkerRow
from workq.ledger.waiting import is_behind
from workq.messages.ledger import line
from workq.order.ledger import positions
from workq.stores import Stores
from workq.values.lane import queue_of
from workq.values.plural import counted
from workq.values.task import State

LOOKS_MAX: Final = 5
"""How often a task that changes under our eyes is looked at again."""


def why(stores: Stores, settings: Settings, task_id: str) -> Why | None:
    """Why this task is not running; None when the ledger does not know it. Reads only.

    Raises:
        LedgerUnavailable: the ledger did not answer, and nobody else knows.
    """
    answer = None
    for _ in range(LOOKS_MAX):
        task = stores.ledger.questions.standings([task_id]).get(task_id)
        if task is None:
            return None
        answer = _reason(TaskLook(stores, settings.times, task))
        again = stores.ledger.questions.standings([task_id]).get(task_id)
        if again is not None and _place(again) == _place(task):
            break
    return answer


def _place(task: Standing) -> tuple[object, ...]:
    """What a reason rests on; when this stays, the reason does."""
    return (task.state, task.attempt, task.due_at, task.published_at is None, task.cancel_requested_at)


def _reason(look: TaskLook) -> Why:
    """The first of the checks that holds."""
    match look.task.state:
        case State.SUCCEEDED | State.DEAD | State.CANCELLED:
            return has_ended(look)
        case State.RUNNING:
            return runs(look)
        case State.READY | State.WAITING:
            return _waits(look)
        case _:
            assert_never(look.task.state)


def _waits(look: TaskLook) -> Why:
    task = look.task
    if task.expires_at is not None and task.expires_at <= task.now:
        return has_expired(look, task.expires_at)
    if task.job_id is not None and task.due_at > task.now and (held := by_job(look, task.job_id)) is not None:
        return held
    if is_behind(task.due_at, task.now):  # a worker of the schema before 16 does not say what for
        if task.order_key is not None and task.waits_for in (None, positions.WAITS):
            return by_order_key(look, task.order_key)
        if task.limit_key is not None and task.waits_for != line.WAITS:
            return by_limit(look, task.limit_key)
    may_be_sent = task.attempt or task.due_at <= task.now or task.waits_for == line.WAITS
    if may_be_sent and (held := by_destination(look)) is not None:
        return held
    if task.due_at > task.now:
        return is_early(look)
    pauses = look.stores.ledger.pauses.all()
    if (pause := pauses.get(task.queue)) is not None:
        return by_pause(look, pauses.get(queue_of(task.queue), pause))
    try:
        hold = next((one for one in look.stores.inflight.holds(task.queue) if one.task_id == task.task_id), None)
        epoch_age_s = look.stores.inflight.epoch_age_s()
    except InFlightUnavailable as error:
        return nothing_is_held(look, error)
    if hold is not None:
        return is_held(look, hold)
    serving = look.serving()
    if not serving:
        return is_not_served(look)
    if task.published_at is None:
        return is_unpublished(look)
    return _is_hinted(look, task.published_at, serving, epoch_age_s)


def _is_hinted(look: TaskLook, published_at: datetime, serving: Sequence[WorkerRow], epoch_age_s: float) -> Why:
    """Of a task whose hint the broker has confirmed. `published_at`: when the hint reaches its queue."""
    task = look.task
    if published_at > task.now and look.runs_alone:
        return waits_to_run_alone(look, serving, until=published_at)
    if published_at > task.now:  # see Hints.rehinted
        return is_delayed(look, published_at)
    if not look.stores.broker.is_transactional:
        due_at = DueRows(look.stores.ledger.database).due_since(task.queue, task.task_id)
        if due_at is not None:
            return is_still_a_row(look, due_at)
    if (proof := proof_of_loss(look, published_at)) is not None:
        return is_proved_lost(look, proof)
    depth, trouble = look.depth()
    if depth is None:
        return is_out_of_reach(look, published_at, trouble)
    since = max(task.due_at, published_at)
    if depth.ready == 0 and not depth.unacked and (task.now - since).total_seconds() > look.times.beat_s:
        return seems_lost(look, since, epoch_age_s)
    older = look.stores.ledger.questions.older(task)
    if look.runs_alone and not older:
        return waits_to_run_alone(look, serving, since=since)
    return is_in_queue(look, serving, depth, older=older, since=since)


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
