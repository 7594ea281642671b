"""How a long command is ended from outside: in order, whatever the signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
