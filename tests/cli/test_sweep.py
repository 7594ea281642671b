"""workq sweep: what it says that it would do, it does; and it goes on when stores come and go."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.conftest import BOUND_S, Cli
from workq.app import WorkQueue
from workq.incarnation import Incarnation
from workq.inflight import Entry
from workq.sweep import STEPS
from workq.task import Cancelled, Claim, Done, Settlement

DAY_S = 86400.0


def incarnation(name: str) -> Incarnation:
    return Incarnation(f"host.{name}", "host", 1)


@contextmanager
def ago(wq: WorkQueue, seconds: float) -> Iterator[None]:
    """The ledger's clock stands so long ago."""
    database = wq.stores.ledger.database  # type: ignore[attr-defined]
    database.clock_offset_s = -seconds
    try:
        yield
    finally:
        database.clock_offset_s = 0.0


def join(wq: WorkQueue, name: str) -> Incarnation:
    one = incarnation(name)
    wq.stores.inflight.join(one.id, lease_s=30.0)
    wq.stores.ledger.join(one, queues=["sums"], threads=4)
    return one


def record(wq: WorkQueue, count: int, **options: Any) -> list[str]:
    return [wq.handler("shop.add").options(**options).enqueue(1).id for _ in range(count)]


def claim(wq: WorkQueue, task_ids: list[str], by: Incarnation) -> list[Claim]:
    claims = wq.stores.ledger.claim(task_ids, by=by.id)
    assert len(claims) == len(task_ids)
    wq.stores.inflight.hold([Entry(one.task_id, one.queue, one.attempt) for one in claims], by=by.id)
    return claims


def wreck(cli: Cli) -> None:
    """A ledger with work for each step: every number is another one, so that none can stand for another."""
    with cli.queue() as wq:
        ledger, database = wq.stores.ledger, wq.stores.ledger.database  # type: ignore[attr-defined]
        with ago(wq, 8 * DAY_S):
            old = join(wq, "old")
            settled = claim(wq, record(wq, 9), old)
            outcomes = [Done("1") if at else Cancelled("no need") for at in range(len(settled))]
            ledger.settle([Settlement(one, outcome) for one, outcome in zip(settled, outcomes, strict=True)])
            wq.stores.inflight.leave(old.id)
            ledger.leave(old.id)
        with ago(wq, 600.0):
            crashed = join(wq, "crashed")
            running = claim(wq, record(wq, 5), crashed)
            ledger.cancel(running[0].task_id, reason="asked")  # it ends as cancelled: neither returned nor dead
            held = record(wq, 3)
            wq.stores.inflight.hold([Entry(task_id, "sums") for task_id in held], by=crashed.id)
            half = join(wq, "half-reaped")
            orphans = record(wq, 2)
            claim(wq, orphans, half)
            ledger.leave(half.id)
            record(wq, 4, delay_s=60.0)
        with ago(wq, 300.0):
            assert ledger.suspect([crashed.id], beat_s=4.0, lease_s=30.0) == []  # the first look
        task = database.tables.task
        with ago(wq, 60.0):
            unpublished = record(wq, 7)
        statement = task.update().where(task.c.id.in_(unpublished)).values(published_at=None)
        assert database.run(lambda tx: tx.execute(statement).rowcount) == 7
        budget = task.update().where(task.c.id == running[1].task_id).values(crashes_max=1)  # its crash was the last
        assert database.run(lambda tx: tx.execute(budget).rowcount) == 1


EXPECTED = {
    "relayed": 7, "reaped_workers": 2, "returned": 3, "rehinted": 3, "dead": 1, "orphans": 2, "promoted": 4,
    "pruned": 9, "pruned_events": 0, "pruned_workers": 1,
}  # fmt: skip


