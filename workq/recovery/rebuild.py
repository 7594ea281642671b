"""Rebuild: the whole broker from the ledger.

For the day when RabbitMQ comes back empty, or is another one. Every task that is ready or waiting, and that nobody
holds, gets a fresh hint: queue by queue, in the order in which they are due, in bounded batches. Markers that were out
are forgotten, because they will not come back.

Who decides: the ledger. Each batch is marked unpublished and reserved before its hints are sent, and published after
they are confirmed; so what a crash leaves behind is relayed by the sweep, and a rebuild may be run again at any time: a
hint too many costs a look. What was published after it began is not sent again. Hints of an old broker that was not
empty after all become duplicates.

The limit: a task that is due later than the broker can delay a hint has none until the sweep sends it, as always.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from workq.config import Settings
from workq.enqueue.relay import pages_of, publish
from workq.errors import BrokerUnavailable
from workq.stores import Stores
from workq.values.failpoints import reach

BATCH = 1_000


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild did so far: tasks that got a hint, and in how many messages."""

    tasks: int = 0
    hints: int = 0
    later: int = 0
    """Tasks that are due later than the broker can delay a hint: the sweep sends them when they come near."""
    held: int = 0
    """Tasks that a worker holds: they need no hint."""
    markers: int = 0
    """Markers that were out, and are forgotten."""
    seconds: float = 0.0


def count(stores: Stores, queues: Iterable[str] | None = None) -> dict[str, int]:
    """How many tasks of each queue would get a hint now, those that are held included."""
    now = stores.ledger.questions.clock()
    chosen = stores.ledger.hints.open_queues() if queues is None else queues
    return {queue: stores.ledger.hints.unclaimed(queue, before=now) for queue in chosen}


def rebuild(
    stores: Stores,
    settings: Settings,
    *,
    queues: Iterable[str] | None = None,
    told: Callable[[Rebuilt], None] = lambda _done: None,
    done: Rebuilt | None = None,
) -> Rebuilt:
    """Send every hint again, of all queues or of some. `told` hears of each batch; `done` is filled on the way.

    Raises:
        BrokerUnavailable: hints were not confirmed; the rest is left to the sweep, or to another rebuild.
        LedgerUnavailable, InFlightUnavailable: what was sent stands.
    """
    done = Rebuilt() if done is None else done
    began = time.monotonic()
    began_at = stores.ledger.questions.clock()
    for queue in stores.ledger.hints.open_queues() if queues is None else queues:
        done.markers += stores.ledger.markers.dropped(queue)
        _rebuild(stores, settings, queue, began_at, done, told, began)
    done.seconds = time.monotonic() - began
    return done


def _rebuild(
    stores: Stores,
    settings: Settings,
    queue: str,
    began_at: datetime,
    done: Rebuilt,
    told: Callable[[Rebuilt], None],
    began: float,
) -> None:
    """One queue, a page at a time."""
    after: tuple[datetime, str] | None = None
    while page := stores.ledger.hints.unclaimed_page(queue, before=began_at, after=after, limit=BATCH):
        after = (page[-1].due_at, page[-1].task_id)
        held = {hold.task_id for hold in stores.inflight.holds(queue)}
        free = [fence.task_id for fence in page if fence.task_id not in held]
        done.held += len(page) - len(free)
        rows = stores.ledger.hints.renew(free, before=began_at)
        near = [row for row in rows if row.delay_s <= stores.broker.horizon_s]
        done.later += len(rows) - len(near)
        reach("sweep.before_relay")
        sent = publish(stores, near, deadline_s=settings.times.confirm_s)
        done.tasks += sent
        if sent < len(near):
            raise BrokerUnavailable(
                f"broker: {len(near) - sent} of {len(near)} hints were not confirmed; {done.tasks} tasks have theirs. "
                "The sweep sends the rest, or run it again: workq rebuild"
            )
        done.hints += len(pages_of(stores.broker, near))
        done.seconds = time.monotonic() - began
        told(done)
