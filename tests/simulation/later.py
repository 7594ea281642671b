"""Delays in the ledger, in a simulated world: the real port and mover, on SimDatabase and the broker in memory.

A world reads rows and queues as one: a hint is somewhere in both, or lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tests.simulation import broker
from tests.simulation.embedded import HintRows
from tests.simulation.ledger import SimDatabase
from tests.simulation.partitions import PartitionedServer
from workq.broker import Broker, Hint
from workq.broker.later import LedgerDelays
from workq.broker.later.mover import Mover
from workq.errors import Unavailable

if TYPE_CHECKING:
    from tests.simulation.processes import Setting


class QueuesAndRows(broker.Server):
    """The broker that all clients share, and the rows of what comes there later."""

    def __init__(self, database: SimDatabase) -> None:
        super().__init__(lambda: database.world.now)
        self._rows = HintRows(database)

    def messages(self) -> Iterable[broker.Message]:
        yield from super().messages()
        yield from self._rows.messages()


class PartsAndRows(PartitionedServer):
    """The same, where queues have parts."""

    def __init__(self, database: SimDatabase) -> None:
        super().__init__(lambda: database.world.now, session_s=1.5 * database.world.plan.times.lease_s)
        self._rows = HintRows(database)

    def messages(self) -> Iterable[broker.Message]:
        yield from super().messages()
        yield from self._rows.messages()

    def shown(self, queue: str) -> list[broker.Message]:
        return [message for message in super().messages() if message.queue == queue]


class SimLedgerDelays(LedgerDelays):
    """The port, for one client. `on_stored` is told of hints that have become rows."""

    on_stored: Callable[[Sequence[Hint]], None]

    def _write(self, hints: Sequence[Hint], deadline_s: float) -> bool:
        is_written = super()._write(hints, deadline_s)
        if is_written:
            self.on_stored(hints)
        return is_written


class Moving:
    """A mover, step by step; where it dies, another one begins."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.process = setting.process("mover")
        times = setting.world.plan.times
        server: Broker = setting.server_of(self.process)
        self.mover = Mover(
            setting.database, server, look_s=times.beat_s / 4, confirm_s=times.confirm_s, clock=self.process.clock
        )
        own = Random(setting.world.seed * 217_645_199 + 43)
        self.behind_s = 2 * (times.marker_s + times.marker_grace_s) if own.random() < 0.4 else 0.0
        """How long it may leave what is due, while there are faults: for so long no other mover lives."""
        self.strand = self.process.strand("move", self._step)
        self.process.on_death.append(self._died)
        self.strand.wake(setting.world.rng.uniform(0.0, times.beat_s))

    def _died(self) -> None:
        Moving(self.setting)

    def _step(self) -> float | None:
        world = self.setting.world
        try:
            pause_s = max(0.003, self.mover.step())
            return max(pause_s, world.rng.uniform(0.0, self.behind_s)) if world.is_faulty else pause_s
        except Unavailable as error:
            self.setting.unavailable(error)
            return 1.0
