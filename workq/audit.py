"""Audit: is every task that is not settled in exactly one place (see places.py)? With the proof, and the repair.

Three stores cannot be seen at one moment, so one look proves nothing: whatever looks wrong is looked at twice, more
than a beat apart by the ledger's clock, and is a finding only if it has not moved: the same attempt, the same hint,
still in no place. What a live worker may have in its hands gets the marker's grace; and where a worker could write a
hold again, or drop it, its lease must have been renewed several times meanwhile: with each beat it writes all that it
holds.

How it is known what is in the broker, for each queue:

    listed   the broker is embedded: its rows are read
    turned   nobody consumes from the queue, or `scan` asks for it: RabbitMQ moves each message once around the queue
    marked   somebody consumes: a marker goes through the queue, as those of a sweep do (marker.py). When it is back,
             every hint that was confirmed before has left the queue. Copies of a hint are not seen this way, nor ghosts

Turning a queue disturbs its order, and a marker that is on its way meanwhile could come back before hints that were
confirmed earlier: it would prove them lost though they are there. Stamping `published_at` of every hint that was moved
(`Ledger.rehinted`) would prevent that at the price of a write to every waiting task. Instead the markers lose their
meaning: those that were out when the turn began, or came back since, are dropped from the ledger, while the turn goes
on and at its end, and out of the queue; a sweep sends new ones. If this process dies in the middle of a turn, a marker
that came back just then may have a hint sent again that was there; it is worth nothing.

What cannot be told: what is in the ladder of delays cannot be listed (a turn would begin its time again), so a task
that is not due counts as waiting and is judged once it is due. A queue that was not turned in time, a marker that did
not come back, an in-flight store that was wiped during the audit: these tasks are `unproven`, and nothing is said of
them. A worker that is stopped for longer than the marker's grace, with deliveries in its hands that it does not hold,
looks as if it had lost them.

Who decides: nobody here. A repair is a conditional statement of the ledger, guarded by all that the finding has seen.
On failure: a store that is away raises, and nothing was changed; of a repair, what was done stands.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import TypeVar, assert_never

from workq.broker import Browsed, Hint, See
from workq.codec import is_task_id, new_task_id
from workq.config import Settings, Times
from workq.doctor import Bounds
from workq.inflight import Hold
from workq.ledger import Applied, Fence, Look, OpenTask
from workq.places import Facts, Kind, Line, Place, Stand, stand_of
from workq.relay import publish
from workq.stores import Stores
from workq.sweep import sweep
from workq.task import SETTLED, State

T = TypeVar("T")

APART = 1.2
"""The second look comes this many beats after the first, at the earliest."""
APART_OF_HOLDS = 4.0
"""The same where a live worker could write a hold, or drop it."""
RENEWALS = 3
"""How often that worker's lease must have been renewed between the looks."""
RENEWED = 0.1
"""A lease was renewed when its end has moved by this part of a beat, for certain."""
QUIET = 3.0
"""An in-flight store younger than this many beats does not know all holds yet."""
SLICES = 2
"""How often to look at the leases within a beat."""
POLLS = 5
"""How often to look for a marker within a beat."""
PAGE = 1000
LOOKED_UP_AT_ONCE = 500
REAPS = 3
"""How many passes of a sweep reap the dead at most: two looks, and one more under the brake."""
BAND = 0
TURN_S = 60.0
"""How long the turn of a queue may take from which ghosts are dropped."""
NAMED_MAX = 10
"""How many tasks an event names."""

Steps = Generator[float, None, "Audited"]
Repairs = Generator[float, None, "Repaired"]


