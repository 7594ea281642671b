"""The five receivers: what each is sent, how its endpoint is set up, and how it answers. No server, no clock.

    steady   answers at once
    flaky    answers 503 to three of ten requests
    slow     answers after 0.3 s
    limited  takes so many in a row, then answers 429 for a second: "Retry-After: 1"
    leaving  answers 410 to everything from the middle on, until somebody brings it back

`leaving` does not come back by itself: a receiver that answered 410 once and then 200 again could be seen to do so only
by a worker that is killed in that moment, and then nobody would ever disable its endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

EVENTS: Final = 2_000
"""To all of them together."""
EVENTS_MIN: Final = 100
STEADY: Final = "steady"
FLAKY: Final = "flaky"
SLOW: Final = "slow"
LIMITED: Final = "limited"
LEAVING: Final = "leaving"

FLAKY_PART: Final = 0.3
SLOW_S: Final = 0.3
CLOSED_S: Final = 1.0
"""How long `limited` takes nothing, and says so."""
THROTTLED_MIN_S: Final = 1.0
"""How long it is left alone at least."""
_SEED: Final = 20
_OFTEN: Final[dict[str, Any]] = {"retry_schedule": (0.5, 1.0, *[2.0] * 28)}
"""So often that nothing is exhausted: the default schedule takes three days."""


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """What a receiver does with one request."""

    status: int
    after_s: float = 0.0
    retry_after_s: float | None = None


class Behaviour(Protocol):
    """How a receiver answers. Used from one thread."""

    def answer(self, at: float, /) -> ReceiverAnswer:
        """To the next request, which came at this moment of the monotonic clock."""
        ...


@dataclass(slots=True)
class Steadily:
    """Always, after so many seconds."""

    after_s: float = 0.0

    def answer(self, _at: float) -> ReceiverAnswer:
        """It takes it."""
        return ReceiverAnswer(200, self.after_s)


@dataclass(slots=True)
class NowAndThen:
    """Some it does not take, by chance."""

    refused: float
    rng: Random

    def answer(self, _at: float) -> ReceiverAnswer:
        """It takes it, or does not."""
        return ReceiverAnswer(503 if self.rng.random() < self.refused else 200)


@dataclass(slots=True)
class SoManyInARow:
    """It takes so many, then nothing for a while."""

    most: int
    closed_s: float
    opens_at: float = field(default=0.0, init=False)
    taken: int = field(default=0, init=False)

    def answer(self, at: float) -> ReceiverAnswer:
        """It takes it, or says when to come again."""
        if self.taken == self.most:
            self.opens_at, self.taken = at + self.closed_s, 0
        if at < self.opens_at:
            return ReceiverAnswer(429, retry_after_s=self.closed_s)
        self.taken += 1
        return ReceiverAnswer(200)


@dataclass(slots=True)
class UntilItLeaves:
    """It takes so many, then wants no more, until it is brought back."""

    most: int
    taken: int = field(default=0, init=False)
    is_back: bool = field(default=False, init=False)

    def bring_back(self) -> None:
        """It takes everything from now on. From any thread."""
        self.is_back = True

    def answer(self, _at: float) -> ReceiverAnswer:
        """It takes it, or is gone."""
        if self.taken >= self.most and not self.is_back:
            return ReceiverAnswer(410)
        self.taken += 1
        return ReceiverAnswer(200)


@dataclass(frozen=True, slots=True)
class Role:
    """One receiver, and its endpoint, which has the same name. `options`: of `Endpoints.add`."""

    name: str
    event_type: str
    about: str
    manner: Behaviour
    options: Mapping[str, Any] = field(default_factory=dict)


def the_five(each: int) -> dict[str, Role]:
    """The five, each of which is sent so many events at most, by their names."""
    quota, stays = -(-each // 3), each // 2
    found = (
        Role(STEADY, "order.created", "answers at once", Steadily()),
        Role(
            FLAKY,
            "order.paid",
            f"answers 503 to {FLAKY_PART:.0%} of all requests",
            NowAndThen(FLAKY_PART, Random(_SEED)),
            _OFTEN,
        ),
        Role(SLOW, "order.packed", f"answers after {SLOW_S:g} s", Steadily(SLOW_S)),
        Role(
            LIMITED,
            "order.shipped",
            f"takes {quota} in a row, then answers 429 for a second, with Retry-After: {CLOSED_S:.0f}",
            SoManyInARow(quota, CLOSED_S),
            _OFTEN,
        ),
        Role(LEAVING, "order.returned", f"takes {stays}, then answers 410", UntilItLeaves(stays)),
    )
    return {one.name: one for one in found}
