"""Loops: at the top of a loop, a thread raises by itself what another thread wants raised in it. From CPython 3.13 on.

The compiler leaves the jumps at the end of some loops, most of them `while` loops, out of the exception table. Since
3.13 the interpreter looks for what another thread raises before it jumps (3.11 and 3.12 jump first). The `finally`,
`with` and `except` around such a loop are then skipped, and a lock that they would give back stays taken
(python/cpython#130279). So where a thread is in such a loop, the place that the loop jumps to calls back into that very
thread.

A call in the loop may take long, and then the thread does not come by: after a while the caller raises in the usual
way. If another tool has the place that `sys.monitoring` would give to this one, the usual way is the only one.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType

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

    def watch(thread_id: int, outermost: CodeType, at_top: Callable[[], bool]) -> bool:
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

    def watch(thread_id: int, outermost: CodeType, at_top: Callable[[], bool]) -> bool:  # noqa: ARG001 - as above
        """Never needed here."""
        return False
