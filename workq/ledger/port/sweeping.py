"""The port of the ledger: what a sweep repairs, what its plan says before, and what an audit and a rebuild look at.

What holds for all of it is said in `workq/ledger/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from workq.ledger.answers import (
    Applied,
    Evidence,
    Fence,
    Foreseen,
    Foresight,
    OpenTask,
    Prunable,
    Pruned,
    Reaped,
    Unpublished,
)


class Sweeping(Protocol):
    """This part of what every ledger promises."""

    # -- sweep

    def suspect(self, missing: Iterable[str], *, beat_s: float, lease_s: float, dry_run: bool = False) -> list[str]:
        """Note who has no live lease; answers those who are suspected for at least a beat: looked at twice.

        Only a live incarnation whose own heartbeat in the ledger is older than a lease can be suspected. Whoever has a
        lease again is no longer suspected. With `dry_run` nothing is noted: who would be answered now.
        """
        ...

    def reap(
        self,
        worker: str,
        evidence: Evidence,
        *,
        suspected_for_s: float | None = None,
        lease_s: float = 0.0,
        dry_run: bool = False,
        planned: Foresight | None = None,
        by: Mapping[str, Any] | None = None,
    ) -> Reaped | None:
        """End one incarnation and its claims in one transaction; None when somebody did already, or it lives after all.

        With `suspected_for_s`, only if it is still suspected for that long and has not beaten within `lease_s`. With
        `dry_run` nothing changes: what would be answered now.

        The attempt that was running, if it was the only one, is charged with the crash; several become suspects: nobody
        knows yet who it was. Where nobody saw a crash, or a handler had ended already, presence is noted, which is
        free. Whoever was suspected or noted before is charged. A task whose budget is used up is dead as `worker_lost`.

        With `planned`, only if neither its row nor its claims have moved since (see plan.py); `by` is then appended as
        an event `manual` for the incarnation and for each claim.

        The certificate of its death is kept with the incarnation, and its essentials in the history of each task.
        """
        ...

    def orphans(self, *, limit: int, dry_run: bool = False) -> list[Unpublished]:
        """Return tasks that run under an incarnation which is not live any more."""
        ...

    def unhint(self, task_ids: Sequence[str], *, dry_run: bool = False) -> list[Unpublished]:
        """Ready or waiting tasks whose hint died with its holder: unpublished again, and answered for publishing.

        With `dry_run` nothing changes.
        """
        ...

    def expire(self, *, limit: int, dry_run: bool = False) -> int:
        """Cancel ready and waiting tasks that have expired, for that reason. Answers how many."""
        ...

    def promote(self, *, limit: int, dry_run: bool = False) -> int:
        """Waiting tasks whose time has come become ready. Answers how many."""
        ...

    def prune(self, *, limit: int, retention_s: float, dead_retention_s: float, dry_run: bool = False) -> Pruned:
        """Remove settled tasks, old events and ended workers beyond their retention, at most `limit` of each."""
        ...

    def swept(self, *, every_s: float) -> None:
        """Note that a pass of the sweep has ended; at most once in `every_s` seconds, however many sweep."""
        ...

    # -- plan and apply (see plan.py)

    def began_at(self) -> datetime:
        """When this ledger was made: tells it from others with the same URL."""
        ...

    def fences(self, task_ids: Iterable[str]) -> dict[str, Fence]:
        """Where these tasks stand; an id that the ledger does not know is missing in the answer."""
        ...

    def foresee(self, worker: str, evidence: Evidence) -> Foresight | None:
        """What `reap` would do to a live incarnation; None when it is not live."""
        ...

    def orphaned(self, *, limit: int) -> list[Foreseen]:
        """What `orphans` would return."""
        ...

    def expirable(self, *, limit: int) -> list[str]:
        """Whom `expire` would cancel."""
        ...

    def promotable(self, *, limit: int) -> list[str]:
        """Whom `promote` would make ready."""
        ...

    def prunable(self, *, limit: int, retention_s: float, dead_retention_s: float) -> list[Prunable]:
        """What `prune` would remove, at most `limit` rows of each kind."""
        ...

    def relay_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that stand where they stood are unpublished, reserved for a relay, and answered for publishing.

        Each of these five writes decides row by row, in one transaction that locks the row, and appends an event
        `manual` with `by` for each that it changed. Whoever comes second is refused.
        """
        ...

    def expire_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that stand where they stood, and have expired, are cancelled."""
        ...

    def promote_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that wait where they waited, and are due, become ready."""
        ...

    def return_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that still run under the same claim of an incarnation which is not live are returned."""
        ...

    def prune_planned(
        self, rows: Prunable, *, retention_s: float, dead_retention_s: float, by: Mapping[str, Any]
    ) -> Applied:
        """Rows that are still beyond their retention, and were when the plan was made, are removed."""
        ...

    # -- audit (see audit.py)

    def queues_with_open_tasks(self) -> list[str]:
        """The queues with tasks that are not settled."""
        ...

    def open_tasks(
        self, queue: str, *, is_running: bool, after: OpenTask | None = None, limit: int = 1000
    ) -> list[OpenTask]:
        """The tasks of a queue that run, or those that are still to be claimed: a page at a time, after the last one.

        One that changes its state between two pages may be met twice, or not at all.
        """
        ...

    def open_among(self, task_ids: Sequence[str]) -> dict[str, OpenTask]:
        """Those of these tasks that are not settled."""
        ...

    def marker_sent_at(self, queue: str, band: int) -> datetime | None:
        """When the newest marker of a line was sent; None when it has none."""
        ...

    def has_marker_returned(self, queue: str, band: int, *, since: datetime) -> bool:
        """Whether a marker sent then or later has come back: whatever was confirmed before has left the line."""
        ...

    def markers_voided(self, queue: str, *, since: datetime) -> int:
        """The order of a queue was disturbed, from `since` until now: markers that were on their way prove nothing.

        Those that are out, or came back since then, are dropped. Answers how many. Repeatable.
        """
        ...

    def return_unheld(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that still run under the same claim are returned at no charge, though their worker lives.

        Only for what nobody holds: a worker that runs one all the same settles it as a late result. As with plans, each
        has an event `manual` with `by`.
        """
        ...

    # -- rebuild (see recovery/rebuild.py)

    def open_queues(self) -> list[str]:
        """The queues with tasks that are ready or waiting."""
        ...

    def unclaimed(self, queue: str, *, before: datetime) -> int:
        """How many tasks of a queue are ready or waiting since `before`, without a hint that was confirmed later."""
        ...

    def unclaimed_page(
        self, queue: str, *, before: datetime, after: tuple[datetime, str] | None, limit: int
    ) -> list[Fence]:
        """Those tasks in the order in which they are due, a page at a time: `after` is the last of the page before."""
        ...

    def renew(self, task_ids: Sequence[str], *, before: datetime) -> list[Unpublished]:
        """Those of these tasks that are still unclaimed, and have no hint that was confirmed after `before`.

        They are unpublished, and reserved as by `take_unpublished`; answered in the order in which they are due.
        """
        ...

    def markers_dropped(self, queue: str) -> int:
        """Forget the markers of a queue that are out: they will not come back. Answers how many. Repeatable."""
        ...
