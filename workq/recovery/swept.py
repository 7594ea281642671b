"""Swept: what one pass of the sweep has done so far, which stores were away, and how patient it still is."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from workq.config import Settings
from workq.enqueue.relay import publish
from workq.errors import BrokerUnavailable, InFlightUnavailable
from workq.ledger import Unpublished
from workq.stores import Stores

log = logging.getLogger("workq.sweep")

PATIENCE_S: Final = 1.0
"""How long a confirm is waited for after a step to which the broker confirmed nothing."""


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
    """Subtasks and deliveries that were settled by others than their handlers: counted for their jobs, and ended; and
    messages that were put off in the moment in which their destination was enabled."""
    promoted: int = 0
    pruned: int = 0
    pruned_events: int = 0
    pruned_ticks: int = 0
    pruned_windows: int = 0
    pruned_workers: int = 0
    pruned_jobs: int = 0
    pruned_webhooks: int = 0
    """Of which what was sent is kept no longer, or nothing at all."""
    pruned_messages: int = 0
    """Of which nothing at all is kept; their bodies go with their tasks."""
    has_more_to_prune: bool = field(default=False)
    """Of one kind or more, as many rows as a pass removes were removed."""
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
            + self.pruned_messages
        )


@contextmanager
def as_far_as_possible(done: Swept) -> Iterator[None]:
    """A store that is away ends this step, not the pass."""
    try:
        yield
    except (BrokerUnavailable, InFlightUnavailable) as error:
        log.warning("sweep.waits: %s", error)
        if str(error) not in done.away:
            done.away.append(str(error))


def send(stores: Stores, settings: Settings, rows: Sequence[Unpublished], done: Swept) -> int:
    """Publish hints for rows; answers how many the broker has confirmed.

    A broker that blocks its publishers (an alarm) costs a deadline each time. So once it has confirmed nothing, the
    other steps of the pass are less patient: what is not confirmed stays unpublished, and another pass relays it.
    """
    if not rows or done.patience_s == 0.0:
        return 0
    count = publish(stores, rows, deadline_s=patience_s(settings, done))
    if any(row.delay_s <= stores.broker.horizon_s for row in rows):
        done.patience_s = None if count else PATIENCE_S
    return count


def patience_s(settings: Settings, done: Swept) -> float:
    """How many seconds the next step waits for a confirm."""
    return min(settings.times.confirm_s, done.patience_s or settings.times.confirm_s)
