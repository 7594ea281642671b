"""Old and new workers side by side, sweepers that die, a report that never ends, and people who edit by hand."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text, update
from sqlalchemy.exc import DBAPIError

from tests.contract.given import incarnation, new
from tests.faults.intruder import Intruder
from tests.stores import database_of
from tests.system.conftest import OpenLeg
from tests.system.fleet import REPOSITORY, Fleet, wait_until
from tests.system.legs import Leg
from tests.system.test_sweep import delivered, record_unpublished
from tests.zygote import FORKED_WITH, ran
from workq import State
from workq.diagnose.audit import audit
from workq.lab.servers import MariaDB, PostgreSQL
from workq.ledger import Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.recovery.sweep import sweep
from workq.slices import SLICES, every_table
from workq.values.task import Done, Settlement

pytestmark = pytest.mark.one_leg

# A report that never ends.


@pytest.fixture(params=["postgresql", "mysql"])
def server_url(request: pytest.FixtureRequest) -> str:
    server: PostgreSQL | MariaDB = request.getfixturevalue(
        "postgres_server" if request.param == "postgresql" else "mariadb_server"
    )
    return server.create_database()


def test_a_transaction_that_stays_open_for_long_costs_speed_and_loses_nothing(server_url: str) -> None:
    """F63, in short: a snapshot is held while a few thousand rows change three times each. The figures are printed."""
    ledger = Ledger(Database(server_url), SLICES)
    every_table(ledger.database.tables).create_all(ledger.database.engine)
    me = incarnation()
    ledger.workers.join(me, queues=["default"], threads=1)

    def work(rounds: int) -> tuple[float, float]:
        """Tasks a second, and the 99th percentile of a claim's milliseconds."""
        claims_ms: list[float] = []
        began = time.monotonic()
        for _ in range(rounds):
            ids = [one.id for one in ledger.tasks.record(new(50))]
            asked = time.monotonic()
            claims = ledger.claims.claim(ids, by=me.id)
            claims_ms.append(1000 * (time.monotonic() - asked))
            assert len(claims) == 50
            settled = ledger.outcomes.settle([Settlement(claim, Done("1")) for claim in claims])
            assert {one.state for one in settled} == {State.SUCCEEDED}
        return rounds * 50 / (time.monotonic() - began), sorted(claims_ms)[int(0.99 * rounds)]

    work(5)
    alone = work(30)
    other = create_engine(ledger.database.url, isolation_level="REPEATABLE READ")
    with other.connect() as report:
        before = report.execute(text("SELECT COUNT(*) FROM workq_task")).scalar_one()
        beside = work(30)
        assert report.execute(text("SELECT COUNT(*) FROM workq_task")).scalar_one() == before
        assert ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0) == []
    other.dispose()
    print(
        f"{ledger.database.dialect}: alone {alone[0]:.0f} tasks/s, claim p99 {alone[1]:.0f} ms; "
        f"beside a long transaction {beside[0]:.0f} tasks/s, claim p99 {beside[1]:.0f} ms"
    )
    assert ledger.questions.counts().states[State.SUCCEEDED] == 65 * 50
    ledger.close()


# Sweepers that die.


def sweep_and_die(leg: Leg, point: str, folder: Path) -> None:
    """A sweep in a process of its own, which dies at that point."""
    once = folder / "once"
    code = (
        "from tests.system.witness import wq; from workq.recovery.sweep import sweep\n"
        "wq.stores.ledger.database.clock_offset_s = 60.0\n"
        "sweep(wq.stores, wq.settings, only=['relay']); wq.close()"
    )
    armed = {"WORKQ_FAILPOINT": f"{point}:exit137@1", "WORKQ_FAILPOINT_ONCE": str(once)}
    environ = {**os.environ, **FORKED_WITH, **leg.environ, **armed}
    assert ran([sys.executable, "-c", code], env=environ, cwd=REPOSITORY, timeout_s=60).returncode == 137


