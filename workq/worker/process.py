"""One consumer process: fetch, hold, ack, claim, run, settle, release.

The steps are in files of their own: fetch/ (from a queue to a claim: worker/fetch/three_stores.py through three stores,
worker/fetch/one_database.py in one database), dispatch.py, pool.py and run.py (from a claim to an outcome), settle.py,
holds.py (what is held, and its release), lease.py (the lease). Here is the life of the process around them: join, the
threads, leave.

Threads: this one takes in; `beat` keeps the lease, `heart` the heartbeat in the ledger; `settle` writes outcomes;
`limits` watches soft time limits; handlers run in up to `threads` pool threads, coroutines in one event loop. The
broker's client has a thread of its own.

What goes wrong: the in-flight store away: nothing is acked unheld, fetching stops, running tasks settle, and it
resumes by itself. The broker away: the consumer connects again by itself. The ledger away: nothing is claimed;
outcomes are kept and settled when it is back. The lease lost (reaped): claim no more, let handlers end as late
results, leave with status 75, and the supervisor starts a new incarnation. A beat thread that dies ends the
process: working without a lease is worse; so does a settle or limits thread that dies, and any error that nobody
expects. Then the process leaves without a goodbye, and its supervisor ends its claims with the evidence.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NoReturn, Protocol

import msgspec
import psutil

from workq.broker import Consumer
from workq.errors import ConfigError, LeaseLost, Unavailable, WorkqError
from workq.handlers import forks
from workq.handlers.context import TaskFields
from workq.logs import configure, flush, shut_down
from workq.values.begin import begun
from workq.values.certificate import EXIT_BROKEN, EXIT_GRACE_EXCEEDED, EXIT_LEASE_LOST
from workq.values.incarnation import Incarnation
from workq.values.lane import all_of
from workq.worker.crash_board import CrashBoard
from workq.worker.fetch.intake import Intake, Parts
from workq.worker.fetch.three_stores import ThreeStores
from workq.worker.holds import held_for
from workq.worker.lease import LeaseKeeper
from workq.worker.pace import Prefetch
from workq.worker.pool import Pool
from workq.worker.readiness import WorkerSpec, wait_until_ready
from workq.worker.settle import Settler
from workq.worker.signs import given_signs
from workq.worker.stacks import Stacks

if TYPE_CHECKING:
    from workq.app import WorkQueue

log = logging.getLogger("workq.worker")

_SUPERVISOR: Final = os.getppid()
RETRY_S: Final = 0.25
"""A beat that failed is tried again so soon: one that timed out is made good before `absence_s` is over."""
SIGNS_S: Final = 1.0
"""For so long a process waits for its signs of life before it joins; what comes later is told with a heartbeat."""
LAST_BEAT_S = 10.0
"""How long to wait for the last beat before leaving."""
GARBAGE_EVERY = 10_000
"""After so many new objects that stay, cycles among them are looked for. Python's own 700 costs a process that is busy
with webhooks some 8 % of its time: each of them is many objects that stay until its answer comes. More would save no
more, and what handlers leave in cycles, and all that hangs on it, would stay longer."""


class ServingProcess(Protocol):
    """One life of a process that a supervisor has started."""

    def run(self) -> int:
        """Serve until told to stop. Answers the exit status."""


class Worker:
    """One life of one consumer process."""

    def __init__(
        self,
        app: WorkQueue,
        *,
        queues: Sequence[str],
        threads: int,
        is_drain: bool,
        board: CrashBoard,
        stop: threading.Event | None = None,
    ) -> None:
        """`stop`: it leaves in order once that is set."""
        self.app = app
        self.queues = tuple(queues)
        self.threads = threads
        self.is_drain = is_drain
        self.board = board
        self.times = app.settings.times
        self.stores = app.existing  # its supervisor has opened them: what is gone since is not made again
        self.relay = app.producer.relay
        self.me = Incarnation.of_this_process()
        self.stop = stop or threading.Event()
        self._rng = random.Random()
        self._is_broken = False
        self._ended = threading.Event()
        self._beating = [
            threading.Thread(target=self._keep, args=(beat,), name=name, daemon=True)
            # a ledger that does not answer must not hold up the lease: who has a way to one store is not gone
            for name, beat in (("workq-beat", self._beat), ("workq-heart", self._beat_in_ledger))
        ]
        self._signs = given_signs(self.stores, app.settings, by=self.me.id)
        self._held = held_for(self.stores, by=self.me.id)
        self._intake: Intake | None = None
        self._heart = LeaseKeeper(
            self.stores,
            self._held,
            me=self.me,
            times=self.times,
            offer=self.relay.offer,
            on_reached=board.reached,
            signs=lambda: None if self._signs is None else self._signs.told(),
        )
        self._pool = Pool(
            self.stores.ledger,
            board,
            threads=threads,
            times=self.times,
            on_finished=lambda settlement: self._settler.put(settlement),
            on_death=_end_broken,
            rng=self._rng,
            may_start=lambda: self._heart.is_trusted,
            give_way=self.stores.ledger.give_way,
        )
        self._settler = Settler(
            self.stores,
            self.relay,
            self._held,
            by=self.me.id,
            taker=lambda: self._intake,
            is_busy=lambda: self._pool.started > 0,
            on_settled=self._pool.settled,
            on_death=_end_broken,
            rng=self._rng,
        )

    def run(self) -> int:
        """Work until told to stop (or, draining, until nothing is due). Answers the exit status."""
        if not self._join():
            return 0
        self.board.introduce(self.me.id)
        for one in self._beating:
            one.start()
        self._pool.start()
        self._settler.start()
        consumer, intake = take_in(
            Parts(
                self.stores,
                me=self.me.id,
                queues=self.queues,
                registry=self.app.registry,
                settings=self.app.settings,
                heart=self._heart,
                held=self._held,
                pool=self._pool,
                rng=self._rng,
                admit=self._settler.admit,
            )
        )
        self._intake = intake
        log.info("worker.started", extra={"worker": self.me.id, "queues": self.queues})
        status = 0
        try:
            self._serve_until_stopped(intake)
        except ConfigError as error:
            log.error("worker.cannot_serve: %s", error)
            status = 2
        except Exception:
            log.exception("worker.broken")
            self._is_broken = True
        consumer.close()
        status = self._leave(intake) or status
        intake.flush_log()
        return status

    def _join(self) -> bool:
        """Get a lease and a row in the ledger, waiting for the servers as long as it takes; False when told to stop."""
        if self._signs is not None:
            self._signs.wait(SIGNS_S)
        pause_s = 0.2
        while not self.stop.is_set():
            try:
                self._heart.join(queues=self.queues, threads=self.threads)
            except Unavailable as error:
                log.warning("worker.waits: %s", error)
                self.stop.wait(pause_s * self._rng.uniform(0.5, 1.0))
                pause_s = min(5.0, pause_s * 2)
            else:
                return True
        return False

    def _serve_until_stopped(self, intake: Intake) -> None:
        pause_s = 0.0
        while not self.stop.is_set() and not self._heart.lost.is_set():
            try:
                full_s = intake.round()
            except LeaseLost as error:
                log.warning("worker.lease_missing: %s", error)
                self._heart.make_sure()
                self.stop.wait(0.05)
            except Unavailable as error:
                pause_s = min(2.0, max(0.1, pause_s * 2))
                log.warning("worker.waits: %s", error)
                self.stop.wait(pause_s * self._rng.uniform(0.5, 1.0))
            else:
                pause_s = 0.0
                if full_s > 0.0:
                    self._pool.wait(full_s)
            if self.is_drain and self._is_drained(intake):
                return

    def _is_drained(self, intake: Intake) -> bool:
        if self._pool.active or not intake.is_empty or self._settler.unsettled:
            return False
        try:
            return not self.stores.ledger.questions.has_due([band for queue in self.queues for band in all_of(queue)])
        except Unavailable:
            return False

    def _leave(self, intake: Intake) -> int:
        """Hand back what has not started, finish what runs within the grace, settle, release, and say goodbye."""
        deadline = time.monotonic() + self.times.grace_s
        self._is_broken = not intake.give_back() or self._is_broken
        self._pool.hand_back()
        is_done = self._pool.wait_until_idle(deadline - time.monotonic())
        is_settled = self._settler.close(timeout_s=max(1.0, deadline - time.monotonic()))
        self.relay.flush(timeout_s=min(5.0, max(0.5, deadline - time.monotonic())))
        self._ended.set()
        self._pool.end()
        if self._is_broken:
            return EXIT_BROKEN
        if self._heart.lost.is_set():
            return EXIT_LEASE_LOST
        if not (is_done and is_settled):
            running, unsettled = self._pool.active, self._settler.unsettled
            log.warning("worker.grace_exceeded", extra={"running": running, "unsettled": unsettled})
            return EXIT_GRACE_EXCEEDED
        for one in self._beating:
            one.join(LAST_BEAT_S)  # one that is under way would grant the lease again
        try:
            self._heart.leave()
        except Unavailable as error:
            log.warning("worker.left_without_goodbye: %s", error)
        else:
            self.board.leave()
        if self._signs is not None:
            self._signs.close()
        log.info("worker.left", extra={"worker": self.me.id})
        return 0

    def _beat(self) -> float:
        return self.times.beat_s if self._heart.beat_in_flight() else min(RETRY_S, self.times.beat_s)

    def _beat_in_ledger(self) -> float:
        self._heart.beat_in_ledger_in_time()
        return self.times.beat_s

    def _keep(self, beat: Callable[[], float]) -> None:
        pause_s = self.times.beat_s
        try:
            while not self._ended.wait(pause_s) and not self._heart.lost.is_set():
                pause_s = beat()
        except BaseException:
            try:
                log.critical("beat.died", exc_info=True)
            finally:  # a logging handler of the application's may raise anything
                _end_broken()  # working on without a lease would let others start what runs here


def take_in(parts: Parts) -> tuple[Consumer, Intake]:
    """Begin to consume: straight into claims where all three stores are one database."""
    stores = parts.stores
    if stores.direct is not None:
        from workq.broker.embedded.claiming_consumer import DirectConsumer
        from workq.worker.fetch.one_database import OneDatabase

        direct = DirectConsumer(stores.direct, stores.ledger, parts.queues, name=parts.me)
        return direct, OneDatabase(parts, direct)
    consumer = stores.broker.consumer(parts.queues, name=parts.me, prefetch=Prefetch(parts.pool.threads).least)
    return consumer, ThreeStores(parts, consumer)


def _end_broken() -> None:
    """End this process at once: the supervisor ends its claims and starts another."""
    flush()
    _exit(EXIT_BROKEN)


def _exit(status: int) -> NoReturn:
    """End at once; unless in order, with all that handlers have started and that still descends from this process."""
    if status != 0:
        with contextlib.suppress(Exception):  # a handler may have left nothing to look with
            for one in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    one.kill()
        if os.getppid() != _SUPERVISOR and os.getpgrp() == os.getpid():  # else the supervisor kills the group
            os.killpg(0, signal.SIGKILL)
    os._exit(status)


def _told_to_stop(supervisor: IO[bytes]) -> threading.Event:
    """Is set by SIGTERM, and when the supervisor has ended."""
    stop = threading.Event()
    forks.handle(signal.SIGTERM, lambda *_: stop.set())

    def leave_with_supervisor() -> None:
        with contextlib.suppress(OSError):
            supervisor.read()  # nothing more is ever sent: this ends when the supervisor does
            stop.set()

    threading.Thread(target=leave_with_supervisor, name="workq-parent", daemon=True).start()
    return stop


def main(load: Callable[[str], WorkQueue], make: Callable[..., ServingProcess]) -> int:
    """The consumer process: reads its WorkerSpec from standard input, which ends when the supervisor does."""
    # the supervisor decides when to leave; what ignores a signal would hand that on to the programs that it starts
    forks.handle(signal.SIGINT, lambda *_: None)
    supervisor = _take_standard_input()
    spec = msgspec.json.decode(supervisor.readline(), type=WorkerSpec)

    board, stacks = CrashBoard(Path(spec.board)), Stacks(Path(spec.stacks))
    stacks.path.unlink(missing_ok=True)  # both sides have it open: nothing is left behind, whoever dies first
    stacks.listen()
    try:
        try:
            app = load(spec.app)
        finally:  # by now the application has configured logging, or has not
            configure(spec.log_level, form=spec.log_format, fields=TaskFields())
        app.registry.freeze()
        stop = _told_to_stop(supervisor)
        if not wait_until_ready(lambda: app.existing, pause=stop.wait):
            return 0
        worker = make(app, queues=spec.queues, threads=spec.threads, is_drain=spec.is_drain, board=board, stop=stop)
    except (ConfigError, Unavailable) as error:
        log.error("worker.cannot_start: %s", error)
        return 4 if isinstance(error, Unavailable) else 2
    except WorkqError as error:
        log.error("worker.cannot_start: %s", error)
        return 1
    begun(GARBAGE_EVERY)
    forks.arm(stacks.leave)
    app.is_served = True
    status = worker.run()
    if status == EXIT_GRACE_EXCEEDED:
        stacks.dump()
    app.is_served = False
    app.close()
    return status


def _take_standard_input() -> IO[bytes]:
    """What the supervisor sends, and where its end is seen. What handlers start finds nothing to read instead of it."""
    taken = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return taken


def live(load: Callable[[str], WorkQueue], make: Callable[..., ServingProcess] = Worker) -> NoReturn:
    """`main`, whatever happens in it, and the end of this process.

    `load`: finds the application that is named. `make`: what serves it, by the keywords of `Worker`.
    """
    code = 1
    try:
        code = main(load, make)
    except BaseException:
        log.critical("worker.broken", exc_info=True)
    with contextlib.suppress(BaseException):
        shut_down()
    with contextlib.suppress(BaseException):  # a handler may have closed or replaced it
        sys.stdout.flush()
    _exit(code)  # a handler thread that never ends must not keep the process: what it ran was handed on
