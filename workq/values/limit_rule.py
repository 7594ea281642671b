"""Limits: what some tasks share, of which there is only so much. Pure: no clock, no store.

A limit has a name, and every task that names it counts: at most so many at once (`concurrency`), at most so many starts
in a time (`rate`), for the whole fleet. The ledger decides who may run (see limits/ledger/permits.py).

A rate of N in a time W is kept in every window of W, wherever it begins. The ledger counts claims, N within 1.1 W; and
what has not started 0.1 W after its claim may not start any more: so whatever starts within one W was claimed within
1.1 W. The price is a tenth of the rate.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Any, Final

from workq.errors import ConfigError, PayloadError

CONCURRENCY_MAX: Final = 10_000
COUNT_MAX: Final = 1000
"""Starts in one time: each is a row, for as long as it counts."""
SPARE: Final = 0.1
"""Of its time, a start may come so much later than its claim."""
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE: Final = re.compile(r"([1-9][0-9]{0,3})/([smhd])")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many starts in so many seconds."""

    count: int
    per_s: float

    @property
    def counted_s(self) -> float:
        """For so long a claim counts."""
        return (1.0 + SPARE) * self.per_s

    @property
    def spare_s(self) -> float:
        """How late after its claim something may start."""
        return SPARE * self.per_s


def check_rate(value: object) -> str:
    """A rate such as `100/s`, unchanged.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str):
        raise ConfigError(f"rate: need text such as '100/s', got {value!r:.100}")
    rate_of(value)
    return value


@lru_cache(maxsize=1000)
def rate_of(text: str) -> Rate:
    """What `100/s` means; per second, minute, hour or day.

    Raises:
        ConfigError: it is no rate.
    """
    found = _RATE.fullmatch(text)
    if found is None or int(found[1]) > COUNT_MAX:
        raise ConfigError(
            f"rate: need a whole number from 1 to {COUNT_MAX} per s, m, h or d, as in '100/s', got {text!r}"
        )
    return Rate(int(found[1]), _UNITS[found[2]])


def check_concurrency(value: object) -> int:
    """How many at once.

    Raises:
        ConfigError: no whole number from 1 on.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= CONCURRENCY_MAX:
        raise ConfigError(f"concurrency: need a whole number from 1 to {CONCURRENCY_MAX}, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class LimitRule:
    """What a handler or a call says of its limit: `name` may have parameters of the function in it, as `{host}`."""

    name: str
    concurrency: int | None
    rate: str | None

    @staticmethod
    def of(name: object, concurrency: object, rate: object, *, parameters: Collection[str]) -> LimitRule:
        """Check what was given.

        Raises:
            ConfigError: it limits nothing, or its name has something in braces that is no parameter.
        """
        if concurrency is None and rate is None:
            raise ConfigError("limit: it needs a rate, such as '100/s', or a concurrency, such as 8, or both")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"limit: need a name, such as 'mailer' or 'endpoint:{{host}}', got {name!r}")
        for wanted in _fields(name):
            if wanted not in parameters:
                raise ConfigError(
                    f"limit: {name!r} names {{{wanted}}}, which is no parameter of the function; it has: "
                    f"{', '.join(parameters) or 'none'}"
                )
        return LimitRule(
            name,
            None if concurrency is None else check_concurrency(concurrency),
            None if rate is None else check_rate(rate),
        )

    def key(self, arguments: Mapping[str, Any]) -> str:
        """The limit's name for one call.

        Raises:
            PayloadError: an argument that is part of it is neither text nor a whole number.
        """
        values = {}
        for wanted in _fields(self.name):
            value = arguments[wanted]
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise PayloadError(
                    f"limit: {{{wanted}}} of {self.name!r} needs text or a whole number, got {type(value).__name__}"
                )
            values[wanted] = value
        return self.name.format_map(values)


def _fields(name: str) -> list[str]:
    """The names in braces.

    Raises:
        ConfigError: something in braces is more than a name.
    """
    try:
        parts = list(Formatter().parse(name))
    except ValueError as error:
        raise ConfigError(f"limit: {name!r}: {error}") from error
    found = []
    for _, wanted, form, conversion in parts:
        if wanted is None:
            continue
        if not wanted.isidentifier() or form or conversion:
            raise ConfigError(
                f"limit: {name!r}: only the name of a parameter may stand in braces, as in 'endpoint:{{host}}'"
            )
        found.append(wanted)
    return found
