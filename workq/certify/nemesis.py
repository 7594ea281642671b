"""The faults, as values. Each strikes, lasts, and is healed; what it did is noted as a harm, for the auditor.

None needs any control over the servers: processes of ours are killed and paused, connections are cut in our own proxy,
and what is purged, deleted, wiped or locked belongs to the scratch namespace. Chance decides which fault comes next,
what it hits and what comes with it; the same seed chooses the same.

A fault that a run cannot have (no wire to cut, no queue to delete) is left out, and the report says so.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import ClassVar, Final, Protocol, assert_never

import psutil

from workq.certify import fleet
from workq.certify.fleet import Host
from workq.certify.scratch import Scratch
from workq.certify.wire import Store, Wires
from workq.config import Times
from workq.doctor import Bounds
from workq.testing.proxy import Direction

WAKING_S: Final = 30.0
"""So long after a pause past its lease a process may still be leaving, with the status that says so."""
RECONNECT_S: Final = 5.0
"""The longest pause before a broken connection to the broker is opened again (amqp.BACKOFF_MAX_S)."""


class Cause(StrEnum):
    """Why a task may have been started twice."""

    KILLED = "killed"
    PAUSED = "paused"
    CUT = "cut off"


@dataclass(frozen=True, slots=True)
class Harm:
    """What one fault did to processes (`pids`), or to everybody's way to a store (none). Times are monotonic."""

    cause: Cause
    fault: str
    at: float
    until: float
    pids: frozenset[int] = frozenset()


@dataclass(slots=True)
class Stage:
    """What the faults act on, and what they leave behind."""

    folder: Path
    hosts: list[Host]
    scratch: Scratch
    wires: Wires
    times: Times
    rng: Random
    harms: list[Harm] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """What went wrong that should not have, whatever the fault."""
    tell: Callable[[str], None] = lambda _: None
    pile_up: Callable[[], None] = lambda: None
    """Enqueue more at once than the workers can take, so that hints wait in the queue."""

    def note(self, cause: Cause, fault: str, at: float, pids: Iterable[int] = ()) -> None:
        """A harm that has ended just now."""
        self.harms.append(Harm(cause, fault, at, time.monotonic(), frozenset(pids)))

    def good_ends(self) -> set[int | None]:
        """How a supervisor may end after SIGTERM: with 0; with 1 if one of its processes, just woken, was leaving."""
        woken = any(harm.cause is Cause.PAUSED and harm.until > time.monotonic() - WAKING_S for harm in self.harms)
        return {0, 1} if woken else {0}

    def bounds(self) -> Bounds:
        """How long recoveries may take with these times."""
        return Bounds.of(self.times)


class Fault(Protocol):
    """One fault. Used once: strike, wait `lasts_s`, heal."""

    kind: ClassVar[str]

    @property
    def lasts_s(self) -> float:
        """How long until it is healed."""
        ...

    @property
    def targets(self) -> frozenset[str]:
        """What it hits; faults that hit the same are never composed."""
        ...

    def bound_s(self, stage: Stage) -> float:
        """What workq promises: seconds until everything is done that was open when it struck, from `is_timed`."""
        ...

    @property
    def is_timed_from_heal(self) -> bool:
        """The promise counts from the end of the fault, not from its start."""
        ...

    def strike(self, stage: Stage) -> str:
        """Begin; answers what was hit, for people."""
        ...

    def heal(self, stage: Stage) -> None:
        """End."""
        ...


class _Processes:
    """Common to the faults of processes: the promise counts from the blow."""

    is_timed_from_heal = False


class _Servers:
    """Common to the faults on the way to the stores and in them: the promise counts from when they serve again."""

    is_timed_from_heal = True


