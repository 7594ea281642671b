"""Many are cancelled while workers run them: each has run or is cancelled, and what is cancelled never starts."""

from __future__ import annotations

import time

import pytest

from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State
from workq.ledger import WhichOpen
from workq.operations.bulk import Bulk, RateCap, Tally
from workq.values.task import SETTLED

PAGE = 1000


@pytest.mark.timeout(600)
@pytest.mark.one_leg
def test_of_many_that_are_cancelled_while_workers_run_them_none_starts_afterwards(
    fast_leg: Leg, long_run: bool
) -> None:
    leg, count = fast_leg, 100_000 if long_run else 4_000
    handler = leg["note"]
    handler.enqueue_many((number, 0.02) for number in range(count))  # long enough for some to be left
    other = leg["fail_until"].enqueue(1, 1).id
    bulk = Bulk(leg.app.stores, confirm_s=5.0, who="ada", why="withdrawn", pace=RateCap(None), tally=Tally())

    with leg.fleet(processes=2, threads=2):
        wait_until(lambda: leg.states()[State.SUCCEEDED] >= 10, timeout_s=60, what="some have run")
        began = time.monotonic()
        bulk.cancel(WhichOpen(name=handler.name))
        print(f"{leg.name}: {bulk.tally.done} of {count} cancelled in {time.monotonic() - began:.1f} s")
        wait_until(
            lambda: sum(leg.states()[state] for state in SETTLED) == count + 1, timeout_s=120, what="all has ended"
        )

    ledger = leg.app.stores.ledger
    started = {line.task_id for line in leg.testimony() if line.what == "start"}
    cancelled: list[str] = []
    while page := ledger.questions.tasks(state=State.CANCELLED, limit=PAGE, after=cancelled[-1] if cancelled else None):
        cancelled += [one.id for one in page]
    assert len(cancelled) == bulk.tally.done > 0
    assert not started.intersection(cancelled)
    assert len(started) == count + 1 - len(cancelled)
    assert (found := ledger.questions.get(other)) is not None
    assert found.state is State.SUCCEEDED