class TestDryRun:
    def test_it_prints_the_counts_of_the_pass_that_follows_and_changes_nothing(self, cli: Cli) -> None:
        wreck(cli)

        first = cli("sweep", "--dry-run", "-o", "json")
        second = cli("sweep", "--dry-run", "-o", "json")
        real = cli("sweep", "-o", "json")
        after = cli("sweep", "--dry-run", "-o", "json")

        assert first.status == second.status == 3
        assert first.out == second.out
        counts = {name: first.json()[name] for name in EXPECTED}
        assert counts == EXPECTED
        assert real.status == 0
        assert real.json() == first.json() | {"dry_run": False}
        assert after.status == 0
        assert {after.json()[name] for name in EXPECTED} == {0}

    @pytest.mark.parametrize("step", STEPS)
    def test_each_step_alone_does_what_it_said(self, cli: Cli, step: str) -> None:
        wreck(cli)

        said = cli.look("sweep", "--dry-run", "--only", step, "--limit", "3")
        did = cli.look("sweep", "--only", step, "--limit", "3")

        assert did == said | {"dry_run": False}
        assert any(did[name] for name in EXPECTED)
        assert all(did[name] <= 3 for name in ("relayed", "orphans", "promoted", "pruned"))

    def test_the_table_names_every_count(self, cli: Cli) -> None:
        wreck(cli)

        ran = cli("sweep")

        rows = dict(line.rsplit(maxsplit=1) for line in ran.out.splitlines()[1:])
        assert rows == {name.replace("_", " "): str(count) for name, count in EXPECTED.items()}
        assert ran.err == ""


class TestEvery:
    def test_it_runs_on_with_a_line_for_each_pass_that_changed_something_until_sigterm(self, cli: Cli) -> None:
        wreck(cli)

        with cli.start("sweep", "--every", "0.2s", "-o", "json") as sweeper:
            assert sweeper.stdout is not None
            first = json.loads(sweeper.stdout.readline())
            with cli.queue() as wq, ago(wq, 60.0):
                record(wq, 6, delay_s=30.0)
            second = json.loads(sweeper.stdout.readline())
            sweeper.send_signal(signal.SIGTERM)
            rest, err = sweeper.communicate(timeout=BOUND_S)

        assert {name: first[name] for name in EXPECTED} == EXPECTED
        assert first["at"].endswith("Z")
        assert second["promoted"] == 6
        assert (sweeper.returncode, rest, err) == (0, b"", b"")

    def test_a_ledger_that_is_away_is_one_line_and_it_goes_on(self, cli: Cli) -> None:
        cli.record("shop.add", 1)
        (cli.folder / "shop.db").rename(cli.folder / "kept.db")
        (cli.folder / "shop.db").mkdir()  # no SQLite file can be opened there

        with cli.start("sweep", "--every", "0.1s") as sweeper:
            assert sweeper.stderr is not None
            waits = sweeper.stderr.readline().decode()
            (cli.folder / "shop.db").rmdir()
            (cli.folder / "kept.db").rename(cli.folder / "shop.db")
            goes_on = sweeper.stderr.readline().decode()
            sweeper.send_signal(signal.SIGINT)
            _, rest = sweeper.communicate(timeout=BOUND_S)

        assert waits.startswith("workq: warning: sweep waits: cannot use the ledger")
        assert goes_on == "workq: sweep goes on\n"
        assert (sweeper.returncode, rest) == (0, b"")

    def test_one_pass_with_a_store_away_exits_4(self, cli: Cli) -> None:
        for name, url in (
            ("WORKQ_BROKER_URL", "amqp://u:canary-pw@127.0.0.1:1/"),
            ("WORKQ_INFLIGHT_URL", "redis://127.0.0.1:1"),
        ):
            ran = cli("sweep", env={name: url})

            assert ran.status == 4
            assert ran.out == ""
            assert "127.0.0.1:1" in ran.err
            assert "canary-pw" not in ran.err


def test_sweeps_at_the_same_time_do_together_what_one_does(cli: Cli) -> None:
    wreck(cli)
    found: list[dict[str, Any]] = []

    def one() -> None:
        found.append(cli("sweep", "-o", "json").json())

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)

    assert len(found) == 4
    for name in ("returned", "dead", "orphans", "promoted", "pruned"):
        assert sum(one[name] for one in found) == EXPECTED[name], name
    assert sum(one["relayed"] for one in found) == EXPECTED["relayed"]
