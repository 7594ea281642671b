"""What lies about in a ledger that nobody looks after: no sweep, queues without workers, workers that nobody reaps.

And what the meters say of the last day.

A queue that is merely long is no finding: who sees that it grows decides (`workq status`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from workq.broker.later.due_rows import DueRows
from workq.config import Settings
from workq.config.sqlite import is_there, sqlite_file
from workq.diagnose.bounds import Bounds
from workq.diagnose.doctor import intakes
from workq.diagnose.doctor.check import Check, Level
from workq.diagnose.doctor.naming import COUNTED_MAX, NAMED_MAX, named
from workq.values.lane import queue_of
from workq.values.plural import counted

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger

SWEEPS_MISSED_MAX: Final = 12
"""So many periods without a sweep are a finding: a minute, with the default times."""
OVERDUE_ROWS_S: Final = 15.0
"""So long a delayed hint that is a row may be due: a mover that has died had it in hand for a third of that."""
METERS_S: Final = 86400.0
"""How far back the meters look: a day."""


def look(settings: Settings) -> Iterator[Check]:
    """The state of the work, as far as it says that something is missing.

    Raises:
        LedgerUnavailable: it cannot be looked at.
    """
    with opened_ledger(settings) as ledger:
        if ledger is not None:
            yield from examine(ledger, settings)


@contextmanager
def opened_ledger(settings: Settings) -> Iterator[Ledger | None]:
    """The ledger, to be read; None where it is a file that is not there, which is not made.

    Raises:
        LedgerUnavailable: it does not answer.
    """
    from workq.ledger.engine.database import Database
    from workq.ledger.sql import Ledger
    from workq.slices import SLICES

    file = sqlite_file(settings.ledger)
    if file is not None and not is_there(file):
        yield None
        return
    database = Database(
        settings.ledger, namespace=settings.namespace, statement_timeout_s=settings.times.statement_s, makes=False
    )
    try:
        yield Ledger(database, SLICES)
    finally:
        database.close()


def _overdue_rows(ledger: Ledger, *, has_mover: bool) -> Iterator[Check]:
    """Delayed hints that are rows, and that no mover has published in its time."""
    overdue = DueRows(ledger.database).overdue(for_s=OVERDUE_ROWS_S)
    if not overdue:
        return
    late = named(f"{queue} ({count:,}, the oldest {for_s:.0f} s ago)" for queue, (count, for_s) in overdue.items())
    text = (
        f"{counted(sum(count for count, _ in overdue.values()), 'delayed hint')} should have gone to the broker: {late}"
    )
    queues = "this queue" if len(overdue) == 1 else "these queues"
    if has_mover:
        what = (
            f"a worker lives and moves them, but the broker takes none of {queues}, or is away: see mover.refused and "
        )
        what += "mover.waits in its log, and who bounds the queue (a policy with max-length) and who empties it"
    else:
        what = "each `workq worker` moves them; start one, of whatever queues"
    yield Check("work", Level.WARNING, f"{text}; {what}")


def examine(ledger: Ledger, settings: Settings) -> Iterator[Check]:
    """The same, of a ledger that is open."""
    times, bounds = settings.times, Bounds.of(settings.times)
    counts = ledger.questions.counts()
    rows = ledger.questions.workers()
    live = [row for row in rows if row.beat_age_s <= times.lease_s]
    if settings.broker is not None:
        yield from _overdue_rows(ledger, has_mover=bool(live))
    is_open = any(one.ready or one.waiting or one.running for one in counts.queues.values())
    swept_for_s = ledger.questions.swept_for_s()
    sweep = "each `workq worker` sweeps; without one, run `workq sweep` from cron"
    if is_open and swept_for_s is not None and swept_for_s > SWEEPS_MISSED_MAX * times.sweep_s:
        yield Check("tasks", Level.WARNING, f"no sweep ran for {swept_for_s:.0f} s: nothing lost is found; {sweep}")
    overdue = ledger.hints.take_unpublished(
        limit=COUNTED_MAX, grace_s=bounds.unpublished_s, horizon_s=0.0, dry_run=True
    )
    if overdue:
        yield Check(
            "tasks",
            Level.WARNING,
            f"{_many(len(overdue), 'is due and has', 'are due and have')} no confirmed hint for more than "
            f"{bounds.unpublished_s:.0f} s: no "
            f"sweep publishes them, or the broker refuses; {sweep}",
        )
    silent = [row for row in rows if row.beat_age_s > bounds.dead_host_s]
    if silent:
        yield Check(
            "tasks",
            Level.WARNING,
            f"{counted(len(silent), 'worker has', 'workers have')} not beaten for more than {bounds.dead_host_s:.0f} s "
            f"and nobody has reaped: {named(row.id for row in silent)}; {sweep}",
        )
    served = {queue for row in live for queue in row.queues}
    unserved = {name: one.ready for name, one in counts.queues.items() if one.ready and queue_of(name) not in served}
    if unserved and (counts.oldest_ready_s or 0.0) > times.lease_s:
        yield Check(
            "tasks",
            Level.WARNING,
            f"no live worker serves {named(f'{name} ({ready} ready)' for name, ready in unserved.items())}: start one "
            "with --queues, or see why none runs: workq worker ls",
        )

    if counts.unknown:
        unknown = named(
            f"{one.name} ({one.tasks:,} of them, since {one.since:%Y-%m-%dT%H:%M:%SZ})" for one in counts.unknown
        )
        yield Check(
            "tasks",
            Level.WARNING,
            f"tasks wait for a worker that knows their names, {unknown}: start workers of the application that "
            f"registers them; each is dead as no_handler {times.no_handler_wait_s:g} s after the first look",
        )
    yield from _destinations(ledger)
    yield from intakes.look(ledger, settings, served)
    yield from _meters(ledger, settings)


def _destinations(ledger: Ledger) -> Iterator[Check]:
    """Where messages go that do not arrive now."""
    from workq.messages.ledger.sql import MessageLedger
    from workq.messages.values import DestinationState

    part = ledger.part(MessageLedger)
    for one in part.destinations.in_trouble(limit=NAMED_MAX):
        waiting = counted(part.letters.overdue(one.name), "message waits", "messages wait")
        if one.state is DestinationState.DISABLED:
            text = f"is disabled ({one.who}: {one.why}), and {waiting}; workq message destination enable {one.name}"
        else:
            text = (
                f"has confirmed nothing since {one.failing_since:%Y-%m-%dT%H:%M:%SZ} ({one.fault}: {one.error}), and "
                f"{waiting}; workq message destination test {one.name}"
            )
        yield Check("messages", Level.WARNING, f"destination {one.name!r} {text}")


def _meters(ledger: Ledger, settings: Settings) -> Iterator[Check]:
    """What happened lately, beside what was promised."""
    from workq.diagnose.meters import measure

    found = measure(ledger, settings.times, within_s=METERS_S)
    for finding in found.findings:
        yield Check("meters", Level.WARNING, finding)
    if found.starts and not found.findings:
        twice, causes = sum(found.duplicates.values()), ", ".join(f"{n} {one}" for one, n in found.duplicates.items())
        yield Check(
            "meters",
            Level.OK,
            f"in the last {METERS_S / 3600:.0f} hours: starts {found.starts}, started twice {twice}"
            + (f" ({causes})" if causes else "")
            + (f", of {found.assumed} nobody saw whether the first attempt had begun" if found.assumed else "")
            + f", late results {found.late_results}, hints lost and sent again {found.hints_lost}",
        )


def _many(count: int, one: str, many: str) -> str:
    return (
        f"{COUNTED_MAX} tasks or more {many}"
        if count >= COUNTED_MAX
        else counted(count, f"task {one}", f"tasks {many}")
    )
