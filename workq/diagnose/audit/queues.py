"""What is in the broker, for each queue of an audit, and how that is known.

    listed   its rows are read, where the broker is embedded; on Kafka all that the group is not done with
    turned   nobody consumes from the queue, or `scan` asks for it: RabbitMQ moves each message once around the queue
    marked   somebody consumes: a marker goes through the queue, as those of a sweep (recovery/lost_hints.py). When it
             is back, every hint that was confirmed before has left the queue. Copies of a hint are not seen this way,
             nor ghosts

Turning a queue disturbs its order, and a marker that is on its way meanwhile could come back before hints that were
confirmed earlier: it would prove them lost though they are there. Stamping `published_at` of every hint that was moved
(`Hints.rehinted`) would prevent that at the price of a write to every waiting task. Instead the markers lose their
meaning: those that were out when the turn began, or came back since, are dropped from the ledger, while the turn goes
on and at its end, and out of the queue; a sweep sends new ones. If this process dies in the middle of a turn, a marker
that came back just then may have a hint sent again that was there; it is worth nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from workq.broker import Browsed, Hint, See
from workq.config import Times
from workq.diagnose.where import QueueHints
from workq.recovery.lost_hints import overdue_row_s
from workq.stores import Stores
from workq.values.codec import new_task_id
from workq.values.lane import all_of, is_extra, meant

POLLS = 5
"""How often to look for a marker within a beat."""
BAND = 0


class Way(StrEnum):
    """How it is known what is in a queue."""

    LISTED = "listed"
    TURNED = "turned"
    MARKED = "marked"


class Queues:
    """The queues of one audit.

    Attributes:
        only: the bands of the one queue that is looked at; None: all.
        ways: how each queue that is looked at is looked at.
        foreign: how many messages in them were not ours.
    """

    def __init__(
        self,
        stores: Stores,
        times: Times,
        *,
        only: str | None,
        known: Sequence[str],
        is_scan: bool,
        wait_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._stores = stores
        self._times = times
        self.only = None if only is None else meant(only)
        self._known = known
        self._is_scan = is_scan
        self._wait_s = wait_s
        self._clock = clock
        self._served: set[str] = set()
        self.ways: dict[str, Way] = {}
        self.foreign = 0

    def choose_ways(self) -> list[str]:
        """How each queue is looked at; answers all queues in which holds may be."""
        ledger, broker = self._stores.ledger, self._stores.broker
        own = {queue for row in ledger.questions.workers() for queue in row.queues}
        self._served = {band for queue in own for band in all_of(queue)}
        with_tasks = ledger.audits.queues_with_open_tasks()
        used = ledger.lanes.bands()
        always = (queue for queue in self.only or () if not is_extra(queue))
        queues = sorted({*with_tasks, *self._known, *own, *used, *always})
        looked_at = queues if self.only is None else [one for one in queues if one in self.only]
        depths = broker.depths(looked_at)
        for queue in looked_at:
            if broker.is_listable:
                self.ways[queue] = Way.LISTED
            elif self._is_scan or not depths[queue].consumers or queue not in self._served:
                self.ways[queue] = Way.TURNED
            elif queue in with_tasks:
                self.ways[queue] = Way.MARKED
        return queues

    def look(self) -> Generator[float, None, dict[str, QueueHints]]:
        """What is in each queue, in its way; waits for markers."""
        sent_at = {queue: self._send_marker(queue) for queue, way in self.ways.items() if way is Way.MARKED}
        back = yield from self._await_markers(sent_at)
        return {
            queue: _marked(queue, sent_at[queue], is_back=queue in back)
            if way is Way.MARKED
            else self._browse(queue, way)
            for queue, way in self.ways.items()
        }

    def look_again(self, queue: str, line: QueueHints, *, only: set[str]) -> QueueHints:
        """What is in it now of these tasks. Of a marked queue there is nothing new to see: `line` is all there is."""
        way = self.ways[queue]
        return line if way is Way.MARKED else self._browse(queue, way, only=only)

    def may_be_in_hand(self, queue: str) -> bool:
        """Whether a worker may have fetched a hint that nobody sees until it is held."""
        return self.ways[queue] is not Way.LISTED and queue in self._served

    def _send_marker(self, queue: str) -> datetime | None:
        """Send a marker, unless somebody has just done so, or delayed hints are overdue that would come behind it.

        Answers when the newest was sent.
        """
        ledger, broker, times = self._stores.ledger, self._stores.broker, self._times
        marker_id = new_task_id()
        depth = broker.depths([queue])[queue]
        overdue_s = overdue_row_s(broker, times)
        if ledger.markers.sent(queue, BAND, marker_id, spacing_s=times.beat_s, depth=depth.ready, overdue_s=overdue_s):
            broker.publish([Hint(queue, (), marker=marker_id)], deadline_s=times.confirm_s)
        return ledger.audits.marker_sent_at(queue, BAND)

    def _await_markers(self, sent_at: Mapping[str, datetime | None]) -> Generator[float, None, set[str]]:
        """Wait until they are back, or the time is up; answers the queues whose marker, or a later one, is back."""
        ledger, beat_s = self._stores.ledger, self._times.beat_s
        out = {queue: at for queue, at in sent_at.items() if at is not None}
        began = self._clock()
        again = began + beat_s
        while True:
            out = {
                queue: at for queue, at in out.items() if not ledger.audits.has_marker_returned(queue, BAND, since=at)
            }
            now = self._clock()
            if not out or now >= began + self._wait_s:
                return {queue for queue, at in sent_at.items() if at is not None and queue not in out}
            if now >= again:  # one that is away though the queue is empty is lost itself
                again = now + beat_s
                for queue, depth in self._stores.broker.depths(list(out)).items():
                    if depth.ready == 0:
                        self._send_marker(queue)
            yield min(beat_s / POLLS, max(0.001, began + self._wait_s - now))

    def _browse(self, queue: str, way: Way, *, only: set[str] | None = None) -> QueueHints:
        """All hints in one queue; `only` those of some tasks are kept in mind."""
        began_at = self._stores.ledger.questions.clock()
        copies: dict[str, int] = {}

        def see(hint: Hint) -> bool:
            for task_id in hint.task_ids:
                if only is None or task_id in only:
                    copies[task_id] = copies.get(task_id, 0) + 1
            return True

        if way is Way.LISTED:
            browsed = self._stores.broker.browse(queue, see, deadline_s=self._wait_s)
        else:
            browsed = turn(self._stores, self._times, queue, see, deadline_s=self._wait_s, clock=self._clock)
        if only is None:
            self.foreign += browsed.foreign
        proof = f"none of the {browsed.hints} hints in queue {queue} is its own"
        return QueueHints(
            began_at if browsed.is_whole else None, proof, copies, has_owners=self._stores.broker.has_owners
        )


def _marked(queue: str, sent_at: datetime | None, *, is_back: bool) -> QueueHints:
    proof = "" if sent_at is None else f"a marker sent through queue {queue} at {sent_at:%H:%M:%S} came back"
    return QueueHints(sent_at if is_back else None, proof)


def turn(
    stores: Stores, times: Times, queue: str, see: See, *, deadline_s: float, clock: Callable[[], float]
) -> Browsed:
    """Turn a queue, and void the markers that its disturbed order would make lie: see above."""
    ledger = stores.ledger
    since = ledger.questions.clock()
    voided = clock()

    def see_hint(hint: Hint) -> bool:
        nonlocal voided
        if clock() - voided > times.marker_grace_s / 4:
            ledger.audits.markers_voided(queue, since=since)
            voided = clock()
        return hint.marker is None and see(hint)

    try:
        return stores.broker.browse(queue, see_hint, deadline_s=deadline_s)
    finally:
        ledger.audits.markers_voided(queue, since=since)
