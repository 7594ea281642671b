"""Sweep: one repair pass. Plain functions of the stores that return counts; nobody leads, and ten at once do what one
does.

    tick     what is due by a schedule becomes tasks (see tick.py)
    expire   ready and waiting rows that nobody started in their time are cancelled
    relay    rows that are due and unpublished get their hint (the producer died, the broker was away, a retry is near)
    reap     the claims of incarnations without a lease end, after two looks; what they held is hinted again
    orphans  rows that run under an incarnation which is not live any more are returned
    advance  order keys whose first has ended go on with the next
    admit    what has come free of a limit goes to the first that are parked
    tend     what became of a job's subtasks without their handlers is counted, and jobs end (see ledger/jobs.py)
    promote  waiting rows whose time has come become ready
    mark     a marker through each queue proves which hints are lost, and those are sent again (see lost_hints.py)
    prune    settled rows beyond their retention are removed

Who decides: the ledger, by one conditional statement each. A lease that has expired or is missing is only a
suspicion: it is noted in the worker's row, and acted on by a later pass, at least about a beat afterwards, if
neither the lease nor the worker's own heartbeat in the ledger came back. A young in-flight store (it was wiped) is
given three beats to fill again. When more than half of the fleet, and more than one, looks dead at once, it is more
likely that we see badly: that is an alarm, and a third look a beat later decides. Only what this machine's kernel says
is no suspicion: a process of this machine that is gone, with its supervisor gone too, is dead at once. What a process
of this machine had done and not settled is settled in its place, before its claims end (see remains.py).

What a crash leaves at each step, the next pass finishes: claims end first, then what was held is marked unpublished,
then the entries are dropped, then the hints follow: a hint that arrives while the dead still seem to hold its task
would be worth nothing. A store that is away ends the steps that need it, and is named in the answer; the others go on:
without the broker, rows are repaired and their hints follow later; without the in-flight store, nobody is suspected.
Without the ledger there is nothing to decide, and nothing is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from workq.config import Settings
from workq.enqueue.relay import publish
from workq.errors import BrokerUnavailable, InFlightUnavailable, Unavailable
from workq.inflight import Lease
from workq.ledger import Evidence, Reaped, Unpublished, WorkerRow
from workq.recovery.lost_hints import mark
from workq.recovery.remains import remains_of
from workq.schedules.tick import tick
from workq.stores import Stores
from workq.values.certificate import Kind
from workq.values.failpoints import reach
from workq.values.incarnation import ID_MAX, is_gone, this_machine
from workq.values.task import Settlement
from workq.worker.settle import ended_of, freed_of, retries_of

log = logging.getLogger("workq.sweep")

STEPS = ("tick", "expire", "relay", "reap", "orphans", "advance", "admit", "tend", "promote", "mark", "prune")
RECOVERY = frozenset(STEPS) - {"tick", "expire", "prune"}
"""A pass with all of these counts as a sweep: whoever asks when the last one was means that nothing stays lost."""
TWO_LOOKS = 0.8
"""The second look comes this many beats after the first at the earliest, so that the next pass is the one."""
PATIENCE_S = 1.0
"""How long a confirm is waited for after a step to which the broker confirmed nothing."""
BRAKE = 1.0
"""When more than half of the fleet looks dead at once, so many beats more."""


@dataclass(slots=True)
class Swept:
    """What one pass did, in tasks unless the name says otherwise; with `dry_run`, what it would have done."""

    ticked: int = 0
    """Tasks that schedules have become."""
    expired: int = 0
    relayed: int = 0
    suspected_workers: int = 0
    reaped_workers: int = 0
    returned: int = 0
    rehinted: int = 0
    dead: int = 0
    orphans: int = 0
    advanced: int = 0
    """Whose turn has come."""
    admitted: int = 0
    """Whom a limit lets start now, or soon."""
    tended: int = 0
    """Subtasks and deliveries that were settled by others than their handlers: counted for their jobs, and ended."""
    promoted: int = 0
    pruned: int = 0
    pruned_events: int = 0
    pruned_ticks: int = 0
    pruned_windows: int = 0
    pruned_workers: int = 0
    pruned_jobs: int = 0
    pruned_webhooks: int = 0
    """Of which what was sent is kept no longer, or nothing at all."""
    markers: int = 0
    """Markers that were sent. Nothing to worry about, and no change."""
    lost: int = 0
    """Hints that the broker had confirmed and lost, as markers proved; they were sent again."""
    unconfirmed: int = 0
    """Hints that the relay sent and the broker did not confirm."""
    is_quiet: bool = field(default=False)
    """The in-flight store is younger than three beats: nobody was reaped."""
    is_braked: bool = field(default=False)
    """More than half of the fleet looks dead at once: one more look, a beat later, before anybody is reaped."""
    is_blind: bool = field(default=False)
    """The broker is away, or the in-flight store too young: no marker was sent, or no loss proved."""
    patience_s: float | None = field(default=None)
    """How long the steps to come wait for a confirm, where the broker gave none; 0: it is away, and nothing is sent."""
    away: list[str] = field(default_factory=list)
    """The stores that did not answer, in their own words: the steps that need them wait for another pass."""

    @property
    def changes(self) -> int:
        """How much there was to do."""
        return (
            self.ticked
            + self.expired
            + self.relayed
            + self.reaped_workers
            + self.returned
            + self.rehinted
            + self.orphans
            + self.advanced
            + self.admitted
            + self.tended
            + self.promoted
            + self.lost
            + self.pruned
            + self.pruned_events
            + self.pruned_ticks
            + self.pruned_windows
            + self.pruned_workers
            + self.pruned_jobs
            + self.pruned_webhooks
        )


def sweep(
    stores: Stores,
    settings: Settings,
    *,
    only: Iterable[str] = STEPS,
    limit: int = 1000,
    dry_run: bool = False,
    broker_is_away: bool = False,
) -> Swept:
    """One pass over the steps in `only`, each bounded by `limit` rows.

    A broker or an in-flight store that does not answer is no error: see `away`. Whoever knows already that the broker
    is away says so, and no step waits for its deadline.

    Raises:
        LedgerUnavailable: what was done stands, the rest waits for the next pass.
    """
    chosen = set(only)
    done = Swept(patience_s=0.0 if broker_is_away else None)
    if "tick" in chosen:
        done.ticked = tick(stores, settings, limit=limit, dry_run=dry_run, broker_is_away=broker_is_away)
    if "expire" in chosen:
        done.expired = stores.ledger.expire(limit=limit, dry_run=dry_run)
    if "relay" in chosen and not (broker_is_away and not dry_run):
        _relay(stores, settings, done, limit=limit, dry_run=dry_run)
    if "reap" in chosen:
        with as_far_as_possible(done):
            _reap(stores, settings, done, limit=limit, dry_run=dry_run)
    if "orphans" in chosen:
        lost = stores.ledger.orphans(limit=limit, dry_run=dry_run)
        done.orphans = len(lost)
        if not dry_run:
            _publish(stores, settings, lost, done)
    if "advance" in chosen:
        keys = stores.ledger.ended_heads(limit=limit)
        done.advanced = len(keys)
        if keys and not dry_run:
            reach("sweep.before_advance")
            turn = stores.ledger.advance(keys)
            done.advanced = len(turn)
            _publish(stores, settings, turn, done)
    if "admit" in chosen:
        limits = stores.ledger.limits_to_look_at(limit=limit)
        if limits:
            reach("sweep.before_admit")
            turn = stores.ledger.admit(limits, dry_run=dry_run)
            done.admitted = len(turn)
            if not dry_run:
                _publish(stores, settings, turn, done)
    if "tend" in chosen:
        reach("sweep.before_tend")
        for job_id in stores.ledger.open_jobs(limit=limit):
            tended = stores.ledger.tend_job(job_id, dry_run=dry_run)
            done.tended += tended.counted
            _publish(stores, settings, tended.hints, done)
        done.tended += stores.ledger.tend_deliveries(limit=limit, dry_run=dry_run)
        done.tended += stores.ledger.hold_deliveries(limit=limit, dry_run=dry_run)
    if "promote" in chosen:
        reach("sweep.before_promote")
        done.promoted = stores.ledger.promote(limit=limit, dry_run=dry_run)
    if "mark" in chosen:
        with as_far_as_possible(done):
            _mark(stores, settings, done, limit=limit, dry_run=dry_run)
    if "prune" in chosen:
        pruned = stores.ledger.prune(
            limit=limit,
            retention_s=settings.retention_s,
            dead_retention_s=settings.dead_retention_s,
            dry_run=dry_run,
        )
        done.pruned, done.pruned_events = pruned.tasks, pruned.events
        done.pruned_ticks, done.pruned_windows, done.pruned_workers = pruned.ticks, pruned.windows, pruned.workers
        webhooks = stores.ledger.prune_webhooks(
            limit=limit,
            body_retention_s=settings.webhook_body_retention_s,
            retention_s=settings.webhook_retention_s,
            dry_run=dry_run,
        )
        done.pruned_webhooks = webhooks.webhooks + webhooks.bodies
        done.pruned_jobs = stores.ledger.prune_jobs(
            limit=limit,
            retention_s=settings.retention_s,
            dead_retention_s=settings.dead_retention_s,
            dry_run=dry_run,
        ).jobs
    if not dry_run and chosen.issuperset(RECOVERY):
        stores.ledger.swept(every_s=settings.times.sweep_s / 2)
    return done


@contextmanager
def as_far_as_possible(done: Swept) -> Iterator[None]:
    """A store that is away ends this step, not the pass."""
    try:
        yield
    except (BrokerUnavailable, InFlightUnavailable) as error:
        log.warning("sweep.waits: %s", error)
        if str(error) not in done.away:
            done.away.append(str(error))


def _relay(stores: Stores, settings: Settings, done: Swept, *, limit: int, dry_run: bool) -> None:
    rows = stores.ledger.take_unpublished(
        limit=limit,
        grace_s=settings.times.unpublished_grace_s,
        horizon_s=stores.broker.horizon_s,
        dry_run=dry_run,
    )
    reach("sweep.before_relay")
    if dry_run or not rows:
        done.relayed = len(rows)
        return
    done.relayed = _publish(stores, settings, rows, done)
    done.unconfirmed = len(rows) - done.relayed


def _publish(stores: Stores, settings: Settings, rows: Sequence[Unpublished], done: Swept) -> int:
    """Publish hints for rows; answers how many the broker has confirmed.

    A broker that blocks its publishers (an alarm) costs a deadline each time. So once it has confirmed nothing, the
    other steps of the pass are less patient: what is not confirmed stays unpublished, and another pass relays it.
    """
    if not rows or done.patience_s == 0.0:
        return 0
    count = publish(stores, rows, deadline_s=_patience_s(settings, done))
    if any(row.delay_s <= stores.broker.horizon_s for row in rows):
        done.patience_s = None if count else PATIENCE_S
    return count


def _patience_s(settings: Settings, done: Swept) -> float:
    return min(settings.times.confirm_s, done.patience_s or settings.times.confirm_s)


def _mark(stores: Stores, settings: Settings, done: Swept, *, limit: int, dry_run: bool) -> None:
    ends = time.monotonic() + settings.times.sweep_s
    marked = mark(
        stores,
        settings.times,
        limit=limit,
        confirm_s=_patience_s(settings, done),
        dry_run=dry_run,
        until=lambda: time.monotonic() > ends,
    )
    done.markers, done.lost, done.is_blind = marked.sent, marked.lost, marked.is_blind


def _reap(stores: Stores, settings: Settings, done: Swept, *, limit: int, dry_run: bool) -> None:
    _reap_the_gone(stores, settings, done, limit=limit, dry_run=dry_run)
    look = look_for_the_dead(stores, settings, dry_run=dry_run)
    done.is_quiet, done.is_braked, done.suspected_workers = look.is_quiet, look.is_braked, len(look.missing)
    for worker in look.confirmed[:limit]:
        left = remains_of(look.live[worker], of_silence(look.live[worker], has_lease=worker in look.leases))
        retries = [] if dry_run else settle_in_its_place(stores, left.outcomes)
        reach("sweep.before_reap")
        reaped = stores.ledger.reap(
            worker,
            left.evidence,
            suspected_for_s=look.suspected_for_s,
            lease_s=settings.times.lease_s,
            dry_run=dry_run,
        )
        if reaped is not None:
            finish_reaping(stores, settings, reaped, done, retries=retries, dry_run=dry_run)
    for worker in look.half_reaped:
        finish_reaping(stores, settings, Reaped(worker, 0, 0, ()), done, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class Look:
    """Who looks dead, and who has done so for long enough."""

    live: Mapping[str, WorkerRow]
    leases: Mapping[str, Lease]
    missing: Sequence[str] = ()
    """Live by the ledger, without a live lease."""
    confirmed: Sequence[str] = ()
    """Suspected for at least `suspected_for_s`: they may be reaped, if nothing moves in that moment."""
    suspected_for_s: float = 0.0
    is_quiet: bool = False
    is_braked: bool = False
    lease_max_s: float = float("inf")

    @property
    def half_reaped(self) -> list[str]:
        """Not live by the ledger, but their entries remain: whoever reaped them stopped half-way."""
        if self.is_quiet:
            return []
        return [
            worker
            for worker, lease in self.leases.items()
            if worker not in self.live and not 0 < lease.left_s <= self.lease_max_s
        ]


def look_for_the_dead(stores: Stores, settings: Settings, *, dry_run: bool = False) -> Look:
    """Note who has no live lease, unless it is a dry run, and answer who has had none for long enough."""
    times = settings.times
    leases = stores.inflight.leases()
    if stores.inflight.epoch_age_s() < 3 * times.beat_s:  # asked second: a wipe between the two is seen as young
        return Look({}, leases, is_quiet=True)
    # longer than any lease is granted: the store's clock was set back, and only the heartbeat in the ledger can tell
    lease_max_s = 2 * times.lease_s
    holding = {worker for worker, lease in leases.items() if 0 < lease.left_s <= lease_max_s}
    live = {row.id: row for row in stores.ledger.workers()}
    missing = [worker for worker in live if worker not in holding]
    looked_for_s = times.beat_s * TWO_LOOKS
    confirmed = stores.ledger.suspect(missing, beat_s=looked_for_s, lease_s=times.lease_s, dry_run=dry_run)
    is_braked = len(confirmed) > max(1, len(live) / 2)
    if is_braked:
        looked_for_s += times.beat_s * BRAKE
        log.error("sweep.brake", extra={"dead": len(confirmed), "fleet": len(live)})
        confirmed = stores.ledger.suspect(missing, beat_s=looked_for_s, lease_s=times.lease_s, dry_run=dry_run)
    return Look(live, leases, missing, confirmed, looked_for_s, is_braked=is_braked, lease_max_s=lease_max_s)


def of_silence(row: WorkerRow, *, has_lease: bool = True) -> Evidence:
    """All that is known of a worker whose lease has ended. One that is not even there any more, the store has lost."""
    if not has_lease:
        text = "the in-flight store has lost its lease, it has not asserted it again,"
        return Evidence(f"{text} and it has not beaten for {row.beat_age_s:.0f} s", kind=Kind.REDIS_LOSS)
    return Evidence(f"its lease ended and it has not beaten for {row.beat_age_s:.0f} s")


def of_absence(row: WorkerRow) -> Evidence:
    """What the kernel says of a worker of this machine."""
    return Evidence(f"process {row.pid} and its supervisor {row.parent} are gone from {row.host}", kind=Kind.GONE)


def _reap_the_gone(stores: Stores, settings: Settings, done: Swept, *, limit: int, dry_run: bool) -> None:
    """Workers of this very machine whose process is gone, and their supervisor's too: nothing to wait for.

    While the supervisor lives, it reaps them itself, and knows more about how they died.
    """
    for row in gone_from_here(stores)[:limit]:
        left = remains_of(row, of_absence(row))
        retries = [] if dry_run else settle_in_its_place(stores, left.outcomes)
        reach("sweep.before_reap")
        reaped = stores.ledger.reap(row.id, left.evidence, dry_run=dry_run)
        if reaped is not None:
            with as_far_as_possible(done):
                finish_reaping(stores, settings, reaped, done, retries=retries, dry_run=dry_run)
        if left.board is not None and not dry_run:
            left.board.remove()


def settle_in_its_place(stores: Stores, outcomes: Sequence[Settlement]) -> list[Unpublished]:
    """Settle what a dead process had done and not settled, before its claims end; answers the retries it leads to.

    The fence decides, as for the process itself: whatever another has claimed meanwhile is refused.

    Raises:
        LedgerUnavailable: nothing is settled; try again later.
    """
    if not outcomes:
        return []
    reach("sweep.before_settle")
    try:
        settled = stores.ledger.settle(outcomes)
    except Unavailable:
        raise
    except Exception:  # an outcome that the ledger does not take: these attempts run again
        log.exception("sweep.unsettled", extra={"tasks": [one.claim.task_id for one in outcomes[:10]]})
        return []
    log.info("sweep.settled", extra={"tasks": len(outcomes)})
    turn = stores.ledger.advance(ended_of(outcomes, settled)) + stores.ledger.admit(freed_of(outcomes))
    return retries_of(outcomes, settled) + [hint for one in settled for hint in one.follows] + turn


def gone_from_here(stores: Stores) -> list[WorkerRow]:
    """The workers of this machine, live by the ledger, whose process and whose supervisor's process are gone."""
    machine = this_machine()
    if machine is None:
        return []
    here = [row for row in stores.ledger.workers() if row.machine == machine and row.parent is not None]
    return [row for row in here if is_gone(row.pid) and is_gone(row.parent or 0)]


