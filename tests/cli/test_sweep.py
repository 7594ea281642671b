"""workq sweep: what it says that it would do, it does; and it goes on when stores come and go."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from tests.cli.conftest import BOUND_S, Cli
from tests.contract.given import chunks, new_job
from tests.stores import database_of
from workq.app import WorkQueue
from workq.inflight import Entry
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import JobOptions
from workq.messages.ledger.tables import message_tables
from workq.recovery.sweep import STEPS
from workq.schedules.ledger import Schedules
from workq.values.codec import new_task_id
from workq.values.incarnation import Incarnation
from workq.values.task import Cancelled, Claim, Done, Settlement
from workq.webhooks.ledger.tables import webhook_tables

DAY_S = 86400.0
KEPT_S = 60.0
"""So long a wreck is copied, before the next one is made anew."""
_kept: list[tuple[float, bytes]] = []
"""When one was made, and its file."""


def incarnation(name: str) -> Incarnation:
    return Incarnation(f"host.{name}", "host", 1)


@contextmanager
def ago(wq: WorkQueue, seconds: float) -> Iterator[None]:
    """The ledger's clock stands so long ago."""
    database = database_of(wq)
    database.clock_offset_s = -seconds
    try:
        yield
    finally:
        database.clock_offset_s = 0.0


def join(wq: WorkQueue, name: str) -> Incarnation:
    one = incarnation(name)
    wq.stores.inflight.join(one.id, lease_s=30.0)
    wq.stores.ledger.workers.join(one, queues=["sums"], threads=4)
    return one


def record(wq: WorkQueue, count: int, **options: Any) -> list[str]:
    return [wq.handler("shop.add").options(**options).enqueue(1).id for _ in range(count)]


def claim(wq: WorkQueue, task_ids: list[str], by: Incarnation) -> list[Claim]:
    claims = wq.stores.ledger.claims.claim(task_ids, by=by.id)
    assert len(claims) == len(task_ids)
    wq.stores.inflight.hold([Entry(one.task_id, one.queue, one.attempt) for one in claims], by=by.id)
    return claims


def lose(wq: WorkQueue, count: int) -> list[str]:
    """Tasks of a queue of their own, whose hints a returned marker has overtaken."""
    ledger = wq.stores.ledger
    with ago(wq, 600.0):
        lost = record(wq, count, queue="lost")
    with ago(wq, 300.0):
        assert ledger.markers.sent("lost", 0, marker := new_task_id(), spacing_s=0.0, depth=1)
    with ago(wq, 200.0):
        assert ledger.markers.returned([marker]) == 1
    return lost


def park(wq: WorkQueue, count: int) -> None:
    """So many tasks wait for the places of others, which are free again."""
    ledger, me = wq.stores.ledger, join(wq, "parking")
    running = claim(wq, record(wq, count, limit="mail", concurrency=count), me)
    waiting = record(wq, count, limit="mail", concurrency=count)
    assert ledger.claims.claim(waiting, by=me.id) == []
    ledger.outcomes.settle([Settlement(one, Done("1")) for one in running])
    wq.stores.inflight.leave(me.id)
    ledger.workers.leave(me.id)


def begin(wq: WorkQueue, name: str, subtasks: int) -> None:
    """A job whose subtasks were all cancelled, which it does not know."""
    ledger = wq.stores.ledger
    job, page = new_job(JobOptions("sums"), name=name), chunks(subtasks)
    ledger.part(JobLedger).jobs.begin_job(job)
    ledger.part(JobLedger).jobs.split_job(job.id, page, after=0, cursor=subtasks, is_last=True)
    for task_id in (job.splitter.id, *(one.task_id for one in page)):
        ledger.decisions.cancel(task_id, who="ada", why="not needed")


