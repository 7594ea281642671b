"""Which faults come, in which order: chance decides which is next, what it hits and what comes with it.

The same seed chooses the same. A fault that a run cannot have (no wire to cut, no queue to delete) is left out, and the
report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from workq.config import Times
from workq.lab.certify.faults import Fault
from workq.lab.certify.faults.processes import (
    KillConsumer,
    KillConsumers,
    KillEverything,
    KillHost,
    PauseConsumer,
    PauseHost,
    Terminate,
    WipeAndKill,
)
from workq.lab.certify.faults.stores import (
    DeleteQueue,
    How,
    LockRows,
    PurgeDelays,
    PurgeQueue,
    Sweepers,
    WipeInFlight,
    Wire,
)
from workq.lab.certify.stage import Stage
from workq.lab.namespace import Store

Draw = Callable[[Random], Fault]


def draws(stage: Stage) -> dict[str, Draw]:
    """Every fault that this run can have, by name."""
    times = stage.times
    host: Callable[[Random], int] = lambda rng: rng.randrange(len(stage.hosts))  # noqa: E731 - shared by those below
    found: dict[str, Draw] = {
        "kill-consumer": lambda rng: KillConsumer(host=host(rng), which=rng.randrange(8)),
        "kill-consumers": lambda _: KillConsumers(),
        "kill-host": lambda rng: KillHost(host(rng), rng.uniform(0.5, stage.bounds().dead_host_s)),
        "kill-everything": lambda _: KillEverything(),
        "pause-consumer": lambda rng: PauseConsumer(
            host=host(rng), which=rng.randrange(8), lasts_s=rng.uniform(0.2, 0.7) * times.lease_s
        ),
        "pause-consumer-past-its-lease": lambda rng: PauseConsumer(
            host=host(rng), which=rng.randrange(8), lasts_s=rng.uniform(1.8, 2.2) * times.lease_s
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