class Way(StrEnum):
    """How it is known what is in a queue."""

    LISTED = "listed"
    TURNED = "turned"
    MARKED = "marked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `fence` says where the task stood; a hint or hold without a task has none."""

    kind: Kind
    task: str
    queue: str
    proof: str
    repair: str
    worker: str | None = None
    fence: Fence | None = field(default=None, repr=False)
    is_unheld: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit found. `tasks` is how many are not settled: in a place, lost, an orphan, or unproven.

    `unproven` counts by queue the tasks of which nothing could be told, `stale` the hints of tasks that are settled
    (they are dropped when they are delivered), `foreign` the messages that are not ours. `ways` says how each queue was
    looked at.
    """

    tasks: int
    places: Mapping[Place, int]
    findings: tuple[Finding, ...]
    unproven: Mapping[str, int]
    stale: int
    foreign: int
    ways: Mapping[str, Way]

    @property
    def is_ok(self) -> bool:
        """Every task is in exactly one place, and that is proved."""
        return not self.findings and not self.unproven

    def count(self, kind: Kind) -> int:
        """How many findings are of this kind."""
        return sum(finding.kind is kind for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, by kind. `left` counts what had moved meanwhile, what mends itself, and what is harmless."""

    done: Mapping[Kind, int]
    left: int


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
) -> Steps:
    """The same, for whoever keeps the time: each step answers for how many seconds nothing is to be done."""
    return _Auditor(stores, settings, queue, tuple(queues), is_scan, wait_s, tell, clock).steps()


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


def repair_in_steps(stores: Stores, settings: Settings, audited: Audited, *, by: str) -> Repairs:
    """The same, for whoever keeps the time."""
    done: Counter[Kind] = Counter()
    sent: list[Finding] = []
    returned: list[Finding] = []
    unheld: list[Finding] = []
    holds: list[Finding] = []
    hints: list[Finding] = []
    unreaped: list[Finding] = []
    for finding in audited.findings:
        match finding.kind:
            case Kind.LOST:
                sent.append(finding)
            case Kind.ORPHAN:
                (unheld if finding.is_unheld else returned).append(finding)
            case Kind.GHOST:
                (hints if finding.worker is None else holds).append(finding)
            case Kind.OVERDUE:
                (sent if finding.worker is None else unreaped).append(finding)
            case Kind.TWIN:
                pass  # the claim decides between them
            case _:
                assert_never(finding.kind)
    for change, findings in (
        (stores.ledger.return_planned, returned),
        (stores.ledger.return_unheld, unheld),
        (stores.ledger.relay_planned, sent),
    ):
        done += _change(stores, settings.times, change, findings, by)
    done[Kind.GHOST] += _drop_holds(stores, holds, by)
    done[Kind.GHOST] += _drop_hints(stores, settings.times, hints, by)
    done[Kind.OVERDUE] += yield from _reap(stores, settings, unreaped)
    return Repaired({kind: done[kind] for kind in Kind}, len(audited.findings) - done.total())


def _drive(steps: Generator[float, None, T], wait: Callable[[float], None]) -> T:
    while True:
        try:
            wait(next(steps))
        except StopIteration as end:
            answer: T = end.value
            return answer


@dataclass(slots=True)
class _Suspicion:
    """What looked wrong at the first look: a task as it stood, a hold, or the hint of a task that nobody knows."""

    kind: Kind
    task_id: str
    queue: str
    stand: Stand
    task: OpenTask | None = None
    hold: Hold | None = None

    @property
    def is_of_holds(self) -> bool:
        """Whether a live worker could write, or drop, a hold and end the suspicion."""
        is_held_twin = self.kind is Kind.TWIN and self.stand.place is not Place.BROKER
        return self.stand.is_unheld or self.hold is not None or is_held_twin

    @property
    def is_of_hints(self) -> bool:
        """Whether what is in the queue can end the suspicion."""
        return self.hold is None and self.kind in (Kind.LOST, Kind.GHOST, Kind.TWIN)


