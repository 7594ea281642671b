"""Whoever should take the log does not: a pipe that is full, a handler of the application that never returns."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.system.fleet import REPOSITORY, wait_until
from tests.system.legs import Leg
from workq import State, WorkQueue

pytestmark = pytest.mark.one_leg

STUCK = """
import logging
import threading

from tests.system.witness import wq


class Stuck(logging.Handler):
    def emit(self, record):
        threading.Event().wait()


logging.getLogger().addHandler(Stuck())
"""


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that takes no byte more: a write waits until somebody reads."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    for size in (1 << 16, 1):
        try:
            while True:
                os.write(writes, b"." * size)
        except BlockingIOError:
            pass
    os.set_blocking(writes, True)
    try:
        yield reads, writes
    finally:
        os.close(reads)
        os.close(writes)


@contextmanager
def workq(
    leg: Leg, *args: str, stdout: int, stderr: int, reads: int | None = None, path: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command. Should it not end in time, its stacks come out of `reads`, the other end of its standard error."""
    paths = os.pathsep.join(str(one) for one in (REPOSITORY, path) if one is not None)
    process = subprocess.Popen(
        [sys.executable, "-m", "workq", *args],
        cwd=REPOSITORY,
        env={**os.environ, **leg.environ, "PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1"},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )
    try:
        yield process
    except subprocess.TimeoutExpired:
        if reads is not None:
            process.send_signal(signal.SIGABRT)
            print(drained(reads, process).strip(b".").decode(errors="replace"))
        raise
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        for child in children:
            child.kill()
        process.wait()


def drained(reads: int, process: subprocess.Popen[bytes]) -> bytes:
    """What comes out of a pipe until the process has ended; for ten seconds at most."""
    os.set_blocking(reads, False)
    told, until = b"", time.monotonic() + 10.0
    while time.monotonic() < until:
        has_ended = process.poll() is not None
        with suppress(BlockingIOError):
            while part := os.read(reads, 1 << 16):
                told += part
        if has_ended:
            break
        time.sleep(0.05)
    return told


def is_settled(leg: Leg, task_id: str) -> bool:
    task = leg.app.stores.ledger.questions.get(task_id)
    return task is not None and task.state in (State.SUCCEEDED, State.DEAD)


def is_ready(leg: Leg, task_id: str) -> bool:
    task = leg.app.stores.ledger.questions.get(task_id)
    return task is not None and task.state is State.READY


@pytest.mark.parametrize("how", ["a full pipe", "a stuck handler"])
def test_a_log_that_takes_nothing_holds_up_no_recovery_no_limit_and_no_drain(
    how: str, fast_leg: Leg, tmp_path: Path
) -> None:
    leg = fast_leg
    (tmp_path / "stuck.py").write_text(STUCK)
    app = "tests.system.witness:wq" if how == "a full pipe" else "stuck:wq"
    with full_pipe() as (reads, full):
        args = ["worker", "--app", app, "--processes", "1", "--threads", "2"]
        stderr = full if how == "a full pipe" else subprocess.DEVNULL
        with workq(leg, *args, stdout=subprocess.DEVNULL, stderr=stderr, reads=reads, path=tmp_path) as supervisor:
            long = leg["long_once"].enqueue(1)
            wait_until(lambda: leg.starts()[long.id] == 1, timeout_s=60, what="a task starts")
            (child,) = psutil.Process(supervisor.pid).children()
            child.kill()
            wait_until(lambda: is_settled(leg, long.id), timeout_s=60, what="it runs again after its worker's death")

            hung, failing = leg["hard"].enqueue(), leg["fail"].options(failures_max=1).enqueue(1)
            wait_until(lambda: is_settled(leg, hung.id), timeout_s=60, what="a handler is killed at its hard limit")
            wait_until(lambda: is_settled(leg, failing.id), timeout_s=60, what="a failure is settled")

            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(60) == 0


def test_a_sweep_that_runs_on_waits_for_no_reader(fast_leg: Leg) -> None:
    leg = fast_leg
    with (
        full_pipe() as (_, out),
        full_pipe() as (reads, err),
        workq(leg, "sweep", "--every", "0.1s", "-v", stdout=out, stderr=err, reads=reads) as sweeper,
    ):
        for _ in range(3):
            task_id = leg["note"].options(delay_s=0.3).enqueue(1).id
            wait_until(partial(is_ready, leg, task_id), timeout_s=60, what="what is due is promoted")
        sweeper.send_signal(signal.SIGTERM)
        assert sweeper.wait(60) == 0


def test_a_sweep_that_runs_on_ends_whichever_of_its_threads_gets_the_signal(fast_leg: Leg) -> None:
    """The kernel mostly gives it to the first thread, which would wait for ever for what another one has got."""
    null = subprocess.DEVNULL
    with workq(fast_leg, "sweep", "--every", "0.1s", stdout=null, stderr=null) as sweeper:
        task_id = fast_leg["note"].options(delay_s=0.3).enqueue(1).id
        wait_until(partial(is_ready, fast_leg, task_id), timeout_s=60, what="what is due is promoted")
        others = [one.id for one in psutil.Process(sweeper.pid).threads() if one.id != sweeper.pid]

        assert others
        assert ctypes.CDLL(None).tgkill(sweeper.pid, others[0], signal.SIGTERM) == 0
        assert sweeper.wait(60) == 0


def test_a_sweep_that_ends_with_an_error_waits_for_no_reader(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'q.db'}"
    environ = {**os.environ, "WORKQ_LEDGER_URL": url, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "workq"]
    subprocess.run([*command, "db", "migrate"], env=environ, check=True, capture_output=True)
    with WorkQueue(ledger=url) as wq, full_pipe() as (_, out), full_pipe() as (_, err):
        ledger = wq.stores.ledger
        with subprocess.Popen(
            [*command, "sweep", "--every", "0.1s", "-v"], env=environ, stdout=out, stderr=err
        ) as sweeper:
            try:
                wait_until(lambda: ledger.questions.swept_for_s() is not None, timeout_s=60, what="it sweeps")
                (tmp_path / "other.db").touch()
                (tmp_path / "other.db").replace(tmp_path / "q.db")
                assert sweeper.wait(60) == 4
            finally:
                sweeper.kill()
