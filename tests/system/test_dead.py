"""A night in which much died: groups are exact, a canary that dies stops its group, and the others go back whole."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.contract.given import incarnation
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State
from workq.ledger import Which
from workq.operations.bulk import Bulk, RateCap, Tally
from workq.values.task import Dead, Settlement

ERRORS = (
    ("ValueError", "ValueError: order {number} is odd"),
    ("ValueError", "ValueError: order {number} has no address '{number}'"),
    ("HTTPError", "HTTPError: 404 for https://bank/{number}"),
    ("HTTPError", "HTTPError: 503 for https://bank/{number}"),
    ("KeyError", "KeyError: 'k{number}'"),
)
PAGE = 1000


def kill(leg: Leg, count: int) -> None:
    """So many tasks that died of five things in turn."""
    ledger, me = leg.app.stores.ledger, incarnation()
    ledger.workers.join(me, queues=["witness"], threads=1)
    handler = leg["note"]
    for first in range(0, count, PAGE):
        tasks = [handler.new_task(handler.options()._options, (0,), {}) for _ in range(min(PAGE, count - first))]
        claims = ledger.claims.claim([one.id for one in ledger.tasks.record(tasks)], by=me.id)
        assert len(claims) == len(tasks)
        died = [(claim, ERRORS[number % len(ERRORS)], number) for number, claim in enumerate(claims, first)]
        ledger.outcomes.settle(
            [
                Settlement(one, Dead(f"failures_max reached: {kind}", text.format(number=n)))
                for one, (kind, text), n in died
            ]
        )
    ledger.workers.leave(me.id)


@pytest.mark.timeout(600)
def test_a_hundred_thousand_dead_are_grouped_exactly_and_go_back_group_by_group(fast_leg: Leg, long_run: bool) -> None:
    leg, count = fast_leg, 100_000 if long_run else 2_000
    ledger = leg.app.stores.ledger
    began = time.monotonic()
    kill(leg, count)
    killed_s = time.monotonic() - began
    began = time.monotonic()
    groups = ledger.bulk.dead_groups(Which(), limit=99)
    grouped_s = time.monotonic() - began

    assert [one.tasks for one in groups] == [count // 5] * 5
    assert sorted(Counter(one.reason for one in groups).values()) == [1, 2, 2]

    bulk = Bulk(leg.app.stores, confirm_s=5.0, who="ada", why="the bank is back", pace=RateCap(None), tally=Tally())
    began = time.monotonic()
    bulk.retry(Which(group=groups[0].group))
    back_s = time.monotonic() - began
    print(f"{leg.name}: {count} dead in {killed_s:.1f} s, grouped in {grouped_s:.2f} s, a fifth back in {back_s:.1f} s")

    assert bulk.tally.done == count // 5
    assert [one.group for one in ledger.bulk.dead_groups(Which(), limit=99)] == [one.group for one in groups[1:]]
    assert leg.states()[State.READY] == count // 5


def test_a_canary_that_dies_again_stops_its_group_and_no_other(fast_leg: Leg) -> None:
    leg = fast_leg
    ledger, me = leg.app.stores.ledger, incarnation()
    ledger.workers.join(me, queues=["witness"], threads=1)
    recorded = [leg["fail_until"].enqueue(number, 99).id for number in range(20)]
    recorded += [leg["note"].enqueue(number).id for number in range(20)]
    claims = ledger.claims.claim(recorded, by=me.id)
    ledger.outcomes.settle(
        [Settlement(one, Dead("failures_max reached: OSError", "OSError: no disk")) for one in claims]
    )
    ledger.workers.leave(me.id)
    bulk = Bulk(leg.app.stores, confirm_s=5.0, who="ada", why="again", pace=RateCap(None), tally=Tally())

    with leg.fleet(processes=1, threads=4):
        bulk.retry_with_canaries(Which(), canaries=3, wait_s=60.0)
        wait_until(lambda: leg.states()[State.SUCCEEDED] == 20, timeout_s=60, what="the good ones ran")

    [(stopped, why)] = bulk.tally.stopped
    assert (stopped.name, stopped.tasks) == ("witness.fail_until", 20)
    assert "canaries failed again" in why
    assert bulk.tally.done == 23
    canaries = {line.task_id for line in leg.testimony() if line.what == "start" and line.task_id in recorded[:20]}
    assert len(canaries) == 3