class _Auditor:
    """One audit."""

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        queue: str | None,
        known: Sequence[str],
        is_scan: bool,
        wait_s: float,
        tell: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._stores = stores
        self._times = settings.times
        self._bounds = Bounds.of(settings.times)
        self._only = queue
        self._known = known
        self._is_scan = is_scan
        self._wait_s = wait_s
        self._tell = tell
        self._clock = clock
        self._served: set[str] = set()
        self._ways: dict[str, Way] = {}
        self._tasks = 0
        self._places: Counter[Place] = Counter()
        self._unproven: Counter[str] = Counter()
        self._findings: list[Finding] = []
        self._stale = self._foreign = 0
        self._renewals: Counter[str] = Counter()
        """How often the lease of each incarnation was renewed between the looks."""

    def steps(self) -> Steps:
        """The whole audit."""
        queues = self._choose_ways()
        sent_at = {queue: self._send_marker(queue) for queue, way in self._ways.items() if way is Way.MARKED}
        back = yield from self._await_markers(sent_at)
        lines = {
            queue: self._marked(queue, sent_at[queue], is_back=queue in back)
            if way is Way.MARKED
            else self._browse(queue, way)
            for queue, way in self._ways.items()
        }
        facts = self._facts(queues)
        suspicions = self._look(lines, facts)
        if suspicions:
            gap_s = self._gap_s(suspicions, facts)
            self._tell(f"{len(suspicions)} things look wrong; looking again in {gap_s:.0f} s")
            has_passed = yield from self._let_pass(gap_s)
            if has_passed:
                self._look_again(suspicions, lines, facts, queues)
            else:
                self._unproven.update(one.queue for one in suspicions)
        return Audited(
            tasks=self._tasks,
            places={place: self._places[place] for place in Place},
            findings=tuple(self._findings),
            unproven=dict(sorted(self._unproven.items())),
            stale=self._stale,
            foreign=self._foreign,
            ways=self._ways,
        )

    # -- what is looked at, and how

    def _choose_ways(self) -> list[str]:
        """How each queue is looked at; answers all queues in which holds may be."""
        ledger, broker = self._stores.ledger, self._stores.broker
        for row in ledger.workers():
            self._served.update(row.queues)
        with_tasks = ledger.queues_with_open_tasks()
        queues = sorted({*with_tasks, *self._known, *self._served, *([] if self._only is None else [self._only])})
        looked_at = queues if self._only is None else [self._only]
        depths = broker.depths(looked_at)
        for queue in looked_at:
            if broker.is_listable:
                self._ways[queue] = Way.LISTED
            elif self._is_scan or not depths[queue].consumers or queue not in self._served:
                self._ways[queue] = Way.TURNED
            elif queue in with_tasks:
                self._ways[queue] = Way.MARKED
        return queues

    def _send_marker(self, queue: str) -> datetime | None:
        """Send a marker, unless somebody has just done so; answers when the newest was sent."""
        ledger, broker, times = self._stores.ledger, self._stores.broker, self._times
        marker_id = new_task_id()
        depth = broker.depths([queue])[queue]
        if ledger.marker_sent(queue, BAND, marker_id, spacing_s=times.beat_s, depth=depth.ready):
            broker.publish([Hint(queue, (), marker=marker_id)], deadline_s=times.confirm_s)
        return ledger.marker_sent_at(queue, BAND)

    def _await_markers(self, sent_at: Mapping[str, datetime | None]) -> Generator[float, None, set[str]]:
        """Wait until they are back, or the time is up; answers the queues whose marker, or a later one, is back."""
        ledger, beat_s = self._stores.ledger, self._times.beat_s
        out = {queue: at for queue, at in sent_at.items() if at is not None}
        began = self._clock()
        again = began + beat_s
        while True:
            out = {queue: at for queue, at in out.items() if not ledger.has_marker_returned(queue, BAND, since=at)}
            now = self._clock()
            if not out or now >= began + self._wait_s:
                return {queue for queue, at in sent_at.items() if at is not None and queue not in out}
            if now >= again:  # one that is away though the queue is empty is lost itself
                again = now + beat_s
                for queue, depth in self._stores.broker.depths(list(out)).items():
                    if depth.ready == 0:
                        self._send_marker(queue)
            yield min(beat_s / POLLS, max(0.001, began + self._wait_s - now))

    def _marked(self, queue: str, sent_at: datetime | None, *, is_back: bool) -> Line:
        proof = "" if sent_at is None else f"a marker sent through queue {queue} at {sent_at:%H:%M:%S} came back"
        return Line(sent_at if is_back else None, proof)

    def _browse(self, queue: str, way: Way, *, only: set[str] | None = None) -> Line:
        """All hints in one queue; `only` those of some tasks are kept in mind."""
        began_at = self._stores.ledger.clock()
        copies: dict[str, int] = {}

        def see(hint: Hint) -> bool:
            for task_id in hint.task_ids:
                if only is None or task_id in only:
                    copies[task_id] = copies.get(task_id, 0) + 1
            return True

        if way is Way.LISTED:
            browsed = self._stores.broker.browse(queue, see, deadline_s=self._wait_s)
        else:
            browsed = _turn(self._stores, self._times, queue, see, deadline_s=self._wait_s, clock=self._clock)
        if only is None:
            self._foreign += browsed.foreign
        proof = f"none of the {browsed.hints} hints in queue {queue} is its own"
        return Line(began_at if browsed.is_whole else None, proof, copies)

    def _facts(self, queues: Sequence[str]) -> Facts:
        """What workers hold. Asked after the broker: what was fetched meanwhile is held by then."""
        inflight, ledger = self._stores.inflight, self._stores.ledger
        epoch_age_s = inflight.epoch_age_s()
        leases = inflight.leases()
        found = [hold for queue in queues for hold in inflight.holds(queue)]
        found += [hold for worker in leases for hold in inflight.held_by(worker)]
        holds: dict[str, tuple[Hold, ...]] = {}
        for hold in {(one.task_id, one.queue, one.worker): one for one in found}.values():
            holds[hold.task_id] = (*holds.get(hold.task_id, ()), hold)
        rows = ledger.workers()
        return Facts(
            leases=leases,
            live={row.id for row in rows},
            beat_age_s={row.id: row.beat_age_s for row in rows},
            holds=holds,
            epoch_age_s=epoch_age_s,
            swept_for_s=ledger.swept_for_s(),
        )

    # -- the first look

    def _look(self, lines: Mapping[str, Line], facts: Facts) -> list[_Suspicion]:
        """Where every open task seems to be; answers what seems wrong."""
        suspicions: list[_Suspicion] = []
        met: set[str] = set()
        for queue, line in lines.items():
            for task in self._open_tasks(queue):
                if task.task_id in met:
                    continue  # it has moved on since the page before
                met.add(task.task_id)
                stand = stand_of(task, line, facts, self._times, self._bounds)
                if stand.kind is None:
                    self._put(task, stand)
                else:
                    suspicions.append(_Suspicion(stand.kind, task.task_id, queue, stand, task))
        for queue, line in lines.items():
            suspicions += self._ghost_hints(queue, (one for one in line.copies if one not in met), line.copies)
        suspicions += self._ghost_holds(hold for one in facts.holds if one not in met for hold in facts.holds[one])
        return suspicions

    def _open_tasks(self, queue: str) -> Iterator[OpenTask]:
        """Those to be claimed first: what is claimed meanwhile is found among those that run."""
        for is_running in (False, True):
            after: OpenTask | None = None
            while page := self._stores.ledger.open_tasks(queue, is_running=is_running, after=after, limit=PAGE):
                yield from page
                after = page[-1]
                if len(page) < PAGE:
                    break

    def _put(self, task: OpenTask, stand: Stand) -> None:
        """Count a task that nothing is wrong with, as far as can be told."""
        self._tasks += 1
        if stand.place is None:
            self._unproven[task.queue] += 1
        else:
            self._places[stand.place] += 1

    def _ghost_hints(self, queue: str, task_ids: Iterator[str], copies: Mapping[str, int]) -> Iterator[_Suspicion]:
        while page := list(islice(task_ids, LOOKED_UP_AT_ONCE)):
            known = self._looks(page)
            self._stale += sum(copies[one] for one, look in known.items() if look.state in SETTLED)
            for task_id in page:
                if task_id not in known:
                    proof = (
                        f"{copies[task_id]} of the hints in queue {queue} is of a task that the ledger does not know"
                    )
                    yield _Suspicion(Kind.GHOST, task_id, queue, Stand(None, Kind.GHOST, proof))

    def _ghost_holds(self, holds: Iterator[Hold]) -> Iterator[_Suspicion]:
        while page := list(islice(holds, LOOKED_UP_AT_ONCE)):
            known = self._looks([hold.task_id for hold in page])
            for hold in page:
                look = known.get(hold.task_id)
                if self._only not in (None, hold.queue) or (look is not None and look.state not in SETTLED):
                    continue
                what = "a task that the ledger does not know" if look is None else f"a task that is {look.state}"
                proof = f"{hold.worker} holds {what}, in queue {hold.queue}, for {hold.since_s:.0f} s"
                stand = Stand(None, Kind.GHOST, proof, hold.worker)
                yield _Suspicion(Kind.GHOST, hold.task_id, hold.queue, stand, hold=hold)

    def _looks(self, task_ids: Sequence[str]) -> dict[str, Look]:
        """Where tasks stand; what is not even an id is unknown too."""
        ids = [one for one in task_ids if is_task_id(one)]
        known: dict[str, Look] = {}
        for start in range(0, len(ids), LOOKED_UP_AT_ONCE):
            known |= self._stores.ledger.look(ids[start : start + LOOKED_UP_AT_ONCE])
        return known

    # -- the second look

    def _gap_s(self, suspicions: Sequence[_Suspicion], facts: Facts) -> float:
        """How long what is suspicious is left alone before it is looked at again."""
        times = self._times
        gap_s = APART * times.beat_s
        of_holds = any(one.is_of_holds for one in suspicions)
        lost = [one for one in suspicions if one.kind is Kind.LOST]
        if of_holds:
            gap_s = max(gap_s, APART_OF_HOLDS * times.beat_s)
        if of_holds or any(self._may_be_in_hand(one.queue) for one in lost):
            gap_s = max(gap_s, times.marker_grace_s)
        if of_holds or lost:  # until live workers have written what a wipe took
            gap_s = max(gap_s, (QUIET + APART - 1.0) * times.beat_s - facts.epoch_age_s)
        if any(one.kind is Kind.OVERDUE for one in suspicions):
            gap_s = max(gap_s, 2 * times.sweep_s + times.beat_s)
        return gap_s

    def _may_be_in_hand(self, queue: str) -> bool:
        """Whether a worker may have fetched a hint that nobody sees until it is held."""
        return self._ways[queue] is not Way.LISTED and queue in self._served

    def _let_pass(self, gap_s: float) -> Generator[float, None, bool]:
        """Wait until so much time has passed on the ledger's clock; False when it does not pass there.

        Meanwhile renewals are counted.
        """
        ledger, slice_s = self._stores.ledger, self._times.beat_s / SLICES
        latest = {worker: at_most_s for worker, (_, at_most_s) in self._ends().items()}
        until = ledger.clock() + timedelta(seconds=gap_s)
        for _ in range(100 + 10 * math.ceil(gap_s / slice_s)):
            left_s = (until - ledger.clock()).total_seconds()
            if left_s < 0.0:
                return True
            yield min(slice_s, left_s + 0.001)
            for worker, (at_least_s, at_most_s) in self._ends().items():
                if at_least_s >= latest.setdefault(worker, at_most_s) + RENEWED * self._times.beat_s:
                    self._renewals[worker] += 1
                    latest[worker] = at_most_s
        return False

    def _ends(self) -> dict[str, tuple[float, float]]:
        """When each lease ends, at least and at most, in seconds since the in-flight store began."""
        inflight = self._stores.inflight
        before_s = inflight.epoch_age_s()
        leases = inflight.leases()
        after_s = inflight.epoch_age_s()
        return {worker: (before_s + lease.left_s, after_s + lease.left_s) for worker, lease in leases.items()}

    def _look_again(
        self, suspicions: Sequence[_Suspicion], lines: Mapping[str, Line], before: Facts, queues: Sequence[str]
    ) -> None:
        ledger = self._stores.ledger
        again = dict(lines)
        for queue in sorted({one.queue for one in suspicions if one.is_of_hints}):
            if (way := self._ways[queue]) is not Way.MARKED:
                wanted = {one.task_id for one in suspicions if one.queue == queue}
                again[queue] = self._browse(queue, way, only=wanted)
        facts = self._facts(queues)
        rows = ledger.open_among([one.task_id for one in suspicions if one.task is not None])
        looks = self._looks([one.task_id for one in suspicions if one.task is None])
        confirmed: list[_Suspicion] = []
        for one in suspicions:
            if one.task is not None:
                task = rows.get(one.task_id)
                is_so = task is not None and self._is_confirmed(one, one.task, task, again[one.queue], facts, before)
            elif one.hold is not None:
                look = looks.get(one.task_id)
                is_so = (look is None or look.state in SETTLED) and self._is_kept(one.hold, facts)
            else:
                is_so = one.task_id not in looks and bool(again[one.queue].copies.get(one.task_id))
            if is_so:
                confirmed.append(one)
        self._find(confirmed)

    def _is_confirmed(
        self, one: _Suspicion, then: OpenTask, now: OpenTask, line: Line, facts: Facts, before: Facts
    ) -> bool:
        """Whether a task stands as it stood; if not, it is counted where it is now."""
        stand = stand_of(now, line, facts, self._times, self._bounds)
        is_quiet = facts.epoch_age_s >= QUIET * self._times.beat_s
        if stand.kind is Kind.LOST and not is_quiet:
            stand = Stand(None)
        elif stand.is_unheld and not (is_quiet and self._has_beaten(now.worker or "", facts)):
            stand = Stand(Place.RUNNING)
        elif stand.kind is Kind.TWIN and not all(
            self._is_kept(hold, facts) for hold in before.holds.get(now.task_id, ())
        ):
            stand = Stand(stand.place)
        if stand.kind is one.kind and stand.is_unheld is one.stand.is_unheld and not _has_moved(then, now):
            one.stand, one.task = stand, now
            return True
        self._put(now, stand if stand.kind is None else _presumed(now, stand))
        return False

    def _is_kept(self, hold: Hold, facts: Facts) -> bool:
        """Whether it is the same hold, and of somebody who would have dropped it by now, or of nobody."""
        is_same = any(
            (one.worker, one.queue) == (hold.worker, hold.queue) and one.since_s >= hold.since_s
            for one in facts.holds.get(hold.task_id, ())
        )
        if not is_same or facts.is_to_be_reaped(hold.worker):
            return False
        return not facts.has_lease(hold.worker) or self._has_beaten(hold.worker, facts)

    def _has_beaten(self, worker: str, facts: Facts) -> bool:
        """Whether it lives, and has written all that it holds several times since the first look."""
        return facts.has_lease(worker) and self._renewals[worker] >= RENEWALS

    def _find(self, confirmed: Sequence[_Suspicion]) -> None:
        """What was confirmed becomes findings, each with the fence of its task."""
        fences = self._stores.ledger.fences([one.task_id for one in confirmed if one.task is not None])
        for one in confirmed:
            fence = fences.get(one.task_id)
            if one.task is not None:
                if fence is None or (fence.state, fence.attempt, fence.published_at) != (
                    one.task.state,
                    one.task.attempt,
                    one.task.published_at,
                ):
                    self._put(one.task, _presumed(one.task, one.stand))  # it has moved in this very moment
                    continue
                self._tasks += 1
                if one.stand.place is not None:
                    self._places[one.stand.place] += 1
            self._findings.append(
                Finding(
                    kind=one.kind,
                    task=one.task_id,
                    queue=one.queue,
                    proof=one.stand.proof,
                    repair=_repair_of(one),
                    worker=one.stand.worker,
                    fence=fence,
                    is_unheld=one.stand.is_unheld,
                )
            )


