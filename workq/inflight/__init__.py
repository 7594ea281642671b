"""The port of the in-flight store, the second queue: what the workers hold, and their leases.

A hold moves custody of a task from the broker to one incarnation. A lease is that incarnation's promise, which ends by
itself unless it beats. Nothing here can settle or start a task: whoever writes to this store can only delay work. The
store may be wiped at any moment: live workers write their holds again with their next beat, and `epoch` tells the sweep
to be patient meanwhile.

Who decides: the ledger. Times are measured by the store's own clock (Redis TIME, the database's clock).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """One task to hold: `attempt` is None until it is claimed."""

    task_id: str
    queue: str
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """One entry of the in-flight hash, as found. `since_s` is its age in seconds."""

    task_id: str
    queue: str
    worker: str
    attempt: int | None
    since_s: float


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a beat. `restored` counts the holds that had vanished and were written again."""

    restored: int


@dataclass(frozen=True, slots=True)
class Lease:
    """One incarnation's lease. `left_s` is negative once it has expired."""

    worker: str
    left_s: float


class InFlight(Protocol):
    """What every in-flight store promises. Thread-safe.

    Every method raises InFlightUnavailable when the store does not answer in time; then nothing may be assumed,
    and each may simply be called again.
    """

    def join(self, worker: str, *, lease_s: float) -> None:
        """Grant a first lease to a new incarnation. Without a lease it can hold nothing."""
        ...

    def hold(self, entries: Sequence[Entry], *, by: str) -> set[str]:
        """Hold tasks under the lease of `by`; answers the ids that are now its own.

        Atomic for each call. An entry held by another incarnation whose lease is live stays its own and is not
        answered; one of an incarnation without a live lease is taken over. Repeatable.

        Raises:
            LeaseLost: `by` has no live lease; nothing was held.
        """
        ...

    def beat(self, worker: str, *, lease_s: float, entries: Sequence[Entry]) -> Beat:
        """Extend the lease and write the worker's entries, with their attempts; restores those that were wiped.

        Atomic and repeatable: again only moves the end later. An entry that another live incarnation holds meanwhile
        is left alone. An expired lease that nobody has reaped is renewed. After a wipe the lease is granted anew.

        Raises:
            LeaseLost: it was reaped (`forget`) in this epoch; stop claiming.
        """
        ...

    def extend(self, worker: str, *, lease_s: float) -> bool:
        """Extend a lease that exists, for a process whose threads cannot run (one holds the GIL). False: none there."""
        ...

    def release(self, task_ids: Sequence[tuple[str, str]], *, by: str) -> int:
        """Drop holds, (task id, queue), only those that `by` owns; answers how many were dropped. Repeatable."""
        ...

    def leave(self, worker: str) -> None:
        """Give the lease up in order, with whatever is still held. Repeatable."""
        ...

    def leases(self) -> Mapping[str, Lease]:
        """All leases, live and expired, by incarnation."""
        ...

    def held_by(self, worker: str) -> list[Hold]:
        """What one incarnation holds."""
        ...

    def holds(self, queue: str, *, claimed: bool = True) -> list[Hold]:
        """What is held of one queue. With `claimed=False` a store may leave out what is claimed, to save work."""
        ...

    def forget(self, worker: str) -> int:
        """Drop a reaped incarnation: its lease and holds. Its later beats get LeaseLost. Answers the holds dropped.

        Call it only after the ledger has ended its claims. Repeatable.
        """
        ...

    def epoch_age_s(self) -> float:
        """Seconds since this store began, or was found empty. Young: live workers are still writing their holds."""
        ...

    def check(self) -> str:
        """Connect once and answer the server's name and version.

        Raises:
            InFlightUnavailable: it did not answer.
            ConfigError: its settings can lose entries (an evicting maxmemory-policy).
        """
        ...

    def close(self) -> None:
        """Close connections. Repeatable."""
        ...
