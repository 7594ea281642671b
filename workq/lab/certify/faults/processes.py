"""Faults of worker processes: killed, paused, told to leave. The promise counts from the blow."""

from __future__ import annotations

import signal
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import psutil

from workq.lab import fleet
from workq.lab.certify.faults import Fault
from workq.lab.certify.stage import DuplicateCause, Stage
from workq.lab.namespace import Store


class _OfProcesses(Fault):
    is_timed_from_heal = False


@dataclass
class _OfOneHost(_OfProcesses):
    """Hits one supervisor, or some of its consumer processes."""

    host: int

    @property
    def targets(self) -> frozenset[str]:
        return frozenset({f"host {self.host}"})


class _OfAllHosts(_OfProcesses):
    targets = frozenset({"host 0", "host 1"})


# -- kill -9


class _Kill(_OfProcesses):
    def strike(self, stage: Stage) -> str:
        at = time.monotonic()
        pids = self.kill(stage)
        stage.note(DuplicateCause.KILLED, self.kind, at, pids)
        return _told(pids)

    @abstractmethod
    def kill(self, stage: Stage) -> Sequence[int]:
        """Kill whom it hits; answers the pids."""


@dataclass
class KillConsumer(_OfOneHost, _Kill):
    """kill -9 of one consumer process under a living supervisor."""

    kind = "kill-consumer"
    lasts_s = 0.0
    which: int

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().local_crash_s

    def kill(self, stage: Stage) -> Sequence[int]:
        return fleet.kill(_one_consumer(stage, self.host, self.which))

    def heal(self, stage: Stage) -> None:
        """Its supervisor starts another."""


class KillConsumers(_OfAllHosts, _Kill):
    """kill -9 of every consumer process at once; the supervisors live."""

    kind = "kill-consumers"
    lasts_s = 0.0

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().local_crash_s

    def kill(self, stage: Stage) -> Sequence[int]:
        return fleet.kill([one for host in stage.hosts for one in host.consumers()])

    def heal(self, stage: Stage) -> None:
        """Their supervisors start others."""


@dataclass
class KillHost(_OfOneHost, _Kill):
    """kill -9 of a supervisor and its consumer processes; it stays away, and the other host takes over."""

    kind = "kill-host"
    lasts_s: float

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().dead_host_s

    def strike(self, stage: Stage) -> str:
        return f"host {self.host}: {super().strike(stage)}"

    def kill(self, stage: Stage) -> Sequence[int]:
        return stage.hosts[self.host].kill()

    def heal(self, stage: Stage) -> None:
        stage.hosts[self.host].start()


@dataclass
class WipeAndKill(KillHost):
    """The in-flight store is wiped, and a host dies in the same second."""

    kind = "wipe-and-kill"
    lasts_s: float = 1.0

    @property
    def targets(self) -> frozenset[str]:
        return super().targets | {"holds"}

    def bound_s(self, stage: Stage) -> float:
        """What was held and not claimed is lost with it, until a marker proves it."""
        return max(stage.bounds().inflight_wiped_s, stage.bounds().purge_s)

    def strike(self, stage: Stage) -> str:
        stage.scratch.wipe_inflight()
        return super().strike(stage)


class KillEverything(_OfAllHosts, _Kill):
    """kill -9 of all supervisors and consumer processes, and a new start of all at once."""

    kind = "kill-everything"
    lasts_s = 0.0

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().dead_fleet_s

    def strike(self, stage: Stage) -> str:
        told = super().strike(stage)
        for host in stage.hosts:
            host.start()
        return told

    def kill(self, stage: Stage) -> Sequence[int]:
        return [pid for host in stage.hosts for pid in host.kill()]

    def heal(self, stage: Stage) -> None:
        """All were started again."""


# -- SIGSTOP


@dataclass
class _Pause(_OfOneHost):
    lasts_s: float
    _paused: list[psutil.Process] = field(default_factory=list, init=False)
    _at: float = field(default=0.0, init=False)

    def strike(self, stage: Stage) -> str:
        self._at = time.monotonic()
        self._paused = fleet.pause(self.chosen(stage))
        return f"{self.told()} for {self.lasts_s:.1f} s (lease {stage.times.lease_s:g} s)"

    @abstractmethod
    def chosen(self, stage: Stage) -> Sequence[psutil.Process]:
        """Whom it stops, in this order."""

    def told(self) -> str:
        """Whom it stopped, for people."""
        return f"host {self.host}"

    def heal(self, stage: Stage) -> None:
        fleet.wake(reversed(self._paused))
        stage.note(DuplicateCause.PAUSED, self.kind, self._at, [one.pid for one in self._paused])


@dataclass
class PauseConsumer(_Pause):
    """SIGSTOP of one consumer process, and SIGCONT: shorter or longer than its lease."""

    kind = "pause-consumer"
    which: int

    def bound_s(self, stage: Stage) -> float:
        """A pause shorter than the lease may hold up its own tasks for as long as it lasts."""
        return max(stage.bounds().dead_host_s, self.lasts_s + stage.bounds().local_crash_s)

    def chosen(self, stage: Stage) -> Sequence[psutil.Process]:
        return _one_consumer(stage, self.host, self.which)

    def told(self) -> str:
        return _told(one.pid for one in self._paused)


class PauseHost(_Pause):
    """SIGSTOP of a supervisor with its consumer processes, longer than the lease: a laptop that sleeps."""

    kind = "pause-host"

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().dead_host_s

    def chosen(self, stage: Stage) -> Sequence[psutil.Process]:
        return stage.hosts[self.host].everyone()


# -- SIGTERM


@dataclass
class Terminate(_OfOneHost):
    """SIGTERM in the middle: what runs finishes, the rest is handed back, and the exit status is 0."""

    kind = "terminate"
    waits_to_heal = True
    lasts_s = 0.5
    _was_up: bool = field(default=False, init=False)

    @property
    def targets(self) -> frozenset[str]:
        """Not together with a broken wire: what cannot be settled within the grace is killed, and rightly so."""
        return super().targets | {f"store {store}" for store in Store}

    def bound_s(self, stage: Stage) -> float:
        return stage.times.grace_s

    def strike(self, stage: Stage) -> str:
        self._was_up = bool(stage.hosts[self.host].consumers())
        stage.hosts[self.host].terminate()
        return f"host {self.host}"

    def heal(self, stage: Stage) -> None:
        host = stage.hosts[self.host]
        status = host.wait(stage.times.grace_s + 10.0)
        is_too_young = not self._was_up and status == -signal.SIGTERM  # it did not listen for signals yet
        if status not in stage.good_ends() and not is_too_young:
            stage.trouble.append(
                f"SIGTERM: host {self.host} ended with {status}, not with 0"
                if status is not None
                else f"SIGTERM: host {self.host} has not left 10 s after its grace of {stage.times.grace_s:g} s"
            )
            stage.note(DuplicateCause.KILLED, self.kind, time.monotonic(), host.kill())
        host.start()


def _one_consumer(stage: Stage, host: int, which: int) -> list[psutil.Process]:
    """One consumer process of this host, if any is there."""
    consumers = stage.hosts[host].consumers()
    return [consumers[which % len(consumers)]] if consumers else []


def _told(pids: Iterable[int]) -> str:
    found = list(pids)
    return f"pid {', '.join(map(str, found))}" if found else "nobody was there"
