"""Soft: the soft time limit of an attempt in a thread. SoftTimeLimit is raised inside of its handler, once, or never.

Another thread raises it, between any two steps of Python's. Were that where a lock was just taken, nobody would ever
give it back; where a statement is under way, nobody would know whether it stands. So what must not be cut in two is
`whole`: a statement to the ledger, a turn to write, what is handed to another thread. There the limit waits until that
is over. What a handler does with locks of its own is its own affair.

The two threads decide without a lock, which might be the very one. Each says first what it is about to do, and looks
then at what the other has said; whoever finds both waits for a moment until the other has decided.

Where an exception from another thread would pass by the handler's `finally` and `with`, the handler's own thread raises
it (see `watch_loops`).
"""

from __future__ import annotations

import ctypes
import dis
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from types import CodeType

from workq.errors import SoftTimeLimit

LOOP_LOOKS = 5
"""At this look, the limit does not wait for the top of a loop any longer."""
_NO_LIMIT: AbstractContextManager[object] = nullcontext()
_of_thread: dict[int, SoftDeadline] = {}
"""The limit of what each thread runs now, where it has one."""
_at_loop: set[SoftDeadline] = set()
"""The limits that their threads raise at the top of a loop."""


# The compiler leaves the jumps at the end of some loops, most of them `while` loops, out of the exception table. Since
# 3.13 the interpreter looks for what another thread raises before it jumps (3.11 and 3.12 jump first). The `finally`,
# `with` and `except` around such a loop are then skipped, and a lock that they would give back stays taken
# (python/cpython#130279). So where a thread is in such a loop, the place that the loop jumps to calls back into that
# very thread. A call in the loop may take long, and then the thread does not come by: after a while the caller raises
# in the usual way. If another tool has the place that `sys.monitoring` would give to this one, the usual way is the
# only one.
if sys.version_info >= (3, 13):
    _events = sys.monitoring
    _TOOL = 4  # the others have names: debugger, coverage, profiler, optimizer

    @lru_cache(maxsize=4_096)
    def _open_loops(code: CodeType) -> dict[int, int]:
        """From the top of each loop to its jump back, where less handles the jump than the top."""
        entries = dis.Bytecode(code).exception_entries

        def handler(offset: int) -> int | None:
            return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)

        return {
            step.argval: step.offset
            for step in dis.get_instructions(code)
            if step.opname.startswith("JUMP_BACKWARD") and handler(step.offset) != handler(step.argval)
        }

    def watch_loops(thread_id: int, outermost: CodeType, at_top: Callable[[], bool]) -> bool:
        """Call `at_top` at the top of the loops that this thread is in, in each thread that passes there.

        `outermost`: the code of the frame whose loops, and those of the frames that it called, count.
        `at_top`: may raise, and answers whether any thread is still waited for.

        False: the thread is in no such loop, or another tool has the place.
        """
        frame = sys._current_frames().get(thread_id)
        codes: set[CodeType] = set()
        while frame is not None:
            if any(top <= frame.f_lasti <= jump for top, jump in _open_loops(frame.f_code).items()):
                codes.add(frame.f_code)
            if frame.f_code is outermost:
                break
            frame = frame.f_back
        if not codes or frame is None:
            return False
        if _events.get_tool(_TOOL) is None:
            _events.use_tool_id(_TOOL, __name__)
        elif _events.get_tool(_TOOL) != __name__:
            return False

        def passed(code: CodeType, offset: int) -> object:
            return None if offset in _open_loops(code) and at_top() else _events.DISABLE

        _events.register_callback(_TOOL, _events.events.INSTRUCTION, passed)
        for code in codes:
            _events.set_local_events(_TOOL, code, _events.events.INSTRUCTION)
        _events.restart_events()
        return True

else:

    def watch_loops(thread_id: int, outermost: CodeType, at_top: Callable[[], bool]) -> bool:  # noqa: ARG001 - as above
        """Never needed here."""
        return False


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
        is_watched = watch_loops(self._thread_id, self._made_in, _looped)
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