def wreck(cli: Cli) -> None:
    """The ledger of `make_wreck`, copied where one was made a moment before: nothing in it is so young that this tells.

    Copies are one ledger, as far as the queue can tell.
    """
    file = cli.folder / "shop.db"
    if file.exists() or not _kept or time.monotonic() - _kept[0][0] > KEPT_S:
        is_alone = not file.exists()
        make_wreck(cli)
        if is_alone:
            _kept[:] = [(time.monotonic(), file.read_bytes())]
        return
    file.touch(0o600)
    file.write_bytes(_kept[0][1])


def make_wreck(cli: Cli) -> None:
    """A ledger with work for each step: every number is another one, so that none can stand for another."""
    with cli.queue() as wq:
        ledger, database = wq.stores.ledger, database_of(wq)
        with ago(wq, 8 * DAY_S):
            old = join(wq, "old")
            settled = claim(wq, record(wq, 9), old)
            outcomes = [Done("1") if at else Cancelled("no need") for at in range(len(settled))]
            ledger.outcomes.settle([Settlement(one, outcome) for one, outcome in zip(settled, outcomes, strict=True)])
            wq.stores.inflight.leave(old.id)
            ledger.workers.leave(old.id)
        with ago(wq, 600.0):
            crashed = join(wq, "crashed")
            running = claim(wq, record(wq, 5), crashed)
            ledger.decisions.cancel(
                running[0].task_id, who="ada", why="asked"
            )  # it ends as cancelled: neither returned nor dead
            held = record(wq, 3)
            wq.stores.inflight.hold([Entry(task_id, "sums") for task_id in held], by=crashed.id)
            half = join(wq, "half-reaped")
            orphans = record(wq, 2)
            claim(wq, orphans, half)
            ledger.workers.leave(half.id)
            record(wq, 4, delay_s=60.0)
            record(wq, 11, expires_s=60.0)
        lose(wq, 6)
        with ago(wq, 300.0):
            assert ledger.workers.suspect([crashed.id], beat_s=4.0, lease_s=30.0) == []  # the first look
        task = database.tables.task
        with ago(wq, 60.0):
            unpublished = record(wq, 7)
        statement = task.update().where(task.c.id.in_(unpublished)).values(published_at=None)
        assert database.run(lambda tx: tx.execute(statement).rowcount) == 7
        for number in range(10):
            wq.schedule(f"launch-{number}", wq.handler("shop.add"), at=datetime.now(UTC), args=(number,))
        assert [ledger.part(Schedules).schedule(one) for one in wq.registry.schedules()] == [True] * 10
        ticked = datetime.now(UTC) - timedelta(days=31)
        ticks = [
            {"schedule": f"once-{number}", "at": ticked, "task_id": new_task_id(), "made_at": ticked}
            for number in range(8)
        ]
        database.run(lambda tx: tx.execute(database.tables.tick.insert(), ticks))
        begin(wq, "shop.index", 14)
        with ago(wq, 6 * DAY_S):  # their tasks are kept a day longer than they
            for number in range(15):
                begin(wq, f"shop.index.{number}", 0)
        j = job_tables(database).job
        ended = j.update().where(j.c.ended_at.is_not(None)).values(ended_at=database.now(-8 * DAY_S))
        assert database.run(lambda tx: tx.execute(ended).rowcount) == 15
        for number in range(13):
            first, _ = record(wq, 2, order_key=f"customer:{number}")
            ledger.decisions.cancel(first, who="ada", why="not needed")
        park(wq, 17)
        webhooks = [
            {"id": f"msg_{number}", "type": "invoice.paid", "body": "{}", "data_hash": "0", "created_at": ticked}
            for number in range(16)
        ]
        database.run(lambda tx: tx.execute(webhook_tables(database).webhook.insert(), webhooks))
        kept: dict[str, Any] = {"destination": "orders", "sending": 1, "is_binary": 0, "content_type": "text/plain"}
        instants = dict.fromkeys(("created_at", "due_at", "removed_at"), ticked)
        messages = [kept | instants | {"id": f"m{number}", "task_id": new_task_id()} for number in range(5)]
        database.run(lambda tx: tx.execute(message_tables(database).message.insert(), messages))
        windows = [{"id": f"shop.add/{number}", "task_id": new_task_id(), "ends_at": ticked} for number in range(12)]
        database.run(lambda tx: tx.execute(database.tables.window.insert(), windows))
        last = {"is_suspect": 1, "crashes_max": 1}  # a suspect pays, and this crash is its last
        budget = task.update().where(task.c.id == running[1].task_id).values(last)
        assert database.run(lambda tx: tx.execute(budget).rowcount) == 1


