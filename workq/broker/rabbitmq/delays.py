"""How hints wait in RabbitMQ until they are due, in one of two ways, without a plugin. Pure: no connection here.

    Binary   13 queues, a hint passes some of them; exact
    Levels   one queue for each level, a hint waits in one of them; late, by less than the gap between two

Both end at the exchange `{ns}.due`, which knows the main queues. No two queues of one name have another way or another
time to live, and nothing is ever deleted: so when a namespace changes its ladder, what waits in the old one arrives.

With the ladder `ledger` hints wait in rows of the ledger (workq/broker/later). A message that is put back unread cannot
be a row, and goes by the binary ladder then.

Who decides: the ledger. A hint that is lost here (dead-lettering is at most once) is published again from `due_at`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Protocol

from workq.broker import Hint
from workq.config import levels_ms

UNIT_MS: Final = 100
LEVELS: Final = 13
HORIZON_S: Final = 819.1
"""The longest delay, all bits set: about 13 minutes and a half. Later tasks wait in the ledger."""


@dataclass(frozen=True, slots=True)
class DelayQueue:
    """One queue in which hints wait, called `name`, and the topic exchange before it."""

    name: str
    exchange: str
    ttl_ms: int
    waits: str
    """The binding pattern from the exchange to the queue."""
    next: str
    """The exchange behind the queue."""
    passes: str | None = None
    """The binding pattern from the exchange to the `next`, for hints that do not wait here. None: all do."""


class Delays(Protocol):
    """What both ways have. A delay that is negative, no number, or above the horizon is a ValueError."""

    @property
    def horizon_s(self) -> float:
        """The longest delay. Later tasks wait in the ledger."""
        ...

    @property
    def unit_s(self) -> float:
        """See `Broker.unit_s`."""
        ...

    @property
    def is_late(self) -> bool:
        """See `Broker.is_late`."""
        ...

    @property
    def late_max_s(self) -> float:
        """How late a hint may come at most: the largest gap between two levels."""
        ...

    def waits_s(self, delay_s: float) -> float:
        """See `Broker.waits_s`."""
        ...

    def way(self, namespace: str, main_queue: str, delay_s: float) -> tuple[str, str, int]:
        """Exchange and routing key of a hint, and how many milliseconds are left for its consumer to wait.

        Without an exchange it goes straight to its queue.
        """
        ...

    def queues(self, namespace: str) -> list[DelayQueue]:
        """All queues with their exchanges, in the order in which they are declared."""
        ...


def delays_of(ladder: str) -> Delays:
    """What a setting `ladder` names.

    Raises:
        ConfigError: it is not of the right form.
    """
    ms = levels_ms(ladder)
    return Levels(ms) if ms else Binary()


# -- the binary ladder


def split(delay_s: float) -> tuple[int, int]:
    """The delay in whole units of 0.1 s, and the milliseconds that are left, rounded up.

    What floats cannot represent (0.3 / 0.1) is forgiven.

    Raises:
        ValueError: it is negative, not a number, or above the horizon.
    """
    if not 0 <= delay_s <= HORIZON_S:
        raise ValueError(f"a hint can wait from 0 to {HORIZON_S} s, not {delay_s} s; later tasks wait in the ledger")
    return divmod(math.ceil(round(delay_s * 1000, 3)), UNIT_MS)


def due_exchange(namespace: str) -> str:
    """The exchange at the foot of the ladder."""
    return f"{namespace}.due"


def due_pattern(main_queue: str) -> str:
    """How the foot of the ladder knows a main queue: by its whole name, whatever the bits were."""
    return "*." * LEVELS + main_queue


def levels(namespace: str) -> list[DelayQueue]:
    """All rungs, from the foot up: each `next` comes before it."""
    rungs = []
    below = due_exchange(namespace)
    for n in range(LEVELS):
        before = "*." * (LEVELS - 1 - n)
        name = _level_name(namespace, n)
        rungs.append(DelayQueue(name, name, UNIT_MS << n, f"{before}1.#", below, f"{before}0.#"))
        below = name
    return rungs


def way(namespace: str, main_queue: str, count: int) -> tuple[str, str]:
    """Exchange and routing key of a hint that waits so many units: in at its highest bit. Without any, to its queue."""
    if not count:
        return "", main_queue
    return _level_name(namespace, count.bit_length() - 1), f"{'.'.join(f'{count:0{LEVELS}b}')}.{main_queue}"


def waits_ms(hint: Hint, wait_ms: int) -> tuple[int, ...]:
    """For how long its consumer waits for each id, when it comes so early; empty when for none."""
    if any(hint.waits_s):
        return tuple(wait_ms + math.ceil(round(one * 1000, 3)) for one in hint.waits_s)
    return (wait_ms,) * len(hint.task_ids) if wait_ms else ()


class Binary:
    """The binary ladder: exact delays through 13 queues. See `Delays`.

    Level `n` is one queue with one queue-wide time to live of 0.1 s x 2^n. A delay of 1.1 s is 11 units, in binary
    1011: its hint waits in levels 3, 1 and 0, and at last reaches its main queue. Since every message of one level
    waits equally long, none ever waits behind another with a longer delay (which a time to live for each message would
    do).

    Each level has a topic exchange and a queue of the same name. The routing key carries the bits, highest first, and
    then the main queue: `0.0. ... .1.0.1.1.workq.q.mail`. An exchange sends bit 1 to its own queue, bit 0 straight to
    the next lower exchange; the queue dead-letters to the next lower exchange too. The last exchange, `due`, knows the
    main queues by their names. (The layout is the one that NServiceBus has used for years.)

    A delay is rounded down to the unit; what is left of it, less than 0.1 s, the hint tells its consumer to wait. So a
    task is late by what the hops and its claim take, and a consumer never has it in hand for longer than one unit.
    """

    horizon_s = HORIZON_S
    unit_s = UNIT_MS / 1000
    is_late = False
    late_max_s = 0.0

    def waits_s(self, delay_s: float) -> float:
        return delay_s

    def way(self, namespace: str, main_queue: str, delay_s: float) -> tuple[str, str, int]:
        count, wait_ms = split(delay_s)
        return *way(namespace, main_queue, count), wait_ms

    def queues(self, namespace: str) -> list[DelayQueue]:
        return levels(namespace)


def _level_name(namespace: str, n: int) -> str:
    return f"{namespace}.delay.{n:02d}"


# -- levels


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels in milliseconds, ascending: late delays through few queues. See `Delays`.

    A hint waits in the smallest level that is not below its delay, and is then dead-lettered to the exchange `due` and
    so to its main queue. It comes late, by less than the gap to the level below (or to 0), and never early: so tasks
    that wait in one level may share hints. Whoever marks a hint as published must know that it may still be on its way
    when its task is due (see `Broker.waits_s`).

    One topic exchange knows the levels by the first word of the routing key, their milliseconds. As many words follow
    as `due` expects before the main queue: `5000.0.0. ... .workq.q.mail`. A queue is called by its milliseconds too:
    another list of levels has queues of its own.
    """

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
        return _levels_exchange(namespace), f"{level_ms}.{'0.' * (LEVELS - 1)}{main_queue}", 0

    def queues(self, namespace: str) -> list[DelayQueue]:
        return [
            DelayQueue(
                f"{namespace}.level.{level_ms}",
                _levels_exchange(namespace),
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


def _levels_exchange(namespace: str) -> str:
    return f"{namespace}.level"
