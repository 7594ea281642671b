"""The two looks of an audit: where every open task seems to be, and what of it is still wrong later."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import assert_never

from workq.config import Settings
from workq.diagnose.audit.finding import Finding
from workq.diagnose.audit.messages import mismatches
from workq.diagnose.audit.queues import Queues, Way
from workq.diagnose.bounds import Bounds
from workq.diagnose.where import HolderFacts, Misplacement, Place, QueueHints, Stand, stand_of
from workq.inflight import Hold
from workq.jobs.ledger.sql import JobLedger
from workq.ledger import Look, OpenTask
from workq.messages.values import QUEUE
from workq.stores import Stores
from workq.values.codec import is_task_id
from workq.values.plural import counted
from workq.values.task import SETTLED, State

IDS_AT_ONCE = 500
"""How many tasks one question to the ledger names."""


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

    def count(self, kind: Misplacement) -> int:
        """How many findings are of this kind."""
        return sum(finding.kind is kind for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, by kind. `left` counts what had moved meanwhile, what mends itself, and what is harmless."""

    done: Mapping[Misplacement, int]
    left: int


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
PAGE = 1000
JOBS_S = 86400.0
"""A job that has ended is counted again for so long."""


@dataclass(slots=True)
class _Suspicion:
    """What looked wrong at the first look: a task as it stood, a hold, or the hint of a task that nobody knows."""

    kind: Misplacement
    task_id: str
    queue: str
    stand: Stand
    task: OpenTask | None = None
    hold: Hold | None = None

    @property
    def is_of_holds(self) -> bool:
        """Whether a live worker could write, or drop, a hold and end the suspicion."""
        is_held_twin = self.kind is Misplacement.TWIN and self.stand.place is not Place.BROKER
        return self.stand.is_unheld or self.hold is not None or is_held_twin

    @property
    def is_of_hints(self) -> bool:
        """Whether what is in the queue can end the suspicion."""
        return self.hold is None and self.kind in (Misplacement.LOST, Misplacement.GHOST, Misplacement.TWIN)


