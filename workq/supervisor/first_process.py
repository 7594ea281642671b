"""Before a supervisor starts: its application is not patched, it is not process 1 of its container, and may be ended.

Patched is an application in which gevent or eventlet has replaced parts of the standard library. There a worker would
start and never run anything: its threads would be greenlets of one thread, and its handlers would keep all others from
their turn. Producers are served: they only wait for answers.

Every orphan of a container becomes a child of process 1. What handlers have left behind would stay there as zombies,
until no process can start any more. So process 1 starts the command as its child, hands on signals, waits for every
child that ends, and ends as the command does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

from workq.errors import ConfigError

_HANDED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_TOOLS = {
    "gevent": ("gevent.monkey", "is_module_patched", ("threading", "socket", "select", "ssl", "time", "os", "queue")),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", ("thread", "socket", "select", "time", "os")),
}
"""By tool: the module that patches, what it answers whether, and for which names."""


def check_unpatched(app: str) -> None:
    """A worker may run this application.

    Raises:
        ConfigError: something is patched; the message says what, and what to do.
    """
    for tool, (module, question, names) in _TOOLS.items():
        is_patched: Callable[[str], bool] | None = getattr(sys.modules.get(module), question, None)
        patched = [] if is_patched is None else [name for name in names if is_patched(name)]
        if patched:
            raise ConfigError(
                f"{tool} has patched {', '.join(patched)} in what {app} imports, and a worker needs them as they are; "
                "patch where the web server starts, and not in a module that the worker imports"
            )


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