def finish_reaping(
    stores: Stores,
    settings: Settings,
    reaped: Reaped,
    done: Swept,
    *,
    retries: Sequence[Unpublished] = (),
    dry_run: bool = False,
) -> None:
    """After the ledger has ended the claims of an incarnation: drop its entries, and hint again what it held.

    `retries` are what was settled in its place and is to run again: their hints follow too.
    """
    reach("sweep.before_unhint")
    returned = {row.task_id for row in [*reaped.hints, *retries]}
    held = [hold.task_id for hold in stores.inflight.held_by(reaped.worker) if hold.task_id not in returned]
    unclaimed: Sequence[Unpublished] = stores.ledger.unhint(held, dry_run=dry_run)
    if not dry_run:
        reach("sweep.before_forget")
        stores.inflight.forget(reaped.worker)
        reach("sweep.before_hints")
        stores.broker.forget_consumer(reaped.worker)
        _publish(stores, settings, [*reaped.hints, *unclaimed, *retries], done)
    done.reaped_workers += 1
    done.returned += reaped.returned
    done.dead += reaped.dead
    done.rehinted += len(unclaimed)
    if dry_run:
        return
    log.warning(
        "sweep.reaped",
        extra={
            "worker": reaped.worker[:ID_MAX],  # a lease may be another's, with a name of any length
            "returned": reaped.returned,
            "dead": reaped.dead,
            "rehinted": len(unclaimed),
        },
    )
