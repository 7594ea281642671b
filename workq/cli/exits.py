"""How a command ends: the exit statuses, in one place; and in order, when a signal comes."""

from __future__ import annotations

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
