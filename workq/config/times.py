"""Every time that workq keeps, the rules between them, and the levels of a ladder of delays."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from workq.config.values import as_float, is_number, kind_of
from workq.errors import ConfigError
from workq.values.names import seconds_of

_TIME_MAX_S: Final = 7 * 86400.0
BINARY: Final = "binary"
LEDGER: Final = "ledger"
LEVELS_MAX: Final = 32
LEVEL_MIN_MS: Final = 100
LEVEL_MAX_MS: Final = 86_400_000
_PREFIX: Final = "levels:"
_FORMS: Final = f"use {BINARY}, {LEDGER}, or for one queue a level: {_PREFIX}5s,10s,30s,1m"
_SHOWN_CHARACTERS: Final = 40


@dataclass(frozen=True, slots=True)
class Times:
    """Every time that workq keeps, in seconds. The bounds that the README promises follow from these.

    Raises:
        ConfigError: one is not a positive finite number, or two contradict each other; the message states the rule.
    """

    beat_s: float = 5.0
    """How often a worker renews its lease."""
    lease_s: float = 30.0
    """How long a worker is trusted after its last beat. More than two beats."""
    worker_beat_s: float = 10.0
    """How often a worker renews its row in the ledger."""
    absence_s: float = 0.0
    """How long a worker may be gone from every store before its claims end early, such as 8. 0: at its lease's end."""
    sweep_s: float = 5.0
    """How often losses are looked for. At most a lease."""
    unpublished_grace_s: float = 2.0
    """How long a task may be without a confirmed hint before the sweep relays it."""
    marker_s: float = 30.0
    """How often a marker is sent through a queue whose tasks wait, to prove that none of their hints is lost."""
    marker_grace_s: float = 30.0
    """How long after a marker came back a task may still be on its way between its hint and its hold."""
    amqp_heartbeat_s: float = 5.0
    """After this silence and 3 s more a RabbitMQ connection is dead. Whole seconds."""
    confirm_s: float = 10.0
    """How long RabbitMQ may take to confirm a hint."""
    redis_socket_s: float = 2.0
    """How long Redis may take to answer."""
    statement_s: float = 10.0
    """How long one SQL statement may take."""
    grace_s: float = 30.0
    """How long a drain may take after SIGTERM. 0: do not wait."""
    hard_limit_grace_s: float = 5.0
    """How long after its time limit a handler is killed. 0: at once."""

    no_handler_wait_s: float = 3600.0
    """How long a task waits for a worker that knows its name, from the first look of one that does not."""

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_time(one.name, getattr(self, one.name))
        if self.lease_s <= 2 * self.beat_s:
            raise ConfigError(
                f"times.lease_s: must be more than 2 * beat_s, so that one lost beat does not end a lease; "
                f"lease_s is {self.lease_s:g} and beat_s is {self.beat_s:g}"
            )
        if self.sweep_s > self.lease_s:
            raise ConfigError(
                f"times.sweep_s: must not be more than lease_s, or the dead are found late; "
                f"sweep_s is {self.sweep_s:g} and lease_s is {self.lease_s:g}"
            )

    @property
    def fills_s(self) -> float:
        """So long after it was wiped an in-flight store has its leases and holds again. It proves nothing before."""
        return 3 * self.beat_s

    @property
    def absence_least_s(self) -> float:
        """From here on `absence_s` has a meaning: longer than beats and servers take to tell.

        A beat of which Redis has lost one answer does not take longer, either.
        """
        return max(_ABSENCE_MIN_S, self.beat_s + self.redis_socket_s + _BEAT_AGAIN_S)

    @property
    def is_absence_watched(self) -> bool:
        """Whether `absence_s` has a meaning: not too short, and shorter than a lease."""
        return self.absence_least_s <= self.absence_s < self.lease_s

    def divided_by(self, n: float) -> Times:
        """The same proportions, `n` times faster: the profile of the tests.

        The AMQP heartbeat stays a whole number of at least 2 seconds. The deadlines of servers keep a floor (confirm
        2 s, Redis 1 s, SQL 5 s), and so does the grace of what is unpublished (1 s), or a busy machine would look like
        a broken one, and a slow producer like a dead one. No floor raises what was lower.

        Raises:
            ConfigError: `n` is not a positive finite number.
        """
        if not is_number(n) or not 0.0 < n < math.inf:
            raise ConfigError(f"times: can be divided by a positive number only, not {n!r}")
        faster = {one.name: getattr(self, one.name) / n for one in fields(self)}
        for name, floor_s in _FLOORS_S.items():
            faster[name] = max(faster[name], min(floor_s, getattr(self, name)))
        faster["amqp_heartbeat_s"] = float(math.ceil(faster["amqp_heartbeat_s"]))
        if not Times(**faster).is_absence_watched:  # servers tell no sooner
            faster["absence_s"] = 0.0
        return Times(**faster)