class Auditor:
    """One audit."""

    def __init__(self, stores: Stores, settings: Settings, queues: Queues, *, tell: Callable[[str], None]) -> None:
        self._stores = stores
        self._times = settings.times
        self._bounds = Bounds.of(settings.times)
        self._queues = queues
        self._tell = tell
        self._tasks = 0
        self._places: Counter[Place] = Counter()
        self._unproven: Counter[str] = Counter()
        self._findings: list[Finding] = []
        self._stale = 0
        self._renewals: Counter[str] = Counter()
        """How often the lease of each incarnation was renewed between the looks."""

    def steps(self) -> Generator[float, None, Audited]:
        """The whole audit."""
        queues = self._queues.choose_ways()
        lines = yield from self._queues.look()
        facts = self._facts(queues)
        suspicions = self._look(lines, facts)
        if suspicions:
            gap_s = self._gap_s(suspicions, facts)
            self._tell(f"suspicious: {counted(len(suspicions), 'thing')}; looking again in {gap_s:.0f} s")
            has_passed = yield from self._let_pass(gap_s)
            if has_passed:
                self._look_again(suspicions, lines, facts, queues)
            else:
                self._unproven.update(one.queue for one in suspicions)
        self._count_jobs()
        if self._queues.only is None or QUEUE in self._queues.only:
            self._findings += mismatches(self._stores)
        return Audited(
            tasks=self._tasks,
            places={place: self._places[place] for place in Place},
            findings=tuple(self._findings),
            unproven=dict(sorted(self._unproven.items())),
            stale=self._stale,
            foreign=self._queues.foreign,
            ways=self._queues.ways,
        )

    def _count_jobs(self) -> None:
        """Whether the counts of jobs are the sums of their subtasks; of those that are open, or have ended lately."""
        ledger = self._stores.ledger
        for job in ledger.part(JobLedger).questions.recent_jobs(within_s=JOBS_S, limit=PAGE):
            only = self._queues.only
            if only is not None and job.options.queue not in only:
                continue
            if found := ledger.part(JobLedger).care.miscounts(job.id):
                says = (f"{name} is {now}, and its subtasks have {right}" for name, (now, right) in found.items())
                proof = f"of job {job.name}: {', '.join(says)}"
                self._findings.append(
                    Finding(Misplacement.MISCOUNT, job.id, job.options.queue, proof, "count it again")
                )

    def _facts(self, queues: Sequence[str]) -> HolderFacts:
        """What workers hold. Asked after the broker: what was fetched meanwhile is held by then."""
        inflight, ledger = self._stores.inflight, self._stores.ledger
        epoch_age_s = inflight.epoch_age_s()
        leases = inflight.leases()
        found = [hold for queue in queues for hold in inflight.holds(queue)]
        found += [hold for worker in leases for hold in inflight.held_by(worker)]
        holds: dict[str, tuple[Hold, ...]] = {}
        for hold in {(one.task_id, one.queue, one.worker): one for one in found}.values():
            holds[hold.task_id] = (*holds.get(hold.task_id, ()), hold)
        rows = ledger.questions.workers()
        return HolderFacts(
            leases=leases,
            live={row.id for row in rows},
            beat_age_s={row.id: row.beat_age_s for row in rows},
            holds=holds,
            epoch_age_s=epoch_age_s,
            swept_for_s=ledger.questions.swept_for_s(),
        )

    # -- the first look

    def _look(self, lines: Mapping[str, QueueHints], facts: HolderFacts) -> list[_Suspicion]:
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
            while page := self._stores.ledger.audits.open_tasks(queue, is_running=is_running, after=after, limit=PAGE):
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
        while page := list(islice(task_ids, IDS_AT_ONCE)):
            known = self._looks(page)
            self._stale += sum(copies[one] for one, look in known.items() if look.state in SETTLED)
            for task_id in page:
                if task_id not in known:
                    proof = (
                        f"{copies[task_id]} of the hints in queue {queue} is of a task that the ledger does not know"
                    )
                    yield _Suspicion(Misplacement.GHOST, task_id, queue, Stand(None, Misplacement.GHOST, proof))

    def _ghost_holds(self, holds: Iterator[Hold]) -> Iterator[_Suspicion]:
        while page := list(islice(holds, IDS_AT_ONCE)):
            known = self._looks([hold.task_id for hold in page])
            for hold in page:
                look = known.get(hold.task_id)
                is_meant = self._queues.only is None or hold.queue in self._queues.only
                if not is_meant or (look is not None and look.state not in SETTLED):
                    continue
                what = "a task that the ledger does not know" if look is None else f"a task that is {look.state}"
                proof = f"{hold.worker} holds {what}, in queue {hold.queue}, for {hold.since_s:.0f} s"
                stand = Stand(None, Misplacement.GHOST, proof, hold.worker)
                yield _Suspicion(Misplacement.GHOST, hold.task_id, hold.queue, stand, hold=hold)

    def _looks(self, task_ids: Sequence[str]) -> dict[str, Look]:
        """Where tasks stand; what is not even an id is unknown too."""
        ids = [one for one in task_ids if is_task_id(one)]
        known: dict[str, Look] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            known |= self._stores.ledger.claims.look(ids[start : start + IDS_AT_ONCE])
        return known

    # -- the second look

    def _gap_s(self, suspicions: Sequence[_Suspicion], facts: HolderFacts) -> float:
        """How long what is suspicious is left alone before it is looked at again."""
        times = self._times
        gap_s = APART * times.beat_s
        of_holds = any(one.is_of_holds for one in suspicions)
        lost = [one for one in suspicions if one.kind is Misplacement.LOST]
        if of_holds:
            gap_s = max(gap_s, APART_OF_HOLDS * times.beat_s)
        if of_holds or any(self._queues.may_be_in_hand(one.queue) for one in lost):
            gap_s = max(gap_s, times.marker_grace_s)
        if of_holds or lost:  # until live workers have written what a wipe took
            gap_s = max(gap_s, (QUIET + APART - 1.0) * times.beat_s - facts.epoch_age_s)
        if any(one.kind is Misplacement.OVERDUE for one in suspicions):
            gap_s = max(gap_s, 2 * times.sweep_s + times.beat_s)
        return gap_s

    def _let_pass(self, gap_s: float) -> Generator[float, None, bool]:
        """Wait until so much time has passed on the ledger's clock; False when it does not pass there.

        Meanwhile renewals are counted.
        """
        ledger, slice_s = self._stores.ledger, self._times.beat_s / SLICES
        latest = {worker: at_most_s for worker, (_, at_most_s) in self._ends().items()}
        until = ledger.questions.clock() + timedelta(seconds=gap_s)
        for _ in range(100 + 10 * math.ceil(gap_s / slice_s)):
            left_s = (until - ledger.questions.clock()).total_seconds()
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
        self,
        suspicions: Sequence[_Suspicion],
        lines: Mapping[str, QueueHints],
        before: HolderFacts,
        queues: Sequence[str],
    ) -> None:
        ledger = self._stores.ledger
        again = dict(lines)
        for queue in sorted({one.queue for one in suspicions if one.is_of_hints}):
            wanted = {one.task_id for one in suspicions if one.queue == queue}
            again[queue] = self._queues.look_again(queue, lines[queue], only=wanted)
        facts = self._facts(queues)
        rows = ledger.audits.open_among([one.task_id for one in suspicions if one.task is not None])
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
        self, one: _Suspicion, then: OpenTask, now: OpenTask, line: QueueHints, facts: HolderFacts, before: HolderFacts
    ) -> bool:
        """Whether a task stands as it stood; if not, it is counted where it is now."""
        stand = stand_of(now, line, facts, self._times, self._bounds)
        is_quiet = facts.epoch_age_s >= QUIET * self._times.beat_s
        if stand.kind is Misplacement.LOST and not is_quiet:
            stand = Stand(None)
        elif stand.is_unheld and not (is_quiet and self._has_beaten(now.worker or "", facts)):
            stand = Stand(Place.RUNNING)
        elif stand.kind is Misplacement.TWIN and not all(
            self._is_kept(hold, facts) for hold in before.holds.get(now.task_id, ())
        ):
            stand = Stand(stand.place)
        if stand.kind is one.kind and stand.is_unheld is one.stand.is_unheld and not _has_moved(then, now):
            one.stand, one.task = stand, now
            return True
        self._put(now, stand if stand.kind is None else _presumed(now, stand))
        return False

    def _is_kept(self, hold: Hold, facts: HolderFacts) -> bool:
        """Whether it is the same hold, and of somebody who would have dropped it by now, or of nobody."""
        is_same = any(
            (one.worker, one.queue) == (hold.worker, hold.queue) and one.since_s >= hold.since_s
            for one in facts.holds.get(hold.task_id, ())
        )
        if not is_same or facts.is_to_be_reaped(hold.worker):
            return False
        return not facts.has_lease(hold.worker) or self._has_beaten(hold.worker, facts)

    def _has_beaten(self, worker: str, facts: HolderFacts) -> bool:
        """Whether it lives, and has written all that it holds several times since the first look."""
        return facts.has_lease(worker) and self._renewals[worker] >= RENEWALS

    def _find(self, confirmed: Sequence[_Suspicion]) -> None:
        """What was confirmed becomes findings, each with the fence of its task."""
        fences = self._stores.ledger.plans.fences([one.task_id for one in confirmed if one.task is not None])
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
                    is_expired=one.stand.place is Place.EXPIRED,
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
        case Misplacement.LOST:
            return "publish its hint again"
        case Misplacement.GHOST:
            return "drop the hint" if one.hold is None else "drop the hold"
        case Misplacement.MISCOUNT:
            return "count it again"
        case Misplacement.MISMATCH:
            return "none"
        case Misplacement.TWIN:
            return "none: the claim decides"
        case Misplacement.ORPHAN:
            return "return it, at no charge" if one.stand.is_unheld else "return it"
        case Misplacement.OVERDUE if one.stand.place is Place.EXPIRED:
            return "cancel it: it has expired"
        case Misplacement.OVERDUE:
            return "publish its hint" if one.stand.worker is None else "reap its worker"
        case _:
            assert_never(one.kind)
