"""`python -m benchmarks.traces`: how much of workq one act goes through: files, calls, and the depth of frames.

Each act runs in this process, on private PostgreSQL, RabbitMQ and Redis. What a worker does, it does in its threads.

enqueue     one task is recorded: the thread of its caller, until `enqueue()` returns
task        the whole life of a task: enqueue, relay, fetch, hold, claim, run, settle, release
reap        a sweep's step finds one dead worker, which ran one task, and ends it
webhook     one webhook to one endpoint: send, and the life of its delivery
chunk       one chunk of a job, from its hint to the end of the job, whose last one it is

A call is a function of workq that is entered; comprehensions, and generators that go on, are none. The depth is that of
the frames of workq on one stack, whatever frames of others lie between. An act is repeated, and the run with the median
number of calls is told: a worker that waits calls, too.
"""

from __future__ import annotations

import argparse
import http.server
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final
from uuid import uuid4

import workq
from benchmarks.legs import LEGS, opened, until
from workq import Range, State, WorkQueue
from workq.broker import Hint
from workq.handlers.handler import Handler
from workq.jobs.define import Job
from workq.jobs.ledger.sql import JobLedger
from workq.recovery.sweep import sweep
from workq.values.incarnation import Incarnation, this_machine
from workq.values.task import Task
from workq.webhooks import Webhooks
from workq.webhooks.values import QUEUE as WEBHOOKS
from workq.worker.crash_board import CrashBoard
from workq.worker.process import Worker

PACKAGE: Final = str(Path(workq.__file__).parent) + os.sep
QUEUE: Final = "traces"
WARM: Final = 3
"""So often an act is done before: what is made once (statements, connections, threads) is no part of it."""
LOOK_S: Final = 0.005
_EXPRESSIONS: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"})
_GOES_ON: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class Trace:
    """What one act went through."""

    files: int
    calls: int
    depth: int