_FLOORS_S: Final = {
    "unpublished_grace_s": 1.0,
    "amqp_heartbeat_s": 2.0,
    "confirm_s": 2.0,
    "redis_socket_s": 1.0,
    "statement_s": 5.0,
}
_MAY_BE_ZERO: Final = frozenset({"absence_s", "grace_s", "hard_limit_grace_s"})
_BEAT_AGAIN_S: Final = 0.5
_ABSENCE_MIN_S: Final = 4.0
"""A heartbeat of AMQP is a whole second at least, and RabbitMQ misses two or three of them."""


def _check_time(name: str, value: object) -> None:
    if not is_number(value):
        raise ConfigError(f"times.{name}: must be a number of seconds, not {kind_of(value)}")
    seconds = as_float(value)
    if name == "amqp_heartbeat_s":
        if not 1.0 <= seconds <= 65535.0 or seconds != math.floor(seconds):
            raise ConfigError(
                f"times.{name}: must be whole seconds from 1 to 65535 (0 would switch it off), not {seconds:g}"
            )
    elif name in _MAY_BE_ZERO:
        if not 0.0 <= seconds <= _TIME_MAX_S:
            raise ConfigError(f"times.{name}: must be from 0 to {_TIME_MAX_S:.0f} seconds, not {seconds:g}")
    elif not 0.0 < seconds <= _TIME_MAX_S:
        raise ConfigError(f"times.{name}: must be more than 0 and at most {_TIME_MAX_S:.0f} seconds, not {seconds:g}")


def levels_ms(ladder: object) -> tuple[int, ...]:
    """The levels that a ladder names, in milliseconds, ascending; none for `binary` and `ledger`.

    Raises:
        ConfigError: it is not of the right form, or a level is out of bounds or not above the one before.

    A ladder is how hints wait until they are due: in RabbitMQ with `binary` or `levels:5s,10s,30s,1m`, in rows of the
    ledger with `ledger`.
    """
    if not isinstance(ladder, str):
        raise ConfigError(f"must be text, not {kind_of(ladder)}; {_FORMS}")
    if ladder in (BINARY, LEDGER):
        return ()
    if not ladder.startswith(_PREFIX):
        raise ConfigError(f"{_shown(ladder)} is no ladder of delays; {_FORMS}")
    written = ladder.removeprefix(_PREFIX).split(",")
    if len(written) > LEVELS_MAX:
        raise ConfigError(f"{len(written)} levels are too many: each is a queue; use {LEVELS_MAX} at most")
    levels: list[int] = []
    for one in written:
        level = _milliseconds(one)
        if levels and level <= levels[-1]:
            raise ConfigError(f"level {_shown(one)} is not above the one before it; write them in ascending order")
        levels.append(level)
    return tuple(levels)


def _milliseconds(written: str) -> int:
    seconds = seconds_of(written)
    if seconds is None:
        raise ConfigError(
            f"level {_shown(written)} is no duration; write 500ms, 5s, 1m or 2h, and commas between levels"
        )
    milliseconds = round(seconds * 1000)
    if not math.isclose(milliseconds, seconds * 1000):
        raise ConfigError(f"level {_shown(written)} is no whole number of milliseconds; write for example 1500ms")
    if not LEVEL_MIN_MS <= milliseconds <= LEVEL_MAX_MS:
        raise ConfigError(f"level {_shown(written)} is out of bounds; a level takes from 100ms to 24h")
    return milliseconds


def _shown(text: str) -> str:
    """One line, ASCII, and short."""
    return ascii(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")
