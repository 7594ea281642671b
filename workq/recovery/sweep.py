"""Sweep: one repair pass. Plain functions of the stores that return counts; nobody leads, and ten at once do what one
does.

    tick     what is due by a schedule becomes tasks (see schedules/tick.py)
    expire   ready and waiting rows that nobody started in their time are cancelled
    relay    rows that are due and unpublished get their hint (the producer died, the broker was away, a retry is near)
    reap     the claims of incarnations without a lease end, after two looks; what they held is hinted again
    orphans  rows that run under an incarnation which is not live any more are returned
    advance  order keys whose first has ended go on with the next
    admit    what has come free of a limit goes to the first that are parked
    tend     what became of a job's subtasks without their handlers is counted, and jobs end (see jobs/ledger/care.py);
             deliveries end or are held; messages of a destination that was enabled are due
    promote  waiting rows whose time has come become ready
    mark     a marker through each queue proves which hints are lost, and those are sent again (see lost_hints.py)
    prune    settled rows, webhooks, messages and jobs beyond their retention are removed

Who decides: the ledger, by one conditional statement each. Who looks dead, and for how long, is in deaths.py; how a
dead worker is ended, in reap.py. A store that is away ends the steps that need it, and is named in the answer; the
others go on: without the broker, rows are repaired and their hints follow later; without the in-flight store, nobody is
suspected. Without the ledger there is nothing to decide, and nothing is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workq.config import Settings
from workq.jobs.ledger.sql import JobLedger
from workq.ledger import Reaped, Unpublished
from workq.limits.ledger.limits import Limits
from workq.messages.ledger.sql import MessageLedger
from workq.order.ledger.order import Order
from workq.recovery import reap
from workq.recovery.deaths import gone_from_here, look_for_the_dead, of_absence, of_silence, remains_of
from workq.recovery.lost_hints import mark
from workq.recovery.swept import Swept, as_far_as_possible, patience_s, send
from workq.schedules.tick import tick
from workq.stores import Stores
from workq.values.failpoints import reach
from workq.webhooks.ledger.sql import WebhookLedger


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the steps: each is bounded by `limit` rows, and with `dry_run` changes nothing."""

    stores: Stores
    settings: Settings
    done: Swept
    limit: int
    dry_run: bool
    broker_is_away: bool

    def send(self, rows: Sequence[Unpublished]) -> int:
        """Publish the hints of these; answers how many are confirmed."""
        return 0 if self.dry_run else send(self.stores, self.settings, rows, self.done)


def _tick(one: Pass) -> None:
    one.done.ticked = tick(
        one.stores, one.settings, limit=one.limit, dry_run=one.dry_run, broker_is_away=one.broker_is_away
    )


def _expire(one: Pass) -> None:
    one.done.expired = one.stores.ledger.upkeep.expire(limit=one.limit, dry_run=one.dry_run)


def _relay(one: Pass) -> None:
    if one.broker_is_away and not one.dry_run:
        return
    tried: set[str] = set()
    # who is refused is told at once; a broker that does not answer must not hold up the recovery behind this
    ends = time.monotonic() + one.settings.times.confirm_s / 2.0
    for _ in range(RELAYS_MAX):
        rows = one.stores.ledger.hints.take_unpublished(
            limit=one.limit,
            grace_s=one.settings.times.unpublished_grace_s,
            horizon_s=one.stores.broker.horizon_s,
            dry_run=one.dry_run,
            but=tried,
        )
        reach("sweep.before_relay")
        confirmed = len(rows) if one.dry_run else one.send(rows)
        one.done.relayed += confirmed
        one.done.unconfirmed += len(rows) - confirmed
        if len(rows) < one.limit or confirmed == len(rows) or time.monotonic() > ends:
            return
        tried.update(row.queue for row in rows)  # they may take nothing, and be older than all that others have


def _reap(one: Pass) -> None:
    with as_far_as_possible(one.done):
        _reap_the_gone(one)
        stores, settings = one.stores, one.settings
        look = look_for_the_dead(stores, settings, dry_run=one.dry_run)
        one.done.is_quiet, one.done.is_braked = look.is_quiet, look.is_braked
        one.done.suspected_workers = len(look.missing)
        for worker in look.confirmed[: one.limit]:
            row = look.live[worker]
            left = remains_of(row, of_silence(row, has_lease=worker in look.leases))
            reap.end_worker(
                stores,
                settings,
                worker,
                left.evidence,
                one.done,
                outcomes=left.outcomes,
                suspected_for_s=look.suspected_for_s,
                dry_run=one.dry_run,
            )
        for worker in look.half_reaped:
            reap.free(stores, settings, Reaped(worker, 0, 0, ()), one.done, dry_run=one.dry_run)


def _reap_the_gone(one: Pass) -> None:
    """Workers of this very machine whose process is gone, and their supervisor's too: nothing to wait for.

    While the supervisor lives, it reaps them itself, and knows more about how they died.
    """
    for row in gone_from_here(one.stores)[: one.limit]:
        left = remains_of(row, of_absence(row))
        with as_far_as_possible(one.done):
            reap.end_worker(
                one.stores,
                one.settings,
                row.id,
                left.evidence,
                one.done,
                outcomes=left.outcomes,
                dry_run=one.dry_run,
            )
        if left.board is not None and not one.dry_run:
            left.board.remove()


def _orphans(one: Pass) -> None:
    lost = one.stores.ledger.workers.orphans(limit=one.limit, dry_run=one.dry_run)
    one.done.orphans = len(lost)
    one.send(lost)


