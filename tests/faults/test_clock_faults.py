"""Clocks that jump: of Redis, of the database, of the host of a worker; and a sweeper that was asleep.

Redis and PostgreSQL are private ones under libfaketime, which reads how wrong their clock is from a file that the test
rewrites; their monotonic clock is right, as on a host whose time is set.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.system.conftest import OpenLeg
from tests.system.fleet import REPOSITORY, wait_until
from tests.system.legs import Leg, check_once
from tests.system.witness import tell
from workq import State
from workq.lab.servers import PostgreSQL, RabbitMQ, Redis, Server

pytestmark = pytest.mark.one_leg

HOUR_S = 3600.0
ELSEWHERE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
"""A host of its own, as far as processes go: nobody here can see that its processes are gone."""
WRONG_CLOCK = Path(__file__).with_name("wrong_clock")


def preloaded() -> str:
    """libfaketime, for `LD_PRELOAD`; and libc before jemalloc, which asks for the time to start, and for ever."""
    found = [*Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1")]
    if not found:
        pytest.fail("libfaketime is missing; run: make servers")
    maps = Path("/proc/self/maps").read_text().split()
    return ":".join([str(found[0]), *dict.fromkeys(word for word in maps if word.endswith("/libc.so.6"))])


class WithWrongClock(Server):
    """Any server whose clock the test sets."""

    def set_clock(self, ahead_s: float) -> None:
        """From now on the server's wall clock is so many seconds ahead (or, negative, behind)."""
        beside = self.folder / "clock.new"
        beside.write_text(f"{ahead_s:+.0f}\n")
        beside.chmod(0o644)
        beside.replace(self.folder / "clock")

    def _environment(self) -> dict[str, str]:
        if not (self.folder / "clock").exists():
            self.set_clock(0.0)
        return super()._environment() | {
            "LD_PRELOAD": preloaded(),
            "FAKETIME_TIMESTAMP_FILE": str(self.folder / "clock"),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


class WrongRedis(WithWrongClock, Redis):
    pass


class WrongPostgreSQL(WithWrongClock, PostgreSQL):
    pass


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(kind: Callable[..., WithWrongClock], folder: Path | None = None) -> WithWrongClock:
    return kind(folder, ()).first_start()


@pytest.fixture
def wrong_redis(redis_server: Redis) -> Iterator[WithWrongClock]:  # it skips, or fails, where there is none
    with started(WrongRedis) as server:
        yield server


@pytest.fixture
def wrong_postgres(postgres_server: PostgreSQL) -> Iterator[WithWrongClock]:
    with started(WrongPostgreSQL) as server:
        yield server


@pytest.fixture
def redis_leg(wrong_redis: WithWrongClock, open_leg: OpenLeg) -> Leg:
    """Only Redis has the wrong clock."""
    return open_leg("servers", divide=10.0, inflight=wrong_redis.url)


@pytest.fixture(params=["servers", "embedded"])
def postgres_leg(
    request: pytest.FixtureRequest,
    wrong_postgres: WithWrongClock,
    redis_server: Redis,
    rabbitmq_server: RabbitMQ,
    tmp_path: Path,
) -> Iterator[Leg]:
    """Only PostgreSQL has the wrong clock; alone (embedded), it keeps the leases too."""
    is_alone = request.param == "embedded"
    leg = Leg.open(
        request.param,
        tmp_path,
        ledger=wrong_postgres.url,
        broker=None if is_alone else rabbitmq_server.url,
        inflight=None if is_alone else redis_server.url,
        divide=10.0,
    )
    yield leg
    leg.close()


def reaped(leg: Leg) -> list[str]:
    """Who was taken for dead, and why."""
    return [
        f"{row.id}: {row.evidence}"
        for row in leg.app.stores.ledger.questions.workers(live_only=False)
        if row.state == "reaped"
    ]


def beats_go_by(leg: Leg, leases: float) -> None:
    """Real time in which sweeps and beats happen; whoever would be reaped wrongly, would be by then."""
    over = time.monotonic() + leases * leg.app.settings.times.lease_s
    wait_until(lambda: time.monotonic() > over, timeout_s=60, what="time goes by")


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S], ids=["ahead", "behind"])
def test_a_jump_of_the_clock_of_redis_ends_no_lease(
    ahead_s: float, redis_leg: Leg, wrong_redis: WithWrongClock
) -> None:
    """F55: there and back again, while tasks run under two fleets, and so under two sweeps."""
    leg = redis_leg
    with leg.fleet(processes=1, threads=2) as one, leg.fleet(processes=1, threads=2) as other:
        leg["until_told"].enqueue_many({"number": number} for number in range(2))
        wait_until(lambda: len(leg.starts()) == 2, timeout_s=30, what="two run")
        wrong_redis.set_clock(ahead_s)
        leg["note"].enqueue_many({"number": number} for number in range(4, 24))
        beats_go_by(leg, 1.2)
        wrong_redis.set_clock(0.0)
        beats_go_by(leg, 0.5)
        tell(leg.folder / "witness")
        leg.wait_settled(timeout_s=40)
        assert "child_died" not in one.text() + other.text()
        assert reaped(leg) == []
    check_once(leg, 22)


