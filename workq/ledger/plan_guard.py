"""What must not have moved between a plan and its application: pure comparisons, and the seal of a claim."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from workq.ledger import Fence, Foreseen
from workq.values.task import State


def seal(task_id: str, attempt: int, token: str | None) -> str | None:
    """A short hash of a claim's token: tells one claim from another, and settles nothing. None without a claim."""
    if token is None:
        return None
    return hashlib.sha256(f"{task_id}:{attempt}:{token}".encode()).hexdigest()[:16]


def fence_of(row: Any) -> Fence:
    """A row of `task` as the fence that a plan keeps."""
    return Fence(
        task_id=row.id,
        queue=row.queue,
        state=State(row.state),
        attempt=row.attempt,
        due_at=row.due_at,
        queued_at=row.queued_at,
        published_at=row.published_at,
        worker=row.worker,
        seal=seal(row.id, row.attempt, row.token),
    )


def moved(planned: Fence, found: Fence | None, *, is_hint_free: bool = False) -> str | None:
    """How a task has moved since the plan, in words; None when it stands where it stood.

    With `is_hint_free` a hint that was published meanwhile does not matter.
    """
    if found is None:
        return "it is not in the ledger any more"
    if found.state is not planned.state:
        return f"it was {planned.state} and is {found.state} now"
    if found.attempt != planned.attempt:
        return f"it was at attempt {planned.attempt} and is at {found.attempt} now"
    if (found.worker, found.seal) != (planned.worker, planned.seal):
        return f"it was claimed again, by {found.worker}"
    if found.published_at != planned.published_at and not is_hint_free:
        return "its hint is to be sent again already" if found.published_at is None else "its hint was sent meanwhile"
    if (found.due_at, found.queued_at) != (planned.due_at, planned.queued_at):
        return "it was put back meanwhile, or is due at another time"
    return None


def are_claims_moved(planned: Iterable[Foreseen], running: Iterable[Any]) -> bool:
    """Whether an incarnation runs other claims than the plan says (rows with id, attempt and token)."""
    then = {(one.fence.task_id, one.fence.attempt, one.fence.seal) for one in planned}
    return then != {(row.id, row.attempt, seal(row.id, row.attempt, row.token)) for row in running}