EXPECTED = {
    "ticked": 10, "expired": 11, "relayed": 7, "reaped_workers": 2, "returned": 3, "rehinted": 3, "dead": 1,
    "orphans": 2, "advanced": 13, "admitted": 17, "tended": 14, "promoted": 4, "lost": 6,
    "pruned": 9, "pruned_events": 0, "pruned_ticks": 8, "pruned_windows": 12, "pruned_workers": 1, "pruned_jobs": 15,
    "pruned_webhooks": 16, "pruned_messages": 5,
}  # fmt: skip
MARKERS = {"markers": 2}
"""One through each queue with work. Another pass, a beat later, may send others: that is no change."""


class TestDryRun:
    def test_it_prints_the_counts_of_the_pass_that_follows_and_changes_nothing(self, cli: Cli) -> None:
        wreck(cli)

        first = cli("sweep", "--dry-run", "-o", "json")
        second = cli("sweep", "--dry-run", "-o", "json")
        real = cli("sweep", "-o", "json")
        after = cli("sweep", "--dry-run", "-o", "json")

        assert first.status == second.status == 3
        assert first.out == second.out
        counts = {name: first.json()[name] for name in EXPECTED | MARKERS}
        assert counts == EXPECTED | MARKERS
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
        assert all(did[name] <= 3 for name in ("ticked", "expired", "relayed", "orphans", "promoted", "pruned"))

    def test_the_table_names_every_count(self, cli: Cli) -> None:
        wreck(cli)

        ran = cli("sweep")

        rows = dict(line.rsplit(maxsplit=1) for line in ran.out.splitlines()[1:])
        assert rows == {name.replace("_", " "): str(count) for name, count in (EXPECTED | MARKERS).items()}
        assert deaths(ran.err) == EXPECTED["dead"]


def deaths(said: str) -> int:
    """How many tasks are told to be dead: nothing else is said."""
    lines = said.splitlines()
    assert all(" ERROR " in line and " task.dead task=" in line for line in lines), said
    return len(lines)


class TestEvery:
    def test_it_runs_on_with_a_line_for_each_pass_that_changed_something_until_sigterm(self, cli: Cli) -> None:
        wreck(cli)

        with cli.start("sweep", "--every", "0.2s", "-o", "json") as sweeper:
            assert sweeper.stdout is not None
            first = json.loads(sweeper.stdout.readline())
            with cli.queue() as wq, ago(wq, 60.0):
                record(wq, 6, delay_s=30.0)
            promoted = 0
            while promoted < 6:  # a pass may come between two of them
                promoted += json.loads(sweeper.stdout.readline())["promoted"]
            sweeper.send_signal(signal.SIGTERM)
            rest, err = sweeper.communicate(timeout=BOUND_S)

        assert {name: first[name] for name in EXPECTED} == EXPECTED
        assert first["at"].endswith("Z")
        assert promoted == 6
        assert (sweeper.returncode, rest) == (0, b"")
        assert deaths(err.decode()) == EXPECTED["dead"]

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


