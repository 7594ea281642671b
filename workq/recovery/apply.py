"""Apply: the decisions of a plan (plan.py) that still hold, and no others.

The same conditional statements as a sweep's, for the planned rows alone; each row whose fence has moved is refused with
the reason. So a plan can only narrow a sweep: who lives again is not reaped, whatever the plan says, and a second
application, or ten at once, change nothing more than one does.

Who decides: the ledger. Each change is written together with an event `manual` that says who asked for it, and in
which plan. What a crash leaves half-done, the same plan finishes, or the next sweep: claims end first, then what was
held is unpublished, then the entries are dropped, then the hints follow. A hint that the broker does not confirm is
left to the sweep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

from msgspec.structs import replace

from workq.config import Settings
from workq.enqueue.relay import publish
from workq.errors import Refused
from workq.ledger import Applied, Evidence, Fence, Prunable, Unpublished
from workq.recovery.deaths import Suspicions, gone_from_here, look_for_the_dead, of_absence, of_silence, remains_of
from workq.recovery.lost_hints import markers_by_queue, proofs
from workq.recovery.plan import Expire, Lost, Orphan, Plan, Promote, Prune, Reap, Rehint, RelayHint, name_of
from workq.recovery.reap import settle_in_its_place
from workq.stores import Stores
from workq.values.failpoints import reach
from workq.values.incarnation import this_person
from workq.values.task import State


@dataclass(slots=True)
class AppliedPlan:
    """What came of a plan: changes of each kind, and what was refused."""

    applied: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    """(kind, id, why)"""
    unconfirmed: int = 0
    """Tasks whose hint the broker did not confirm; the sweep sends it."""


def check(plan: Plan, stores: Stores, settings: Settings) -> None:
    """Whether a plan is about this very ledger and namespace.

    Raises:
        Refused: it is not; nothing may be applied.
    """
    here = name_of(settings.ledger)
    if plan.namespace != settings.namespace:
        raise Refused(f"this plan is for namespace {plan.namespace!r}, and this is {settings.namespace!r}")
    if plan.ledger != here:
        raise Refused(f"this plan is for the ledger {plan.ledger}, and this is {here}")
    began_at = stores.ledger.plans.began_at()
    if plan.ledger_began_at != began_at:
        raise Refused(
            f"this plan is for a ledger that was made at {plan.ledger_began_at:%Y-%m-%d %H:%M:%S}Z; the one at {here} "
            f"was made at {began_at:%Y-%m-%d %H:%M:%S}Z"
        )


def apply(
    stores: Stores,
    settings: Settings,
    plan: Plan,
    *,
    plan_digest: str,
    who: str | None = None,
    done: AppliedPlan | None = None,
) -> AppliedPlan:
    """Make the decisions of a plan that still hold. `done` is filled on the way, for whoever needs it after an error.

    Raises:
        Refused: the plan is for another ledger.
        Unavailable: a store is away; what was done stands, with its events, and the plan may be applied again.
    """
    check(plan, stores, settings)
    by = {"who": this_person() if who is None else who, "what": "sweep --apply", "plan": plan_digest}
    work = _Work(stores, settings, by, AppliedPlan() if done is None else done)
    work.run(plan)
    return work.done


class Write(Protocol):
    """One of the ledger's planned writes."""

    def __call__(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """See `Plans.relay_planned`."""
        ...


class _Work:
    """One application of a plan."""

    def __init__(self, stores: Stores, settings: Settings, by: Mapping[str, Any], done: AppliedPlan) -> None:
        self.stores, self.settings, self.done = stores, settings, done
        self._by = by
        self._relayed: frozenset[str] = frozenset()
        """Tasks that got a hint already, whoever held them."""

    def run(self, plan: Plan) -> None:
        """In the order of a sweep."""
        expired: list[Fence] = []
        relayed: list[Fence] = []
        reaps: list[Reap] = []
        rehints: list[Rehint] = []
        orphans: list[Fence] = []
        promoted: list[Fence] = []
        lost: list[Lost] = []
        pruned: list[Prunable] = []
        for row in plan.rows:
            match row:
                case Expire():
                    expired.append(row.fence)
                case RelayHint():
                    relayed.append(row.fence)
                case Reap():
                    reaps.append(row)
                case Rehint():
                    rehints.append(row)
                case Orphan():
                    orphans.append(row.foreseen.fence)
                case Promote():
                    promoted.append(row.fence)
                case Lost():
                    lost.append(row)
                case Prune():
                    pruned.append(row.rows)
                case _:
                    assert_never(row)
        ledger = self.stores.ledger
        self._decide("expire", expired, ledger.plans.expire_planned)
        self._relay(relayed)
        if reaps or rehints:
            self._end_workers(reaps, rehints)
        self._orphans(orphans)
        reach("sweep.before_promote")
        self._decide("promote", promoted, ledger.plans.promote_planned)
        self._lost(lost)
        for rows in pruned:
            self._prune(rows)
        if self.done.applied.total():
            counted = {"applied": dict(+self.done.applied), "refused": len(self.done.refused)}
            ledger.history.note("manual", detail={**self._by, **counted})

    # -- steps

    def _relay(self, fences: Sequence[Fence]) -> None:
        applied = self._change("relay", fences, self.stores.ledger.plans.relay_planned, point="sweep.before_relay")
        self._relayed = frozenset(applied.changed)
        self._publish(applied.hints)

    def _end_workers(self, reaps: Sequence[Reap], rehints: Sequence[Rehint]) -> None:
        """Reap, then send again what the dead held and had not claimed; one incarnation after the other."""
        held: dict[str, list[Fence]] = {one.worker: [] for one in rehints}
        for one in rehints:
            held[one.worker].append(one.fence)
        look = look_for_the_dead(self.stores, self.settings, dry_run=True)
        gone = {row.id for row in gone_from_here(self.stores)}
        for row in reaps:
            reach("sweep.before_reap")
            hints = self._reap(row, look, gone)
            self._free(row.foresight.worker, held.pop(row.foresight.worker, []), hints)
        for worker, fences in held.items():
            self._free(worker, fences, [])

    def _reap(self, row: Reap, look: Suspicions, gone: set[str]) -> Sequence[Unpublished]:
        """End one incarnation, or say why not; answers the hints that are to follow."""
        worker = row.foresight.worker
        why = self._why_not_reaped(row, look, gone)
        if why is None:
            known = {one.id: one for one in self.stores.ledger.questions.workers()}
            by = {**self._by, "row": "reap"}
            if (facts := known.get(worker)) is not None:
                is_gone = row.how == "gone"
                absence = of_absence(facts) if is_gone else of_silence(facts, has_lease=worker in look.leases)
                left = remains_of(facts, absence)
                retries = settle_in_its_place(self.stores, left.outcomes)
                settled = {one.claim.task_id for one in left.outcomes}
                claims = tuple(one for one in row.foresight.claims if one.fence.task_id not in settled)
                reaped = self.stores.ledger.workers.reap(
                    worker,
                    left.evidence,
                    suspected_for_s=None if is_gone else look.suspected_for_s,
                    lease_s=0.0 if is_gone else self.settings.times.lease_s,
                    planned=replace(row.foresight, claims=claims),
                    by=by,
                )
                if reaped is not None:
                    self.done.applied["reap"] += 1
                    return [*reaped.hints, *retries]
            why = self._why_moved(row) or "somebody was faster, or it beat in this very moment"
        self.done.refused.append(("reap", worker, why))
        return ()

    def _why_not_reaped(self, row: Reap, look: Suspicions, gone: set[str]) -> str | None:
        """What a sweep looks at before it reaps."""
        worker = row.foresight.worker
        if (why := self._why_moved(row)) is not None:
            return why
        if row.how == "gone":
            return None if worker in gone else "this machine does not see that it is gone"
        if look.is_quiet:
            return "the in-flight store is young: nobody is reaped for three beats"
        if worker not in look.missing:
            return "it has a lease again"
        if worker not in look.confirmed:
            braked = ": more than half of the fleet looks dead at once" if look.is_braked else ""
            return f"it is not suspected for long enough{braked}"
        return None

    def _why_moved(self, row: Reap) -> str | None:
        """How an incarnation has moved since the plan."""
        planned = row.foresight
        now = self.stores.ledger.plans.foresee(planned.worker, Evidence("planned"))
        if now is None:
            return "it has ended already, or left"
        if now.beat_at != planned.beat_at:
            return "it has beaten since: it lives"
        if planned.suspected_at is not None and now.suspected_at != planned.suspected_at:
            return "it was seen with a lease since"
        then = {(one.fence.task_id, one.fence.attempt, one.fence.seal) for one in planned.claims}
        if then != {(one.fence.task_id, one.fence.attempt, one.fence.seal) for one in now.claims}:
            return "its claims have changed since: it lives, or somebody is at work on them"
        return None

    def _free(self, worker: str, planned: Sequence[Fence], hints: Sequence[Unpublished]) -> None:
        """What an ended incarnation held and had not claimed is sent again; then its entries are dropped."""
        if any(row.id == worker for row in self.stores.ledger.questions.workers()):
            self.done.refused.extend(("rehint", fence.task_id, f"{worker} lives") for fence in planned)
            return
        inflight, ledger = self.stores.inflight, self.stores.ledger
        holds = {hold.task_id: hold.queue for hold in inflight.held_by(worker)}
        held = [fence for fence in planned if fence.task_id in holds]
        why = f"{worker} does not hold it any more"
        self.done.refused.extend(("rehint", one.task_id, why) for one in planned if one.task_id not in holds)
        applied = self._change("rehint", held, ledger.plans.relay_planned, point="sweep.before_unhint")
        # what it held beyond the plan (a plan that was cut, or another sweep at work) is left to the next sweep
        sent = self._relayed.union((one.task_id for one in planned), (row.task_id for row in hints))
        others = ledger.plans.fences(holds.keys() - sent)
        left = {task_id for task_id, fence in others.items() if fence.state in (State.READY, State.WAITING)}
        reach("sweep.before_forget")
        if left:
            inflight.release([(one, queue) for one, queue in holds.items() if one not in left], by=worker)
        else:
            inflight.forget(worker)
            self.stores.broker.forget_consumer(worker)
        self._publish([*hints, *applied.hints])

    def _orphans(self, fences: Sequence[Fence]) -> None:
        """Return them, and drop the entries of whoever ran them: a hint would be worth nothing before."""
        applied = self._change("orphan", fences, self.stores.ledger.plans.return_planned)
        changed = set(applied.changed)
        for worker in sorted(
            {fence.worker for fence in fences if fence.task_id in changed and fence.worker is not None}
        ):
            its_own = {fence.task_id for fence in fences if fence.worker == worker}
            self._free(worker, [], [row for row in applied.hints if row.task_id in its_own])

    def _lost(self, rows: Sequence[Lost]) -> None:
        """Hints that a marker proves lost: the proof must still be open, and nobody may hold the task."""
        if not rows:
            return
        times, ledger = self.settings.times, self.stores.ledger
        proven = {marker.id for marker in proofs(markers_by_queue(self.stores).values(), times)}
        is_young = self.stores.inflight.epoch_age_s() < times.fills_s
        held = {
            hold.task_id for queue in {row.fence.queue for row in rows} for hold in self.stores.inflight.holds(queue)
        }
        sound: list[Fence] = []
        for row in rows:
            if row.marker not in proven:
                why = "its marker proves nothing any more: its losses were repaired, or a newer one speaks"
            elif is_young:
                why = "the in-flight store is young: nothing is proved for three beats"
            elif row.fence.task_id in held:
                why = "a worker holds it"
            else:
                sound.append(row.fence)
                continue
            self.done.refused.append(("lost", row.fence.task_id, why))
        self._decide("lost", sound, ledger.plans.relay_planned, point="sweep.before_repair")

    def _prune(self, rows: Prunable) -> None:
        settings = self.settings
        applied = self.stores.ledger.plans.prune_planned(
            rows,
            retention_s=settings.retention_s,
            dead_retention_s=settings.dead_retention_s,
            by={**self._by, "row": "prune"},
        )
        self._count("prune", applied)

    # -- parts

    def _decide(self, kind: str, fences: Sequence[Fence], write: Write, *, point: str | None = None) -> None:
        """Change what stands where it stood, and send the hints that follow."""
        self._publish(self._change(kind, fences, write, point=point).hints)

    def _change(self, kind: str, fences: Sequence[Fence], write: Write, *, point: str | None = None) -> Applied:
        if not fences:
            return Applied()
        applied = write(fences, by={**self._by, "row": kind})
        self._count(kind, applied)
        if point is not None:
            reach(point)
        return applied

    def _count(self, kind: str, applied: Applied) -> None:
        self.done.applied[kind] += len(applied.changed)
        self.done.refused.extend((kind, one, why) for one, why in applied.refused.items())

    def _publish(self, rows: Sequence[Unpublished]) -> None:
        if rows:
            reach("sweep.before_hints")
            sent = publish(self.stores, rows, deadline_s=self.settings.times.confirm_s)
            self.done.unconfirmed += len(rows) - sent
