"""When the next attempt is due. Pure: the random source is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from workq.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential backoff with full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015).

    The n-th failure waits a uniformly drawn time between 0 and min(cap_s, base_s * 2**(n-1)) seconds.
    """

    base_s: float = 2.0
    cap_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.base_s <= self.cap_s <= 10 * 365 * 86400.0:
            raise ConfigError(f"retry: need 0 <= base_s <= cap_s <= 10 years, got {self.base_s} and {self.cap_s}")

    def delay_s(self, failures: int, *, rng: Random) -> float:
        """Seconds to wait after the `failures`-th failure (1, 2, ...), never above `cap_s`."""
        return rng.uniform(0.0, min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 62)))
