"""A handler's transaction: however often it dies in the middle, its writes and its task's success stand once."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.given import incarnation, new
from tests.system.bank import BOUNDARIES
from tests.system.conftest import OpenLeg
from tests.system.fleet import REPOSITORY, wait_until
from tests.system.legs import Leg
from tests.system.witness import make_book, read_book
from tests.zygote import FORKED_WITH, ran
from workq import State
from workq.enqueue.producer import Producer
from workq.errors import Refused
from workq.ledger import Unpublished

CRASHES_LONG = 10_000
CRASHES_SHORT = 36
BANKS = 2
"""Processes at once, each with its own transfers."""


def test_what_is_enqueued_inside_belongs_to_it_and_runs_once_it_stands(leg: Leg) -> None:
    ledger = leg.app.stores.ledger
    me = incarnation()
    ledger.workers.join(me, queues=["witness"], threads=1)
    [claim] = ledger.claims.claim([leg["note"].enqueue(0).id], by=me.id)
    with ledger.transactions.transaction(claim) as connection:
        with pytest.raises(Refused, match=r"options\(connection=connection\)"):
            leg["note"].enqueue(1)
        with pytest.raises(Refused, match=r"options\(connection=connection\)"):
            leg["note"].enqueue_many([{"number": 2}])
        inside = leg["note"].options(connection=connection).enqueue(3)
    outside = leg["note"].enqueue(4)
    ledger.workers.leave(me.id)

    with leg.fleet(processes=1, drain=True) as fleet:
        assert fleet.wait(60) == 0

    assert sorted(line.number for line in leg.testimony() if line.what == "end") == ["3", "4"]
    assert set(leg.starts()) == {inside.id, outside.id}
    assert leg.states()[State.SUCCEEDED] == 3


def test_what_is_recorded_in_one_transaction_is_followed_once_it_is_committed(open_leg: OpenLeg) -> None:
    """However often a connection is used, and whatever was rolled back on it before."""
    leg = open_leg("servers")
    followed: list[list[Unpublished]] = []
    producer = Producer(leg.app.stores, confirm_s=10.0, follow=followed.append)
    database = leg.app.database()
    with database.engine.connect() as connection:
        kept = [one.id for _ in range(3) for one in producer.record(new(2), connection=connection)]
        connection.commit()
        producer.record(new(1), connection=connection)
        connection.rollback()
        last = [one.id for one in producer.record(new(1), connection=connection)]
        connection.commit()
        connection.commit()
    database.close()
    producer.close()

    assert [[row.task_id for row in rows] for rows in followed] == [kept, last]


def test_a_transaction_with_many_single_enqueues_has_one_thread_behind_it(open_leg: OpenLeg) -> None:
    leg = open_leg("servers")
    database = leg.app.database()
    before = threading.active_count()
    with database.engine.begin() as connection:
        note = leg["note"].options(connection=connection)
        for number in range(700):
            note.enqueue(number)
    after = threading.active_count()
    database.close()

    def unpublished() -> int:
        return len(leg.app.stores.ledger.hints.take_unpublished(limit=999, grace_s=0.0, horizon_s=60.0, dry_run=True))

    assert after - before <= 3, "whoever looks for the commit, the relay, and its connection"
    wait_until(lambda: unpublished() == 0, timeout_s=30, what="all are published, without a sweep")


def test_where_no_thread_can_be_had_a_callers_transaction_stands_and_a_sweep_relays(
    open_leg: OpenLeg, monkeypatch: pytest.MonkeyPatch
) -> None:
    leg = open_leg("servers", divide=10.0)
    database = leg.app.database()

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with database.engine.begin() as connection:
            inside = leg["note"].options(connection=connection).enqueue(1)
        outside = leg["note"].enqueue(2)
    database.close()
    with leg.fleet(processes=1):
        leg.wait_settled(timeout_s=40)

    assert set(leg.starts()) == {inside.id, outside.id}


@pytest.mark.timeout(3600)
def test_effects_stand_exactly_once_wherever_the_handler_dies(leg: Leg, long_run: bool) -> None:
    count = CRASHES_LONG if long_run else CRASHES_SHORT
    make_book(leg.app)
    with ThreadPoolExecutor(BANKS) as pool:
        seen = list(pool.map(lambda seed: bank(leg, count // BANKS, seed), range(7, 7 + BANKS)))

    crashes = sum((Counter(one["crashes"]) for one in seen), Counter[str]())
    transfers = sum(one["transfers"] for one in seen)
    print(f"{leg.name}: {crashes.total()} crashes of {transfers} transfers: {dict(crashes)}")
    assert set(crashes) == set(BOUNDARIES)
    assert crashes.total() >= count
    assert sum(one["succeeded"] for one in seen) == transfers
    assert sum(one["right"] for one in seen) == 2 * transfers
    assert read_book(leg.app).total() == 2 * transfers


def bank(leg: Leg, crashes: int, seed: int) -> dict[str, Any]:
    """What one bank has seen."""
    done = ran(
        [sys.executable, "-m", "tests.system.bank", str(crashes), str(seed)],
        cwd=REPOSITORY,
        env={**os.environ, **FORKED_WITH, **leg.environ},
        timeout_s=3000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen
