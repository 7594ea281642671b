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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from workq.broker import Depth
from workq.config import Settings, Times
from workq.diagnose.bounds import Bounds
from workq.errors import BrokerUnavailable, InFlightUnavailable
from workq.inflight import Hold, Lease
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JobState
from workq.ledger import Company, Marker, Pause, Standing, WorkerRow
from workq.ledger.unhandled import NO_HANDLER, looks
from workq.ledger.waiting import is_behind
from workq.limits.ledger.limits import Limits
from workq.order.ledger.order import Order
from workq.recovery.lost_hints import slack_s
from workq.stores import Stores
from workq.values.incarnation import is_gone, this_machine
from workq.values.lane import queue_of
from workq.values.plural import counted
from workq.values.task import Event, State
from workq.webhooks import resting
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import BEYOND_SUSPICION, endpoint_of
from workq.worker.attempt import ALIKE

LOOKS_MAX: Final = 5
"""How often a task that changes under our eyes is looked at again."""

NAMED_MAX: Final = 3
"""How many workers one reason names at most."""
_SUSPECTED: Final = "it was running when a process died and is suspected of having killed it"


class Code(StrEnum):
    """The closed list of reasons."""

    SETTLED = "settled"
    CANCELLED = "cancelled"
    RUNNING = "running"
    CANCEL_REQUESTED = "cancel_requested"
    WORKER_GONE = "worker_gone"
    WORKER_SILENT = "worker_silent"
    EXPIRED = "expired"
    JOB = "job"
    IN_LINE = "in_line"
    LIMITED = "limited"
    NOT_DUE = "not_due"
    NO_HANDLER = "no_handler"
    PAUSED = "paused"
    INFLIGHT_AWAY = "inflight_away"
    HELD = "held"
    SUSPECT = "suspect"
    NO_WORKER = "no_worker"
    UNPUBLISHED = "unpublished"
    DELAYED = "delayed"
    LOST = "lost"
    BROKER_AWAY = "broker_away"
    BEHIND = "behind"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class Why:
    """The reason. `since` is when it began, `until` when it ends by itself at the latest; None where nobody knows."""

    task_id: str
    code: Code
    reason: str
    do: str
    since: datetime | None = None
    until: datetime | None = None


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
        answer = _Look(stores, settings.times, task).reason()
        again = stores.ledger.questions.standings([task_id]).get(task_id)
        if again is not None and _place(again) == _place(task):
            break
    return answer


def _place(task: Standing) -> tuple[object, ...]:
    """What a reason rests on; when this stays, the reason does."""
    return (task.state, task.attempt, task.due_at, task.published_at is None, task.cancel_requested_at)


