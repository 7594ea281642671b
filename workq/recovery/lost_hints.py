"""Marker: the proof that a hint is lost, which no waiting time can give; and positions, the proof without a marker.

A broker may lose a hint after it has confirmed it: a purge, a deleted queue, an empty data folder. Then the task has a
hint by the ledger's account, and nobody will ever come for it. Age proves nothing: behind a backlog of a day, a hint is
a day old and well.

    task.published_at < marker.sent_at          the hint was confirmed before the marker was sent, so it was ahead of it
    the marker came back                        the queue is first in, first out: the hint has left the queue
    a grace later: not claimed, not held        nobody has it: it is lost, and is published again, once

The sweep sends a marker through each queue of the broker (each priority is one, see values/lane.py) that has
tasks which could run and do not. A worker hands it back by telling the ledger. A deep backlog delays the marker as it
delays the hints, so nothing is flooded; several may be on their way then, further and further apart. Whatever sends a
hint in place of another one (a worker that hands back what it cannot run) stamps `published_at` anew, after the
broker's confirm. A hint that the broker may keep beyond its due time (`Broker.is_late`) is stamped with the instant at
which it must have come: a marker that was sent before that instant proves nothing of it, and one that was sent later
does.

A delayed hint may be a row of the ledger that a mover publishes when it is due (workq/broker/later). While one of a
queue is overdue, no marker is sent through it: the marker would overtake it. To ask that later would not do: by then
the row may have been published behind the marker.

A broker may tell where a queue ends and what has left it (`Broker.position`): there nothing is sent. The marker is
noted, *then* the position is asked for, so that each hint that was confirmed before `sent_at` is before the position,
in whatever part of the queue. The marker is back when the position has passed. All else is the same. Each rule of that
is in tests/simulation/position_model.py.

While an installation moves from a broker of one kind to one of the other, both have workers and sweeps on one ledger,
and the ledger does not know in which of them a hint lies. So each kind has markers of its own (`band`), and a sweep
acts upon those of its own broker alone, by sending hints there. What waits in the other one is sent here as well, once,
since no marker of here has it before itself: a marker of here comes back behind those copies only. If a sweep acted
upon a marker of the other broker, it would send into its own what is still there, again with each such marker.

Who decides: the ledger, by its own clock. What happens on each failure:

- the marker is lost: the queue is empty and it has not come back, so another follows within a beat; one that is out for
  long has others sent after it anyway, and whichever comes back speaks for all before it;
- a worker dies with the marker in hand: the broker delivers it again;
- the in-flight store was wiped: nothing is proved until three beats later, when live workers have written their holds;
- the broker is away, or refuses: no marker; the relay and the other repairs go on; a marker that was noted without its
  position proves nothing, and another follows;
- the broker has lost some of what is before a position, or has begun anew: the position passes all the same, at the
  latest when what is left has passed. Where that is too early, hints are sent again that are still to come, and the
  second ones are worth nothing;
- the sweep dies between proof and publishing: the rows are unpublished by then, and the next relay finds them;
- a worker that is stopped while it has deliveries unheld, for longer than the grace: their hints are sent again, and
  the second ones are worth nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workq.broker import Broker, Depth, Hint
from workq.broker.each_queue import publish_each
from workq.config import Times
from workq.enqueue.relay import publish, refused
from workq.errors import BrokerUnavailable, ConfigError
from workq.ledger import Marker
from workq.stores import Stores
from workq.values.codec import new_task_id
from workq.values.failpoints import reach

log = logging.getLogger("workq.marker")

SENT, PLACED = 0, 1
"""The band of a marker that is sent through its queue, and of one with a position."""
OUT_MAX = 100
"""How many markers of one line may be out."""
COUNTED_MAX = 100_000
"""How many losses of one line a dry run counts at most."""
OVERDUE_PART = 0.1
"""Of the slack."""
SPREAD = 8
"""While one is out for some time, the next waits for a part of that time: an hour of backlog has some forty of them."""


@dataclass(slots=True)
class Marked:
    """What one pass did: markers sent, and tasks whose hint was proved lost and sent again."""

    sent: int = 0
    lost: int = 0
    is_blind: bool = False
    """The broker was away, or the in-flight store too young: nothing could be proved or sent."""


def slack_s(times: Times) -> float:
    """How long after its due time a delayed hint may reach its queue, and be ahead of a marker all the same."""
    return times.unpublished_grace_s


def overdue_row_s(broker: Broker, times: Times) -> float | None:
    """How long a delayed hint may be due and still be a row, before no marker is sent; None: rows are the queue.

    The rest of the slack is for a hint whose publisher was slow: its row is due later than its task by so much.
    """
    return None if broker.is_transactional else OVERDUE_PART * slack_s(times)


def mark(
    stores: Stores,
    times: Times,
    *,
    limit: int,
    confirm_s: float | None = None,
    dry_run: bool = False,
    until: Callable[[], bool] = lambda: False,
) -> Marked:
    """Repair what returned markers prove, then send those that are wanted.

    `confirm_s`: how long a confirm is waited for, by default as `times` says. `until` ends a long repair between
    batches. A broker that is away is no error: the answer says `is_blind`.
    """
    confirm_s = times.confirm_s if confirm_s is None else confirm_s
    done = Marked()
    by_queue = markers_by_queue(stores)
    if not dry_run:
        try:
            passed = _passed(stores, by_queue.values())
        except (BrokerUnavailable, ConfigError) as error:
            log.info("marker.blind: %s", error)
            passed = []
        if stores.ledger.markers.returned(passed):
            by_queue = markers_by_queue(stores)
    proven = proofs(by_queue.values(), times)
    if proven:
        if stores.inflight.epoch_age_s() < times.fills_s:
            done.is_blind = True
        else:
            for proof in proven:
                done.lost += _repair(
                    stores, proof, times, limit=limit, confirm_s=confirm_s, dry_run=dry_run, until=until
                )
    queues = stores.ledger.hints.lines(slack_s=slack_s(times))
    if not queues:
        return done
    if not dry_run:
        stores.ledger.lanes.bands_used(queues)  # rows that a restored ledger lacks: tasks wait there
    try:
        depths = stores.broker.depths(queues)
    except (BrokerUnavailable, ConfigError) as error:
        log.info("marker.blind: %s", error)
        done.is_blind = True
        return done
    wanted = [queue for queue in queues if _is_wanted(by_queue.get(queue, ()), depths[queue], times)]
    if dry_run:
        done.sent = len(wanted)
        return done
    hints: list[Hint] = []
    for queue in wanted:
        hint = _noted(stores, times, queue, depths[queue], by_queue.get(queue, ()))
        if hint is None:
            continue
        done.sent += 1
        try:
            is_placed = _placed(stores, hint)
        except (BrokerUnavailable, ConfigError) as error:
            log.info("marker.blind: %s", error)
            done.is_blind = True
            break
        if not is_placed:
            hints.append(hint)
    if hints:
        # unconfirmed: it may be on its way all the same, and if it is not, the line looks as if it were lost
        # all at once: one deadline, where none is confirmed
        publish_each(stores.broker, hints, deadline_s=confirm_s, refused=refused)
    return done


def markers_by_queue(stores: Stores) -> dict[str, list[Marker]]:
    """Those of this kind of broker: the newest of each queue first."""
    by_queue: dict[str, list[Marker]] = {}
    for marker in stores.ledger.markers.all():
        if marker.band == _band(stores.broker):
            by_queue.setdefault(marker.queue, []).append(marker)
    return by_queue


def _band(broker: Broker) -> int:
    return PLACED if broker.tells_position else SENT


def _placed(stores: Stores, noted: Hint) -> bool:
    """Ask where the line ends, after the marker was noted; False: it has to be sent."""
    reach("sweep.before_marker")
    position = stores.broker.position(noted.queue)
    if position is None or noted.marker is None:
        return False
    stores.ledger.markers.placed(noted.marker, position)
    return True


def _passed(stores: Stores, lines: Iterable[Iterable[Marker]]) -> list[str]:
    """Of each line the newest marker whose position has passed. It speaks for all before it, as what is back does.

    All that are out are asked about: after a loss an older one may come to its position later than a newer one.
    """
    passed = []
    for markers in lines:
        for marker in markers:
            if marker.returned_for_s is not None:
                break
            if marker.position is not None and stores.broker.has_passed(marker.queue, marker.position):
                passed.append(marker.id)
                break
    return passed


def _noted(stores: Stores, times: Times, queue: str, depth: Depth, markers: Sequence[Marker]) -> Hint | None:
    """The marker to send through one line, which the ledger knows now; None: another sweep has just sent one, or hints
    that are overdue have still to be moved there."""
    marker_id = new_task_id()
    spacing_s = _spacing_s(markers, depth, times)
    overdue_s = overdue_row_s(stores.broker, times)
    if not stores.ledger.markers.sent(
        queue, _band(stores.broker), marker_id, spacing_s=spacing_s, depth=depth.ready, overdue_s=overdue_s
    ):
        return None
    return Hint(queue, (), marker=marker_id)


def proofs(lines: Iterable[Iterable[Marker]], times: Times) -> list[Marker]:
    """The markers that prove losses now, one of a line at most."""
    return [proof for markers in lines if (proof := _proof(markers, times)) is not None]


def _proof(markers: Iterable[Marker], times: Times) -> Marker | None:
    """The newest marker of a line that has been back for the grace; it speaks for all that were sent before it."""
    for marker in markers:
        if marker.returned_for_s is not None and marker.returned_for_s >= times.marker_grace_s:
            return marker if marker.closed_for_s is None else None
    return None


def _is_wanted(markers: Sequence[Marker], depth: Depth, times: Times) -> bool:
    if not markers:
        return True
    if sum(one.returned_for_s is None for one in markers) >= OUT_MAX:
        return False
    return markers[0].sent_for_s >= _spacing_s(markers, depth, times)


def _spacing_s(markers: Sequence[Marker], depth: Depth, times: Times) -> float:
    """How old the newest marker of a line must be before the next is sent.

    Usually `marker_s`. A beat, where the queue is empty although tasks wait, or has lost half of what it had when the
    newest marker was sent: it may have been purged, or deleted, or is drained.
    """
    if not markers:
        return 0.0
    was = markers[0].depth or 0
    has_fallen = depth.ready == 0 or depth.ready < was / 2
    out_for_s = max((one.sent_for_s for one in markers if one.returned_for_s is None), default=0.0)
    return max(min(times.beat_s, times.marker_s) if has_fallen else times.marker_s, out_for_s / SPREAD)


def _repair(
    stores: Stores,
    proof: Marker,
    times: Times,
    *,
    limit: int,
    confirm_s: float,
    dry_run: bool,
    until: Callable[[], bool],
) -> int:
    """Publish again what a marker proves lost, in bounded batches, and close it."""
    repaired = 0
    while True:
        held = _held(stores, proof.queue)
        bound = COUNTED_MAX if dry_run else limit  # a real pass goes on, batch by batch
        rows = stores.ledger.markers.lost(proof, held=held, slack_s=slack_s(times), limit=bound, dry_run=dry_run)
        repaired += len(rows)
        if dry_run:
            return repaired
        if rows:
            log.warning("marker.hints_lost", extra={"queue": proof.queue, "tasks": len(rows)})
            reach("sweep.before_repair")
            publish(stores, rows, deadline_s=confirm_s)
        if len(rows) < limit:
            stores.ledger.markers.closed(proof)
            return repaired
        if until():
            return repaired  # it stays open: the next pass goes on


def _held(stores: Stores, queue: str) -> set[str]:
    """The tasks of a queue that somebody holds who lives, or may live: a hold of nobody holds nothing.

    What is claimed as well does not matter: no proof is about what runs.
    """
    holds = stores.inflight.holds(queue, claimed=False)
    if not holds:
        return set()
    standing = {row.id for row in stores.ledger.questions.workers()}
    standing |= {worker for worker, lease in stores.inflight.leases().items() if lease.left_s > 0}
    return {hold.task_id for hold in holds if hold.worker in standing}
