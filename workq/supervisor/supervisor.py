"""The supervisor: N consumer processes, their deaths, and the stand-by sweep.

Processes are started afresh, never forked with threads. A dead child is proof, not suspicion: its claims end at
once, without waiting for a lease. Its board tells which attempts had started, and only those are charged; what had
ended there is settled in its place. The supervisor never runs user code, so it can keep the lease of a child whose
handler holds the interpreter lock, as long as the operating system says that the child is not stopped; and it kills the
child whose attempt exceeds its hard limit.

Each child leads a session of its own: at a hard limit, a forced cancel, the end of the grace, and when it has died by
itself, its whole process group is killed before its tasks go to others. What has left the group (setsid) is killed with
it where it still descends from the child; behind a child that died by itself it goes on.

Signals: the first SIGTERM or SIGINT lets the children drain within the grace; what is left then is killed and
handed back at no cost. The second one kills at once. The supervisor itself dying is no loss: the children see their
standard input end and drain; if they died too, any other sweep reaps them when their leases have ended.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
import psutil

from workq.errors import LedgerReplaced, Unavailable
from workq.recovery.absence import AbsenceWatch, watch_of
from workq.recovery.reap import end_worker
from workq.recovery.sweep import Passes
from workq.recovery.swept import Swept
from workq.schedules.ledger import Schedules
from workq.supervisor.autopsy import DeathCause, OpenDeath, Victims, collect, ending_of, evidence_of
from workq.supervisor.child import Child, CutoffWatch, Reach, WayToStores, start_afresh
from workq.supervisor.oom import Kills, MemoryGroup, offer_as_victim
from workq.supervisor.ticker import Ticker
from workq.values.begin import begun
from workq.values.certificate import EXIT_BROKEN, ProofOfEnd
from workq.worker.crash_board import CrashBoard, Started, remove_stale
from workq.worker.readiness import WorkerSpec, wait_for_all
from workq.worker.stacks import WAIT_S, Stacks

if TYPE_CHECKING:
    from workq.app import WorkQueue

log = logging.getLogger("workq.supervisor")

LOOK_EVERY_S = 0.1
SPARE_LINES = 1024
"""Lines of a board beyond the threads: attempts that ended and wait to be settled."""
LINES_TOGETHER_MAX = 4096
"""Lines for tasks that share a call (`batch=`), at most: all of them are read at each look."""
CALM_AFTER_S = 10.0
MEMORY_EVERY_S = 1.0
KILLS_EVERY_S = 5.0
"""How often the kernel's count of kills for want of memory is looked at. What is older than two looks is another's."""
_GAVE_UP = (1, 2, EXIT_BROKEN)
RESTART_MAX_S = 30.0
EXIT_LEDGER_GONE = 4


@dataclass(slots=True)
class _Slot:
    """A place for a child: when it may start again, and how often it died young."""

    child: Child | None = None
    next_at: float = 0.0
    young_deaths: int = 0


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
        program: str = "workq.consumer",
    ) -> None:
        """`program`: the module that its processes run."""
        self.app = app
        self._program = program
        self.spec = WorkerSpec(app_path, list(queues), threads, is_drain, "", "", log_level, app.settings.log_format)
        self.times = app.settings.times
        self._slots = [_Slot() for _ in range(processes)]
        self._deaths: list[OpenDeath] = []
        self._reach = Reach(app.settings.times)
        self._signals = 0
        self._signal = signal.SIGTERM
        self._kill_at: float | None = None
        self._is_draining = False
        self._is_failed = False
        self._is_ledger_gone = False
        """Its file was deleted or replaced: no child can work any more."""
        self._passes = Passes()
        self._unscheduled = app.registry.schedules()
        """Not written into the ledger yet."""
        self._condemned: dict[str, int] = {}
        """Attempts of these processes that a person wants ended by force, by task, as the ledger told last."""
        self._kills = Kills(MemoryGroup.of_this_process())
        self._kills_at = time.monotonic() + KILLS_EVERY_S
        self._victims = Victims()

    def run(self) -> int:
        """Answers the exit status: 0 when everyone left in order, 1 when not, 128 + signal after a second signal.

        4 when the ledger's file was deleted or replaced: to go on with another one is a person's decision.
        It waits for its servers first, and raises what `wait_for_all` does.
        """
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, self._signalled)
        begun()
        if not wait_for_all(self.app, is_told=lambda: self._signals > 0, is_drain=self.spec.is_drain):
            return 0
        remove_stale()
        ticker = Ticker(self._sweep, every_s=self.times.sweep_s, at_once=True)  # what died with a former one
        ticker.start()
        watch = watch_of(self.app.stores, self.app.settings)
        watching = None
        if watch is not None:
            watching = Ticker(lambda: self._watch_for_absent(watch), every_s=watch.every_s)
            watching.start()
        mover = self.app.stores.mover
        if mover is not None:
            mover.start()
        try:
            while True:
                self._look()
                if self._is_over():
                    break
                time.sleep(LOOK_EVERY_S)
        finally:
            for slot in self._slots:
                if slot.child is not None:
                    slot.child.kill_family()
                    self._bury(
                        slot, DeathCause(ProofOfEnd.SHUTDOWN, "killed because its supervisor ended", is_ours=True)
                    )
            ticker.close()
            if watch is not None and watching is not None:
                watching.close()
                watch.close()
            if mover is not None:
                mover.close()
            self._end_claims(is_last=True)
        if self._signals > 1:
            return 128 + self._signal
        if self._is_ledger_gone:
            return EXIT_LEDGER_GONE
        return 1 if self._is_failed else 0

    # -- one round

    def _look(self) -> None:
        now = time.monotonic()
        if self._is_ledger_gone and not self._signals:
            self._signalled(signal.SIGTERM, None)  # what runs may end; nothing more can be recorded
        if self._signals and not self._is_draining:
            self._is_draining = True
            log.info("supervisor.draining", extra={"signal": self._signal.name, "grace_s": self.times.grace_s})
        for slot in self._slots:
            if slot.child is not None and slot.child.status() is not None:
                self._bury(slot)
            child = slot.child
            if child is None:
                if not self._signals and time.monotonic() >= slot.next_at and not self._is_drained(slot):
                    self._start(slot)
                continue
            if self._signals:
                self._tell(child)
            self._watch(child, now)
        if self._signals and self._kill_at is not None and now >= self._kill_at:
            self._end_at_once([slot for slot in self._slots if slot.child is not None])
        if now >= self._kills_at:
            self._kills_at = now + KILLS_EVERY_S
            self._kills.look()
        self._end_claims()

    def _end_at_once(self, slots: Sequence[_Slot]) -> None:
        """The grace is exceeded, or a second signal came: kill what is left."""
        if self._signals == 1:
            self._ask_for_stacks([slot.child for slot in slots if slot.child is not None])
        for slot in slots:
            if slot.child is not None:
                log.warning("supervisor.grace_exceeded", extra={"pid": slot.child.process.pid})
                slot.child.kill_family()
                text = "killed because it did not end within the grace at shutdown"
                self._bury(slot, DeathCause(ProofOfEnd.SHUTDOWN, text, is_ours=True) if self._signals == 1 else None)
        self._is_failed = True

    def _is_over(self) -> bool:
        if any(slot.child is not None for slot in self._slots):
            return False
        return bool(self._signals) or (self.spec.is_drain and all(self._is_drained(slot) for slot in self._slots))

    def _is_drained(self, slot: _Slot) -> bool:
        return self.spec.is_drain and slot.next_at == float("inf")

    def _start(self, slot: _Slot) -> None:
        """Start its process; where there is no room for its files, or for one more process, try again later."""
        try:
            slot.child = self._spawn()
        except OSError as error:
            slot.young_deaths += 1
            pause_s = min(RESTART_MAX_S, 0.5 * 2.0**slot.young_deaths)
            slot.next_at = time.monotonic() + pause_s
            log.error("supervisor.cannot_start: %s: %s; trying again in %.0f s", type(error).__name__, error, pause_s)

    def _spawn(self) -> Child:
        together = min(LINES_TOGETHER_MAX, self.spec.threads * self.app.registry.batch_max())
        board = CrashBoard.create(lines=self.spec.threads + together + SPARE_LINES)
        stacks = None
        try:
            stacks = Stacks.create()
            process = start_afresh(self._program)
            offer_as_victim(process.pid)
        except OSError:  # tried again and again: nothing may pile up
            board.remove()
            if stacks is not None:
                stacks.remove()
            raise
        spec = msgspec.structs.replace(self.spec, board=str(board.path), stacks=str(stacks.path))
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it died already: poll() will say how
                process.stdin.write(msgspec.json.encode(spec) + b"\n")
        log.info("supervisor.started", extra={"pid": process.pid})
        now = time.monotonic()
        return Child(process, board, stacks, started_at=now, extended_at=float("-inf"), watch=CutoffWatch(self.times))

    def _watch(self, child: Child, now: float) -> None:
        """Keep the lease of a child that cannot beat by itself, and end one whose attempt exceeds its hard limit."""
        if child.overdue or child.condemned or child.cut_off_s is not None:
            child.kill()  # it was, and takes a moment to die of what was seen then
            return
        overdue = [one for one in child.board.started() if 0.0 < one.hard_at < now]
        if overdue:
            child.overdue = overdue
            self._ask_for_stacks([child])
            child.kill_family()
            log.error("task.hard_limit", extra={"pid": child.process.pid, "tasks": [one.task_id for one in overdue]})
            return
        condemned = [one for one in child.board.started() if self._is_condemned(one)] if self._condemned else []
        if condemned:
            child.condemned = condemned
            child.kill_family()
            log.error("task.killed", extra={"pid": child.process.pid, "tasks": [one.task_id for one in condemned]})
            return
        child.cut_off_s = child.watch.cut_off_s(child.board, self._reach, is_draining=child.is_told)
        if child.cut_off_s is not None:
            self._ask_for_stacks([child])
            child.kill_family()
            log.error("worker.cut_off", extra={"pid": child.process.pid, "seconds": round(child.cut_off_s)})
            return
        try:
            if now - child.memory_at >= MEMORY_EVERY_S:
                rss = psutil.Process(child.process.pid).memory_info().rss
                if rss > 0:  # what is dying has none any more
                    child.memory_bytes, child.memory_at = rss, now
            if now - child.extended_at >= self.times.beat_s:
                child.extended_at = now
                incarnation = child.board.incarnation()
                if incarnation is not None and not child.is_stopped():
                    self.app.stores.inflight.extend(incarnation, lease_s=self.times.lease_s)
                    self._reach.had(WayToStores.LEASE)
        except psutil.Error:
            return  # it is dying: the next round buries it
        except Unavailable as error:
            self._reach.missed(WayToStores.LEASE)
            log.warning("supervisor.extend: %s", error)

    def _is_condemned(self, one: Started) -> bool:
        return not one.is_ended and self._condemned.get(one.task_id) == one.attempt

    def _ask_for_stacks(self, children: Sequence[Child]) -> None:
        """What they are doing, before they are killed. It takes `WAIT_S` at most, however many they are."""
        asked = []
        for child in children:
            with contextlib.suppress(psutil.Error):
                if child.board.incarnation() is None:
                    child.stack_note = "it had not come so far as to give its stacks"
                elif child.is_stopped():
                    child.stack_note = "it was stopped, and a stopped process gives no stacks"
                else:
                    child.stacks.ask(child.process.pid)
                    asked.append(child)
        deadline = time.monotonic() + WAIT_S
        for child in asked:
            if not child.stacks.wait(deadline):
                child.stack_note = f"it gave no stacks within {WAIT_S} s"

    def _bury(self, slot: _Slot, ending: DeathCause | None = None) -> None:
        """A child has ended: read its board, keep the evidence, plan its successor."""
        child = slot.child
        if child is None:
            return
        slot.child = None
        left = collect(child, self._kills)
        now = time.monotonic()
        if left.status == 0 and left.has_left:
            child.board.remove()
            slot.next_at = float("inf") if self.spec.is_drain else now
            slot.young_deaths = 0
            return
        if ending is None:
            ending = ending_of(child, left, signals=self._signals)
        self._is_failed = self._is_failed or (self._signals > 0 and left.incarnation is not None)
        log.warning(
            "supervisor.child_died",
            extra={"pid": child.process.pid, "how": ending.text, "started": len(left.started)},
        )
        if left.incarnation is not None:
            evidence = evidence_of(child, left, ending, now)
            oom = evidence.facts.oom
            is_out_of_memory = oom is not None and oom.is_counted
            self._deaths.append(
                OpenDeath(left.incarnation, evidence, child.board, now, child.peak_bytes, is_out_of_memory)
            )
        else:
            child.board.remove()
        if now - child.started_at < CALM_AFTER_S and (left.incarnation is None or left.status in _GAVE_UP):
            slot.young_deaths += 1  # it cannot even start, or not serve: try again, less and less often
        else:
            slot.young_deaths = 0
        slot.next_at = now + (min(RESTART_MAX_S, 0.5 * 2.0**slot.young_deaths) if slot.young_deaths else 0.0)

    def _end_claims(self, *, is_last: bool = False) -> None:
        """End the claims of dead children; the ledger or Redis being away only delays it.

        Who died for want of memory waits a moment for others of its kind.
        """
        for death in list(self._deaths):
            if self._victims.are_awaited(death) and len(self._slots) > 1 and not is_last:
                continue
            stores, settings = self.app.stores, self.app.settings
            try:
                end_worker(
                    stores,
                    settings,
                    death.incarnation,
                    self._victims.judge(death),
                    Swept(),
                    outcomes=death.board.outcomes(),
                    is_known_dead=True,
                    point="supervisor.before_reap",
                )
            except Unavailable as error:
                log.warning("supervisor.waits: %s", error)
                return
            except Exception:  # the supervisor goes on; a sweep ends these claims when the lease has ended
                log.exception("supervisor.reap")
            death.board.remove()
            self._deaths.remove(death)

    def _sweep(self) -> None:
        try:
            while self._unscheduled:
                self.app.stores.ledger.part(Schedules).schedule(self._unscheduled[0])
                self._unscheduled.pop(0)
            self._condemned = self._asked_to_kill()
            done = self._passes.sweep(self.app.stores, self.app.settings)
            self._reach.had(WayToStores.SWEEP)
            if done.changes:
                log.info("sweep.done", extra={"changes": done.changes})
        except LedgerReplaced as error:
            log.error("supervisor.ledger_replaced: %s", error)
            self._is_ledger_gone = True
        except (Unavailable, OSError) as error:  # of this machine too: no descriptor is left, for one
            self._reach.missed(WayToStores.SWEEP)
            log.warning("sweep.waits: %s", error)
        except Exception:
            log.exception("sweep.failed")

    def _watch_for_absent(self, watch: AbsenceWatch) -> None:
        try:
            done = watch.end_absent()
        except (Unavailable, OSError):
            return  # the sweep tells of it
        except Exception:
            log.exception("watch.failed")
        else:
            if done.changes:
                log.info("sweep.done", extra={"changes": done.changes})

    def _asked_to_kill(self) -> dict[str, int]:
        children = [slot.child for slot in self._slots]
        workers = [child.board.incarnation() for child in children if child is not None]
        return self.app.stores.ledger.decisions.kills([one for one in workers if one is not None])

    # -- ends

    def _tell(self, child: Child) -> None:
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
                        slot.child.kill()
