"""Reap: a worker that cannot end its own claims is ended, in this order.

What it had done and not settled is settled in its place; its claims end, and the ledger decides who is charged; what it
held is marked as unpublished; its entries in the in-flight store are dropped; then the hints follow. A hint that
arrives while the dead still seem to hold its task would be worth nothing. What a crash leaves at each step, the next
pass finishes: an incarnation that is not live by the ledger and still has entries is freed again.

The supervisor ends its own children this way as soon as they have died, a sweep those of this machine whose supervisor
is gone too, and those without a lease after two looks; a watch, those that are gone from every store (absence.py). A
plan that a person applies keeps the order, and changes only what its fences allow (apply.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from workq.config import Settings
from workq.errors import Unavailable
from workq.ledger import Absence, Evidence, Reaped, Unpublished
from workq.limits.ledger.limits import Limits
from workq.order.ledger.order import Order
from workq.recovery.swept import Swept, send
from workq.stores import Stores
from workq.values.failpoints import reach
from workq.values.incarnation import ID_MAX
from workq.values.task import Settlement
from workq.worker.settle import ended_of, freed_of, retries_of

log = logging.getLogger("workq.sweep")


def end_worker(
    stores: Stores,
    settings: Settings,
    worker: str,
    evidence: Evidence,
    done: Swept,
    *,
    outcomes: Sequence[Settlement] = (),
    suspected_for_s: float | None = None,
    absence: Absence | None = None,
    is_known_dead: bool = False,
    point: str = "sweep.before_reap",
    dry_run: bool = False,
) -> None:
    """End the claims of one incarnation, and send again what it held.

    `outcomes`: what it had done by its board. `suspected_for_s`: only if it has been without a lease for so long, and
    has not beaten for a lease. `absence`: only if the ledger has no sign of it, either. `is_known_dead`: the caller has
    seen it die, so that it is freed even where its claims are ended already: by the caller itself, perhaps, before a
    store broke off.

    Raises:
        LedgerUnavailable: nothing has changed, or what it had done is settled; try again later.
        InFlightUnavailable, BrokerUnavailable: its claims are ended; a later pass goes on.
    """
    retries = [] if dry_run else settle_in_its_place(stores, outcomes)
    reach(point)
    reaped = stores.ledger.workers.reap(
        worker,
        evidence,
        suspected_for_s=suspected_for_s,
        lease_s=0.0 if suspected_for_s is None else settings.times.lease_s,
        absence=absence,
        dry_run=dry_run,
    )
    if reaped is None and is_known_dead:
        reaped = Reaped(worker, 0, 0, ())
    if reaped is not None:
        free(stores, settings, reaped, done, retries=retries, dry_run=dry_run)


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
        settled = stores.ledger.outcomes.settle(outcomes)
    except Unavailable:
        raise
    except Exception:  # an outcome that the ledger does not take: these attempts run again
        log.exception("sweep.unsettled", extra={"tasks": [one.claim.task_id for one in outcomes[:10]]})
        return []
    log.info("sweep.settled", extra={"tasks": len(outcomes)})
    turn = stores.ledger.part(Order).advance(ended_of(outcomes, settled)) + stores.ledger.part(Limits).admit(
        freed_of(outcomes)
    )
    return retries_of(outcomes, settled) + [hint for one in settled for hint in one.follows] + turn


def free(
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
    unclaimed: Sequence[Unpublished] = stores.ledger.hints.unhint(held, dry_run=dry_run)
    if not dry_run:
        reach("sweep.before_forget")
        stores.inflight.forget(reaped.worker)
        reach("sweep.before_hints")
        stores.broker.forget_consumer(reaped.worker)
        send(stores, settings, [*reaped.hints, *unclaimed, *retries], done)
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
