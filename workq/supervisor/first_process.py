"""First process: a command that is process 1 of its container, where every orphan becomes a child of process 1.

What handlers have left behind would stay there as zombies, until no process can start any more. So process 1 starts the
command as its child, hands on signals, waits for every child that ends, and ends as the command does.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final

_HANDED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def leave_first_process() -> None:
    """Go on in a child, if this is process 1. Call it before any thread is started."""
    if os.getpid() != 1:
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)  # what comes before all is ready waits
    command = os.fork()
    if command == 0:
        os.setsid()  # a terminal's signals come through process 1 alone, once
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return

    def hand_on(number: int, _frame: FrameType | None) -> None:
        os.kill(command, number)

    for one in _HANDED_ON:
        signal.signal(one, hand_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    while True:
        ended, status = os.wait()
        if ended == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
