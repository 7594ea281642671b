"""Writer: whose turn it is to write, where one file has one writer at a time: on SQLite.

Within a process it is a lock. Between processes it is SQLite's own, taken by BEGIN IMMEDIATE. SQLite waits for that in
steps that grow to 100 ms, in which the file lies idle; here they end at 2 ms.

Whoever has the file keeps all others from it, so nothing should keep it waiting. An event loop in the same process
would: it takes the interpreter lock whenever the writer waits for the disk, and gives it back milliseconds later. So a
loop asks, between two of its rounds, whether somebody writes (`give_way`), and waits for that, once and shortly. With
two processes of a hundred webhooks at once, a claim of a hundred kept the file for some 12 ms instead of 22.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from workq.values.jitter import jitter

WAIT_FOR_TURN_S: Final = 30.0
"""How long a thread waits for the other writers of its process."""
GIVE_WAY_S: Final = 0.02
"""How long a loop waits for one transaction, at most."""
LOOK_S: Final = 0.0003
"""After so long a loop looks again whether the transaction is over."""
STEP_S: Final = 0.0003
"""The first wait for a file that is another's; it grows up to `STEP_MAX_S`."""
STEP_MAX_S: Final = 0.002


class NotInTurn(Exception):
    """Others of this process write for too long; or this very thread does, which a signal has interrupted."""

    def __init__(self, *, is_interrupted: bool) -> None:
        super().__init__()
        self.is_interrupted = is_interrupted


class Writer:
    """The turns of one process at one file. Thread-safe."""

    def __init__(self, *, turn_s: float = WAIT_FOR_TURN_S, give_way_s: float = GIVE_WAY_S) -> None:
        self.turn_s = turn_s
        self.give_way_s = give_way_s
        self._lock = threading.RLock()  # so that a thread which a signal has interrupted cannot wait for itself
        self._door = threading.RLock()
        """Whoever is next waits with it, so that who has just written does not come before it again."""
        self._whose: int | None = None
        self._is_short = False
        self._is_written = False
        """No event: whom a signal interrupts in the middle of setting one would wait for itself."""
        self._writes = self._given_way_to = 0

    @contextmanager
    def turn(self, *, is_short: bool) -> Iterator[None]:
        """Nobody else of this process has it meanwhile. `is_short`: no code of others runs in it.

        Raises:
            NotInTurn: it did not come in time, or this thread has it already.
        """
        me = threading.get_ident()
        if self._whose == me:
            raise NotInTurn(is_interrupted=True)
        self._wait()  # a time limit does not cut this from what follows (see values/time_limit.py)
        try:
            self._whose, self._is_short = me, is_short
            try:
                yield
            finally:
                self._whose, self._is_written = None, False
        finally:
            self._lock.release()

    def _wait(self) -> None:
        until = time.monotonic() + self.turn_s
        if not self._door.acquire(timeout=self.turn_s):
            raise NotInTurn(is_interrupted=False)
        try:
            if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
                raise NotInTurn(is_interrupted=False)
        finally:
            self._door.release()

    @property
    def is_short(self) -> bool:
        """Whether somebody has the turn in whose transaction no code of others runs."""
        return self._whose is not None and self._is_short

    def begun(self) -> None:
        """Whoever has the turn has the file, too: loops give way until the turn is over, if that is soon."""
        if self.is_short:
            self._writes += 1
            self._is_written = True

    def give_way(self) -> None:
        """Wait while somebody writes, once for each transaction, and not for long."""
        if self._given_way_to == self._writes:
            return
        self._given_way_to, until = self._writes, time.monotonic() + self.give_way_s
        while self._is_written and time.monotonic() < until:
            time.sleep(LOOK_S)


class WaitingConnection(sqlite3.Connection):
    """SQLite's, which knows how long its statements wait for others: to say so again costs as much as to begin."""

    is_wal = False
    """Readers and the writer of its file do not wait for each other."""
    _wait_ms = -1

    def wait_for(self, wait_s: float) -> None:
        """From now on a statement waits so long for others, in SQLite's own steps."""
        wait_ms = int(wait_s * 1000)
        if self._wait_ms != wait_ms:
            self.execute(f"PRAGMA busy_timeout = {wait_ms}")
            self._wait_ms = wait_ms


def begin_reading(raw: WaitingConnection, *, wait_s: float) -> None:
    """Begin a transaction that only reads. Raises as SQLite does."""
    raw.wait_for(wait_s)
    raw.execute("BEGIN")


def begin_writing(raw: WaitingConnection, *, wait_s: float, is_short: bool = False) -> None:
    """Begin a transaction that writes. `is_short`: in which no code of others runs.

    Raises:
        sqlite3.OperationalError: the file is another's for longer than that, or cannot be used.
    """
    raw.wait_for(0.0)
    try:
        when_free(lambda: raw.execute("BEGIN IMMEDIATE"), wait_s=wait_s)
    finally:
        # else readers may hold up its commit, or a second file its statements: it waits as SQLite does
        if not (raw.is_wal and is_short):
            raw.wait_for(wait_s)


def when_free(act: Callable[[], object], *, wait_s: float) -> None:
    """Do something with a file, as soon as it is nobody else's.

    Raises:
        sqlite3.OperationalError: as `begin_writing`.
    """
    until, step_s = time.monotonic() + wait_s, STEP_S
    while True:
        try:
            act()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(step_s * jitter.uniform(0.5, 1.0))
            step_s = min(STEP_MAX_S, 1.5 * step_s)
        else:
            return
