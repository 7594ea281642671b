"""When the next attempt is due. Pure: the random source is an argument.

A policy says how long to wait after the n-th failure. It can be asked beforehand: `timeline` tells the least and the
most of every wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from workq.errors import ConfigError
from workq.handlers.answer import is_coroutine_function
from workq.handlers.said import is_a
from workq.values.names import DELAY_MAX_S, check_delay_s


class RetryPolicy(Protocol):
    """How long to wait after a failure."""

    def delay_s(self, failures: int, *, rng: Random) -> float:
        """Seconds to wait after the `failures`-th failure (1, 2, ...)."""
        ...

    def bounds_s(self, failures: int) -> tuple[float, float]:
        """The least and the most that `delay_s` can answer."""
        ...


Compute = Callable[[int, BaseException], float]
"""A policy as a function: seconds to wait, by the number of failures so far and what was raised the last time."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential backoff with full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015).

    The n-th failure waits a uniformly drawn time between 0 and min(cap_s, base_s * 2**(n-1)) seconds.
    """

    base_s: float = 2.0
    cap_s: float = 3600.0

    def __post_init__(self) -> None:
        check_delay_s(self.base_s, "retry: base_s")
        check_delay_s(self.cap_s, "retry: cap_s")
        if self.base_s > self.cap_s:
            raise ConfigError(f"retry: need base_s <= cap_s, got {self.base_s} and {self.cap_s}")

    def delay_s(self, failures: int, *, rng: Random) -> float:
        """Seconds to wait after the `failures`-th failure (1, 2, ...), never above `cap_s`."""
        return rng.uniform(*self.bounds_s(failures))

    def bounds_s(self, failures: int) -> tuple[float, float]:
        """The least and the most that `delay_s` can answer."""
        return 0.0, min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 62))


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same wait after each failure, longer or shorter by up to the share `jitter` of it."""

    wait_s: float
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _check(self.wait_s, self.jitter)

    def delay_s(self, failures: int, *, rng: Random) -> float:
        """Seconds to wait after the `failures`-th failure (1, 2, ...)."""
        return rng.uniform(*self.bounds_s(failures))

    def bounds_s(self, failures: int) -> tuple[float, float]:  # noqa: ARG002 - the same for each
        """The least and the most that `delay_s` can answer."""
        return _around(self.wait_s, self.jitter)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A wait for each failure, in order; the last one serves for all that follow. `jitter` as in `Fixed`."""

    waits_s: Sequence[float]
    jitter: float = 0.0

    def __post_init__(self) -> None:
        given: object = self.waits_s
        if not isinstance(given, list | tuple) or not given:
            raise ConfigError(f"retry: need a list of seconds with at least one, got {given!r}")
        for wait_s in given:
            _check(wait_s, self.jitter)
        object.__setattr__(self, "waits_s", tuple(given))  # nobody changes it any more

    def delay_s(self, failures: int, *, rng: Random) -> float:
        """Seconds to wait after the `failures`-th failure (1, 2, ...)."""
        return rng.uniform(*self.bounds_s(failures))

    def bounds_s(self, failures: int) -> tuple[float, float]:
        """The least and the most that `delay_s` can answer."""
        return _around(self.waits_s[min(failures, len(self.waits_s)) - 1], self.jitter)


def timeline(policy: RetryPolicy, failures_max: int) -> list[tuple[float, float]]:
    """For each attempt but the first: the least and the most seconds from the first failure to its start.

    The attempts themselves count as nothing.
    """
    least = most = 0.0
    starts = []
    for failures in range(1, failures_max):
        low, high = policy.bounds_s(failures)
        least, most = least + low, most + high
        starts.append((least, most))
    return starts


@dataclass(frozen=True, slots=True)
class Retries:
    """What a handler's failures lead to: when it runs again, and after which errors it does not."""

    policy: RetryPolicy | Compute
    on: tuple[type[BaseException], ...] | None = None
    """Only these are tried again; None: all are."""
    give_up_on: tuple[type[BaseException], ...] = ()
    """These are not."""

    def gives_up(self, error: BaseException) -> bool:
        """Whether the task is dead by this error, whatever is left of its budget."""
        return _is_one_of(error, self.give_up_on) or (self.on is not None and not _is_one_of(error, self.on))

    def delay_s(self, failures: int, error: BaseException, *, rng: Random) -> float:
        """Seconds to wait after the `failures`-th failure. What the user's policy or function raises is the caller's.

        Raises:
            ConfigError: it has answered something else.
        """
        if not callable(self.policy):
            return check_delay_s(self.policy.delay_s(failures, rng=rng), "the retry policy answered no delay")
        return check_delay_s(self.policy(failures, error), "the retry function answered no delay")


def _is_one_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    try:
        return isinstance(error, kinds)
    except BaseException:  # its class, or theirs, may do anything when it is asked
        return any(is_a(error, kind) for kind in kinds)


def retries(retry: object, retry_on: object, give_up_on: object) -> Retries:
    """What a handler is registered with, checked.

    Raises:
        ConfigError: one of them cannot be used.
    """
    policy: Any = Exponential() if retry is None else retry
    if isinstance(policy, type) or not (callable(policy) or callable(getattr(policy, "delay_s", None))):
        raise ConfigError(
            "retry: need Exponential(), Fixed(), Schedule() or a function of the number of failures and the error, "
            f"got {retry!r}"
        )
    if is_coroutine_function(policy if callable(policy) else policy.delay_s):
        raise ConfigError(f"retry: its function is called in a thread: no async def, got {retry!r}")
    on = None if retry_on is None else _errors(retry_on, "retry_on")
    return Retries(policy, on, () if give_up_on is None else _errors(give_up_on, "give_up_on"))


def _errors(given: object, what: str) -> tuple[type[BaseException], ...]:
    kinds = tuple(given) if isinstance(given, Sequence) else (given,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in kinds):
        raise ConfigError(f"{what}: need a class of exceptions, or several, got {given!r}")
    return kinds


def _check(wait_s: object, jitter: object) -> None:
    check_delay_s(wait_s, "retry")
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0.0 <= jitter <= 1.0:
        raise ConfigError(f"retry: need a jitter from 0 to 1, got {jitter!r}")


def _around(wait_s: float, jitter: float) -> tuple[float, float]:
    return wait_s * (1.0 - jitter), min(DELAY_MAX_S, wait_s * (1.0 + jitter))
