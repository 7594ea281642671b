"""The port of signs of life in a broker: what ends with a connection of a worker process, and can be looked for.

A sign that is absent is evidence, and decides nothing: see workq/recovery/absence.py. A broker that cannot tell gives
none, and then no worker is judged by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class GivenSign(Protocol):
    """The sign of one worker. It is given again by itself whenever its connection breaks."""

    def is_given(self) -> bool:
        """Whether the broker has confirmed it, on the connection that is open now."""
        ...

    def refusal(self) -> str | None:
        """Why the broker has refused it at last, as where a right is missing, and what to grant; None: it has not."""
        ...

    def close(self) -> None:
        """Take it back. Bounded in time; repeatable."""
        ...


class SignReader(Protocol):
    """Looks for the signs of others, on a connection of its own."""

    back_s: float
    """Within so many seconds every process gives its sign again, after the broker was away."""

    @property
    def lasts_s(self) -> float:
        """For how long its connection has been open, without a break; 0 while it is not."""
        ...

    def absent(self, workers: Sequence[str], *, deadline_s: float) -> set[str]:
        """Those of them that give no sign now.

        Raises:
            BrokerUnavailable: it did not answer, and nothing is known.
        """
        ...

    def close(self) -> None:
        """End it. Repeatable."""
        ...


class BrokerSigns(Protocol):
    """Signs of life in one broker."""

    def give(self, worker: str, *, heard_s: float) -> GivenSign:
        """Give a sign of `worker`. The broker removes it after a silence of about `heard_s`. Never raises."""
        ...

    def reader(self, *, heard_s: float) -> SignReader:
        """Connects by itself, and again whenever it breaks."""
        ...
