"""What the README promises, one by one, on both legs where it concerns both."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.system.conftest import OpenLeg
from tests.system.fleet import REPOSITORY, wait_until
from tests.system.legs import Leg
from workq import State
from workq.lab.servers import RabbitMQ
from workq.ledger.engine.url import ledger_url


def test_a_task_longer_than_the_consumer_timeout_runs_once_and_no_channel_is_closed(
    mortal_rabbitmq: RabbitMQ, open_leg: OpenLeg, long_run: bool
) -> None:
    """RabbitMQ closes the channel of a consumer that has not acked in time. We ack before we run."""
    timeout_s, task_s = (60, 180.0) if long_run else (2, 8.0)
    rabbitmq = mortal_rabbitmq
    limits = (
        "application:set_env(rabbit, consumer_timeout, {}), application:set_env(rabbit, channel_tick_interval, {})."
    )
    before = len(rabbitmq.log.read_bytes())
    # the second is how often channels are looked at
    rabbitmq.evaluate(limits.format(timeout_s * 1000, 60_000 if long_run else 500))
    try:
        leg = open_leg("servers", broker=rabbitmq.url)
        with leg.fleet(processes=1, threads=1):
            leg["note"].enqueue(1, task_s)
            leg["note"].enqueue_many({"number": number} for number in range(2, 10))
            leg.wait_settled(timeout_s=task_s + 30)
    finally:
        rabbitmq.evaluate(limits.format(1_800_000, 60_000))
    assert set(leg.starts().values()) == {1}
    log = rabbitmq.log.read_bytes()[before:].decode(errors="replace")
    assert "accepting AMQP connection" in log
    assert "consumer ack timed out" not in log
    assert "PRECONDITION_FAILED" not in log


@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
def test_many_retries_of_one_task_all_arrive(leg_name: str, open_leg: OpenLeg) -> None:
    """RabbitMQ 3.10 drops a message in silence when it passes a delay queue again with its old headers."""
    leg = open_leg(leg_name)
    with leg.fleet(processes=1, threads=2):
        task = leg["fail_until"].options(failures_max=1000).enqueue(1, 26)
        leg.wait_settled(timeout_s=120)
    found = leg.app.get(task.id)
    assert found is not None
    assert (found.state, found.attempt, found.failures) == (State.SUCCEEDED, 26, 25)
    assert [line.attempt for line in leg.testimony()] == list(range(1, 27))


def test_a_handler_that_raises_fails_on_schedule_and_ends_as_dead_until_a_person_revives_it(leg: Leg) -> None:
    with leg.fleet(processes=1, threads=2):
        task = leg["fail"].options(failures_max=3).enqueue(7)
        leg.wait_settled(timeout_s=60)

        found = leg.app.get(task.id)
        assert found is not None
        assert (found.state, found.attempt, found.failures) == (State.DEAD, 3, 3)
        assert found.reason == "failures_max reached: ValueError"
        assert found.error is not None
        assert found.error.startswith("ValueError: no luck with 7")
        history = leg.app.stores.ledger.questions.history(task.id)
        assert [event.kind for event in history] == ["failed"] * 3
        waits = [event.detail["retry_in_s"] for event in history[:2]]
        starts = [line.at for line in leg.testimony()]
        assert all(
            after - before >= wait_s - 0.05 for before, after, wait_s in zip(starts, starts[1:], waits, strict=False)
        )

        leg.app.revive(task.id)
        wait_until(
            lambda: len(leg.starts()) == 1 and leg.starts()[task.id] == 6, timeout_s=60, what="three more attempts"
        )


def test_a_task_in_a_transaction_that_rolls_back_is_never_seen_and_one_that_commits_is(leg: Leg) -> None:
    engine = create_engine(ledger_url(leg.environ["WORKQ_LEDGER_URL"]))
    with leg.fleet(processes=1, threads=1):
        with Session(engine) as session:
            undone = leg["note"].options(connection=session).enqueue(1)
            session.rollback()
        with Session(engine) as session, session.begin():
            with session.begin_nested() as savepoint:
                half = leg["note"].options(connection=session).enqueue(2)
                savepoint.rollback()
            kept = leg["note"].options(connection=session).enqueue(3)
            assert leg.app.get(kept.id) is None, "nobody sees it before the commit"
        committed = time.monotonic()
        wait_until(lambda: leg.starts()[kept.id] == 1, timeout_s=20, what="the committed task runs")
        print(f"{leg.name}: ran {time.monotonic() - committed:.2f} s after the commit")
    engine.dispose()
    assert leg.app.get(undone.id) is None
    assert leg.app.get(half.id) is None
    assert set(leg.starts()) == {kept.id}


def test_drain_leaves_when_nothing_is_due(leg: Leg) -> None:
    leg["note"].enqueue_many({"number": number} for number in range(50))
    later = leg["note"].options(delay_s=3600.0).enqueue(99)

    with leg.fleet(processes=2, threads=2, drain=True) as fleet:
        assert fleet.wait(60) == 0

    assert leg.states()[State.SUCCEEDED] == 50
    found = leg.app.get(later.id)
    assert found is not None
    assert found.state is State.WAITING
    assert [row for row in leg.app.stores.ledger.questions.workers() if row.state == "live"] == []


def test_async_enqueue_async_handler_and_result(leg: Leg) -> None:
    import asyncio

    task = asyncio.run(leg["anote"].aenqueue(5, 0.1))
    with leg.fleet(processes=1, threads=2):
        leg.wait_settled(timeout_s=30)
    found = leg.app.get(task.id)
    assert found is not None
    assert (found.state, found.result) == (State.SUCCEEDED, "done 5")


MANY = """
import sys
from tests.system.legs import *
from tests.system import witness
count, ledger = int(sys.argv[1]), sys.argv[2]
from workq import WorkQueue
wq = WorkQueue(ledger=ledger)
note = wq.task(name="witness.note", queue="witness")(witness.note.function)
note.enqueue(-1)
assert note.enqueue_many({"number": number} for number in range(count)) == count
# not getrusage: its maximum includes the process that started this one
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_enqueue_many_streams_in_constant_memory(tmp_path: Path, long_run: bool) -> None:
    count = 1_000_000 if long_run else 50_000
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(count), f"sqlite:///{tmp_path / 'many.db'}"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
    )
    peak_mib = int(done.stdout)
    print(f"enqueue_many of {count}: peak {peak_mib} MiB")
    assert peak_mib < 150


@pytest.mark.one_leg
def test_a_worker_stays_flat_in_memory(leg: Leg, long_run: bool) -> None:
    """After a first part, in which pools and caches fill, the rest adds next to nothing."""
    first, rest = (20_000, 180_000) if long_run else (4_000, 8_000)
    with leg.fleet(processes=1, threads=4, environ={"WITNESS": "/dev/null"}) as fleet:
        leg["note"].enqueue_many({"number": number} for number in range(first))
        leg.wait_settled(timeout_s=200)
        child = fleet.children()[0]
        before = child.memory_info().rss
        leg["note"].enqueue_many({"number": number} for number in range(rest))
        leg.wait_settled(timeout_s=1200)
        grown_mib = (child.memory_info().rss - before) / 2**20
    print(f"{leg.name}: {rest} more tasks grew the worker by {grown_mib:.1f} MiB")
    assert grown_mib < (16.0 if long_run else 12.0)
