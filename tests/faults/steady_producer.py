"""A producer of a trial: it enqueues tasks of the witness one after the other, whatever happens to the servers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.system.legs import Leg

PAUSE_S = 0.02
"""Between two tasks."""
PLAIN = "note"


@dataclass(frozen=True)
class EnqueuedTask:
    """One task, when it was enqueued, and how long the call took."""

    task_id: str
    at: float
    took_s: float
    is_plain: bool
    fails: bool


class SteadyProducer:
    """Enqueues on a thread of its own until it is closed: plain tasks, delayed ones, and some that fail once."""

    def __init__(self, leg: Leg) -> None:
        self.enqueued: list[EnqueuedTask] = []
        self.error: BaseException | None = None
        self._leg = leg
        self._is_over = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """It enqueues nothing meanwhile."""
        with self._turn:
            yield

    def close(self) -> None:
        """End it; an error that it met is raised here."""
        self._is_over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._is_over.wait(PAUSE_S):
                with self._turn:
                    self._enqueue(len(self.enqueued))
        except BaseException as error:  # an enqueue that fails is a finding
            self.error = error

    def _enqueue(self, number: int) -> None:
        fails, is_delayed = number % 10 == 3, number % 10 == 7
        at, began = time.time(), time.monotonic()
        if fails:
            task = self._leg["later"].enqueue(number, "fail", 1, 0.0)
        elif is_delayed:
            task = self._leg[PLAIN].options(delay_s=1.0).enqueue(number)
        else:
            task = self._leg[PLAIN].enqueue(number)
        took_s = time.monotonic() - began
        self.enqueued.append(EnqueuedTask(task.id, at, took_s, is_plain=not (fails or is_delayed), fails=fails))