class Recorder:
    """Notes the functions of workq that are entered. It sees the threads that begin after it was made, and its own."""

    def __init__(self) -> None:
        self._is_on = False
        self._seen: list[tuple[str, int]] = []
        """File and depth of each call."""
        threading.setprofile(self._note)

    def trace(self, act: Callable[[], object], *, ends: Callable[[], bool] | None = None) -> Trace:
        """What an act goes through: in this thread, and with `ends` in all others as well, until that is so."""
        self._seen = []
        self._is_on = ends is not None
        try:
            sys.setprofile(self._note if ends is not None else self._note_mine)
            try:
                act()
            finally:
                sys.setprofile(None)
            if ends is not None:
                until(ends, "the act is over", every_s=LOOK_S)
        finally:
            self._is_on = False
        seen = self._seen
        return Trace(len({file for file, _ in seen}), len(seen), max(depth for _, depth in seen))

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        if self._is_on:
            self._note_mine(frame, event, arg)

    def _note_mine(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and _is_ours(frame) and not _goes_on(frame):
            depth, above = 1, frame.f_back
            while above is not None:
                depth += _is_ours(above)
                above = above.f_back
            self._seen.append((frame.f_code.co_filename, depth))


def _is_ours(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_filename.startswith(PACKAGE) and code.co_name not in _EXPRESSIONS


def _goes_on(frame: FrameType) -> bool:
    """Whether a generator or coroutine is resumed: the argument of the bytecode RESUME says so, beyond 0."""
    code = frame.f_code
    return bool(code.co_flags & _GOES_ON) and bool(code.co_code[frame.f_lasti + 1] & 3)


def median_of(runs: int, act: Callable[[], Trace]) -> Trace:
    """The run with the median number of calls, of so many after the first few."""
    for _ in range(WARM):
        act()
    return sorted((act() for _ in range(runs)), key=lambda trace: trace.calls)[runs // 2]


# -- the acts


def enqueue(app: WorkQueue, recorder: Recorder, *, runs: int) -> Trace:
    """One task is recorded."""
    handler = _noop_of(app, "enqueue")
    return median_of(runs, lambda: recorder.trace(handler.enqueue))


def task(app: WorkQueue, recorder: Recorder, *, runs: int) -> Trace:
    """The life of a task, until its hold is released."""
    handler = _noop_of(app, "task")

    def live() -> Trace:
        return recorder.trace(handler.enqueue, ends=lambda: _is_done(app, QUEUE))

    with _working(app):
        return median_of(runs, live)


def reap(app: WorkQueue, recorder: Recorder, *, runs: int) -> Trace:
    """A worker of this machine, whose process and whose supervisor are gone, ran one task."""
    handler = _noop_of(app, "reap")

    def die() -> Trace:
        stores, pid = app.stores, _pid_of_the_dead()
        dead = Incarnation(f"traces.{uuid4()}", "traces", pid, this_machine(), pid)
        stores.ledger.workers.join(dead, queues=[QUEUE], threads=1)
        stores.inflight.join(dead.id, lease_s=60.0)
        if not stores.ledger.claims.claim([handler.enqueue().id], by=dead.id):
            raise RuntimeError("the task of the dead worker was not claimed")
        app.producer.relay.flush(timeout_s=10.0)
        return recorder.trace(lambda: sweep(stores, app.settings, only=("reap",)))

    return median_of(runs, die)


def webhook(app: WorkQueue, recorder: Recorder, *, runs: int) -> Trace:
    """A webhook to one endpoint, until its delivery has arrived and is released."""
    webhooks = Webhooks(app)

    def send() -> Trace:
        return recorder.trace(
            lambda: webhooks.send("order.paid", {"order": 1017}), ends=lambda: _is_done(app, WEBHOOKS)
        )

    with _receiver() as url, _working(app, WEBHOOKS):
        webhooks.endpoints.add(url)
        return median_of(runs, send)


def chunk(app: WorkQueue, recorder: Recorder, *, runs: int) -> Trace:
    """The one chunk of a job. Its queue is paused while the job is split, so that the chunk waits for its own hint."""
    job = _job_of(app)
    jobs = app.stores.ledger.part(JobLedger).questions

    def count() -> Trace:
        job_id = job.run().id

        def is_split() -> bool:
            found = jobs.job(job_id)
            return found is not None and found.is_split and not app.stores.inflight.holds(QUEUE)

        until(is_split, "the job is split", every_s=LOOK_S)
        app.resume_queue(QUEUE)
        hint = Hint(QUEUE, (_newest(app, QUEUE).id,))
        return recorder.trace(
            lambda: app.stores.broker.publish([hint], deadline_s=10.0), ends=lambda: _is_done(app, QUEUE)
        )

    with _working(app):
        return median_of(runs, count)


ACTS: Final = {"enqueue": enqueue, "task": task, "reap": reap, "webhook": webhook, "chunk": chunk}


def main() -> int:
    """Trace all acts, or some; print a line each. Answers 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description="files, calls, depth of one act")
    parser.add_argument("--leg", choices=LEGS, default="servers", help="on three servers, or in one SQLite file")
    parser.add_argument("--only", metavar="ACTS", default=",".join(ACTS), help="some of them, separated by commas")
    parser.add_argument("--runs", type=int, default=5, help="of each act; the median of their calls is told")
    options = parser.parse_args()
    print(f"{'act':<10}{'files':>7}{'calls':>7}{'frames deep':>13}")
    recorder = Recorder()
    with opened(options.leg, WORKQ_WEBHOOK_ALLOW="loopback") as (app, _, _):
        for name in options.only.split(","):
            found = ACTS[name](app, recorder, runs=options.runs)
            print(f"{name:<10}{found.files:>7}{found.calls:>7}{found.depth:>13}", flush=True)
    return 0


# -- what the acts need


def _noop_of(app: WorkQueue, act: str) -> Handler[[], None]:
    @app.task(name=f"traces.{act}", queue=QUEUE)
    def noop() -> None: ...

    return noop


def _job_of(app: WorkQueue) -> Job:
    @app.job(name="traces.count", queue=QUEUE, chunk=10)
    def count(numbers: list[int]) -> None:
        assert len(numbers) == 10

    @count.source
    def numbers() -> Range:
        app.pause_queue(QUEUE, why="its chunk shall wait")
        return Range(10)

    return count


@contextmanager
def _working(app: WorkQueue, queue: str = QUEUE) -> Iterator[None]:
    """One consumer process's worker, with its threads, in this process."""
    stop = threading.Event()
    worker = Worker(app, queues=[queue], threads=1, is_drain=False, board=CrashBoard.create(lines=8), stop=stop)
    running = threading.Thread(target=worker.run, name="traces-worker")
    running.start()
    try:
        yield
    finally:
        stop.set()
        running.join()


def _newest(app: WorkQueue, queue: str) -> Task:
    [found] = app.stores.ledger.questions.tasks(queue=queue, limit=1)
    return found


def _is_done(app: WorkQueue, queue: str) -> bool:
    """The newest task of the queue has succeeded, and no hold is left."""
    return _newest(app, queue).state is State.SUCCEEDED and not app.stores.inflight.holds(queue)


def _pid_of_the_dead() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@contextmanager
def _receiver() -> Iterator[str]:
    """An endpoint that takes everything. Its threads are not workq's, and are not seen."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