def test_who_died_before_the_clock_of_redis_went_back_is_found_all_the_same(
    redis_leg: Leg, wrong_redis: WithWrongClock
) -> None:
    """F55: by that clock the lease of the dead has another hour; by the ledger's, its worker does not beat any more."""
    leg = redis_leg
    leg["until_told"].enqueue_many({"number": number} for number in range(2))
    with leg.fleet(processes=1, threads=2, prefix=ELSEWHERE) as doomed:
        wait_until(lambda: len(leg.starts()) == 2, timeout_s=30, what="two run")
        doomed.kill()
        wrong_redis.set_clock(-HOUR_S)
    tell(leg.folder / "witness")
    with leg.fleet(processes=1, threads=2):
        leg.wait_settled(timeout_s=40)
    assert leg.states()[State.SUCCEEDED] == 2
    assert set(leg.starts().values()) == {2}


def test_a_jump_of_the_clock_of_the_database_makes_tasks_early_and_ends_no_lease(
    postgres_leg: Leg, wrong_postgres: WithWrongClock
) -> None:
    """F66: delayed tasks start early by the jump, which is documented; nothing is lost, nobody is taken for dead."""
    leg = postgres_leg
    with leg.fleet(processes=1, threads=2) as one, leg.fleet(processes=1, threads=2) as other:
        leg["until_told"].enqueue_many({"number": number} for number in range(2))
        early = leg["note"].options(delay_s=300.0).enqueue(4)
        late = leg["note"].options(delay_s=7200.0).enqueue(5)
        wait_until(lambda: len(leg.starts()) == 2, timeout_s=30, what="two run")
        wrong_postgres.set_clock(600.0)
        leg["note"].enqueue_many({"number": number} for number in range(6, 16))
        wait_until(lambda: leg.unsettled() == 3, timeout_s=40, what="all run that can")
        beats_go_by(leg, 0.5)
        tell(leg.folder / "witness")
        wait_until(lambda: leg.unsettled() == 1, timeout_s=40, what="all but the last have run")
        assert "child_died" not in one.text() + other.text()
        assert reaped(leg) == []
    assert early.id in leg.starts()
    assert late.id not in leg.starts()
    leg.app.cancel(late.id)
    tasks = [task for task in leg.app.stores.ledger.questions.tasks(limit=100) if task.id != late.id]
    assert [(task.state, task.crashes) for task in tasks] == [(State.SUCCEEDED, 0)] * 13
    assert leg.starts() == Counter(task.id for task in tasks)  # an attempt may be handed back before it starts


