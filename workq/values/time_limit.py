"""Soft: the soft time limit of an attempt in a thread. SoftTimeLimit is raised inside of its handler, once, or never.

Another thread raises it, between any two steps of Python's. Were that where a lock was just taken, nobody would ever
give it back; where a statement is under way, nobody would know whether it stands. So what must not be cut in two is
`whole`: a statement to the ledger, a turn to write, what is handed to another thread. There the limit waits until that
is over. What a handler does with locks of its own is its own affair.

The two threads decide without a lock, which might be the very one. Each says first what it is about to do, and looks
then at what the other has said; whoever finds both waits for a moment until the other has decided.

Where an exception from another thread would pass by the handler's `finally` and `with`, the handler's own thread raises
it (see loops.py).
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from workq.errors import SoftTimeLimit
from workq.values.loops import watch

LOOP_LOOKS = 5
"""At this look, the limit does not wait for the top of a loop any longer."""
_NO_LIMIT: AbstractContextManager[object] = nullcontext()
_of_thread: dict[int, SoftDeadline] = {}
"""The limit of what each thread runs now, where it has one."""
_at_loop: set[SoftDeadline] = set()
"""The limits that their threads raise at the top of a loop."""


class SoftDeadline:
    """The soft limit of one attempt, made and used by the thread that runs it; another one calls `exceed`.

    What was raised is not taken back by raising nothing: CPython 3.11 does not forget that something was raised until
    it arrives, and from then on whoever traces calls (a debugger, coverage) would hang.
    """

    __slots__ = ("_due", "_is_decided", "_is_over", "_is_raised", "_looks", "_made_in", "_thread_id", "_whole", "at")

    def __init__(self, at: float) -> None:
        self.at = at
        self._thread_id = threading.get_ident()
        self._made_in = sys._getframe(1).f_code
        self._whole = 0
        """So many blocks of this thread are whole, one in the other."""
        self._is_over = False
        self._is_decided = self._is_raised = False
        self._looks = 0
        """So often `exceed` was called."""
        self._due: list[type[SoftTimeLimit]] = []
        """What its own thread raises later. Taken out in one step, by one of the two threads."""
        _of_thread[self._thread_id] = self

    def exceed(self) -> None:
        """Raise it now; behind what is whole; or not, if the handler has ended. For one other thread.

        Repeatable, and repeated at each look: the limit waits for its thread at the top of a loop only so long.
        """
        is_first = self._looks == 0
        if not (is_first or self._due):
            return
        self._is_decided = False
        self._looks += 1
        try:
            if self._is_over:
                return
            if is_first:
                self._due.append(SoftTimeLimit)
                if self._whole or self._comes_at_loop():
                    return
            elif self._looks < LOOP_LOOKS:
                return
            if not self._whole and self._take_due():
                self._is_raised = True
                _raise_in(self._thread_id, SoftTimeLimit)
        finally:
            self._is_decided = True

    def _comes_at_loop(self) -> bool:
        _at_loop.add(self)
        is_watched = watch(self._thread_id, self._made_in, _looped)
        if not is_watched:
            _at_loop.discard(self)
        return is_watched

    def _take_due(self) -> bool:
        try:
            self._due.pop()
        except IndexError:
            return False
        _at_loop.discard(self)
        return True

    def ended(self) -> None:
        """The handler has returned: nothing is raised any more, and what had not arrived yet ends here."""
        try:
            self._is_over = True
            _of_thread.pop(self._thread_id, None)
            _at_loop.discard(self)
            self._let_come()
        except SoftTimeLimit:
            return

    def __enter__(self) -> None:
        """What follows is whole. What was raised before comes now."""
        self._whole += 1
        self._let_come()

    def __exit__(self, *_: object) -> None:
        self._whole -= 1
        self.catch_up()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is in here may be cut, though all around it is whole."""
        whole, self._whole = self._whole, 0
        try:
            self.catch_up()
            yield
        finally:
            self._whole = whole
            self._let_come()

    def _let_come(self) -> None:
        """Return when nothing can come any more that was raised until now."""
        if self._looks:
            while not self._is_decided:
                time.sleep(0)
            if self._is_raised:
                for _ in range(2):  # it arrives at a jump back, at the latest
                    pass

    def catch_up(self) -> None:
        """Raise what had to wait."""
        if self._looks and not self._whole:
            while not self._is_decided:
                time.sleep(0)
            if self._take_due():
                raise SoftTimeLimit


def whole() -> AbstractContextManager[object]:
    """What is in it is not cut in two by the time limit of this thread."""
    return _of_thread.get(threading.get_ident(), _NO_LIMIT)


def apart() -> AbstractContextManager[object]:
    """What is in it may be cut all the same: code of others inside of what is whole."""
    limit = _of_thread.get(threading.get_ident())
    return _NO_LIMIT if limit is None else limit.apart()


def _looped() -> bool:
    """This thread is at the top of a loop: raise its limit if it is due. Answers whether any limit still waits."""
    limit = _of_thread.get(threading.get_ident())
    if limit is not None and limit in _at_loop:
        limit.catch_up()
    return bool(_at_loop)


def _raise_in(thread_id: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))
