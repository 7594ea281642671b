"""Refused hints: what becomes of hints whose tasks the ledger did not grant.

Such a task is settled, expired, or somebody else's: its hint is worth nothing. It is early, its queue is paused, or it
was refused: its hint is sent again. Or the ledger does not know it (its producer's commit may not be visible yet): it
is looked up a few times, a beat apart, and then told as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workq.broker import PAGE, Hint
from workq.errors import LeaseLost
from workq.ledger import Look
from workq.ledger.engine.states import CLAIMABLE
from workq.logs.seldom import Seldom
from workq.values import codec

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


LOOKS_MAX = 3
"""An id that the ledger does not know is looked up so often, one beat apart."""
REFUSED_AGAIN_S = 0.2
"""When to look again at a task that could not be claimed although it was due a moment later."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What to do about hints that were not granted: send `again`, tell `unknown` ids, and drop the others.

    `is_refused`: one of them was due, and claimable; so it may be the claimant whom the ledger refuses. `is_paused`:
    the queue of one is.
    """

    again: list[Hint]
    unknown: list[str]
    is_refused: bool
    is_paused: bool = False


class RefusedHints:
    """Judges for one incarnation."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        me: str,
        beat_s: float,
        kept_s: float,
        horizon_s: float,
        seldom: Seldom,
        wall: Callable[[], float],
    ) -> None:
        """`kept_s`: how long the ledger keeps anything that is settled; `wall`: the clock of this host."""
        self._ledger = ledger
        self._me = me
        self._seldom = seldom
        self._beat_s = beat_s
        self._kept_s = kept_s
        self._horizon_s = horizon_s
        self._wall = wall

    def judge(self, missed: Iterable[tuple[str, str, int]], looks: Mapping[str, Look]) -> Judged:
        """Of (task id, the queue that the hint named, how often it was looked up before)."""
        again = HintPages(self._horizon_s)
        unknown: list[str] = []
        is_refused = is_paused = False
        for task_id, queue, seen in missed:
            look = looks.get(task_id)
            if look is None:
                if seen + 1 >= LOOKS_MAX or self._is_pruned(task_id):
                    unknown.append(task_id)
                else:
                    again.add(task_id, queue, pause_s=self._beat_s, looks=seen + 1)
            elif look.state in CLAIMABLE and not look.is_expired:
                is_paused = is_paused or look.is_paused
                is_refused = is_refused or (look.due_in_s <= 0.0 and not look.is_paused)
                again.add(task_id, look.queue, due_in_s=look.due_in_s, pause_s=REFUSED_AGAIN_S)
        return Judged(again.hints(), unknown, is_refused, is_paused)

    def tell(self, judged: Judged, *, queue: str) -> None:
        """Note the unknown ids of a queue in the ledger; and when it may be us whom the ledger refuses, ask it.

        Raises:
            LeaseLost: the ledger has ended this incarnation. Unavailable: the ledger is away.
        """
        if judged.unknown:
            self._seldom.warning(
                "hint.unknown_id", reason="unknown_id", count=len(judged.unknown), task=judged.unknown[-1]
            )
            detail = {"reason": "unknown_id", "queue": queue, "tasks": judged.unknown}
            self._ledger.history.note("quarantined", detail=detail, worker=self._me)
        if judged.is_refused and not self._ledger.workers.beat(self._me):
            raise LeaseLost("the ledger has ended this incarnation, and grants it nothing any more")

    def _is_pruned(self, task_id: str) -> bool:
        """Whether an unknown id is older than anything that the ledger keeps: no use in looking again."""
        made_at_s = codec.made_at_s(task_id)
        return made_at_s is not None and made_at_s < self._wall() - self._kept_s


class HintPages:
    """Hints to send again: ids of one queue, delay and number of looks share pages."""

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._ids: dict[tuple[str, float, int], list[str]] = {}

    def add(self, task_id: str, queue: str, *, due_in_s: float = 0.0, pause_s: float = 0.0, looks: int = 0) -> None:
        """One id. Due beyond the broker's horizon it is left to the sweep, which knows when it is due.

        A `pause_s` before the next look is as long as the horizon at most.
        """
        if due_in_s <= self._horizon_s:
            delay_s = max(due_in_s, min(pause_s, self._horizon_s), 0.0)
            self._ids.setdefault((queue, delay_s, looks), []).append(task_id)

    def hints(self) -> list[Hint]:
        """The hints, each with one page at most."""
        return [
            Hint(queue, tuple(ids[start : start + PAGE]), delay_s, looks)
            for (queue, delay_s, looks), ids in self._ids.items()
            for start in range(0, len(ids), PAGE)
        ]