@pytest.mark.parametrize(
    ("point", "published"),
    [("sweep.before_relay", False), ("relay.before_publish", False), ("relay.before_mark", True)],
)
@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
def test_what_a_dead_sweeper_had_taken_is_published_once_by_the_others(
    point: str, published: bool, leg_name: str, open_leg: OpenLeg, tmp_path: Path
) -> None:
    """F69: not while the dead one may still be at it, and then once, however many others sweep."""
    leg = open_leg(leg_name)
    stores, settings = leg.app.stores, leg.app.settings
    ids = record_unpublished(stores.ledger, leg, 30)
    sweep_and_die(leg, point, tmp_path)
    clock = database_of(leg.app)
    clock.clock_offset_s = 61.0
    meanwhile = sum(sweep(stores, settings, only=["relay"]).relayed for _ in range(3))
    clock.clock_offset_s = 90.0
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda: done.append(sweep(stores, settings, only=["relay"], limit=10).relayed))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    while again := sweep(stores, settings, only=["relay"]).relayed:
        done.append(again)

    assert meanwhile == 0, "they are reserved"
    assert sum(done) == 30
    hints = Counter(delivered(leg))
    assert set(hints) == set(ids)
    assert set(hints.values()) == {2 if published else 1}, "once in each cycle"


# A rolling upgrade.


def test_hints_of_a_newer_version_wait_for_a_worker_that_reads_them(fast_leg: Leg, intruder: Intruder) -> None:
    """F72: the old workers hand them back while the new ones start; each task runs once, on whichever comes first."""
    leg = fast_leg
    with leg.fleet(processes=1, threads=2) as old:
        leg.wait_settled(timeout_s=30)
        upgraded = Fleet(leg.folder, leg.environ, processes=1, threads=2, app="tests.faults.newer:wq")
        with upgraded as newer:
            wait_until(lambda: "worker.started" in newer.text(), timeout_s=30, what="the new worker serves")
            ids = [one.id for one in leg.app.stores.ledger.tasks.record([handled(leg, number) for number in range(20)])]
            leg.app.stores.ledger.hints.mark_published([Unpublished(task_id, "witness", 0, 0.0) for task_id in ids])
            intruder.put(
                [json.dumps({"v": 3, "q": "witness", "tasks": [one]}).replace(" ", "").encode() for one in ids]
            )
            wait_until(lambda: sum(leg.starts()[one] for one in ids) >= 20, timeout_s=40, what="all run")
            leg.wait_settled(timeout_s=30)
            by_new = {child.pid for child in newer.children()}
            stale = json.dumps({"v": 3, "q": "witness", "tasks": ids[:1]}).replace(" ", "").encode()

            def the_old_one_has_seen_one() -> bool:
                intruder.put([stale])  # of a task that has ended: nobody runs it
                return "hint.newer_version" in old.text()

            wait_until(the_old_one_has_seen_one, timeout_s=30, what="the old worker meets a newer hint")
            assert "Traceback" not in old.text() + newer.text()
    lines = [line for line in leg.testimony() if line.what == "start" and line.task_id in ids]
    assert Counter(line.task_id for line in lines) == dict.fromkeys(ids, 1)
    assert any(line.pid in by_new for line in lines)


def handled(leg: Leg, number: int) -> Any:
    handler = leg["note"]
    return handler.new_task(handler.options()._options, (number,), {})


# People.


def test_nonsense_in_the_ledger_is_refused_by_it_and_when_it_is_forced_in_the_audit_tells(fast_leg: Leg) -> None:
    """F74."""
    leg = fast_leg
    ids = record_unpublished(leg.app.stores.ledger, leg, 3)
    owner = database_of(leg.app)
    task = owner.tables.task
    with pytest.raises(DBAPIError, match=r"(?i)constraint"), owner.engine.begin() as tx:
        tx.execute(update(task).where(task.c.id == ids[0]).values(state="foo"))
    assert {look.state for look in leg.app.stores.ledger.claims.look(ids).values()} == {State.READY}

    # what no constraint can see: published by the row, by nobody in truth
    with owner.engine.begin() as tx:
        tx.execute(update(task).where(task.c.id == ids[0]).values(published_at=owner.now(-60.0)))
    owner.clock_offset_s = 60.0  # long after anybody could still have it in his hands
    found = audit(leg.app.stores, leg.app.settings, queues=["witness"])

    assert not found.is_ok
    assert [one.task for one in found.findings if one.kind.value == "lost"] == [ids[0]]
