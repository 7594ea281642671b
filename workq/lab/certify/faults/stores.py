"""Faults on the way to the stores, in them, and beside them. The promise counts from when they serve again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final, assert_never

from workq.lab.certify.faults import Fault
from workq.lab.certify.stage import DuplicateCause, Stage
from workq.lab.namespace import Store
from workq.lab.proxy.link import Direction

RECONNECT_S: Final = 5.0
"""The longest pause before a broken connection to the broker is opened again (amqp.BACKOFF_MAX_S)."""


class _OfStores(Fault):
    is_timed_from_heal = True


# -- on the way


class How(StrEnum):
    """What can be wrong with a wire."""

    RESET = "cut"
    HALF_OPEN = "half-open"
    ONE_WAY = "one-way"
    SLOW = "slow"
    REFUSED = "refused"


@dataclass
class Wire(_OfStores):
    """The connections to one store are cut, half-open, dead in one direction, slow, or refused."""

    kind = "wire"
    store: Store
    how: How
    lasts_s: float
    _at: float = field(default=0.0, init=False)

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
        stage.note(DuplicateCause.CUT, f"{self.kind} {self.store} {self.how}", self._at)


# -- in them


class _Loss(_OfStores):
    """Something is gone at once, and only workq brings it back."""

    lasts_s = 0.0

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().purge_s

    def heal(self, stage: Stage) -> None:
        """A sweep sends lost hints again, and whoever misses a queue declares it."""


class PurgeQueue(_Loss):
    """Every hint that waits in the queue is lost."""

    kind = "purge-queue"
    targets = frozenset({"hints", "store ledger"})

    def strike(self, stage: Stage) -> str:
        stage.pile_up()
        return f"{stage.scratch.purge_queue()} hints"


class PurgeDelays(_Loss):
    """Every hint that waits for its time is lost."""

    kind = "purge-delays"
    targets = frozenset({"hints"})

    def strike(self, stage: Stage) -> str:
        return f"{stage.scratch.purge_delays()} hints"


class DeleteQueue(_Loss):
    """The queue is deleted under its consumers, with every hint in it."""

    kind = "delete-queue"
    targets = frozenset({"hints", "store ledger"})

    def strike(self, stage: Stage) -> str:
        stage.pile_up()
        stage.scratch.delete_queue()
        return "under its consumers"


class WipeInFlight(_Loss):
    """Every hold, every lease and the epoch are lost, as by FLUSHALL; nobody dies."""

    kind = "wipe-inflight"
    targets = frozenset({"holds"})

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().inflight_wiped_s

    def strike(self, stage: Stage) -> str:
        stage.scratch.wipe_inflight()
        return "holds, leases and epoch"

    def heal(self, stage: Stage) -> None:
        """The next beats write all of it again."""


# -- beside them


@dataclass
class LockRows(_OfStores):
    """Somebody else's transaction keeps the rows of open tasks locked (on SQLite: the file)."""

    kind = "lock-rows"
    targets = frozenset({"store ledger"})
    lasts_s: float
    _session: ExitStack = field(default_factory=ExitStack, init=False)

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().unpublished_s + stage.times.statement_s

    def strike(self, stage: Stage) -> str:
        count = self._session.enter_context(stage.scratch.locked_rows())
        return f"{count} rows for {self.lasts_s:.1f} s"

    def heal(self, stage: Stage) -> None:  # noqa: ARG002 - as every fault
        self._session.close()


@dataclass
class Sweepers(_OfStores):
    """Two more sweeps run beside those of the workers, as fast as they can."""

    kind = "two-sweepers"
    targets = frozenset({"sweepers"})
    lasts_s: float
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)

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
