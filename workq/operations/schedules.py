"""What a person decides about a schedule: let it not tick, let it tick again, forget it."""

from __future__ import annotations

from workq.schedules.ledger import Schedules
from workq.stores import Stores


def pause(stores: Stores, name: str, *, who: str, why: str) -> None:
    """Let it not tick until it is resumed. What has become a task already stays one.

    Raises:
        NotFound: there is none of that name.
    """
    stores.ledger.part(Schedules).pause_schedule(name, who=who, why=why)


def resume(stores: Stores, name: str, *, who: str, why: str) -> bool:
    """Let it tick again, from now on; False when it was not paused.

    Raises:
        NotFound: there is none of that name.
    """
    return stores.ledger.part(Schedules).resume_schedule(name, who=who, why=why)


def remove(stores: Stores, name: str, *, who: str, why: str) -> bool:
    """Forget a schedule that no application declares any more; False when there is none of that name."""
    return stores.ledger.part(Schedules).unschedule(name, who=who, why=why)
