"""The supervisor: N consumer processes, their deaths, and the stand-by sweep.

Processes are started afresh, never forked with threads. A dead child is proof, not suspicion: its claims end at
once, without waiting for a lease, and its board tells which attempts had started; only those are charged. The
supervisor never runs user code, so it can keep the lease of a child whose handler holds the interpreter lock, as
long as the operating system says that the child is not stopped; and it kills the child whose attempt exceeds its
hard limit.

Signals: the first SIGTERM or SIGINT lets the children drain within the grace; what is left then is killed and
handed back at no cost. The second one kills at once. The supervisor itself dying is no loss: the children see their
standard input end and drain; if they died too, any other sweep reaps them when their leases have ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
import psutil

from workq.board import Board, Started
from workq.errors import Unavailable
from workq.failpoints import reach
from workq.ledger import Evidence, Reaped
from workq.schedule import Ticker
from workq.sweep import Swept, finish_reaping, sweep
from workq.worker import EXIT_BROKEN, EXIT_LEASE_LOST, WorkerSpec

if TYPE_CHECKING:
    from workq.app import WorkQueue

log = logging.getLogger("workq.supervisor")

LOOK_EVERY_S = 0.1
SPARE_LINES = 512
"""Lines of a board beyond the threads: attempts that ended and wait to be settled."""
CALM_AFTER_S = 10.0
_GAVE_UP = (1, 2, EXIT_BROKEN)
RESTART_MAX_S = 30.0


@dataclass(slots=True)
class _Child:
    """One consumer process and what is known of it."""

    process: subprocess.Popen[bytes]
    board: Board
    started_at: float
    extended_at: float
    overdue: list[Started] = field(default_factory=list)
    is_told: bool = False
    """It was told to drain."""
    rss: int = 0


@dataclass(slots=True)
class _Slot:
    """A place for a child: when it may start again, and how often it died young."""

    child: _Child | None = None
    next_at: float = 0.0
    young_deaths: int = 0


@dataclass(slots=True)
class _Death:
    """A dead incarnation whose claims are still to be ended (the ledger was away)."""

    incarnation: str
    evidence: Evidence


class Supervisor:
    """Runs consumer processes until told to stop."""

    def __init__(
        self,
        app: WorkQueue,
        *,
        app_path: str,
        queues: Sequence[str],
        processes: int,
        threads: int,
        is_drain: bool = False,
        log_level: int = logging.INFO,
    ) -> None:
        self.app = app
        self.spec = WorkerSpec(app_path, list(queues), threads, is_drain, "", log_level)
        self.times = app.settings.times
        self._slots = [_Slot() for _ in range(processes)]
        self._deaths: list[_Death] = []
        self._signals = 0
        self._signal = signal.SIGTERM
        self._kill_at: float | None = None
        self._is_draining = False
        self._is_failed = False
        self._rng = random.Random()

    def run(self) -> int:
        """Answers the exit status: 0 when everyone left in order, 1 when not, 128 + signal after a second signal."""
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, self._signalled)
        ticker = Ticker(self._sweep, every_s=self.times.sweep_s)
        ticker.start()
        try:
            while True:
                self._look()
                if self._is_over():
                    break
                time.sleep(LOOK_EVERY_S)
        finally:
            for slot in self._slots:
                if slot.child is not None:
                    self._kill(slot.child)
                    self._bury(slot, "the supervisor ended", deliberate=True)
            ticker.close()
            self._end_claims()
        if self._signals > 1:
            return 128 + self._signal
        return 1 if self._is_failed else 0

    # -- one round

    def _look(self) -> None:
        now = time.monotonic()
        if self._signals and not self._is_draining:
            self._is_draining = True
            log.info("supervisor.draining", extra={"signal": self._signal.name, "grace_s": self.times.grace_s})
        for slot in self._slots:
            child = slot.child
            if child is None:
                if not self._signals and now >= slot.next_at and not self._is_drained(slot):
                    slot.child = self._spawn()
                continue
            status = child.process.poll()
            if status is not None:
                self._bury(slot, None, deliberate=self._is_deliberate(status))
                continue
            if self._signals:
                self._tell(child)
            self._watch(child, now)
        if self._signals and self._kill_at is not None and now >= self._kill_at:
            for slot in self._slots:
                if slot.child is not None:
                    log.warning("supervisor.grace_exceeded", extra={"pid": slot.child.process.pid})
                    self._kill(slot.child)
                    self._bury(slot, "it did not end within the grace at shutdown", deliberate=True)
            self._is_failed = True
        self._end_claims()

    def _is_deliberate(self, status: int) -> bool:
        """Whether a child ended so because it was told to: killed by us, not ready in time, or not even started."""
        return self._signals > 1 or (self._signals == 1 and status in (1, -signal.SIGTERM))

    def _is_over(self) -> bool:
        if any(slot.child is not None for slot in self._slots):
            return False
        return bool(self._signals) or (self.spec.is_drain and all(self._is_drained(slot) for slot in self._slots))

    def _is_drained(self, slot: _Slot) -> bool:
        return self.spec.is_drain and slot.next_at == float("inf")

    def _spawn(self) -> _Child:
        board = Board.create(lines=self.spec.threads + SPARE_LINES)
        # a terminal's Ctrl-C reaches the child too: it comes to rest there until the child has said that it ignores it
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process = subprocess.Popen([sys.executable, "-m", "workq.worker"], stdin=subprocess.PIPE, bufsize=0)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        spec = msgspec.structs.replace(self.spec, board=str(board.path))
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it died already: poll() will say how
                process.stdin.write(msgspec.json.encode(spec) + b"\n")
        log.info("supervisor.started", extra={"pid": process.pid})
        now = time.monotonic()
        return _Child(process, board, started_at=now, extended_at=float("-inf"))

    def _watch(self, child: _Child, now: float) -> None:
        """Keep the lease of a child that cannot beat by itself, and end one whose attempt exceeds its hard limit."""
        overdue = [one for one in child.board.started() if 0.0 < one.hard_at < now]
        if overdue:
            child.overdue = overdue
            log.error("task.hard_limit", extra={"pid": child.process.pid, "tasks": [one.task_id for one in overdue]})
            self._kill(child)
            return
        if now - child.extended_at >= self.times.beat_s:
            child.extended_at = now
            incarnation = child.board.incarnation()
            try:
                facts = psutil.Process(child.process.pid)
                child.rss = facts.memory_info().rss
                if incarnation is not None and facts.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                    self.app.stores.inflight.extend(incarnation, lease_s=self.times.lease_s)
            except psutil.Error:
                return  # it is dying: the next round buries it
            except Unavailable as error:
                log.warning("supervisor.extend: %s", error)

    def _bury(self, slot: _Slot, cause: str | None, *, deliberate: bool) -> None:
        """A child has ended: read its board, keep the evidence, plan its successor."""
        child = slot.child
        if child is None:
            return
        slot.child = None
        status = child.process.wait()
        if child.process.stdin is not None:
            child.process.stdin.close()
        now = time.monotonic()
        incarnation = child.board.incarnation()
        started = {one.task_id: one.attempt for one in child.board.started()}
        has_left = child.board.has_left() or incarnation is None
        child.board.remove()
        if status == 0 and has_left:
            slot.next_at = float("inf") if self.spec.is_drain else now
            slot.young_deaths = 0
            return
        how = cause or _how(status)
        self._is_failed = self._is_failed or (self._signals > 0 and incarnation is not None)
        log.warning("supervisor.child_died", extra={"pid": child.process.pid, "how": how, "started": len(started)})
        if incarnation is not None:
            text = f"process {child.process.pid}: {how}; {child.rss >> 20} MiB at the last look"
            failed = {one.task_id: (self._limit_text(one), self._retry_s()) for one in child.overdue}
            charged = {} if deliberate or status == EXIT_LEASE_LOST else started
            self._deaths.append(_Death(incarnation, Evidence(text, charged, failed or None)))
        if now - child.started_at < CALM_AFTER_S and (incarnation is None or status in _GAVE_UP):
            slot.young_deaths += 1  # it cannot even start, or not serve: try again, less and less often
        else:
            slot.young_deaths = 0
        slot.next_at = now + (min(RESTART_MAX_S, 0.5 * 2.0**slot.young_deaths) if slot.young_deaths else 0.0)

    def _limit_text(self, one: Started) -> str:
        return f"TimeLimit: attempt {one.attempt} exceeded its hard limit after {one.hard_at - one.started_at:.1f} s"

    def _retry_s(self) -> float:
        return self._rng.uniform(1.0, 4.0)

    def _end_claims(self) -> None:
        """End the claims of dead children; the ledger or Redis being away only delays it."""
        for death in list(self._deaths):
            try:
                reach("supervisor.before_reap")
                reaped = self.app.stores.ledger.reap(death.incarnation, death.evidence)
                # None: they are ended, perhaps by us before a store broke off; what it held is still to be freed
                finish_reaping(
                    self.app.stores, self.app.settings, reaped or Reaped(death.incarnation, 0, 0, ()), Swept()
                )
            except Unavailable as error:
                log.warning("supervisor.waits: %s", error)
                return
            except Exception:  # the supervisor goes on; a sweep ends these claims when the lease has ended
                log.exception("supervisor.reap")
            self._deaths.remove(death)

    def _sweep(self) -> None:
        try:
            done = sweep(self.app.stores, self.app.settings)
            if done.changes:
                log.info("sweep.done", extra={"changes": done.changes})
        except Unavailable as error:
            log.warning("sweep.waits: %s", error)
        except Exception:
            log.exception("sweep.failed")

    # -- ends

    def _kill(self, child: _Child) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.process.kill()

    def _tell(self, child: _Child) -> None:
        """Let a child drain, once."""
        if not child.is_told:
            child.is_told = True
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        self._signal = signal.Signals(number)
        if self._signals == 1:
            self._kill_at = time.monotonic() + self.times.grace_s + 2.0
        else:
            self._kill_at = 0.0
        for slot in self._slots:  # a child that is just being started is told by the next look
            if slot.child is not None:
                with contextlib.suppress(ProcessLookupError, OSError):
                    if self._signals == 1:
                        self._tell(slot.child)
                    else:
                        os.kill(slot.child.process.pid, signal.SIGKILL)


def _how(status: int) -> str:
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"exit status {status}"