def _advance(one: Pass) -> None:
    keys = one.stores.ledger.part(Order).ended_heads(limit=one.limit)
    one.done.advanced = len(keys)
    if keys and not one.dry_run:
        reach("sweep.before_advance")
        turn = one.stores.ledger.part(Order).advance(keys)
        one.done.advanced = len(turn)
        one.send(turn)


def _admit(one: Pass) -> None:
    limits = one.stores.ledger.part(Limits).limits_to_look_at(limit=one.limit)
    if limits:
        reach("sweep.before_admit")
        turn = one.stores.ledger.part(Limits).admit(limits, dry_run=one.dry_run)
        one.done.admitted = len(turn)
        one.send(turn)


def _tend(one: Pass) -> None:
    ledger = one.stores.ledger
    reach("sweep.before_tend")
    for job_id in ledger.part(JobLedger).care.open_jobs(limit=one.limit):
        tended = ledger.part(JobLedger).care.tend_job(job_id, dry_run=one.dry_run)
        one.done.tended += tended.counted
        one.send(tended.hints)
    one.done.tended += ledger.part(WebhookLedger).counter.tend_deliveries(limit=one.limit, dry_run=one.dry_run)
    one.done.tended += ledger.part(WebhookLedger).decisions.hold_deliveries(limit=one.limit, dry_run=one.dry_run)
    woken = ledger.part(MessageLedger).decisions.wake(limit=one.limit, dry_run=one.dry_run)
    woken += ledger.part(MessageLedger).line.tend(limit=one.limit, dry_run=one.dry_run)
    one.done.tended += len(woken)
    one.send(woken)


def _promote(one: Pass) -> None:
    reach("sweep.before_promote")
    one.done.promoted = one.stores.ledger.upkeep.promote(limit=one.limit, dry_run=one.dry_run)


def _mark(one: Pass) -> None:
    ends = time.monotonic() + one.settings.times.sweep_s
    with as_far_as_possible(one.done):
        marked = mark(
            one.stores,
            one.settings.times,
            limit=one.limit,
            confirm_s=patience_s(one.settings, one.done),
            dry_run=one.dry_run,
            until=lambda: time.monotonic() > ends,
        )
        one.done.markers, one.done.lost, one.done.is_blind = marked.sent, marked.lost, marked.is_blind


def _prune(one: Pass) -> None:
    ledger, settings, done = one.stores.ledger, one.settings, one.done
    pruned = ledger.upkeep.prune(
        limit=one.limit,
        retention_s=settings.retention_s,
        dead_retention_s=settings.dead_retention_s,
        dry_run=one.dry_run,
    )
    done.pruned, done.pruned_events = pruned.tasks, pruned.events
    done.pruned_ticks, done.pruned_windows, done.pruned_workers = pruned.ticks, pruned.windows, pruned.workers
    webhooks = ledger.part(WebhookLedger).pruning.prune_webhooks(
        limit=one.limit,
        body_retention_s=settings.webhook_body_retention_s,
        retention_s=settings.webhook_retention_s,
        dry_run=one.dry_run,
    )
    done.pruned_webhooks = webhooks.webhooks + webhooks.bodies
    done.pruned_messages = ledger.part(MessageLedger).pruning.prune_messages(limit=one.limit, dry_run=one.dry_run)
    done.pruned_jobs = (
        ledger.part(JobLedger)
        .care.prune_jobs(
            limit=one.limit,
            retention_s=settings.retention_s,
            dead_retention_s=settings.dead_retention_s,
            dry_run=one.dry_run,
        )
        .jobs
    )
    done.has_more_to_prune = one.limit <= max(
        done.pruned,
        done.pruned_events,
        done.pruned_ticks,
        done.pruned_windows,
        done.pruned_workers,
        done.pruned_webhooks,
        done.pruned_messages,
        done.pruned_jobs,
    )


IN_ORDER: Final[Mapping[str, Callable[[Pass], None]]] = {
    "tick": _tick,
    "expire": _expire,
    "relay": _relay,
    "reap": _reap,
    "orphans": _orphans,
    "advance": _advance,
    "admit": _admit,
    "tend": _tend,
    "promote": _promote,
    "mark": _mark,
    "prune": _prune,
}
STEPS: Final = tuple(IN_ORDER)
RELAYS_MAX: Final = 4
"""So many times one pass relays, at most: again without the queues that it has tried, where not all was confirmed."""
PRUNE_EVERY: Final = 12
"""Of so many passes of a supervisor one prunes: a minute with the default `sweep_s`. To find nothing takes a third of a
pass."""
RECOVERY: Final = frozenset(STEPS) - {"tick", "expire", "prune"}
"""A pass with all of these counts as a sweep: whoever asks when the last one was means that nothing stays lost."""


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
    one = Pass(stores, settings, done, limit, dry_run, broker_is_away)
    for name, step in IN_ORDER.items():
        if name in chosen:
            step(one)
    if not dry_run and chosen.issuperset(RECOVERY):
        stores.ledger.upkeep.swept(every_s=settings.times.sweep_s / 2)
    return done


class Passes:
    """The passes of one supervisor, one after the other. Few of them prune, unless there is much to remove."""

    def __init__(self) -> None:
        self._until_prune = 0

    def sweep(self, stores: Stores, settings: Settings, *, limit: int = 1000) -> Swept:
        """The next pass.

        Raises:
            LedgerUnavailable: what was done stands, the rest waits for the next pass.
        """
        is_pruning = self._until_prune == 0
        only = STEPS if is_pruning else [name for name in STEPS if name != "prune"]
        done = sweep(stores, settings, only=only, limit=limit)
        if not is_pruning:
            self._until_prune -= 1
        elif not done.has_more_to_prune:
            self._until_prune = PRUNE_EVERY - 1
        return done
