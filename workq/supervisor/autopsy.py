"""Autopsy: how a child ended, what it leaves, and who pays: the evidence that the ledger gets.

A child that was told to end charges nobody. Of any other, the evidence names the attempts that had started by its crash
board, and those for which its supervisor killed it (a hard limit, a cancel by force). Which of them are charged, the
ledger decides (`ledger/charge.py`). Of processes that died for want of memory at once, one that had used less than
another is a bystander, and pays for nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from workq.ledger import Evidence
from workq.supervisor.child import Child
from workq.supervisor.oom import Kills
from workq.values.certificate import (
    EXIT_GRACE_EXCEEDED,
    EXIT_LEASE_LOST,
    DeathFacts,
    OutOfMemory,
    ProofOfEnd,
    how_it_ended,
    signal_of,
)
from workq.values.jitter import jitter
from workq.worker.crash_board import CrashBoard, Started
from workq.worker.stacks import DumpedStacks

TOGETHER_S: Final = 0.5
"""Who dies for want of memory within this time of each other dies of one and the same want."""
FORGOTTEN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DeathCause:
    """How a child ended, in one sentence; `is_ours`: because it was told to, and nothing is charged."""

    kind: ProofOfEnd
    text: str
    unknown: tuple[str, ...] = ()
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class ChildRemains:
    """What a dead child has left: its exit status as `subprocess` has it, its board, its stacks."""

    status: int
    incarnation: str | None
    started: Sequence[Started]
    found: DumpedStacks
    has_left: bool
    oom: OutOfMemory


@dataclass(slots=True)
class OpenDeath:
    """A dead incarnation whose claims are still to be ended (the ledger was away)."""

    incarnation: str
    evidence: Evidence
    board: CrashBoard
    """With what it had done and not settled."""
    died_at: float
    peak_bytes: int | None
    is_out_of_memory: bool = False


def collect(child: Child, kills: Kills) -> ChildRemains:
    """Wait for the end of a child, and take what it left."""
    status = child.status(options=0)
    if status is None:  # somebody else waits for it too
        status = child.process.wait()
    if child.process.stdin is not None:
        child.process.stdin.close()
    incarnation = child.board.incarnation()
    left = ChildRemains(
        status,
        incarnation,
        child.board.started(),
        child.stacks.read(),
        child.board.has_left() or incarnation is None,
        kills.blame() if status == -signal.SIGKILL else OutOfMemory(),
    )
    child.stacks.remove()
    return left


def ending_of(child: Child, left: ChildRemains, *, signals: int) -> DeathCause:
    """Why a child ended that nobody has just buried on purpose. `signals`: how many its supervisor has got."""
    status = left.status
    if child.overdue:
        tasks = ", ".join(f"task {one.task_id} (attempt {one.attempt})" for one in child.overdue)
        return DeathCause(ProofOfEnd.HARD_LIMIT, f"killed by its supervisor: {tasks} exceeded its hard limit")
    if child.condemned:
        tasks = ", ".join(f"task {one.task_id} (attempt {one.attempt})" for one in child.condemned)
        return DeathCause(ProofOfEnd.CANCEL, f"killed by its supervisor: a person cancelled {tasks} by force")
    if child.cut_off_s is not None:
        return DeathCause(
            ProofOfEnd.KILLED,
            f"killed by its supervisor: for {child.cut_off_s:.0f} s it had reached no store that its supervisor "
            "did reach; a handler may have closed its descriptors, or set a limit for its process (setrlimit)",
        )
    if signals > 1:
        how = signal_of(status) or f"exit status {status}"
        return DeathCause(ProofOfEnd.SHUTDOWN, f"ended at once by the second signal ({how})", is_ours=True)
    if signals and status == EXIT_GRACE_EXCEEDED:
        text = f"exit status {status}: what it ran did not end within the grace at shutdown"
        return DeathCause(ProofOfEnd.SHUTDOWN, text, is_ours=True)
    if signals and status == -signal.SIGTERM:
        return DeathCause(ProofOfEnd.SHUTDOWN, "ended by SIGTERM before it was ready to drain", is_ours=True)
    if status == EXIT_LEASE_LOST:
        return DeathCause(ProofOfEnd.LEASE, f"exit status {status}: it had lost its lease", is_ours=True)
    if left.has_left and status > 0:
        return DeathCause(ProofOfEnd.KILLED, f"exit status {status}: it could not start or serve; its log says why")
    text, unknown = how_it_ended(status, left.oom, started=sum(not one.is_ended for one in left.started))
    culprits = [one.task_id for one in left.started if one.thread == left.found.fault and not one.is_ended]
    if culprits:
        return DeathCause(ProofOfEnd.KILLED, f"{text}, in the thread that ran {' and '.join(culprits[:3])}")
    return DeathCause(ProofOfEnd.KILLED, text, unknown)


def evidence_of(child: Child, left: ChildRemains, ending: DeathCause, now: float) -> Evidence:
    """What is told to the ledger: who had started, who exceeded its limit, and the facts."""
    is_killed = ending.kind is ProofOfEnd.KILLED
    facts = DeathFacts(
        exit_status=left.status if left.status >= 0 else None,
        signal=signal_of(left.status),
        oom=left.oom if is_killed and left.status == -signal.SIGKILL else None,
        memory_bytes=child.memory_bytes,
        memory_age_s=None if child.memory_bytes is None else round(now - child.memory_at, 3),
        peak_bytes=child.peak_bytes,
        ran_s={one.task_id: round(now - one.started_at, 3) for one in left.started},
        stacks={
            one.task_id: left.found.threads[one.thread]
            for one in child.overdue or [one for one in left.started if not one.is_ended]
            if one.thread in left.found.threads and (not is_killed or one.thread == left.found.fault)
        },
        stack_note=child.stack_note,
        unknown=ending.unknown,
    )
    failed = {one.task_id: (_limit_text(one), jitter.uniform(1.0, 4.0)) for one in child.overdue} | {
        one.task_id: ("cancelled by force", 0.0) for one in child.condemned
    }
    started = {} if ending.is_ours else {one.task_id: one.attempt for one in left.started}
    text = f"process {child.process.pid}: {ending.text}"
    ended = frozenset(one.task_id for one in left.started if one.is_ended)
    return Evidence(text, started, failed or None, ending.kind, facts, ended)


def _limit_text(one: Started) -> str:
    return f"TimeLimit: attempt {one.attempt} exceeded its hard limit after {one.hard_at - one.started_at:.1f} s"


class Victims:
    """Who died lately for want of memory. The kernel may choose a second one before the memory of the first is free."""

    def __init__(self) -> None:
        self._deaths: list[OpenDeath] = []

    def are_awaited(self, death: OpenDeath) -> bool:
        """Whether others may still die of what it died of: those that had used less are bystanders."""
        now = time.monotonic()
        self._deaths = [one for one in self._deaths if now - one.died_at < FORGOTTEN_S]
        if not death.is_out_of_memory:
            return False
        if death not in self._deaths:
            self._deaths.append(death)
        return now - death.died_at < TOGETHER_S

    def judge(self, death: OpenDeath) -> Evidence:
        """The evidence of a death, once it is known who else died of the same want of memory."""
        return judged(death, self._deaths)


def judged(death: OpenDeath, victims: Sequence[OpenDeath]) -> Evidence:
    """The evidence of a death, once it is known who else died of the same want of memory."""
    peak = death.peak_bytes
    if not death.is_out_of_memory or peak is None:
        return death.evidence
    larger = [
        one.peak_bytes
        for one in victims
        if abs(one.died_at - death.died_at) < TOGETHER_S and one.peak_bytes is not None and one.peak_bytes > peak
    ]
    if not larger:
        return death.evidence
    cause = f"{death.evidence.cause}; another process had used {max(larger) >> 20} MiB, this one {peak >> 20} MiB"
    return replace(death.evidence, cause=cause, is_bystander=True)
