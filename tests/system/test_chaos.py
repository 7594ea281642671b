"""Chaos for a short time on each leg: whatever strikes, nothing is lost, and every second start has its cause.

`make chaos` runs the same for as long as wanted, with every fault; here are those that decide. The last tests sabotage
a run on purpose: an auditor that cannot find what is wrong would find nothing here either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from sqlalchemy import delete, select, update

from tests.conftest import Private
from tests.system.chaos import Servers, server_faults, settings_of
from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from tests.system.witness import tell
from workq import State
from workq.cli.root import run as cli_run
from workq.config import Settings
from workq.lab import standstill
from workq.lab.certify import faults, report, trial
from workq.lab.certify.report import CertifyReport, CertifyWishes
from workq.lab.certify.stage import Stage
from workq.lab.certify.verdict import Defect
from workq.lab.namespace import Store
from workq.lab.servers import RabbitMQ, start_kafka, start_postgres, start_redis

pytestmark = pytest.mark.usefixtures("forked")

EMBEDDED = (
    "kill-everything",
    "kill-host",
    "pause-consumer-past-its-lease",
    "wipe-and-kill",
    "purge-queue",
    "two-sweepers",
)
ON_SERVERS = (
    "kill-everything",
    "pause-consumer-past-its-lease",
    "wipe-and-kill",
    "delete-queue",
    "broker-half-open",
    "ledger-one-way",
    "kill-postgresql",
    "kill-redis",
    "everything",
)
ON_KAFKA = ("kill-kafka", "pause-kafka", "wipe-kafka", "delete-queue", "purge-queue")
MINUTES = 0.5
SEED = 4
RATE = 60.0
TASKS_MIN = 200


@pytest.fixture
def servers(private: Private, mortal_rabbitmq: RabbitMQ) -> Iterator[Servers]:
    """Servers that may be killed; but for RabbitMQ, of this test alone."""
    with ExitStack() as stack:
        yield {
            Store.LEDGER: stack.enter_context(private(start_postgres)),
            Store.BROKER: mortal_rabbitmq,
            Store.INFLIGHT: stack.enter_context(private(start_redis)),
        }


def chaos(servers: Servers, folder: Path, wishes: CertifyWishes, more: trial.More | None = None) -> CertifyReport:
    """One run, told on standard output for whoever asks pytest for it."""
    found = trial.run(settings_of(servers, folder), wishes, tell=print, more=more)
    print(report.page(found))
    return found


def check_clean(found: CertifyReport, *, tasks_min: int) -> None:
    """Nothing is wrong; and nothing is late by more than five times what the promise and this machine allow."""
    figures = found.verdict.figures
    assert [f"{one.fault}: {one.what}" for one in found.verdict.findings if one.fault is not Defect.SLOW] == []
    late = [one for one in found.verdict.recoveries if one.last_s is not None and one.last_s > 5 * one.allowed_s]
    assert late == []
    assert (figures.lost, figures.unexpected, figures.unexplained_starts) == (0, 0, 0)
    assert figures.acknowledged > tasks_min
    assert found.not_removed == []


@pytest.mark.timeout(400)
def test_nothing_is_lost_on_the_embedded_queue_whatever_strikes(tmp_path: Path) -> None:
    found = chaos(
        {}, tmp_path, CertifyWishes(minutes=MINUTES, seed=11, rate=RATE, divide=5.0, only=frozenset(EMBEDDED))
    )

    check_clean(found, tasks_min=TASKS_MIN)
    assert len(found.struck) >= 2


@pytest.mark.timeout(500)
def test_nothing_is_lost_on_three_servers_whatever_strikes(servers: Servers, tmp_path: Path) -> None:
    """The seed has the dearest strike come first: RabbitMQ and Redis are wiped, and every process is killed."""
    wishes = CertifyWishes(minutes=MINUTES, seed=SEED, rate=RATE, divide=5.0, only=frozenset(ON_SERVERS))
    found = chaos(servers, tmp_path, wishes, server_faults(servers))

    check_clean(found, tasks_min=TASKS_MIN)
    assert "everything" in found.struck


@pytest.mark.timeout(500)
def test_nothing_is_lost_on_kafka_whatever_strikes_and_nothing_is_left_there(private: Private, tmp_path: Path) -> None:
    """A node that is killed, paused or wiped; a topic that is deleted, or whose records are."""
    with private(start_kafka) as kafka:
        wishes = CertifyWishes(minutes=0.15, seed=8, rate=60.0, divide=5.0, only=frozenset(ON_KAFKA))
        servers = {Store.BROKER: kafka}
        found = chaos(servers, tmp_path, wishes, server_faults(servers))
        admin = AdminClient(kafka.admin_conf)
        topics = admin.list_topics(timeout=60).topics
        groups: Any = admin.list_consumer_groups().result(60)

    check_clean(found, tasks_min=50)
    assert found.struck
    assert [one for one in topics if one.startswith(found.namespace)] == []
    assert found.namespace not in {one.group_id for one in groups.valid}


# -- the same small test that other queues were put to


@dataclass(frozen=True)
class Comeback:
    """After the kill: which tasks ran twice, and seconds from the kill on."""

    tasks: int
    again: frozenset[str]
    up_s: float
    """Until the first new process was there."""
    last_again_s: float
    """Until the last task that ran twice was done."""
    last_s: float
    """Until all were."""


def have_succeeded(leg: Leg, count: float) -> bool:
    return leg.states()[State.SUCCEEDED] >= count


def kill_at_30_percent(leg: Leg, count: int) -> tuple[int, float]:
    """Everything is killed with -9 when 30 % of so many tasks of 5 ms are done: how many there are now, and when.

    They take little more than a second: where the machine is so busy that it strikes too late, it is done again.
    """
    for tries in range(1, 6):
        leg["note"].enqueue_many({"number": number, "seconds": 0.005} for number in range(count))
        with leg.fleet(processes=2, threads=4) as fleet:
            wait_until(partial(have_succeeded, leg, (tries - 0.7) * count), timeout_s=60, what="30 % are done")
            fleet.kill()
            killed_at = time.time()
        if not have_succeeded(leg, (tries - 0.1) * count):
            return tries * count, killed_at
    raise AssertionError(f"this machine is too busy to strike within {count} tasks")


def comeback(leg: Leg, count: int) -> Comeback:
    """Everything is killed in the middle of its work, and started again at once."""
    tasks, killed_at = kill_at_30_percent(leg, count)
    known = {row.id for row in leg.app.stores.ledger.questions.workers(live_only=False)}
    with leg.fleet(processes=2, threads=4) as second:
        leg.wait_settled(timeout_s=90)
        second.terminate()
        assert second.wait(40) == 0
    done_at = {line.task_id: line.at for line in leg.testimony() if line.what == "end"}
    again = frozenset(task_id for task_id, starts in leg.starts().items() if starts > 1)
    workers = leg.app.stores.ledger.questions.workers(live_only=False)
    return Comeback(
        tasks,
        again,
        up_s=min(row.started_at.timestamp() for row in workers if row.id not in known) - killed_at,
        last_again_s=max((done_at[task_id] - killed_at for task_id in again), default=0.0),
        last_s=max(done_at.values()) - killed_at,
    )


@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
def test_of_2000_tasks_none_is_missing_after_everything_was_killed_and_only_started_ones_run_twice(
    leg_name: str, open_leg: OpenLeg
) -> None:
    count = 2000
    leg = open_leg(leg_name)

    back = comeback(leg, count)

    print(
        f"{leg_name}: {back.tasks} tasks, all killed at 30 %: 0 missing, {len(back.again)} run twice, "
        f"the last of these {back.last_again_s:.2f} s after the kill, the last of all {back.last_s:.2f} s; "
        f"a process was back after {back.up_s:.2f} s"
    )
    assert leg.states()[State.SUCCEEDED] == back.tasks
    assert len(leg.starts()) == back.tasks
    assert len(back.again) <= 2 * 4 * back.tasks // count, (
        "what ran; what had ended is settled in the place of its process"
    )
    # behind what waits; a machine on which a process takes long to start takes long for all else
    bound_s = 5.0 * max(2.0, back.up_s)
    assert back.last_again_s - back.up_s < bound_s, "what the dead left is taken up without waiting for a lease"


@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
def test_what_a_worker_settles_after_it_slept_past_its_lease_is_refused_and_counted(
    leg_name: str, open_leg: OpenLeg
) -> None:
    leg = open_leg(leg_name, divide=10.0)
    lease_s = leg.app.settings.times.lease_s
    with leg.fleet(processes=2, threads=2) as fleet:
        fleet.wait_whole(2, timeout_s=30)
        leg["until_told"].enqueue_many({"number": number} for number in range(4))
        wait_until(lambda: len(leg.starts()) == 4, timeout_s=30, what="all have started, and none has ended")
        sleeper = fleet.children()[0]
        asleep = {line.task_id: line.attempt for line in leg.testimony() if line.pid == sleeper.pid}
        standstill.stop(sleeper)
        tell(leg.folder / "witness")
        began = time.monotonic()
        wait_until(
            lambda: time.monotonic() - began > 2 * lease_s and leg.unsettled() == 0,
            timeout_s=60,
            what="others have done its work, and two leases are over",
        )
        sleeper.resume()
        late = wait_late(leg, asleep)
        fleet.terminate()
        fleet.wait(40)
    assert late == asleep
    for task_id, attempt in asleep.items():
        task = leg.app.get(task_id)
        assert task is not None
        assert (task.state, task.attempt > attempt) == (State.SUCCEEDED, True)


def wait_late(leg: Leg, asleep: Mapping[str, int]) -> dict[str, int | None]:
    """The late results that the ledger has noted, by task, once there are as many as tasks slept."""

    def late() -> dict[str, int | None]:
        events = [one for task_id in asleep for one in leg.app.stores.ledger.questions.history(task_id)]
        return {str(one.task_id): one.attempt for one in events if one.kind == "late_result"}

    assert asleep
    wait_until(lambda: len(late()) >= len(asleep), timeout_s=30, what="its results are refused and counted")
    return late()


@pytest.mark.only_long
@pytest.mark.timeout(400)
def test_everything_finishes_after_rabbitmq_and_redis_were_wiped_and_every_process_killed(
    servers: Servers, tmp_path: Path
) -> None:
    """With the default times. With a fifth of them, `everything` above does the same in a shorter time."""
    bound_s = 90.0
    settings = settings_of(servers, tmp_path)
    leg = Leg.open(
        "servers",
        tmp_path,
        ledger=settings.ledger,
        broker=settings.broker,
        inflight=settings.inflight,
    )
    rabbitmq, redis = servers[Store.BROKER], servers[Store.INFLIGHT]
    with leg.fleet(processes=2, threads=4) as first:
        leg["note"].enqueue_many({"number": number, "seconds": 0.05} for number in range(980))
        wait_until(lambda: leg.states()[State.SUCCEEDED] >= 200, timeout_s=60, what="some are done")
        leg["until_told"].enqueue_many({"number": number} for number in range(980, 1000))  # before, they held up all
        first.kill()
    assert leg.unsettled() >= 20, "however late the look on a busy machine: something is left to come back"
    tell(leg.folder / "witness")
    for server in (rabbitmq, redis):
        server.kill()
        server.wipe()
        server.start()
    restarted_at = time.monotonic()
    with leg.fleet(processes=2, threads=4) as second:
        leg.wait_settled(timeout_s=bound_s + 60)
        took_s = time.monotonic() - restarted_at
        second.terminate()
        assert second.wait(40) == 0
    leg.close()
    print(f"RabbitMQ and Redis wiped, every process killed: all finished {took_s:.1f} s after the restart")
    assert len(leg.starts()) == 1000
    assert took_s < bound_s


# -- sabotage

SABOTAGE = (Defect.LOST, Defect.UNEXPLAINED, Defect.UNSEEN)


@dataclass
class Sabotage(faults.Fault):
    """What no server does: it breaks the ledger itself, in three ways, once, and the auditor must see each."""

    broken: list[str]
    """The tasks that it has chosen."""
    kind = "sabotage"
    lasts_s = 0.0
    targets = frozenset({"ledger"})
    is_timed_from_heal = False

    def bound_s(self, stage: Stage) -> float:
        return 60.0

    def strike(self, stage: Stage) -> str:
        if self.broken:
            return "nothing more"
        database = stage.scratch.database
        t = database.tables.task
        settled = select(t.c.id).where(t.c.state == State.SUCCEEDED).limit(len(SABOTAGE))

        def ids() -> list[str]:
            return list(database.ask(lambda tx: tx.execute(settled).scalars().all()))

        wait_until(
            lambda: len(ids()) == len(SABOTAGE),
            timeout_s=60,
            what="some tasks have succeeded, however long their worker takes to start",
        )
        self.broken += ids()
        gone, again, made_up = self.broken
        runs_again = {"state": State.READY, "settled_at": None, "token": None, "published_at": None}
        database.run(lambda tx: tx.execute(delete(t).where(t.c.id == gone)))
        database.run(lambda tx: tx.execute(update(t).where(t.c.id == again).values(**runs_again)))
        database.run(lambda tx: tx.execute(update(t).where(t.c.id == made_up).values(attempt=t.c.attempt + 1)))
        return "a row is deleted, a settled task runs again, a success is made up"

    def heal(self, stage: Stage) -> None:
        """Never."""


def test_sabotage_is_found_with_its_whole_timeline_and_the_command_prints_it_and_ends_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = trial.run
    found: list[CertifyReport] = []
    broken: list[str] = []

    def sabotaged(settings: Settings, wishes: CertifyWishes, *, tell: Callable[[str], None]) -> CertifyReport:
        found.append(real(settings, wishes, tell=tell, more=lambda _: {"sabotage": lambda _: Sabotage(broken)}))
        return found[0]

    monkeypatch.setattr(trial, "run", sabotaged)
    monkeypatch.setenv("WORKQ_LEDGER_URL", f"sqlite:///{tmp_path / 'workq.db'}")

    status = cli_run(["certify", "--minutes", "0.1", "--seed", "1", "--only", "sabotage"])

    told = capsys.readouterr()
    verdict = found[0].verdict
    assert {one.fault for one in verdict.findings} >= set(SABOTAGE)
    assert verdict.figures.bound_95 is None
    assert verdict.figures.lost >= 1
    for finding, lines in found[0].shown:
        timeline = "\n".join(lines)
        if finding.fault in SABOTAGE:
            assert "enqueue (" in timeline
            assert "start of attempt 1 in process " in timeline
    assert status == 3
    assert "\nFINDING lost: number " in told.out
    assert "  start of attempt 1 in process " in told.out
    assert "\nNOT CLEAN; the same again: workq certify --minutes 0.1 --seed 1 " in told.out
    assert "sabotage: a row is deleted" in told.err
