"""How a command ends: the exit statuses, in one place; and in order, when a signal comes.

SIGTERM waits while Python imports what a command needs: until then nobody can tell how that one ends. To a command that
runs on (a worker) it is an order to leave; any other is ended by the signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
FINDINGS: Final = 3
UNREACHABLE: Final = 4
TIMED_OUT: Final = 5
REFUSED: Final = 6
INTERRUPTED: Final = 130
TERMINATED: Final = 143

TABLE: Final = """\
  0    done
  1    the operation failed, or found nothing
  2    usage or configuration: nothing was changed
  3    finished, with failures or findings (doctor, audit, meters, db status, job watch, sweep --apply, a --dry-run)
  4    a server is unreachable, or the ledger's file was deleted or replaced meanwhile
  5    timed out (task show --wait; job watch --timeout; queue drain; audit with tasks that could not be proved in time)
  6    refused: a confirmation is missing, a plan is not for this ledger, the job runs already or has nothing to retry
  130  interrupted (Ctrl-C)
  143  terminated (SIGTERM)
"""
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """What SIGINT, SIGTERM and SIGHUP do meanwhile. Used by the main thread."""

    def __init__(self) -> None:
        self._is_held_back = False
        self._came: int | None = None

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """What is begun here is ended first: a signal counts when it is."""
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False
            if self._came is not None:
                self._leave(self._came)

    def came(self, number: int, _frame: FrameType | None) -> None:
        """The handler of each."""
        if self._is_held_back:
            self._came = number
        else:
            self._leave(number)

    def _leave(self, number: int) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def hold_back() -> None:
    """SIGTERM waits until the command is known: until `let_in` or `leave_when_told`. Called by the main thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))


def let_in() -> None:
    """SIGTERM does what it does; also one that has waited."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


def leave_when_told() -> None:
    """From now on SIGTERM ends this process in order, with status 0, until whoever runs on takes the signal over.

    Nothing is running yet. The system's own answer to the signal would look like a crash to a service manager.
    """
    signal.signal(signal.SIGTERM, _leave)
    let_in()


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"workq: SIGTERM came before it had begun: it leaves\n")  # what is printed may wait for a lock
    raise SystemExit(DONE)


@contextmanager
def ended_by_signals() -> Iterator[StopSignals]:
    """SIGTERM and SIGHUP end the run in order, like Ctrl-C."""
    ending = StopSignals()
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    for number in _NUMBERS:
        signal.signal(number, ending.came)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
