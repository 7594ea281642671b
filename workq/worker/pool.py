"""Pool: runs attempts, from a claim to an outcome that waits to be settled.

A process that is killed repeats what its threads ran, and no more: what had ended stands on the board with its outcome,
and is settled by whoever buries the process.

Several tasks may share one call (`batch=`): it takes one thread, and each of them has its own line and outcome. One
task is a run of one (run.py). What still waits for such company is in batch.py.

Plain handlers run in up to `threads` threads, and up to as many coroutines in one event loop; `limits` raises
SoftTimeLimit in what runs too long. Every attempt has a line on the board from its start until it is settled. A thread
here that dies of anything but its handler's exception ends the process (`on_death`): its attempt would stay unsettled.

`begin` and `finish` are the two ends of one run, and may be called from anywhere; `dispatch` alone decides who
calls them, and is what a simulation replaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from workq.config import Times
from workq.handlers.forks import end_if_child
from workq.handlers.handler import Handler
from workq.handlers.said import describe, tell
from workq.values.failpoints import reach
from workq.values.task import Claim, HandedBack, Outcome, Settlement, State
from workq.values.time_limit import SoftDeadline, whole
from workq.worker.batch import BatchCollector, FillingBatch
from workq.worker.crash_board import CrashBoard
from workq.worker.loop import is_whole, new_event_loop, wait_for
from workq.worker.pace import Pace
from workq.worker.run import Attempt, Run, SharedRun

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from workq.ledger.sql import Ledger

T = TypeVar("T")

log = logging.getLogger("workq.pool")

CLAIM_AHEAD_S = 0.05
"""Claim about this much work ahead of what can start at once."""
CLAIM_AHEAD_MAX = 600
CLAIM_AHEAD_BYTES = 32 << 20
"""Of payloads, about, by the largest that came lately: what is claimed ahead is in memory."""
HAND_BACK_AFTER_S = 0.5
"""What waits for a thread while none has begun or ended anything for this long is handed back."""
LOOK_EVERY_S = 0.1
"""How often soft limits are looked at."""


class Pool:
    """The attempts of one process. `on_finished` is told of each outcome, to settle it; thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        board: CrashBoard,
        *,
        threads: int,
        times: Times,
        on_finished: Callable[[Settlement], None],
        on_death: Callable[[], None],
        rng: random.Random,
        may_start: Callable[[], bool] = lambda: True,
        give_way: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_start`: whether the lease can still be relied on; what may not start goes back at no cost.

        `give_way`: what the event loop does between two rounds (see loop.py).
        """
        self.threads = threads
        self.active = 0
        """Claimed attempts without an outcome; those of one call count as one."""
        self.started = 0
        """Those of them whose handler runs."""
        self.pace = Pace(threads)
        self.linger = BatchCollector(most=board.lines // 2, clock=clock)
        """What waits to share a call (see dispatch.py): it takes no thread."""
        self._ledger = ledger
        self._board = board
        self._times = times
        self._on_finished = on_finished
        self._on_death = on_death
        self._rng = rng
        self._may_start = may_start
        self._give_way = give_way
        self._clock = clock
        self._context = copy_context()
        """Each attempt has a copy of it, with what the application has set where it was imported."""
        self._lock = threading.RLock()  # itself, in place of the condition: that would be two calls more, each time
        self._changed = threading.Condition(self._lock)
        self._waiters = 0
        """How many threads wait to be told: mostly none, and then nobody is."""
        self._lines: deque[int] = deque(range(board.lines))
        self._lines_in_use: dict[tuple[str, str], int] = {}
        """By task and token: the line of what has ended and is not settled."""
        self._limited: dict[int, Run] = {}
        self._inbox: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._moved_at = clock()
        """When an attempt was taken, began or ended last."""
        self._low = 0
        """With so few active, whoever waits for room is woken up."""
        self._changes = self._changes_seen = 0
        self._running: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._coming: deque[Run] = deque()
        """For the event loop, which is told once of many."""
        self._coroutines: dict[int, tuple[asyncio.Task[None], Run]] = {}
        """By line: a loop does not keep its tasks alive."""
        self._ended = threading.Event()
        self._is_leaving = False

    # -- one run

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, and all that ran is settled."""
        with self._lock:
            return self.active == 0 and not self._lines_in_use

    @property
    def lines(self) -> int:
        """How many claims can be taken at all: each has a line of the board until it is settled."""
        return len(self._lines)

    @property
    def busy_s(self) -> float:
        """For how long every thread has been running what it runs, and nothing was taken; 0 while one is free."""
        return self._clock() - self._moved_at if self.started >= self.threads else 0.0

    def startable(self) -> int:
        """How many claims can be taken now: free slots, and what ends within a moment.

        Of work ahead, only half at a time is claimed anew, or what ends within that moment, where many run: a claim
        costs much the same for one task as for a page.
        """
        most = min(CLAIM_AHEAD_MAX, self.pace.fit(CLAIM_AHEAD_BYTES))
        soon = self.pace.ahead(CLAIM_AHEAD_S, most, busy_s=self.busy_s) if self.pace.is_known else 0
        ahead = max(self.threads, min(self.threads + soon, most))
        self._low = max(self.threads - 1, ahead // 2)
        room = min(ahead - self.active, len(self._lines)) if self.active <= self._low else 0
        if self.linger.count and room > 0:
            more = min(self.linger.more, self.pace.fit(CLAIM_AHEAD_BYTES))
            return max(0, min(room + more, len(self._lines) - self.linger.count))
        return room

    def take(
        self,
        claim: Claim,
        handler: Handler[..., Any] | None,
        arguments: Any,
        ended: Outcome | None,
        *,
        start_by: float | None = None,
    ) -> None:
        """Take a claim: run it, or, when it has ended before its start, let it be settled."""
        self.pace.weigh(len(claim.payload))
        run = Run(handler, [Attempt(claim, self._lines.popleft(), arguments, start_by)])
        self._came()
        if ended is not None:
            self.finish(run, [ended])
        else:
            self.dispatch(run)

    def take_together(self, group: FillingBatch) -> None:
        """Take claims that share one call, and run them."""
        attempts = [Attempt(one.claim, self._lines.popleft(), one.item, one.start_by) for one in group.members]
        self._came()
        self.dispatch(SharedRun(group.handler, attempts))

    def _came(self) -> None:
        with self._lock:
            self.active += 1
            self._moved_at = self._clock()

    def dispatch(self, run: Run) -> None:
        """Hand a run to whoever makes the call."""
        if run.handler is not None and run.handler.is_async:
            self._coming.append(run)
            if len(self._coming) == 1:  # else somebody is on the way to all of them, or all who may run do
                self._event_loop().call_soon_threadsafe(self._start_coming)
            return
        self._inbox.put(run)
        if len(self._running) < min(self.threads, self.active):
            thread = threading.Thread(target=self._work, name=f"workq-run-{len(self._running)}", daemon=True)
            self._running.append(thread)
            thread.start()

    def begin(self, run: Run) -> float:
        """The handler is about to be called; answers when, by this process's clock."""
        reach("worker.before_run")
        began = self._clock()
        limit_s = run.handler.time_limit_s if run.handler is not None else None
        hard_at = began + limit_s + self._times.hard_limit_grace_s if limit_s is not None else 0.0
        with self._lock:
            self.started += 1
            self._moved_at = began
        for one in run.attempts:
            self._board.start(one.line, one.claim.task_id, one.claim.attempt, started_at=began, hard_at=hard_at)
        return began

    def finish(
        self, run: Run, outcomes: Sequence[Outcome], *, began: float | None = None, is_rest: bool = False
    ) -> None:
        """Its attempts have outcomes: free its slot and let each be settled by itself.

        `began`: what `begin` has answered, if it has begun. `is_rest`: others, of the same slot, go on.
        """
        end_if_child()
        settlements = [Settlement(one.claim, outcome) for one, outcome in zip(run.attempts, outcomes, strict=True)]
        if began is not None:
            reach("worker.after_run")
            for one, settlement in zip(run.attempts, settlements, strict=True):
                self._board.ended(one.line, settlement)  # from here on it is done, whoever settles it
        with self._lock:
            self.active -= not is_rest
            for one in run.attempts:
                self._lines_in_use[_of(one.claim)] = one.line
            if began is not None:
                self.started -= 1
                self._moved_at = self._clock()
                self.pace.add(self._moved_at - began, attempts=len(run.attempts))
            if self.active <= self._low:
                self._tell()
        for settlement in settlements:
            self._on_finished(settlement)

    def settled(self, batch: Sequence[Settlement]) -> None:
        """Told by the settler: the board's lines are free again."""
        with self._lock:
            for one in batch:
                line = self._lines_in_use.pop(_of(one.claim), None)
                if line is not None:
                    self._board.clear(line)
                    self._lines.append(line)
            self._tell()

    def _tell(self) -> None:
        self._changes += 1
        if self._waiters:
            self._changed.notify_all()

    def is_cancelled(self, claim: Claim) -> bool:
        """Whether the handler of a claim should stop: it was asked to, or its attempt is not the newest any more."""
        task = self._ledger.questions.get(claim.task_id)
        return (
            task is None or task.is_cancel_requested or task.attempt != claim.attempt or task.state is not State.RUNNING
        )

    def transaction(self, claim: Claim, *, succeeds: Callable[[], Outcome]) -> AbstractContextManager[Connection]:
        """The ledger's, for the handler of a claim."""
        return self._ledger.transactions.transaction(claim, succeeds=succeeds)

    def part(self, kind: Callable[[Ledger], T]) -> T:
        """The ledger's, of a slice."""
        return self._ledger.part(kind)

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """What a plain handler has answered is awaited in the event loop, and its thread waits."""
        return wait_for(awaitable, self._event_loop())

    def is_leaving(self) -> bool:
        """Whether nothing starts here any more."""
        return self._is_leaving

    # -- life

    def start(self) -> None:
        """Begin to watch soft limits. Threads for attempts start when they are needed."""
        threading.Thread(target=self._keep_limits, name="workq-limits", daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        """Wait until there may be room for a claim, an attempt is settled, or for `timeout_s`.

        What happened since the last wait counts: whoever has looked just before it misses nothing.
        """
        with self._lock:
            if self._changes == self._changes_seen:
                self._waiters += 1
                try:
                    self._changed.wait(timeout_s)
                finally:
                    self._waiters -= 1
            self._changes_seen = self._changes

    def wake(self) -> None:
        """Let whoever waits in `wait` look again."""
        with self._lock:
            self._tell()

    def relieve(self) -> None:
        """When every thread has been busy for a while, what waits behind them goes back at no cost: others may be free.

        It was claimed ahead because those before it were quick. Until something ends, no more is claimed ahead.
        """
        if self._clock() - self._moved_at > HAND_BACK_AFTER_S:
            self.hand_back_unstarted()

    def hand_back(self) -> None:
        """This process leaves: what has not started goes back at no cost, and nothing starts any more."""
        with self._lock:
            self._is_leaving = True
            self._changed.notify_all()
        self.hand_back_unstarted()

    def hand_back_unstarted(self) -> None:
        """What waits for a thread, or for its turn in the event loop, goes back at no cost."""
        while (run := self._unstarted()) is not None:
            self._hand_back(run)

    def _hand_back(self, run: Run, *, is_rest: bool = False) -> None:
        self.finish(run, [HandedBack()] * len(run.attempts), is_rest=is_rest)

    def _unstarted(self) -> Run | None:
        """The next of those who wait, if any."""
        with contextlib.suppress(queue.Empty):
            return self._inbox.get_nowait()
        with contextlib.suppress(IndexError):
            return self._coming.popleft()
        return None

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait for what runs; False when the time is up before."""
        with self._lock:
            self._waiters += 1
            try:
                return self._changed.wait_for(lambda: self.active == 0, max(0.0, timeout_s))
            finally:
                self._waiters -= 1

    def end(self) -> None:
        """The process ends: watch no more. What still runs is left alone."""
        self._ended.set()

    # -- threads and the event loop

    def _work(self) -> None:
        """A thread of the pool: runs, one after the other."""
        try:
            while True:
                self._context.copy().run(self._run, self._inbox.get())
        except BaseException as error:  # not the handler's: an attempt that was taken would never be settled
            self._die("worker.thread_died", error)

    def _die(self, event: str, error: BaseException) -> None:
        """End this process, whatever becomes of the line in its log."""
        try:
            log.critical("%s: %s", event, describe(error))
        finally:
            self._on_death()

    def _run(self, run: Run) -> None:
        """In a thread."""
        if not self._may_begin(run):
            return
        began = self.begin(run)
        limit_s = None if run.handler is None else run.handler.time_limit_s
        limit = None if limit_s is None else SoftDeadline(began + limit_s)
        try:
            if limit is not None:
                run.limit = limit
                self._limited[run.line] = run
            try:
                run.call(self, math.inf if limit is None else limit.at, self._clock)
            finally:
                if limit is not None:
                    limit.ended()
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: data never kills a worker
            run.end(error, self._rng)
        if limit is not None:
            self._limited.pop(run.line, None)
        self.finish(run, run.outcomes(self._rng), began=began)

    async def _run_async(self, run: Run) -> None:
        """In the event loop."""
        if not self._may_begin(run):
            return
        began = self.begin(run)
        try:
            await run.call_async(self)
        except BaseException as error:  # CancelledError and SystemExit too: the loop serves other tasks
            run.end(error, self._rng)
        self.finish(run, run.outcomes(self._rng), began=began)

    def _may_begin(self, run: Run) -> bool:
        """Whether it may start now. What may not goes back at no cost, or those of its attempts that come too late."""
        if self._is_leaving or not self._may_start():
            self._hand_back(run)
            return False
        late = [one for one in run.attempts if one.start_by is not None and self._clock() > one.start_by]
        if late:  # their slot in a rate is over: they wait for another one
            run.attempts = [one for one in run.attempts if one not in late]
            self._hand_back(Run(run.handler, late), is_rest=bool(run.attempts))
        return bool(run.attempts)

    def _start_coming(self) -> None:
        """In the event loop: as many at once as there may be threads. Each that ends starts the next."""
        loop = self._event_loop()
        while len(self._coroutines) < self.threads:
            try:
                run = self._coming.popleft()
            except IndexError:  # others take from it, too: to hand back
                return
            task = loop.create_task(self._run_in_loop(run), context=self._context.copy())
            self._coroutines[run.line] = task, run

    async def _run_in_loop(self, run: Run) -> None:
        """One run. That it forgets itself saves a round of the loop, which a callback at its end would take."""
        line = run.line
        try:
            await self._run_async(run)
        except BaseException as error:  # not the handler's: its attempt would never be settled
            self._die("worker.coroutine_died", error)
        finally:
            self._coroutines.pop(line, None)
            self._start_coming()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            with whole(), self._lock:  # pool threads ask for it too
                if self._loop is None:
                    loop = self._loop = new_event_loop(self._give_way)
                    threading.Thread(target=self._keep_looping, args=(loop,), name="workq-async", daemon=True).start()
        return self._loop

    def _keep_looping(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while not self._ended.is_set():
                try:
                    loop.run_forever()
                except OSError:  # its own: it would come again at once
                    raise
                except BaseException as error:  # SystemExit in a task that a handler started: the other handlers go on
                    tell(log, "worker.event_loop", error)
        except BaseException as error:
            self._die("worker.event_loop", error)

    def _keep_limits(self) -> None:
        try:
            while not self._ended.wait(LOOK_EVERY_S):
                now = self._clock()
                self._board.runs(now)
                if self._loop is not None and not is_whole(self._loop):
                    raise OSError(errno.EBADF, "a handler has closed the descriptors of the event loop")
                for run in list(self._limited.values()):
                    if run.limit is not None and now > run.limit.at:
                        run.limit.exceed()
                self._hand_back_cancelled()
        except BaseException as error:  # without it nothing would ever be limited
            self._die("limits.died", error)

    def _hand_back_cancelled(self) -> None:
        """A handler may cancel all tasks of its loop: one that has not begun cannot say that it has ended."""
        for line, (task, run) in list(self._coroutines.items()):
            if task.done() and self._coroutines.pop(line, None) is not None:
                self._hand_back(run)
                self._event_loop().call_soon_threadsafe(self._start_coming)


def _of(claim: Claim) -> tuple[str, str]:
    """Which claim of which task: a late answer about one must not be taken for the next.

    By its token: a ledger that was restored from a backup counts the same attempts again.
    """
    return claim.task_id, claim.token
