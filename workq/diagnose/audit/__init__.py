"""Audit: is every task that is not settled in exactly one place (diagnose/where.py)? With the proof, and the repair.

Three stores cannot be seen at one moment, so one look proves nothing: whatever looks wrong is looked at twice, more
than a beat apart by the ledger's clock, and is a finding only if it has not moved: the same attempt, the same hint,
still in no place. What a live worker may have in its hands gets the marker's grace; and where a worker could write a
hold again, or drop it, its lease must have been renewed several times meanwhile: with each beat it writes all that it
holds.

How it is known what is in the broker, and what that costs: queues.py.

What cannot be told: what is in the ladder of delays cannot be listed (a turn would begin its time again), so a task
that is not due counts as waiting and is judged once it is due. A queue that was not turned in time, a marker that did
not come back, an in-flight store that was wiped during the audit: these tasks are `unproven`, and nothing is said of
them. A worker that is stopped for longer than the marker's grace, with deliveries in its hands that it does not hold,
looks as if it had lost them.

Who decides: nobody here. A repair is a conditional statement of the ledger, guarded by all that the finding has seen.
On failure: a store that is away raises, and nothing was changed; of a repair, what was done stands.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar, assert_never

from workq.broker import Hint
from workq.config import Settings, Times
from workq.diagnose.audit.finding import Finding
from workq.diagnose.audit.look import IDS_AT_ONCE, Audited, Auditor, Repaired
from workq.diagnose.audit.queues import Queues, Way, turn
from workq.diagnose.where import Misplacement
from workq.enqueue.relay import publish
from workq.jobs.ledger.sql import JobLedger
from workq.ledger import Applied
from workq.recovery.sweep import sweep
from workq.stores import Stores

__all__ = ["Audited", "Finding", "Repaired", "Way", "audit", "audit_in_steps", "repair", "repair_in_steps"]

T = TypeVar("T")
REAPS = 3
"""How many passes of a sweep reap the dead at most: two looks, and one more under the brake."""
TURN_S = 60.0
"""How long the turn of a queue may take from which ghosts are dropped."""
NAMED_MAX = 10
"""How many tasks an event names."""


def audit(
    stores: Stores,
    settings: Settings,
    *,
    queue: str | None = None,
    queues: Iterable[str] = (),
    is_scan: bool = False,
    wait_s: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Audited:
    """Look at all open tasks, or at those of one `queue`. Sends markers, and with `is_scan` turns every queue.

    `queues` are known to the application though no task may wait there; hints and holds in them are looked at too.
    Waits at most `wait_s` for a marker, and for a turn; then, if anything looks wrong, it `tell`s so and waits 6 to
    30 s (with the default times). Memory: what is open, not what is settled.

    Raises:
        Unavailable: a store did not answer.
    """
    steps = audit_in_steps(
        stores, settings, queue=queue, queues=queues, is_scan=is_scan, wait_s=wait_s, tell=tell, clock=clock
    )
    return _drive(steps, wait)


def audit_in_steps(
    stores: Stores,
    settings: Settings,
    *,
    queue: str | None = None,
    queues: Iterable[str] = (),
    is_scan: bool = False,
    wait_s: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[float, None, Audited]:
    """The same, for whoever keeps the time: each step answers for how many seconds nothing is to be done."""
    looked_at = Queues(
        stores, settings.times, only=queue, known=tuple(queues), is_scan=is_scan, wait_s=wait_s, clock=clock
    )
    return Auditor(stores, settings, looked_at, tell=tell).steps()


def repair(
    stores: Stores,
    settings: Settings,
    audited: Audited,
    *,
    by: str,
    wait: Callable[[float], None] = time.sleep,
) -> Repaired:
    """Mend what an audit found, as far as it still stands so. `by` says in the events who asked for it.

    Repeatable: what was mended has moved, and is left alone.

    Raises:
        Unavailable: a store did not answer; what was done stands.
    """
    return _drive(repair_in_steps(stores, settings, audited, by=by), wait)


def _drive(steps: Generator[float, None, T], wait: Callable[[float], None]) -> T:
    while True:
        try:
            wait(next(steps))
        except StopIteration as end:
            answer: T = end.value
            return answer


def repair_in_steps(
    stores: Stores, settings: Settings, audited: Audited, *, by: str
) -> Generator[float, None, Repaired]:
    """As `repair`, for whoever keeps the time: each step answers for how many seconds nothing is to be done."""
    done: Counter[Misplacement] = Counter()
    sent: list[Finding] = []
    returned: list[Finding] = []
    unheld: list[Finding] = []
    holds: list[Finding] = []
    hints: list[Finding] = []
    unreaped: list[Finding] = []
    expired: list[Finding] = []
    miscounted: list[Finding] = []
    for finding in audited.findings:
        match finding.kind:
            case Misplacement.LOST:
                sent.append(finding)
            case Misplacement.ORPHAN:
                (unheld if finding.is_unheld else returned).append(finding)
            case Misplacement.GHOST:
                (hints if finding.worker is None else holds).append(finding)
            case Misplacement.OVERDUE if finding.is_expired:
                expired.append(finding)
            case Misplacement.OVERDUE:
                (sent if finding.worker is None else unreaped).append(finding)
            case Misplacement.MISCOUNT:
                miscounted.append(finding)
            case Misplacement.TWIN | Misplacement.MISMATCH:
                pass  # the claim decides between them; a person decides
            case _:
                assert_never(finding.kind)
    for change, findings in (
        (stores.ledger.plans.return_planned, returned),
        (stores.ledger.audits.return_unheld, unheld),
        (stores.ledger.plans.relay_planned, sent),
        (stores.ledger.plans.expire_planned, expired),
    ):
        done += _change(stores, settings.times, change, findings, by)
    done[Misplacement.GHOST] += _drop_holds(stores, holds, by)
    done[Misplacement.GHOST] += _drop_hints(stores, settings.times, hints, by)
    done[Misplacement.MISCOUNT] += _recount(stores, settings.times, miscounted, by)
    done[Misplacement.OVERDUE] += yield from _reap(stores, settings, unreaped)
    return Repaired({kind: done[kind] for kind in Misplacement}, len(audited.findings) - done.total())


def _change(
    stores: Stores,
    times: Times,
    change: Callable[..., Applied],
    findings: Sequence[Finding],
    by: str,
) -> Counter[Misplacement]:
    """Let the ledger change what still stands as it did, then publish the hints of that."""
    done: Counter[Misplacement] = Counter()
    for kind in Misplacement:
        mine = {one.task: one.fence for one in findings if one.kind is kind and one.fence is not None}
        for start in range(0, len(mine), IDS_AT_ONCE):
            fences = list(mine.values())[start : start + IDS_AT_ONCE]
            applied = change(fences, by={"by": by, "audit": kind.value})
            publish(stores, applied.hints, deadline_s=times.confirm_s)
            done[kind] += len(applied.changed)
    return done


def _recount(stores: Stores, times: Times, findings: Sequence[Finding], by: str) -> int:
    counted = 0
    for one in findings:
        counted += bool(stores.ledger.part(JobLedger).care.miscounts(one.task))
        hints = stores.ledger.part(JobLedger).care.recount_job(one.task, by={"by": by, "audit": one.kind.value})
        publish(stores, hints, deadline_s=times.confirm_s)
    return counted


def _drop_holds(stores: Stores, findings: Sequence[Finding], by: str) -> int:
    dropped = 0
    for one in findings:
        if one.worker is not None and stores.inflight.release([(one.task, one.queue)], by=one.worker):
            dropped += 1
            detail = {"by": by, "audit": one.kind.value, "dropped": "hold", "task": one.task, "queue": one.queue}
            stores.ledger.history.note("manual", detail=detail, worker=one.worker)
    return dropped


def _drop_hints(stores: Stores, times: Times, findings: Sequence[Finding], by: str) -> int:
    """Take hints out of their queues if none of their tasks is known; one that has others too drops itself."""
    if stores.broker.has_owners:  # nothing can be taken out there: each costs a worker one look, and drops itself
        return 0
    dropped: set[str] = set()
    for queue in sorted({one.queue for one in findings}):
        ids = sorted({one.task for one in findings if one.queue == queue})
        for start in range(0, len(ids), IDS_AT_ONCE):
            known = stores.ledger.claims.look(ids[start : start + IDS_AT_ONCE])
            ids = [one for one in ids if one not in known]
        ghosts = frozenset(ids)
        gone: set[str] = set()

        def see(hint: Hint, ghosts: frozenset[str] = ghosts, gone: set[str] = gone) -> bool:
            if not ghosts.issuperset(hint.task_ids):
                return True
            gone.update(hint.task_ids)
            return False

        if stores.broker.is_listable:
            stores.broker.browse(queue, see, deadline_s=TURN_S)
        else:
            turn(stores, times, queue, see, deadline_s=TURN_S, clock=time.monotonic)
        if gone:
            detail = {
                "by": by,
                "audit": Misplacement.GHOST.value,
                "dropped": "hints",
                "queue": queue,
                "tasks": len(gone),
            }
            stores.ledger.history.note("manual", detail={**detail, "first": sorted(gone)[:NAMED_MAX]})
        dropped |= gone
    return len(dropped)


def _reap(stores: Stores, settings: Settings, findings: Sequence[Finding]) -> Generator[float, None, int]:
    """Passes of a sweep, which look at the dead more than once themselves."""
    unreaped = {one.worker for one in findings}
    for _ in range(REAPS if findings else 0):
        sweep(stores, settings, only=["reap"])
        if unreaped.isdisjoint(row.id for row in stores.ledger.questions.workers()):
            break
        yield settings.times.beat_s
    live = {row.id for row in stores.ledger.questions.workers()} if findings else set()
    return sum(one.worker not in live for one in findings)
