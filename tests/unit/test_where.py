"""Places: what one look may say of a task whose hint is on its way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from workq.config import Times
from workq.diagnose.bounds import Bounds
from workq.diagnose.where import HolderFacts, Misplacement, Place, QueueHints, Stand, stand_of
from workq.inflight import Hold, Lease
from workq.ledger import OpenTask
from workq.values.codec import new_task_id
from workq.values.task import State

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOBODY = HolderFacts(leases={}, live=(), beat_age_s={}, holds={}, epoch_age_s=1e6, swept_for_s=0.0)


def seen(*, due_s: float, comes_s: float, marked_s: float) -> Stand:
    """Of a task that was due, and whose hint was to come, so many seconds ago; a marker was sent so long ago, too."""
    times = Times()
    task = OpenTask(
        task_id=new_task_id(),
        queue="mail",
        state=State.WAITING,
        attempt=0,
        worker=None,
        due_at=NOW - timedelta(seconds=due_s),
        queued_at=NOW - timedelta(seconds=3600),
        published_at=NOW - timedelta(seconds=comes_s),
        reserved_until=None,
        now=NOW,
    )
    return stand_of(
        task, QueueHints(NOW - timedelta(seconds=marked_s), "a marker came back"), NOBODY, times, Bounds.of(times)
    )


def test_a_task_waits_while_its_hint_comes_later_however_long_it_is_due() -> None:
    assert seen(due_s=600.0, comes_s=-30.0, marked_s=0.0) == Stand(Place.WAITING)


def test_its_hint_is_lost_when_it_has_come_before_the_marker_and_nobody_has_it() -> None:
    assert seen(due_s=600.0, comes_s=5.0, marked_s=10.0).place is Place.BROKER, "it came behind the marker"
    assert seen(due_s=600.0, comes_s=10.0, marked_s=5.0).kind is Misplacement.LOST


def test_a_hint_beside_a_hold_is_no_twin_where_others_take_what_waits_for_its_owner() -> None:
    times, task_id = Times(), new_task_id()
    task = OpenTask(
        task_id=task_id,
        queue="mail",
        state=State.RUNNING,
        attempt=1,
        worker="one",
        due_at=NOW,
        queued_at=NOW,
        published_at=NOW,
        reserved_until=None,
        now=NOW,
    )
    holds = {task_id: (Hold(task_id, "mail", "one", 1, 1.0),)}
    facts = HolderFacts({"one": Lease("one", 30.0)}, {"one"}, {"one": 0.0}, holds, epoch_age_s=1e6, swept_for_s=0.0)

    def kind(copies: int, *, has_owners: bool) -> Misplacement | None:
        line = QueueHints(NOW, "", {task_id: copies}, has_owners=has_owners)
        return stand_of(task, line, facts, times, Bounds.of(times)).kind

    assert kind(1, has_owners=True) is None
    assert kind(2, has_owners=True) is Misplacement.TWIN
    assert kind(1, has_owners=False) is Misplacement.TWIN