class _Look:
    """One look at one task: asks the stores only what the answer needs."""

    def __init__(self, stores: Stores, times: Times, task: Standing) -> None:
        self._stores = stores
        self._times = times
        self._bounds = Bounds.of(times)
        self._task = task

    def reason(self) -> Why:
        """The first of the checks that holds."""
        match self._task.state:
            case State.SUCCEEDED | State.DEAD | State.CANCELLED:
                return self._has_ended()
            case State.RUNNING:
                return self._runs()
            case State.READY | State.WAITING:
                return self._waits()
            case _:
                assert_never(self._task.state)

    def _why(
        self, code: Code, reason: str, do: str, *, since: datetime | None = None, until: datetime | None = None
    ) -> Why:
        return Why(self._task.task_id, code, reason, do, since, until)

    # -- ended

    def _has_ended(self) -> Why:
        task = self._task
        at = _at(task.settled_at)
        if task.state is State.CANCELLED:
            return self._why(
                Code.CANCELLED,
                f"it was cancelled at {at}: {task.reason or 'no reason was given'}",
                f"to run it all the same: workq task retry {task.task_id}"
                if task.job_id is None
                else f"what became of its job: workq job show {task.job_id}",
                since=task.settled_at,
            )
        if task.state is State.SUCCEEDED:
            return self._why(
                Code.SETTLED,
                f"it succeeded at {at}, in attempt {task.attempt}",
                "nothing: it is done",
                since=task.settled_at,
            )
        attempts, because = counted(task.attempt, "attempt"), task.reason or "no reason is recorded"
        return self._why(
            Code.SETTLED,
            f"it is dead since {at}, after {attempts}: {because}",
            f"read its error: workq task show {task.task_id}; mend the cause, then: "
            + (f"workq task retry {task.task_id}" if task.job_id is None else f"workq job retry {task.job_id}"),
            since=task.settled_at,
        )

    # -- running, by the ledger's account

    def _runs(self) -> Why:
        task = self._task
        row = self._worker(task.worker)
        on = _named(task.worker, row)
        if row is None or row.state != "live" or _is_seen_gone(row):
            how = "it is gone from its host" if row is not None and row.state == "live" else "it has ended"
            return self._why(
                Code.WORKER_GONE,
                f"attempt {task.attempt} started on {on}, but {how}, and the claim is still to be taken back",
                "nothing: its supervisor or a sweep returns it; if neither runs: workq sweep",
                since=row.ended_at if row is not None else None,
                until=task.now + timedelta(seconds=self._bounds.dead_host_s),
            )
        if self._is_silent(row):
            return self._silent(row, f"attempt {task.attempt} runs on {on}")
        if task.cancel_requested_at is not None:
            return self._why(
                Code.CANCEL_REQUESTED,
                f"it runs on {on} since {_at(task.started_at)} (attempt {task.attempt}), and was asked to stop at "
                f"{_at(task.cancel_requested_at)}: it ends when its handler looks, fails or returns",
                "wait for its handler; one that never looks at current().cancelled() goes on to its end",
                since=task.cancel_requested_at,
            )
        if self._runs_alone and (company := self._stores.ledger.questions.company(task)).others:
            return self._waits_alone(row, company)
        alone = f", alone there: {_SUSPECTED}" if self._runs_alone else ""
        return self._why(
            Code.RUNNING,
            f"it does run: on {on} since {_at(task.started_at)} (attempt {task.attempt}){alone}",
            "nothing: wait for its handler",
            since=task.started_at,
        )

    @property
    def _runs_alone(self) -> bool:
        return self._task.is_suspect and self._task.name not in BEYOND_SUSPICION

    def _waits_alone(self, row: WorkerRow, company: Company) -> Why:
        """A suspect that is claimed: nothing else runs in its process while it does, and others are still there."""
        task = self._task
        if company.suspects < company.others:
            turn = f"waits there for {counted(company.others - company.suspects, 'other task')} to settle"
        else:
            turn = f"takes turns there with {counted(company.suspects, 'other suspect')}, one at a time"
        return self._why(
            Code.SUSPECT,
            f"{_SUSPECTED}, so it runs alone: {_named(row.id, row)} claimed it at "
            f"{_at(task.started_at)} (attempt {task.attempt}), and it {turn}",
            "wait for its turn; what it cannot have soon is handed back to others",
            since=task.started_at,
        )

    def _is_suspected(
        self, serving: Sequence[WorkerRow], *, since: datetime | None = None, until: datetime | None = None
    ) -> Why:
        """A suspect that no worker has in hand: it waits for one of the processes of its queue to be empty."""
        running = self._stores.ledger.questions.occupied([row.id for row in serving])
        named = [f"{_named(row.id, row)} has {running[row.id]} unsettled" for row in serving if row.id in running]
        listed = "; ".join(named[:NAMED_MAX]) + (f"; and {len(named) - NAMED_MAX} more" if named[NAMED_MAX:] else "")
        empty = len(serving) - len(named)
        state = f"{counted(empty, 'process is', 'processes are')} empty" if empty else "none is empty now"
        again = f"; its hint comes again at {_at(until)} at the latest" if until is not None else ""
        return self._why(
            Code.SUSPECT,
            f"{_SUSPECTED}, so it runs alone: it waits until one of the "
            f"{counted(len(serving), 'process', 'processes')} of queue {queue_of(self._task.queue)!r} is empty, and "
            f"{state}{f' ({listed})' if listed else ''}{again}",
            "nothing: a worker that takes it starts nothing else until it is done; if none gets empty, start one more: "
            f"workq worker --queues {queue_of(self._task.queue)}",
            since=since,
            until=until,
        )

    def _silent(self, row: WorkerRow, what: str) -> Why:
        return self._why(
            Code.WORKER_SILENT,
            f"{what}, whose lease has ended and which has not beaten for {row.beat_age_s:.0f} s: unless it comes back, "
            "a sweep takes back what it has",
            "nothing: a sweep looks twice and decides; if none runs: workq sweep",
            since=row.beat_at,
            until=row.beat_at + timedelta(seconds=self._bounds.dead_host_s),
        )

    # -- to be claimed

    def _waits(self) -> Why:
        task = self._task
        if task.expires_at is not None and task.expires_at <= task.now:
            return self._has_expired(task.expires_at)
        if task.job_id is not None and task.due_at > task.now and (held := self._is_of_a_job(task.job_id)) is not None:
            return held
        if task.order_key is not None and is_behind(task.due_at, task.now):
            return self._is_in_line(task.order_key)
        if task.limit_key is not None and is_behind(task.due_at, task.now):
            return self._is_limited(task.limit_key)
        if task.due_at > task.now:
            return self._is_early()
        pauses = self._stores.ledger.pauses.all()
        if (pause := pauses.get(task.queue)) is not None:
            return self._is_paused(pauses.get(queue_of(task.queue), pause))
        try:
            hold = next((one for one in self._stores.inflight.holds(task.queue) if one.task_id == task.task_id), None)
            epoch_age_s = self._stores.inflight.epoch_age_s()
        except InFlightUnavailable as error:
            return self._why(
                Code.INFLIGHT_AWAY,
                f"the in-flight store does not answer from here ({_line(error)}): without it nothing is held, and "
                "nothing starts",
                "bring it back; workers go on by themselves. Look: workq doctor",
            )
        if hold is not None:
            return self._is_held(hold)
        serving = self._serving()
        if not serving:
            return self._is_not_served()
        if task.published_at is None:
            return self._is_unpublished()
        if task.published_at > task.now and self._runs_alone:
            return self._is_suspected(serving, until=task.published_at)
        if task.published_at > task.now:  # the instant at which the hint reaches its queue (see Hints.rehinted)
            return self._why(
                Code.DELAYED,
                f"its hint comes at {_at(task.published_at)} at the latest: the worker that had it could not start it "
                "and sent it on, or delays go by levels here (the setting ladder)",
                "nothing: somebody looks again then",
                until=task.published_at,
            )
        if (proof := self._proof(task.published_at)) is not None:
            return self._is_proved_lost(proof)
        depth, trouble = self._depth()
        if depth is None:
            return self._why(
                Code.BROKER_AWAY,
                f"its hint is in the broker since {_at(task.published_at)}, which does not answer from here: {trouble}",
                "bring the broker back; workers connect again by themselves. Look: workq doctor",
            )
        since = max(task.due_at, task.published_at)
        if depth.ready == 0 and not depth.unacked and (task.now - since).total_seconds() > self._times.beat_s:
            return self._seems_lost(since, epoch_age_s)
        older = self._stores.ledger.questions.older(task)
        if self._runs_alone and not older:
            return self._is_suspected(serving, since=since)
        hints = f"{counted(depth.ready, 'hint')} of {task.queue!r} in the broker"
        threads = counted(sum(row.threads for row in serving), "thread")
        by = f"{counted(len(serving), 'process', 'processes')} with {threads}"
        then = f"; then it waits for a process that runs nothing else, since {_SUSPECTED}" if self._runs_alone else ""
        if older:
            return self._why(
                Code.BEHIND,
                f"it is behind {counted(older, 'older task')} of queue {task.queue!r} ({hints}), which {by} serve"
                + then,
                "wait, or start more workers: workq status shows whether the queue grows",
                since=since,
            )
        return self._why(
            Code.NEXT,
            f"nothing older waits in queue {task.queue!r} ({hints}): the next free thread of {by} takes it",
            "wait a moment; if this stays, all threads are busy: workq task ls --state running",
            since=since,
        )

    def _has_expired(self, expired_at: datetime) -> Why:
        return self._why(
            Code.EXPIRED,
            f"it was to be started before {_at(expired_at)}, and was not: the next sweep cancels it",
            "nothing: it will not start; if no sweep runs: workq sweep",
            since=expired_at,
        )

    def _is_of_a_job(self, job_id: str) -> Why | None:
        """What its job says; None when that lets it start."""
        task, job = self._task, self._stores.ledger.part(JobLedger).questions.job(job_id)
        is_parked = is_behind(task.due_at, task.now)
        if job is None:
            if not is_parked:
                return None
            return self._why(
                Code.JOB,
                f"its job {job_id} held it back, and somebody has removed that job's row",
                f"let it run as a task like any other: workq job resume {job_id}",
            )
        if job.state in (JobState.PAUSING, JobState.PAUSED):
            return self._why(
                Code.JOB,
                f"{job.who} paused its job {job_id} at {_at(job.state_at)}: {job.why}",
                f"to let it go on: workq job resume {job_id}",
                since=job.state_at,
            )
        if is_parked and job.state is JobState.PLANNING:
            return self._why(
                Code.JOB,
                f"its job {job_id} begins when the one before it of the same name and key has ended",
                f"wait; which one that is: workq job ls --name {job.name}",
                since=job.created_at,
            )
        if job.rate_max is not None and not task.failures and not is_parked:
            return self._why(
                Code.JOB,
                f"its job {job_id} starts {job.rate_max:g} items a second, and its turn is at {_at(task.due_at)}",
                f"wait, or say another rate: workq job throttle {job_id}",
                until=task.due_at,
            )
        return None

    def _is_in_line(self, key: str) -> Why:
        line = next(iter(self._stores.ledger.part(Order).sequences(key=key)), None)
        if line is not None and line.head == self._task.task_id and self._task.limit_key is not None:
            return self._is_limited(self._task.limit_key)
        if line is None:
            return self._why(Code.IN_LINE, f"its turn in order key {key!r} comes just now", "nothing")
        if line.blocked_since is not None:
            return self._why(
                Code.IN_LINE,
                f"task {line.head}, which comes before it in order key {key!r}, died at {_at(line.blocked_since)}: "
                "what comes after it waits for a person",
                f"workq task retry {line.head}, or give it up: workq dead discard {line.head}",
                since=line.blocked_since,
            )
        if line.moves_on:
            return self._why(
                Code.IN_LINE,
                f"task {line.head}, which came before it in order key {key!r}, has ended "
                f"({line.state or 'it is gone'}), and the line moves up with the next sweep",
                "nothing: the sweep lets the next one go on; if none runs: workq sweep",
            )
        return self._why(
            Code.IN_LINE,
            f"it stands in line for order key {key!r}: it is the turn of task {line.head} ({line.state or 'gone'}), "
            f"and {counted(line.behind, 'task')} of the key come after that one",
            f"wait; why that one is not done: workq why {line.head}",
        )

    def _is_limited(self, key: str) -> Why:
        limit = next(iter(self._stores.ledger.part(Limits).all(key=key)), None)
        if limit is None:
            return self._why(Code.LIMITED, f"its turn in limit {key!r} comes just now", "nothing")
        if limit.closed_until is not None and limit.closed_until > self._task.now:
            endpoint = self._stores.ledger.part(WebhookLedger).endpoints.endpoint(endpoint_of(key) or "")
            if endpoint is not None and endpoint.rests_until is not None:
                return self._why(
                    Code.LIMITED,
                    f"endpoint {endpoint.id!r} rests until {_at(endpoint.rests_until)}: {resting.reason(endpoint)}",
                    f"wait: one is sent then, and the others when it has arrived; workq webhook endpoint show "
                    f"{endpoint.id}",
                    until=endpoint.rests_until,
                )
            is_for_good = is_behind(limit.closed_until, self._task.now)
            until = "until somebody opens it" if is_for_good else f"until {_at(limit.closed_until)}"
            return self._why(
                Code.LIMITED,
                f"limit {key!r} is closed {until}: what it stands for has failed again and again, or is disabled",
                "for webhooks, see its endpoint: workq webhook endpoint ls",
            )
        if not limit.running + limit.coming + limit.parked:
            return self._why(
                Code.LIMITED,
                "it is held: its endpoint was disabled when it waited",
                "workq webhook endpoint release, or discard",
            )
        return self._why(
            Code.LIMITED,
            f"limit {key!r} is reached: {counted(limit.running, 'task of it runs', 'tasks of it run')}, "
            f"{limit.coming} more are about to start, and {limit.parked} wait, this one among them",
            "wait: it starts when its turn comes; which tasks run: workq task ls --state running",
        )

    def _is_early(self) -> Why:
        task = self._task
        if task.reason == NO_HANDLER and (seen := looks(self._stores.ledger.questions.history(task.task_id))):
            return self._has_no_handler(seen)
        if task.failures:
            why = resting.asked_for(task.error) if endpoint_of(task.limit_key) else ""
            count = f"{task.failures} of {task.failures_max}"
            text = f"attempt {task.attempt} failed{why} ({count}), and the next one is due at "
        elif task.attempt:
            text = f"attempt {task.attempt} has ended, and the next one is due at "
        else:
            text = "it is not due until "
        return self._why(Code.NOT_DUE, f"{text}{_at(task.due_at)}", "nothing: it starts then", until=task.due_at)

    def _has_no_handler(self, looks: Sequence[Event]) -> Why:
        task, since, wait_s = self._task, looks[0].at, self._times.no_handler_wait_s
        _, begins, alike = (task.error or "").partition(ALIKE)
        return self._why(
            Code.NO_HANDLER,
            f"no worker that has looked since {_at(since)} knows a handler named {task.name!r} "
            f"({', '.join(str(one.worker) for one in looks)}); a look costs it nothing, and the next is at "
            f"{_at(task.due_at)}{begins}{alike}",
            f"start workers of the application that registers {task.name!r}; {wait_s:g} s after the first look "
            "(times.no_handler_wait_s) it is dead as no_handler",
            since=since,
            until=since + timedelta(seconds=wait_s),
        )

    def _is_paused(self, pause: Pause) -> Why:
        until = "until somebody resumes it" if pause.ends_at is None else f"until {_at(pause.ends_at)}"
        return self._why(
            Code.PAUSED,
            f"{pause.who} paused queue {pause.queue!r} at {_at(pause.paused_at)}, {until}: {pause.why}",
            f"to let its tasks run: workq queue resume {pause.queue}",
            since=pause.paused_at,
            until=pause.ends_at,
        )

    def _is_held(self, hold: Hold) -> Why:
        task = self._task
        since = task.now - timedelta(seconds=hold.since_s)
        row = self._worker(hold.worker)
        on = _named(hold.worker, row)
        if row is None or row.state != "live" or _is_seen_gone(row):
            return self._why(
                Code.WORKER_GONE,
                f"{on} took it in hand at {_at(since)} and has ended since; what it held is still to be freed",
                "nothing: its supervisor or a sweep frees it; if neither runs: workq sweep",
                since=since,
                until=task.now + timedelta(seconds=self._bounds.dead_host_s),
            )
        if self._is_silent(row):
            return self._silent(row, f"it is held by {on}")
        if self._runs_alone:
            running = self._stores.ledger.questions.occupied([row.id]).get(row.id, 0)
            beside = f" ({counted(running, 'task runs', 'tasks run')} there now)" if running else ""
            return self._why(
                Code.SUSPECT,
                f"{_SUSPECTED}, so it runs alone: {on} holds it since {_at(since)}, "
                f"and starts it when nothing else runs there{beside}",
                "wait until that process is idle",
                since=since,
            )
        return self._why(
            Code.HELD,
            f"{on} holds it since {_at(since)} and has not started it: it is next there, or its "
            f"{counted(row.threads, 'thread is', 'threads are')} busy, or a suspect runs alone there",
            "wait a moment; what cannot start soon is handed back to others",
            since=since,
        )

    def _is_not_served(self) -> Why:
        task = self._task
        queue = queue_of(task.queue)
        rows = [row for row in self._stores.ledger.questions.workers() if queue in row.queues]
        silent = f" ({counted(len(rows), 'worker')} of it said nothing for a lease)" if rows else ""
        return self._why(
            Code.NO_WORKER,
            f"no live worker serves queue {queue!r}{silent}",
            f"start one: workq worker --queues {queue}",
            since=max(task.due_at, task.queued_at),
        )

    def _is_unpublished(self) -> Why:
        task = self._task
        reason = f"its hint is not confirmed by the broker, since {_at(task.queued_at)}"
        until: datetime | None = max(task.queued_at, task.due_at) + timedelta(seconds=self._bounds.unpublished_s)
        depth, trouble = self._depth()
        if depth is None:
            reason, until = f"{reason}: the broker does not answer from here ({trouble})", None
            do = "bring the broker back: the sweep publishes what waits. Look: workq doctor"
        elif task.reserved_until is not None and task.reserved_until > task.now:
            reason, do = (
                f"{reason}: a relay is publishing it now",
                "nothing: if that relay dies, the next sweep does it",
            )
            until = task.reserved_until + timedelta(seconds=self._times.sweep_s)
        elif until is not None and until > task.now:
            do = "nothing: its producer publishes it at once, and if that has died, the next sweep does"
        else:
            swept_for_s = self._stores.ledger.questions.swept_for_s()
            when = "no sweep has" if swept_for_s is None else f"the last sweep, {swept_for_s:.0f} s ago, has not"
            reason, until = f"{reason}: {when} published it", None
            do = "run one, and see that one runs every few seconds (each `workq worker` does): workq sweep"
        return self._why(Code.UNPUBLISHED, reason, do, since=task.queued_at, until=until)

    # -- lost hints

    def _proof(self, published_at: datetime) -> Marker | None:
        """The newest marker that has overtaken this task's hint and is back, and whose losses are still to be sent."""
        task = self._task
        published_for_s = (task.now - published_at).total_seconds()
        due_for_s = (task.now - task.due_at).total_seconds()
        for one in self._stores.ledger.hints.markers():
            if one.queue != task.queue or one.returned_for_s is None or one.closed_for_s is not None:
                continue
            if published_for_s >= one.sent_for_s and due_for_s >= one.sent_for_s + slack_s(self._times):
                return one
        return None

    def _is_proved_lost(self, proof: Marker) -> Why:
        task = self._task
        returned_at = task.now - timedelta(seconds=proof.returned_for_s or 0.0)
        until = returned_at + timedelta(seconds=self._times.marker_grace_s + 2 * self._times.sweep_s)
        return self._why(
            Code.LOST,
            f"its hint is lost: a marker that was sent after it came back at {_at(returned_at)}, and nobody holds it; "
            f"another hint is sent {_by(until, task.now)}",
            "nothing: the sweep sends it; if none runs: workq sweep",
            since=task.published_at,
            until=until if until > task.now else None,
        )

    def _seems_lost(self, since: datetime, epoch_age_s: float) -> Why:
        task, times = self._task, self._times
        until: datetime | None = task.now + timedelta(seconds=self._bounds.purge_s)
        young = ""
        if epoch_age_s < 3 * times.beat_s:
            young = f" (the in-flight store began only {epoch_age_s:.0f} s ago: its workers are writing what they hold)"
        swept_for_s = self._stores.ledger.questions.swept_for_s()
        sweeps = ""
        if swept_for_s is not None and swept_for_s > 3 * times.sweep_s:
            sweeps, until = f"; no sweep ran for {swept_for_s:.0f} s", None
        return self._why(
            Code.LOST,
            f"its hint was confirmed at {_at(task.published_at)}, but none of queue {task.queue!r} is left in the "
            f"broker and nobody holds it{young}: it seems lost, which is not proved yet{sweeps}",
            "nothing: the sweep sends a marker after it, and another hint when that proves the loss; "
            "if no sweep runs: workq sweep",
            since=since,
            until=until,
        )

    # -- who and what is there

    def _worker(self, worker: str | None) -> WorkerRow | None:
        return next((row for row in self._stores.ledger.questions.workers(live_only=False) if row.id == worker), None)

    def _serving(self) -> list[WorkerRow]:
        leases, queue = self._leases(), queue_of(self._task.queue)
        return [
            row
            for row in self._stores.ledger.questions.workers()
            if queue in row.queues and not self._is_silent(row, leases) and not _is_seen_gone(row)
        ]

    def _is_silent(self, row: WorkerRow, leases: Mapping[str, Lease] | None = None) -> bool:
        """Whether both its lease and its heartbeat in the ledger have ended: only then a sweep may reap it."""
        if row.beat_age_s < self._times.lease_s:
            return False
        lease = (self._leases() if leases is None else leases).get(row.id)
        return lease is None or lease.left_s <= 0.0

    def _leases(self) -> Mapping[str, Lease]:
        """None, while the in-flight store is away: the ledger's heartbeats decide then."""
        try:
            return self._stores.inflight.leases()
        except InFlightUnavailable:
            return {}

    def _depth(self) -> tuple[Depth | None, str]:
        """How many hints the broker has for the queue; or None, and why it cannot tell."""
        try:
            return self._stores.broker.depths([self._task.queue])[self._task.queue], ""
        except BrokerUnavailable as error:
            return None, _line(error)


def _is_seen_gone(row: WorkerRow) -> bool:
    """Whether it lived on this very machine, and its process is gone: no need to wait for its lease."""
    return row.machine is not None and row.machine == this_machine() and is_gone(row.pid)


def _named(worker: str | None, row: WorkerRow | None) -> str:
    if row is None:
        return f"worker {worker} (unknown to the ledger)"
    return f"worker {row.id} (process {row.pid} on {row.host})"


def _at(at: datetime | None) -> str:
    """As everywhere on the command line: RFC 3339, in UTC."""
    if at is None:
        return "an unknown time"
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _by(until: datetime, now: datetime) -> str:
    return f"by {_at(until)}" if until > now else "with the next sweep"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