def _has_moved(then: OpenTask, now: OpenTask) -> bool:
    def stands(task: OpenTask) -> tuple[object, ...]:
        is_running = task.state is State.RUNNING
        return is_running, task.attempt, task.worker, task.due_at, task.queued_at, task.published_at

    return stands(then) != stands(now)


def _presumed(task: OpenTask, stand: Stand) -> Stand:
    """Where a task is that looks wrong for the first time: where it should be."""
    return Stand(stand.place or (Place.RUNNING if task.state is State.RUNNING else Place.BROKER))


def _repair_of(one: _Suspicion) -> str:
    match one.kind:
        case Kind.LOST:
            return "publish its hint again"
        case Kind.GHOST:
            return "drop the hint" if one.hold is None else "drop the hold"
        case Kind.TWIN:
            return "none: the claim decides"
        case Kind.ORPHAN:
            return "return it, at no charge" if one.stand.is_unheld else "return it"
        case Kind.OVERDUE:
            return "publish its hint" if one.stand.worker is None else "reap its worker"
        case _:
            assert_never(one.kind)


def _turn(
    stores: Stores, times: Times, queue: str, see: See, *, deadline_s: float, clock: Callable[[], float]
) -> Browsed:
    """Turn a queue, and void the markers that its disturbed order would make lie: see above."""
    ledger = stores.ledger
    since = ledger.clock()
    voided = clock()

    def see_hint(hint: Hint) -> bool:
        nonlocal voided
        if clock() - voided > times.marker_grace_s / 4:
            ledger.markers_voided(queue, since=since)
            voided = clock()
        return hint.marker is None and see(hint)

    try:
        return stores.broker.browse(queue, see_hint, deadline_s=deadline_s)
    finally:
        ledger.markers_voided(queue, since=since)


