"""It can start, and its hint is not confirmed, still a row, on its way, lost, not to be fetched, or behind others; or
nobody serves its queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from workq.broker import Depth
from workq.diagnose.why.look import SUSPECTED, Code, TaskLook, Why, rfc3339
from workq.ledger import Marker, WorkerRow
from workq.recovery.lost_hints import slack_s
from workq.values.lane import queue_of
from workq.values.plural import counted

FALLBACK: Final = "workers that miss the broker, too, find it in the ledger within seconds of a free thread"


def is_unpublished(look: TaskLook) -> Why:
    task = look.task
    reason = f"its hint is not confirmed by the broker, since {rfc3339(task.queued_at)}"
    until: datetime | None = max(task.queued_at, task.due_at) + timedelta(seconds=look.bounds.unpublished_s)
    depth, trouble = look.depth()
    if depth is None:
        reason, until = f"{reason}: the broker does not answer from here ({trouble})", None
        do = f"{FALLBACK}; bring the broker back: the sweep publishes what waits. Look: workq doctor"
    elif task.reserved_until is not None and task.reserved_until > task.now:
        reason, do = (
            f"{reason}: a relay is publishing it now",
            "nothing: if that relay dies, the next sweep does it",
        )
        until = task.reserved_until + timedelta(seconds=look.times.sweep_s)
    elif until is not None and until > task.now:
        do = "nothing: its producer publishes it at once, and if that has died, the next sweep does"
    else:
        swept_for_s = look.stores.ledger.questions.swept_for_s()
        when = "no sweep has" if swept_for_s is None else f"the last sweep, {swept_for_s:.0f} s ago, has not"
        reason, until = f"{reason}: {when} published it", None
        do = "run one, and see that one runs every few seconds (each `workq worker` does): workq sweep"
    return look.why(Code.UNPUBLISHED, reason, do, since=task.queued_at, until=until)


def is_delayed(look: TaskLook, published_at: datetime) -> Why:
    return look.why(
        Code.DELAYED,
        f"its hint comes at {rfc3339(published_at)} at the latest: the worker that had it could not start it "
        "and sent it on, or delays go by levels here (the setting ladder)",
        "nothing: somebody looks again then",
        until=published_at,
    )


def is_still_a_row(look: TaskLook, due_at: datetime) -> Why:
    """A delayed hint that no mover has published, though it is due: see workq/broker/later."""
    return look.why(
        Code.DELAYED,
        f"its hint is a row of the ledger, due since {rfc3339(due_at)}, and no mover has published it yet",
        "see that a `workq worker` runs, of whatever queues, and that the broker answers: workq doctor",
        since=due_at,
    )


def proof_of_loss(look: TaskLook, published_at: datetime) -> Marker | None:
    """The newest marker that has overtaken this task's hint and is back, and whose losses are still to be sent."""
    task = look.task
    published_for_s = (task.now - published_at).total_seconds()
    due_for_s = (task.now - task.due_at).total_seconds()
    for one in look.stores.ledger.markers.all():
        if one.queue != task.queue or one.returned_for_s is None or one.closed_for_s is not None:
            continue
        if published_for_s >= one.sent_for_s and due_for_s >= one.sent_for_s + slack_s(look.times):
            return one
    return None


def is_proved_lost(look: TaskLook, proof: Marker) -> Why:
    task = look.task
    returned_at = task.now - timedelta(seconds=proof.returned_for_s or 0.0)
    until = returned_at + timedelta(seconds=look.times.marker_grace_s + 2 * look.times.sweep_s)
    seen = f"a marker that was sent after it came back at {rfc3339(returned_at)}"
    if proof.position is not None:
        seen = f"the broker was done at {rfc3339(returned_at)} with all that stood in the queue after it had been sent"
    return look.why(
        Code.LOST,
        f"its hint is lost: {seen}, and nobody holds it; another hint is sent {_by(until, task.now)}",
        "nothing: the sweep sends it; if none runs: workq sweep",
        since=task.published_at,
        until=until if until > task.now else None,
    )


def seems_lost(look: TaskLook, since: datetime, epoch_age_s: float) -> Why:
    task, times = look.task, look.times
    until: datetime | None = task.now + timedelta(seconds=look.bounds.purge_s)
    young = ""
    if epoch_age_s < times.fills_s:
        young = f" (the in-flight store began only {epoch_age_s:.0f} s ago: its workers are writing what they hold)"
    swept_for_s = look.stores.ledger.questions.swept_for_s()
    sweeps = ""
    if swept_for_s is not None and swept_for_s > 3 * times.sweep_s:
        sweeps, until = f"; no sweep ran for {swept_for_s:.0f} s", None
    return look.why(
        Code.LOST,
        f"its hint was confirmed at {rfc3339(task.published_at)}, but none of queue {task.queue!r} is left in the "
        f"broker and nobody holds it{young}: it seems lost, which is not proved yet{sweeps}",
        "nothing: the sweep sends a marker after it, or notes where the queue ends, and sends another hint when that "
        "proves the loss; "
        "if no sweep runs: workq sweep",
        since=since,
        until=until,
    )


def is_out_of_reach(look: TaskLook, published_at: datetime, trouble: str) -> Why:
    """The broker has it, and is away."""
    return look.why(
        Code.BROKER_AWAY,
        f"its hint is in the broker since {rfc3339(published_at)}, which does not answer from here: {trouble}",
        f"{FALLBACK}; bring the broker back: they connect again by themselves. Look: workq doctor",
    )


def _by(until: datetime, now: datetime) -> str:
    return f"by {rfc3339(until)}" if until > now else "with the next sweep"


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
