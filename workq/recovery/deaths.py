"""Deaths: which workers look dead, for how long they have done so, and what is known of a death.

A lease that has ended or is missing is only a suspicion: it is noted in the worker's row, and acted on by a later pass,
at least about a beat afterwards, if neither the lease nor the worker's own heartbeat in the ledger came back. A young
in-flight store (it was wiped) is given three beats to fill again. When more than half of the fleet, and more than one,
looks dead at once, it is more likely that the sweep sees badly: that is an alarm, and a third look a beat later
decides. Only what this machine's kernel says is no suspicion: a process of this machine that is gone, with its
supervisor gone too, is dead at once.

A worker of this machine that cannot act any more (its process is gone, or it is stopped) has left a board. A sweep of
the same machine settles what had ended there before the claims end, and so no more runs again than what the threads
were running. A stopped process that wakes settles the same under the same fence, which changes nothing. Only of a
process that is gone it is evidence which attempts had started: one that wakes goes on. On another machine nobody can
read the board: there, also what had ended and was not settled runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psutil
from msgspec.structs import replace

from workq.config import Settings
from workq.inflight import Lease
from workq.ledger import Evidence, WorkerRow
from workq.stores import Stores
from workq.values.certificate import ProofOfEnd
from workq.values.incarnation import is_gone, this_machine
from workq.values.task import Settlement
from workq.worker.crash_board import CrashBoard

log = logging.getLogger("workq.sweep")

TWO_LOOKS: Final = 0.8
"""The second look comes this many beats after the first at the earliest, so that the next pass is the one."""
BRAKE: Final = 1.0
"""When more than half of the fleet looks dead at once, so many beats more."""


@dataclass(frozen=True, slots=True)
class Suspicions:
    """Who looks dead, and who has done so for long enough."""

    live: Mapping[str, WorkerRow]
    leases: Mapping[str, Lease]
    missing: Sequence[str] = ()
    """Live by the ledger, without a live lease."""
    confirmed: Sequence[str] = ()
    """Suspected for at least `suspected_for_s`: they may be reaped, if nothing moves in that moment."""
    suspected_for_s: float = 0.0
    is_quiet: bool = False
    is_braked: bool = False
    lease_max_s: float = float("inf")

    @property
    def half_reaped(self) -> list[str]:
        """Not live by the ledger, but their entries remain: whoever reaped them stopped half-way."""
        if self.is_quiet:
            return []
        return [
            worker
            for worker, lease in self.leases.items()
            if worker not in self.live and not 0 < lease.left_s <= self.lease_max_s
        ]


def is_most(dead: int, *, fleet: int) -> bool:
    """Whether so many dead of a fleet are more than half of it, and more than one: then the looker may see badly."""
    return dead > max(1, fleet / 2)


def look_for_the_dead(stores: Stores, settings: Settings, *, dry_run: bool = False) -> Suspicions:
    """Note who has no live lease, unless it is a dry run, and answer who has had none for long enough."""
    times = settings.times
    leases = stores.inflight.leases()
    if stores.inflight.epoch_age_s() < times.fills_s:  # asked second: a wipe between the two is seen as young
        return Suspicions({}, leases, is_quiet=True)
    # longer than any lease is granted: the store's clock was set back, and only the heartbeat in the ledger can tell
    lease_max_s = 2 * times.lease_s
    holding = {worker for worker, lease in leases.items() if 0 < lease.left_s <= lease_max_s}
    live = {row.id: row for row in stores.ledger.questions.workers()}
    missing = [worker for worker in live if worker not in holding]
    looked_for_s = times.beat_s * TWO_LOOKS
    confirmed = stores.ledger.workers.suspect(missing, beat_s=looked_for_s, lease_s=times.lease_s, dry_run=dry_run)
    is_braked = is_most(len(confirmed), fleet=len(live))
    if is_braked:
        looked_for_s += times.beat_s * BRAKE
        log.error("sweep.brake", extra={"dead": len(confirmed), "fleet": len(live)})
        confirmed = stores.ledger.workers.suspect(missing, beat_s=looked_for_s, lease_s=times.lease_s, dry_run=dry_run)
    return Suspicions(live, leases, missing, confirmed, looked_for_s, is_braked=is_braked, lease_max_s=lease_max_s)


def of_silence(row: WorkerRow, *, has_lease: bool = True) -> Evidence:
    """All that is known of a worker whose lease has ended. One that is not even there any more, the store has lost."""
    if not has_lease:
        text = "the in-flight store has lost its lease, it has not asserted it again,"
        return Evidence(f"{text} and it has not beaten for {row.beat_age_s:.0f} s", kind=ProofOfEnd.REDIS_LOSS)
    return Evidence(f"its lease ended and it has not beaten for {row.beat_age_s:.0f} s")


def of_absence(row: WorkerRow) -> Evidence:
    """What the kernel says of a worker of this machine."""
    return Evidence(f"process {row.pid} and its supervisor {row.parent} are gone from {row.host}", kind=ProofOfEnd.GONE)


def gone_from_here(stores: Stores) -> list[WorkerRow]:
    """The workers of this machine, live by the ledger, whose process and whose supervisor's process are gone."""
    machine = this_machine()
    if machine is None:
        return []
    here = [row for row in stores.ledger.questions.workers() if row.machine == machine and row.parent is not None]
    return [row for row in here if is_gone(row.pid) and is_gone(row.parent or 0)]


@dataclass(frozen=True, slots=True)
class Remains:
    """The evidence of a worker's end with what its board says, and what is to be settled in its place.

    `board` None: there is none here, or its process lives.
    """

    evidence: Evidence
    outcomes: Sequence[Settlement] = ()
    board: CrashBoard | None = None


def remains_of(row: WorkerRow, evidence: Evidence) -> Remains:
    """What is left of a worker, beside what is known already. Reads only."""
    if row.machine is None or row.machine != this_machine() or not _cannot_act(row.pid):
        return Remains(evidence)
    board = CrashBoard.of(row.id)
    if board is None:
        return Remains(evidence)
    started, outcomes = board.started(), board.outcomes()
    if not _cannot_act(row.pid):  # it woke while we read
        return Remains(evidence)
    if is_gone(row.pid):
        attempts = {one.task_id: one.attempt for one in started}
        ended = frozenset(one.task_id for one in started if one.is_ended)
        evidence = replace(evidence, started=attempts, ended=ended, is_seen=False)
    return Remains(evidence, outcomes, board)


def _cannot_act(pid: int) -> bool:
    try:
        return is_gone(pid) or psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:  # not there by now, or hidden: another look tells
        return False