# -- repair


def _change(
    stores: Stores,
    times: Times,
    change: Callable[..., Applied],
    findings: Sequence[Finding],
    by: str,
) -> Counter[Kind]:
    """Let the ledger change what still stands as it did, then publish the hints of that."""
    done: Counter[Kind] = Counter()
    for kind in Kind:
        mine = {one.task: one.fence for one in findings if one.kind is kind and one.fence is not None}
        for start in range(0, len(mine), LOOKED_UP_AT_ONCE):
            fences = list(mine.values())[start : start + LOOKED_UP_AT_ONCE]
            applied = change(fences, by={"by": by, "audit": kind.value})
            publish(stores, applied.hints, deadline_s=times.confirm_s)
            done[kind] += len(applied.changed)
    return done


def _drop_holds(stores: Stores, findings: Sequence[Finding], by: str) -> int:
    dropped = 0
    for one in findings:
        if one.worker is not None and stores.inflight.release([(one.task, one.queue)], by=one.worker):
            dropped += 1
            detail = {"by": by, "audit": one.kind.value, "dropped": "hold", "task": one.task, "queue": one.queue}
            stores.ledger.note("manual", detail=detail, worker=one.worker)
    return dropped


def _drop_hints(stores: Stores, times: Times, findings: Sequence[Finding], by: str) -> int:
    """Take hints out of their queues if none of their tasks is known; one that has others too drops itself."""
    dropped: set[str] = set()
    for queue in sorted({one.queue for one in findings}):
        ids = sorted({one.task for one in findings if one.queue == queue})
        for start in range(0, len(ids), LOOKED_UP_AT_ONCE):
            known = stores.ledger.look(ids[start : start + LOOKED_UP_AT_ONCE])
            ids = [one for one in ids if one not in known]
        ghosts = frozenset(ids)
        gone: set[str] = set()

        def see(hint: Hint, ghosts: frozenset[str] = ghosts, gone: set[str] = gone) -> bool:
            if not ghosts.issuperset(hint.task_ids):
                return True
            gone.update(hint.task_ids)
            return False

        if stores.broker.is_listable:
            stores.broker.browse(queue, see, deadline_s=TURN_S)
        else:
            _turn(stores, times, queue, see, deadline_s=TURN_S, clock=time.monotonic)
        if gone:
            detail = {"by": by, "audit": Kind.GHOST.value, "dropped": "hints", "queue": queue, "tasks": len(gone)}
            stores.ledger.note("manual", detail={**detail, "first": sorted(gone)[:NAMED_MAX]})
        dropped |= gone
    return len(dropped)


def _reap(stores: Stores, settings: Settings, findings: Sequence[Finding]) -> Generator[float, None, int]:
    """Passes of a sweep, which look at the dead more than once themselves."""
    unreaped = {one.worker for one in findings}
    for _ in range(REAPS if findings else 0):
        sweep(stores, settings, only=["reap"])
        if unreaped.isdisjoint(row.id for row in stores.ledger.workers()):
            break
        yield settings.times.beat_s
    live = {row.id for row in stores.ledger.workers()} if findings else set()
    return sum(one.worker not in live for one in findings)
