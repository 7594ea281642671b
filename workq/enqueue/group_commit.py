"""Gather: threads that enqueue at the same time share one transaction, as databases share one sync among commits.

Whoever comes while fewer write than may, writes at once, alone: nobody waits for company. Whoever comes meanwhile waits
for one of those transactions to end, then the first of those who wait writes for all of them. Each call answers when
its own task stands; a thread is woken up for that, or to write, and for nothing else.

What goes wrong: the ledger away: each call raises that. Anything else that is raised for several tasks together is
tried again for each alone, so that nobody gets an error that another's task has caused. A thread that is interrupted
while it writes leaves the others' tasks to the next. A signal handler that enqueues while its thread does writes alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from workq.errors import Unavailable
from workq.values.task import Enqueued, NewTask

TOGETHER_MAX = 500
"""How many tasks share a transaction, at most."""
WRITERS_MAX = 3
"""How many transactions are written at once."""


class _Call:
    """One call that waits for its answer, or for what to raise, or for its turn to write."""

    __slots__ = ("answer", "error", "is_turn", "task", "woken")

    def __init__(self, task: NewTask) -> None:
        self.task = task
        self.answer: Enqueued | None = None
        self.error: BaseException | None = None
        self.is_turn = False
        self.woken = threading.Lock()
        self.woken.acquire()

    @property
    def is_done(self) -> bool:
        return self.answer is not None or self.error is not None

    def wake(self) -> None:
        """Let its thread look. Repeatable."""
        if self.woken.locked():
            self.woken.release()


class Gather:
    """Records single tasks by `record`, which answers in the order of its tasks. Thread-safe."""

    def __init__(self, record: Callable[[Sequence[NewTask]], list[Enqueued]], *, writers: int) -> None:
        """`writers`: how many transactions may be written at once."""
        self._record = record
        self._writers_max = writers
        self._lock = threading.RLock()  # a signal handler may enqueue, too
        self._waiting: deque[_Call] = deque()
        self._turns = 0
        """How many calls write, or are about to."""
        self._inside: set[int] = set()
        """The threads that are in `record` now."""

    def record(self, task: NewTask) -> Enqueued:
        """Record one task, alone or with those of other threads. Raises as `record` does."""
        me = threading.get_ident()
        if me in self._inside:  # a signal has interrupted a call of this thread, which can give no turn and take none
            return self._record([task])[0]
        call = _Call(task)
        try:
            self._inside.add(me)
            with self._lock:
                self._waiting.append(call)
                self._give_turn(call)
            while not call.is_done:
                if not call.is_turn:
                    call.woken.acquire()
                else:
                    self._write()
                    self._end_turn(call)
        finally:  # interrupted: nobody asks for it any more
            with self._lock:
                if not call.is_done and call in self._waiting:
                    self._waiting.remove(call)
                self._end_turn(call)
            self._inside.discard(me)
        if call.answer is None:
            raise call.error or RuntimeError("a call ended without an answer")
        return call.answer

    def _give_turn(self, call: _Call) -> None:
        if self._turns < self._writers_max and not call.is_turn:
            self._turns += 1
            call.is_turn = True
            call.wake()

    def _end_turn(self, call: _Call) -> None:
        """The next one that waits may write."""
        with self._lock:
            if call.is_turn:
                call.is_turn = False
                self._turns -= 1
                for one in self._waiting:
                    if one is not call:
                        self._give_turn(one)
                        break

    def _write(self) -> None:
        """Write what waits."""
        calls: list[_Call] = []
        try:
            with self._lock:
                while self._waiting and len(calls) < TOGETHER_MAX:
                    calls.append(self._waiting.popleft())
            if calls:
                self._settle(calls)
        finally:
            with self._lock:
                self._waiting.extendleft(call for call in reversed(calls) if not call.is_done)
                for call in calls:
                    if call.is_done:
                        call.wake()

    def _settle(self, calls: list[_Call]) -> None:
        try:
            answers = self._record([call.task for call in calls])
        except Unavailable as error:
            for call in calls:
                call.error = type(error)(*error.args)  # each is raised in a thread of its own
                call.error.__cause__ = error.__cause__
        except Exception as error:  # whatever it is, it is one caller's: each shall get its own
            if len(calls) == 1:
                calls[0].error = error
                return
            for call in calls:
                self._settle([call])
        else:
            for call, answer in zip(calls, answers, strict=True):
                call.answer = answer
