"""Delays through few queues: one for each level, in which every hint waits equally long. Pure: no connection here.

A hint waits in the smallest level that is not below its delay, and is then dead-lettered to the exchange `due` and so
to its main queue. It comes late, by less than the gap to the level below (or to 0), and never early: so tasks that wait
in one level may share hints. Whoever marks a hint as published must know that it may still be on its way when its task
is due (see `Broker.waits_s`).

One topic exchange knows the levels by the first word of the routing key, their milliseconds. As many words follow as
`due` expects before the main queue: `5000.0.0. ... .workq.q.mail`. A queue is called by its milliseconds too: another
list of levels has queues of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from workq.broker.rabbitmq.ladder import LEVELS, DelayQueue, due_exchange


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels in milliseconds, ascending. See `Delays`."""

    ms: tuple[int, ...]
    unit_s = 0.001
    is_late = True

    @property
    def horizon_s(self) -> float:
        return self.ms[-1] / 1000

    @property
    def late_max_s(self) -> float:
        return max(level_ms - below_ms for level_ms, below_ms in zip(self.ms, (0, *self.ms), strict=False)) / 1000

    def waits_s(self, delay_s: float) -> float:
        return self._level_ms(delay_s) / 1000

    def way(self, namespace: str, main_queue: str, delay_s: float) -> tuple[str, str, int]:
        level_ms = self._level_ms(delay_s)
        if not level_ms:
            return "", main_queue, 0
        return _exchange(namespace), f"{level_ms}.{'0.' * (LEVELS - 1)}{main_queue}", 0

    def queues(self, namespace: str) -> list[DelayQueue]:
        return [
            DelayQueue(
                f"{namespace}.level.{level_ms}",
                _exchange(namespace),
                level_ms,
                f"{level_ms}.#",
                due_exchange(namespace),
            )
            for level_ms in self.ms
        ]

    def _level_ms(self, delay_s: float) -> int:
        """The smallest level that is not below the delay; 0 for none. What floats cannot represent is forgiven."""
        delay_ms = math.ceil(round(delay_s * 1000, 3)) if 0 <= delay_s < math.inf else -1
        if not 0 <= delay_ms <= self.ms[-1]:
            raise ValueError(
                f"a hint can wait from 0 to {self.horizon_s:g} s, not {delay_s} s; later tasks wait in the ledger"
            )
        return self.ms[bisect_left(self.ms, delay_ms)] if delay_ms else 0


def _exchange(namespace: str) -> str:
    return f"{namespace}.level"