@dataclass
class KillConsumer(_Processes):
    """kill -9 of one consumer process under a living supervisor."""

    kind: ClassVar[str] = "kill-consumer"
    host: int
    which: int
    lasts_s: float = 0.0

    @property
    def targets(self) -> frozenset[str]:
        return frozenset({f"host {self.host}"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().local_crash_s

    def strike(self, stage: Stage) -> str:
        consumers = stage.hosts[self.host].consumers()
        chosen = consumers[self.which % len(consumers) :][:1] if consumers else []
        at = time.monotonic()
        pids = fleet.kill(chosen)
        stage.note(Cause.KILLED, self.kind, at, pids)
        return _pids(pids)

    def heal(self, stage: Stage) -> None:
        """Its supervisor starts another."""


@dataclass
class KillConsumers(_Processes):
    """kill -9 of every consumer process at once; the supervisors live."""

    kind: ClassVar[str] = "kill-consumers"
    lasts_s: float = 0.0
    targets: frozenset[str] = frozenset({"host 0", "host 1"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().local_crash_s

    def strike(self, stage: Stage) -> str:
        at = time.monotonic()
        pids = fleet.kill([one for host in stage.hosts for one in host.consumers()])
        stage.note(Cause.KILLED, self.kind, at, pids)
        return _pids(pids)

    def heal(self, stage: Stage) -> None:
        """Their supervisors start others."""


@dataclass
class KillHost(_Processes):
    """kill -9 of a supervisor and its consumer processes; it stays away, and the other host takes over."""

    kind: ClassVar[str] = "kill-host"
    host: int
    lasts_s: float

    @property
    def targets(self) -> frozenset[str]:
        return frozenset({f"host {self.host}"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().dead_host_s

    def strike(self, stage: Stage) -> str:
        at = time.monotonic()
        pids = stage.hosts[self.host].kill()
        stage.note(Cause.KILLED, self.kind, at, pids)
        return f"host {self.host}: {_pids(pids)}"

    def heal(self, stage: Stage) -> None:
        stage.hosts[self.host].start()


@dataclass
class KillEverything(_Processes):
    """kill -9 of all supervisors and consumer processes, and a new start of all at once."""

    kind: ClassVar[str] = "kill-everything"
    lasts_s: float = 0.0
    targets: frozenset[str] = frozenset({"host 0", "host 1"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().dead_fleet_s

    def strike(self, stage: Stage) -> str:
        at = time.monotonic()
        pids = [pid for host in stage.hosts for pid in host.kill()]
        stage.note(Cause.KILLED, self.kind, at, pids)
        for host in stage.hosts:
            host.start()
        return _pids(pids)

    def heal(self, stage: Stage) -> None:
        """All were started again."""


@dataclass
class PauseConsumer(_Processes):
    """SIGSTOP of one consumer process, and SIGCONT: shorter or longer than its lease."""

    kind: ClassVar[str] = "pause-consumer"
    host: int
    which: int
    lasts_s: float
    _paused: list[psutil.Process] = field(default_factory=list)
    _at: float = 0.0

    @property
    def targets(self) -> frozenset[str]:
        return frozenset({f"host {self.host}"})

    def bound_s(self, stage: Stage) -> float:
        """A pause shorter than the lease may hold up its own tasks for as long as it lasts."""
        return max(stage.bounds().dead_host_s, self.lasts_s + stage.bounds().local_crash_s)

    def strike(self, stage: Stage) -> str:
        consumers = stage.hosts[self.host].consumers()
        chosen = consumers[self.which % len(consumers) :][:1] if consumers else []
        self._at = time.monotonic()
        self._paused = fleet.pause(chosen)
        return f"{_pids(one.pid for one in self._paused)} for {self.lasts_s:.1f} s (lease {stage.times.lease_s:g} s)"

    def heal(self, stage: Stage) -> None:
        fleet.wake(self._paused)
        stage.note(Cause.PAUSED, self.kind, self._at, [one.pid for one in self._paused])


@dataclass
class PauseHost(_Processes):
    """SIGSTOP of a supervisor with its consumer processes, longer than the lease: a laptop that sleeps."""

    kind: ClassVar[str] = "pause-host"
    host: int
    lasts_s: float
    _paused: list[psutil.Process] = field(default_factory=list)
    _at: float = 0.0

    @property
    def targets(self) -> frozenset[str]:
        return frozenset({f"host {self.host}"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().dead_host_s

    def strike(self, stage: Stage) -> str:
        self._at = time.monotonic()
        self._paused = fleet.pause(stage.hosts[self.host].everyone())
        return f"host {self.host} for {self.lasts_s:.1f} s (lease {stage.times.lease_s:g} s)"

    def heal(self, stage: Stage) -> None:
        fleet.wake(reversed(self._paused))
        stage.note(Cause.PAUSED, self.kind, self._at, [one.pid for one in self._paused])


@dataclass
class Terminate(_Processes):
    """SIGTERM in the middle: what runs finishes, the rest is handed back, and the exit status is 0."""

    kind: ClassVar[str] = "terminate"
    host: int
    lasts_s: float = 0.5
    _was_up: bool = False

    @property
    def targets(self) -> frozenset[str]:
        """Not together with a broken wire: what cannot be settled within the grace is killed, and rightly so."""
        return frozenset({f"host {self.host}", *(f"store {store}" for store in Store)})

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
            stage.note(Cause.KILLED, self.kind, time.monotonic(), host.kill())
        host.start()


class How(StrEnum):
    """What can be wrong with a wire."""

    RESET = "cut"
    HALF_OPEN = "half-open"
    ONE_WAY = "one-way"
    SLOW = "slow"
    REFUSED = "refused"


@dataclass
class Wire(_Servers):
    """The connections to one store are cut, half-open, dead in one direction, slow, or refused."""

    kind: ClassVar[str] = "wire"
    store: Store
    how: How
    lasts_s: float
    _at: float = 0.0

    @property
    def targets(self) -> frozenset[str]:
        return frozenset({f"store {self.store}"})

    def bound_s(self, stage: Stage) -> float:
        """A statement on a wire that went dead is given up after half as long again as it may take."""
        more_s = 1.5 * stage.times.statement_s if self.store is Store.LEDGER else RECONNECT_S
        return stage.bounds().unpublished_s + more_s

    def strike(self, stage: Stage) -> str:
        proxy = stage.wires.proxies[self.store]
        self._at = time.monotonic()
        match self.how:
            case How.RESET:
                proxy.reset()
            case How.HALF_OPEN:
                proxy.blackhole()
                proxy.drop_new()
            case How.ONE_WAY:
                proxy.blackhole(stage.rng.choice([Direction.TO_SERVER, Direction.TO_CLIENT]))
            case How.SLOW:
                proxy.delay(0.05, 0.05, Random(stage.rng.random()))
            case How.REFUSED:
                proxy.refuse()
                proxy.cut()
            case _:
                assert_never(self.how)
        return f"{self.store} {self.how} for {self.lasts_s:.1f} s"

    def heal(self, stage: Stage) -> None:
        stage.wires.proxies[self.store].heal()
        stage.note(Cause.CUT, f"{self.kind} {self.store} {self.how}", self._at)


@dataclass
class PurgeQueue(_Servers):
    """Every hint that waits in the queue is lost."""

    kind: ClassVar[str] = "purge-queue"
    lasts_s: float = 0.0
    targets: frozenset[str] = frozenset({"hints", "store ledger"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().purge_s

    def strike(self, stage: Stage) -> str:
        stage.pile_up()
        return f"{stage.scratch.purge_queue()} hints"

    def heal(self, stage: Stage) -> None:
        """Nothing brings them back but the sweep."""


@dataclass
class PurgeDelays(_Servers):
    """Every hint that waits for its time is lost."""

    kind: ClassVar[str] = "purge-delays"
    lasts_s: float = 0.0
    targets: frozenset[str] = frozenset({"hints"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().purge_s

    def strike(self, stage: Stage) -> str:
        return f"{stage.scratch.purge_delays()} hints"

    def heal(self, stage: Stage) -> None:
        """Nothing brings them back but the sweep."""


@dataclass
class DeleteQueue(_Servers):
    """The queue is deleted under its consumers, with every hint in it."""

    kind: ClassVar[str] = "delete-queue"
    lasts_s: float = 0.0
    targets: frozenset[str] = frozenset({"hints", "store ledger"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().purge_s

    def strike(self, stage: Stage) -> str:
        stage.pile_up()
        stage.scratch.delete_queue()
        return "under its consumers"

    def heal(self, stage: Stage) -> None:
        """Whoever misses it declares it again."""


@dataclass
class WipeInFlight(_Servers):
    """Every hold, every lease and the epoch are lost, as by FLUSHALL; nobody dies."""

    kind: ClassVar[str] = "wipe-inflight"
    lasts_s: float = 0.0
    targets: frozenset[str] = frozenset({"holds"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().inflight_wiped_s

    def strike(self, stage: Stage) -> str:
        stage.scratch.wipe_inflight()
        return "holds, leases and epoch"

    def heal(self, stage: Stage) -> None:
        """The next beats write all of it again."""


@dataclass
class WipeAndKill(_Processes):
    """The in-flight store is wiped, and a host dies in the same second."""

    kind: ClassVar[str] = "wipe-and-kill"
    host: int
    lasts_s: float = 1.0

    @property
    def targets(self) -> frozenset[str]:
        return frozenset({"holds", f"host {self.host}"})

    def bound_s(self, stage: Stage) -> float:
        """What was held and not claimed is lost with it, until a marker proves it."""
        return max(stage.bounds().inflight_wiped_s, stage.bounds().purge_s)

    def strike(self, stage: Stage) -> str:
        stage.scratch.wipe_inflight()
        at = time.monotonic()
        pids = stage.hosts[self.host].kill()
        stage.note(Cause.KILLED, self.kind, at, pids)
        return f"host {self.host}: {_pids(pids)}"

    def heal(self, stage: Stage) -> None:
        stage.hosts[self.host].start()


@dataclass
class LockRows(_Servers):
    """Somebody else's transaction keeps the rows of open tasks locked (on SQLite: the file)."""

    kind: ClassVar[str] = "lock-rows"
    lasts_s: float
    targets: frozenset[str] = frozenset({"store ledger"})
    _session: ExitStack = field(default_factory=ExitStack)

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().unpublished_s + stage.times.statement_s

    def strike(self, stage: Stage) -> str:
        count = self._session.enter_context(stage.scratch.locked_rows())
        return f"{count} rows for {self.lasts_s:.1f} s"

    def heal(self, stage: Stage) -> None:  # noqa: ARG002 - as every fault
        self._session.close()


@dataclass
class Sweepers(_Servers):
    """Two more sweeps run beside those of the workers, as fast as they can."""

    kind: ClassVar[str] = "two-sweepers"
    lasts_s: float
    targets: frozenset[str] = frozenset({"sweepers"})
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().unpublished_s

    def strike(self, stage: Stage) -> str:
        every = f"{max(0.2, stage.times.sweep_s / 2):.1f}s"
        with (stage.folder / "sweeps.log").open("ab") as log:
            self._running = [
                subprocess.Popen(
                    [sys.executable, "-m", "workq", "sweep", "--every", every],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for _ in range(2)
            ]
        return f"every {every} for {self.lasts_s:.1f} s"

    def heal(self, stage: Stage) -> None:
        for one in self._running:
            one.terminate()
        for one in self._running:
            try:
                status: int | None = one.wait(20.0)
            except subprocess.TimeoutExpired:
                one.kill()
                status = one.wait()
            if status not in (0, -signal.SIGTERM):  # the latter: it had not even started to listen for it
                stage.trouble.append(f"`workq sweep --every` ended with {status}, not with 0")


Draw = Callable[[Random], Fault]


def draws(stage: Stage) -> dict[str, Draw]:
    """Every fault that this run can have, by name."""
    times = stage.times
    host: Callable[[Random], int] = lambda rng: rng.randrange(len(stage.hosts))  # noqa: E731 - shared by those below
    found: dict[str, Draw] = {
        "kill-consumer": lambda rng: KillConsumer(host(rng), rng.randrange(8)),
        "kill-consumers": lambda _: KillConsumers(),
        "kill-host": lambda rng: KillHost(host(rng), rng.uniform(0.5, stage.bounds().dead_host_s)),
        "kill-everything": lambda _: KillEverything(),
        "pause-consumer": lambda rng: PauseConsumer(host(rng), rng.randrange(8), rng.uniform(0.2, 0.7) * times.lease_s),
        "pause-consumer-past-its-lease": lambda rng: PauseConsumer(
            host(rng), rng.randrange(8), rng.uniform(1.8, 2.2) * times.lease_s
        ),
        "pause-host": lambda rng: PauseHost(host(rng), rng.uniform(1.8, 2.2) * times.lease_s),
        "terminate": lambda rng: Terminate(host(rng)),
        "wipe-inflight": lambda _: WipeInFlight(),
        "wipe-and-kill": lambda rng: WipeAndKill(host(rng)),
        "purge-queue": lambda _: PurgeQueue(),
        "purge-delays": lambda _: PurgeDelays(),
        "lock-rows": lambda rng: LockRows(rng.uniform(0.5, 3.0)),
        "two-sweepers": lambda rng: Sweepers(rng.uniform(1.0, 3.0) * times.sweep_s),
    }
    for store in stage.wires.proxies:
        for how in How:
            found[f"{store}-{how}"] = _wire(store, how, times)
    if stage.scratch.settings.broker is not None:
        found["delete-queue"] = lambda _: DeleteQueue()
    return found


def left_out(stage: Stage) -> dict[str, str]:
    """What this run cannot have, and why."""
    why = {f"wire of the {store}": reason for store, reason in stage.wires.missing.items()}
    if stage.scratch.settings.broker is None:
        why["delete-queue"] = "the hints are rows of the ledger: there is no queue to delete"
    return why


class Deck:
    """Which faults come, in which order: first each alone, then two or three at once, without end."""

    def __init__(self, found: Mapping[str, Draw], rng: Random) -> None:
        self._draws = dict(found)
        self._rng = rng
        self._alone = list(found)
        rng.shuffle(self._alone)

    def next(self) -> dict[str, Fault]:
        """The faults of the next round, by name."""
        if self._alone:
            name = self._alone.pop()
            return {name: self._draws[name](self._rng)}
        chosen: dict[str, Fault] = {}
        taken: set[str] = set()
        for name in self._rng.sample(list(self._draws), min(len(self._draws), self._rng.choice([1, 2, 2, 3]))):
            fault = self._draws[name](self._rng)
            if not taken & fault.targets:
                chosen[name] = fault
                taken |= fault.targets
        return chosen


def _wire(store: Store, how: How, times: Times) -> Draw:
    most_s = 0.1 if how is How.RESET else 1.5 * times.lease_s
    return lambda rng: Wire(store, how, rng.uniform(0.05, 1.0) * most_s)


def _pids(pids: Iterable[int]) -> str:
    found = list(pids)
    return f"pid {', '.join(map(str, found))}" if found else "nobody was there"
