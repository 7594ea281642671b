"""Delays through RabbitMQ without a plugin: a binary ladder of queues whose messages expire. Pure: no connection here.

Level `n` is one queue with one queue-wide time to live of 0.1 s x 2^n. A delay of 1.1 s is 11 units, in binary 1011:
its hint waits in levels 3, 1 and 0, and at last reaches its main queue. Since every message of one level waits equally
long, none ever waits behind another with a longer delay (which a time to live for each message would do).

Each level has a topic exchange and a queue of the same name. The routing key carries the bits, highest first, and then
the main queue: `0.0. ... .1.0.1.1.workq.q.mail`. An exchange sends bit 1 to its own queue, bit 0 straight to the next
lower exchange; the queue dead-letters to the next lower exchange too. The last exchange, `due`, knows the main queues
by their names. (The layout is the one that NServiceBus has used for years.)

Who decides: the ledger. A hint that is lost here (dead-lettering is at most once) is published again from `due_at`. A
delay is rounded down to the unit; what is left of it, less than 0.1 s, the hint tells its consumer to wait. So a task
is late by what the hops and its claim take, and a consumer never has it in hand for longer than one unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from workq.broker import Hint

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
    """The ladder as a policy of delays. See `Delays`."""

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