@pytest.mark.parametrize("ahead_s", [2 * HOUR_S, -2 * HOUR_S], ids=["ahead", "behind"])
def test_a_jump_of_the_clock_of_a_workers_host_changes_nothing(ahead_s: float, fast_leg: Leg, tmp_path: Path) -> None:
    """F65: leases, due times, durations and the stand-by sweep go by other clocks."""
    leg, clock = fast_leg, tmp_path / "wrong"
    clock.write_text("0")
    environ = {"PYTHONPATH": f"{WRONG_CLOCK}{os.pathsep}{REPOSITORY}", "WRONG_CLOCK": str(clock)}
    with leg.fleet(processes=1, threads=4, environ=environ) as fleet:
        leg["until_told"].enqueue_many({"number": number} for number in range(2))
        retried = leg["fail_until"].enqueue(2, 3)
        wait_until(lambda: len(leg.starts()) == 3, timeout_s=30, what="they run")
        set_aside(clock, ahead_s)
        delayed = leg["note"].options(delay_s=2.0).enqueue(3)
        far = leg["note"].options(delay_s=HOUR_S).enqueue(4)
        leg["note"].enqueue_many({"number": number} for number in range(5, 15))
        forgotten = unhinted(leg)
        wait_until(lambda: leg.unsettled() == 3, timeout_s=40, what="all run that can")
        beats_go_by(leg, 0.5)
        tell(leg.folder / "witness")
        wait_until(lambda: leg.unsettled() == 1, timeout_s=40, what="all but the last have run")
        assert "child_died" not in fleet.text()
        assert reaped(leg) == []
    ledger = leg.app.stores.ledger
    assert leg.starts()[far.id] == 0
    assert leg.starts()[retried.id] == 3
    assert leg.starts()[forgotten] == 1
    for task in ledger.questions.tasks(limit=100):
        if task.id in (far.id, retried.id):
            continue
        assert (task.state, task.attempt, task.crashes) == (State.SUCCEEDED, 1, 0)
        assert task.started_at is not None
        assert task.settled_at is not None
        assert task.started_at >= task.due_at
        assert 0.0 <= (task.settled_at - task.started_at).total_seconds() < 60.0
    assert ledger.questions.get(delayed.id) is not None


def set_aside(clock: Path, ahead_s: float) -> None:
    beside = clock.with_suffix(".new")
    beside.write_text(f"{ahead_s}")
    beside.replace(clock)


def unhinted(leg: Leg) -> str:
    """A task whose hint was never sent: only a sweep finds it."""
    handler = leg["note"]
    task = handler.new_task(handler.options()._options, (99,), {})
    leg.app.stores.ledger.tasks.record([task])
    return task.id


TICKS = """
import sys, time
from workq.supervisor.ticker import Ticker
def tick():
    print(time.monotonic(), flush=True)
Ticker(tick, every_s=float(sys.argv[1])).start()
sys.stdin.read()
"""


def ticks(out: Path) -> list[float]:
    return [float(line) for line in out.read_text().split()]


def test_a_sweeper_that_was_suspended_makes_up_for_it_with_one_pass(tmp_path: Path) -> None:
    """F67: as a laptop does. A burst of all the missed passes would find each other's work, or the servers asleep."""
    every_s, missed = 0.1, 30
    out = tmp_path / "ticks"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", TICKS, str(every_s)], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=file
        )
    try:
        wait_until(lambda: len(ticks(out)) >= 3, timeout_s=20, what="it ticks")
        process.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, timeout_s=10, what="it is stopped"
        )
        before = len(ticks(out))
        over = time.monotonic() + missed * every_s
        wait_until(lambda: time.monotonic() > over, timeout_s=30, what="time goes by")
        process.send_signal(signal.SIGCONT)
        woken = time.monotonic()
        wait_until(lambda: len(ticks(out)) >= before + 10, timeout_s=20, what="it ticks again")
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    after = [at for at in ticks(out) if at >= woken - every_s][:10]
    assert len([at for at in after if at < woken + every_s]) <= 3, "one for all that were missed, and the next"
    assert after[-1] - after[0] > 6 * every_s, "ten passes take ten intervals, not a moment"