class TestAway:
    BROKER: ClassVar[dict[str, str]] = {"WORKQ_BROKER_URL": "amqp://u:canary-pw@127.0.0.1:1/"}
    INFLIGHT: ClassVar[dict[str, str]] = {"WORKQ_INFLIGHT_URL": "redis://127.0.0.1:1"}

    def test_without_the_broker_rows_are_repaired_and_their_hints_follow_when_it_is_back(self, cli: Cli) -> None:
        wreck(cli)

        ran = cli("sweep", "-o", "json", env=self.BROKER)
        after = cli("sweep", "-o", "json")

        assert ran.status == 4
        done, later = ran.json(), after.json()
        assert [one.count("127.0.0.1:1") for one in done["away"]] == [1]
        assert ran.err.count("workq: warning: ") == 1
        assert "canary-pw" not in ran.err + ran.out
        for name in ("reaped_workers", "returned", "rehinted", "dead", "orphans", "promoted", "pruned"):
            assert done[name] == EXPECTED[name], name
        assert (done["relayed"], done["markers"]) == (0, 0)
        assert after.status == 0
        # and those that the first pass has let go on, where this one comes more than their grace after it
        assert later["relayed"] >= EXPECTED["relayed"]

    def test_without_the_in_flight_store_nobody_is_suspected_and_the_rest_is_done(self, cli: Cli) -> None:
        wreck(cli)

        ran = cli("sweep", "-o", "json", env=self.INFLIGHT)

        assert ran.status == 4
        done = ran.json()
        assert [one.count("127.0.0.1:1") for one in done["away"]] == [1]
        for name in ("relayed", "orphans", "promoted", "pruned"):
            assert done[name] == EXPECTED[name], name
        assert (done["reaped_workers"], done["rehinted"], done["lost"]) == (0, 0, 0)

    def test_what_no_step_needs_may_be_away(self, cli: Cli) -> None:
        wreck(cli)

        ran = cli("sweep", "--only", "promote,prune", "-o", "json", env=self.BROKER | self.INFLIGHT)

        assert ran.status == 0
        assert (ran.json()["promoted"], ran.json()["pruned"]) == (EXPECTED["promoted"], EXPECTED["pruned"])
        assert ran.err == ""

    def test_without_the_ledger_nothing_is_done(self, cli: Cli) -> None:
        ran = cli("sweep", "-o", "json", env={"WORKQ_LEDGER_URL": "postgresql://u:canary-pw@127.0.0.1:1/none"})

        assert (ran.status, ran.out) == (4, "")
        assert "127.0.0.1:1" in ran.err
        assert "canary-pw" not in ran.err

    def test_sweeps_that_run_on_without_the_broker_say_it_once_and_repair(self, cli: Cli) -> None:
        wreck(cli)

        with cli.start("sweep", "--every", "0.1s", "--only", "promote,orphans,relay", "-o", "json",
                       env=self.BROKER) as sweeper:  # fmt: skip
            assert sweeper.stdout is not None
            first = json.loads(sweeper.stdout.readline())
            with cli.queue() as wq, ago(wq, 60.0):
                record(wq, 6, delay_s=30.0)
            promoted = 0
            while promoted < 6:
                promoted += json.loads(sweeper.stdout.readline())["promoted"]
            sweeper.send_signal(signal.SIGTERM)
            _, err = sweeper.communicate(timeout=BOUND_S)

        assert (first["orphans"], first["promoted"]) == (EXPECTED["orphans"], EXPECTED["promoted"])
        assert promoted == 6
        assert err.decode().count("sweep waits") == 1


def test_only_a_pass_that_recovers_says_that_somebody_swept(cli: Cli) -> None:
    wreck(cli)
    with cli.queue() as wq:
        for args in (["--dry-run"], ["--only", "prune"], ["--only", "relay,reap"]):
            cli.look("sweep", *args)
            assert wq.stores.ledger.questions.swept_for_s() is None

        cli.look("sweep")

        age_s = wq.stores.ledger.questions.swept_for_s()
        assert age_s is not None
        assert 0.0 <= age_s < BOUND_S


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
    for name in ("returned", "dead", "orphans", "promoted", "lost", "pruned"):
        assert sum(one[name] for one in found) == EXPECTED[name], name
    assert sum(one["relayed"] for one in found) == EXPECTED["relayed"]
