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
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from workq.config import Settings
from workq.diagnose.audit.look import Audited, Auditor, Finding, Repaired
from workq.diagnose.audit.mend import repair_in_steps
from workq.diagnose.audit.queues import Queues, Way
from workq.stores import Stores

__all__ = ["Audited", "Finding", "Repaired", "Way", "audit", "audit_in_steps", "repair", "repair_in_steps"]

T = TypeVar("T")


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
