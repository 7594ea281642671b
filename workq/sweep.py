"""Sweep: one repair pass. Plain functions of the stores that return counts; nobody leads, and ten at once do what one
does.

    relay    rows that are due and unpublished get their hint (the producer died, the broker was away, a retry is near)
    reap     the claims of incarnations without a lease end, after two looks; what they held is hinted again
    orphans  rows that run under an incarnation which is not live any more are returned
    promote  waiting rows whose time has come become ready
    prune    settled rows beyond their retention are removed

Who decides: the ledger, by one conditional statement each. A lease that has expired or is missing is only a
suspicion: it is noted in the worker's row, and acted on by a later pass, at least about a beat afterwards, if
neither the lease nor the worker's own heartbeat in the ledger came back. A young in-flight store (it was wiped) is
given three beats to fill again.

What a crash leaves at each step, the next pass finishes: claims end first, then what was held is marked unpublished,
then the entries are dropped, then the hints follow: a hint that arrives while the dead still seem to hold its task
would be worth nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workq.config import Settings
from workq.failpoints import reach
from workq.ledger import Evidence, Reaped, Unpublished
from workq.relay import publish
from workq.stores import Stores

log = logging.getLogger("workq.sweep")

STEPS = ("relay", "reap", "orphans", "promote", "prune")
_TWO_LOOKS = 0.8
"""The second look comes this many beats after the first at the earliest, so that the next pass is the one."""


@dataclass(slots=True)
class Swept:
    """What one pass did, in tasks unless the name says otherwise; with `dry_run`, what it would have done."""

    relayed: int = 0
    suspected_workers: int = 0
    reaped_workers: int = 0
    returned: int = 0
    rehinted: int = 0
    dead: int = 0
    orphans: int = 0
    promoted: int = 0
    pruned: int = 0
    pruned_events: int = 0
    pruned_workers: int = 0
    unconfirmed: int = 0
    """Hints that the relay sent and the broker did not confirm."""
    is_quiet: bool = field(default=False)
    """The in-flight store is younger than three beats: nobody was reaped."""

    @property
    def changes(self) -> int:
        """How much there was to do."""
        return (
            self.relayed
            + self.reaped_workers
            + self.returned
            + self.rehinted
            + self.orphans
            + self.promoted
            + self.pruned
            + self.pruned_events
            + self.pruned_workers
        )


def sweep(
    stores: Stores,
    settings: Settings,
    *,
    only: Iterable[str] = STEPS,
    limit: int = 1000,
    dry_run: bool = False,
) -> Swept:
    """One pass over the steps in `only`, each bounded by `limit` rows.

    Raises:
        LedgerUnavailable, InFlightUnavailable: a store is away; what was done stands, the rest waits for the next pass.
    """
    chosen = set(only)
    done = Swept()
    if "relay" in chosen:
        _relay(stores, settings, done, limit=limit, dry_run=dry_run)
    if "reap" in chosen:
        _reap(stores, settings, done, limit=limit, dry_run=dry_run)
    if "orphans" in chosen:
        lost = stores.ledger.orphans(limit=limit, dry_run=dry_run)
        done.orphans = len(lost)
        if lost and not dry_run:
            publish(stores, lost, deadline_s=settings.times.confirm_s)
    if "promote" in chosen:
        reach("sweep.before_promote")
        done.promoted = stores.ledger.promote(limit=limit, dry_run=dry_run)
    if "prune" in chosen:
        pruned = stores.ledger.prune(
            limit=limit,
            retention_s=settings.retention_s,
            dead_retention_s=settings.dead_retention_s,
            dry_run=dry_run,
        )
        done.pruned, done.pruned_events, done.pruned_workers = pruned.tasks, pruned.events, pruned.workers
    return done


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
    done.relayed = publish(stores, rows, deadline_s=settings.times.confirm_s)
    done.unconfirmed = len(rows) - done.relayed


def _reap(stores: Stores, settings: Settings, done: Swept, *, limit: int, dry_run: bool) -> None:
    times = settings.times
    leases = stores.inflight.leases()
    if stores.inflight.epoch_age_s() < 3 * times.beat_s:  # asked second: a wipe between the two is seen as young
        done.is_quiet = True
        return
    holding = {worker for worker, lease in leases.items() if lease.left_s > 0}
    live = {row.id: row for row in stores.ledger.workers()}
    missing = [worker for worker in live if worker not in holding]
    confirmed = stores.ledger.suspect(missing, beat_s=times.beat_s * _TWO_LOOKS, lease_s=times.lease_s, dry_run=dry_run)
    done.suspected_workers = len(missing)
    for worker in confirmed[:limit]:
        reach("sweep.before_reap")
        evidence = Evidence(f"its lease ended and it has not beaten for {live[worker].beat_age_s:.0f} s")
        reaped = stores.ledger.reap(
            worker, evidence, suspected_for_s=times.beat_s * _TWO_LOOKS, lease_s=times.lease_s, dry_run=dry_run
        )
        if reaped is not None:
            finish_reaping(stores, settings, reaped, done, dry_run=dry_run)
    # reaped or left in the ledger, but entries remain: whoever reaped it stopped half-way
    for worker, lease in leases.items():
        if worker not in live and lease.left_s <= 0:
            finish_reaping(stores, settings, Reaped(worker, 0, 0, ()), done, dry_run=dry_run)


def finish_reaping(stores: Stores, settings: Settings, reaped: Reaped, done: Swept, *, dry_run: bool = False) -> None:
    """After the ledger has ended the claims of an incarnation: drop its entries, and hint again what it held."""
    reach("sweep.before_unhint")
    returned = {row.task_id for row in reaped.hints}
    held = [hold.task_id for hold in stores.inflight.held_by(reaped.worker) if hold.task_id not in returned]
    unclaimed: Sequence[Unpublished] = stores.ledger.unhint(held, dry_run=dry_run)
    if not dry_run:
        reach("sweep.before_forget")
        stores.inflight.forget(reaped.worker)
        reach("sweep.before_hints")
        stores.broker.forget_consumer(reaped.worker)
        publish(stores, [*reaped.hints, *unclaimed], deadline_s=settings.times.confirm_s)
    done.reaped_workers += 1
    done.returned += reaped.returned
    done.dead += reaped.dead
    done.rehinted += len(unclaimed)
    if dry_run:
        return
    log.warning(
        "sweep.reaped",
        extra={"worker": reaped.worker, "returned": reaped.returned, "dead": reaped.dead, "rehinted": len(unclaimed)},
    )
