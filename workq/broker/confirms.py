"""Confirms: messages that are answered together, each once; where a broker confirms on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from workq.errors import ConfigError


class Confirms:
    """Messages that are answered together. Made and awaited by one thread, answered by any."""

    def __init__(self, size: int, on_done: Callable[[Confirms], None] | None = None) -> None:
        self.answers: list[bool | None] = [None] * size
        self.error: ConfigError | None = None
        self.is_over = False
        """Nobody waits any more: do not send what is left."""
        self.unconfirmed = 0
        """For the publisher: how many are on their way."""
        self._left = size
        self._on_done = on_done
        self._done = threading.Event()
        self._lock = threading.Lock()

    def wait(self, timeout_s: float) -> None:
        self._done.wait(timeout_s)

    def answer(self, index: int, stored: bool) -> None:
        with self._lock:
            if self.answers[index] is not None:
                return
            self.answers[index] = stored
            self._left -= 1
            is_last = not self._left
        if is_last:
            self.end()

    def fail(self, error: ConfigError) -> None:
        self.error = error
        self.end()

    def end(self) -> None:
        """Whatever is not answered now stays unanswered. Repeatable."""
        with self._lock:
            was_over, self.is_over = self.is_over, True
        if not was_over:
            self._done.set()
            if self._on_done is not None:
                self._on_done(self)
