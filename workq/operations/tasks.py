"""What a person decides about one task: cancel it, let it be due at another time, send it back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from workq.errors import ConfigError, Refused
from workq.handlers.options import seconds_until
from workq.ledger import CancelAnswer, Unpublished
from workq.operations import Announce
from workq.stores import Stores
from workq.values.names import check_delay_s
from workq.values.task import State


def cancel(stores: Stores, task_id: str, *, who: str, why: str, kills: bool = False) -> CancelAnswer:
    """Cancel at once what does not run; ask it of what runs.

    `kills`: the process that runs it is killed, within some seconds.

    Raises:
        NotFound: no such task.
    """
    return stores.ledger.decisions.cancel(task_id, who=who, why=why, kills=kills)


@dataclass(frozen=True, slots=True)
class DueTime:
    """When a task is to be due: in so many seconds, and exactly `at` an instant where a person has named one."""

    wait_s: float
    at: datetime | None = None


def due(*, delay_s: float | None, at: datetime | None) -> DueTime:
    """In `delay_s` seconds, or `at` an aware instant; the past means now.

    Raises:
        ConfigError: not one of both, or out of range.
    """
    if (delay_s is None) == (at is None):
        raise ConfigError("delay_s and at: give one of them")
    return DueTime(check_delay_s(delay_s) if at is None else seconds_until(at), at)


def reschedule(stores: Stores, task_id: str, when: DueTime, *, who: str, why: str, announce: Announce) -> Unpublished:
    """Let a task that does not run be due then.

    Raises:
        NotFound: no such task. Refused: it runs, or is settled, or would expire before.
    """
    row = stores.ledger.decisions.reschedule(task_id, delay_s=when.wait_s, who=who, why=why, at=when.at)
    announce([row])
    return row


def revive(
    stores: Stores, task_id: str, *, who: str, why: str, announce: Announce, only: State | None = None
) -> Unpublished:
    """Send a dead or cancelled task back to ready, due now, whatever time it had, with fresh budgets.

    Raises:
        NotFound: no such task.
        Refused: it is neither dead nor cancelled, or not in the state `only`, or a live task holds its key.
    """
    if only is not None:
        found = stores.ledger.questions.get(task_id)
        if found is not None and found.state is not only:
            raise Refused(f"it is {found.state}, not {only}")
    row = stores.ledger.decisions.revive(task_id, who=who, why=why)
    announce([row])
    return row


def discard(stores: Stores, task_id: str, *, who: str, why: str) -> bool:
    """Give up a dead task, for good: it is cancelled, as `discarded`. False: it is not dead."""
    return bool(stores.ledger.bulk.discard_dead([task_id], who=who, why=why))
