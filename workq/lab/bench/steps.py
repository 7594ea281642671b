"""Where a task's time goes: processor time of each step of the protocol, and of each kind of thread, in one worker.

The stores are wrapped, so that nothing in the worker itself knows of it, and only where `WORKQ_BENCH_STEPS` is set:
a clock around each call costs some per cent. Waiting is not counted: the clocks are those of threads, which stand still
while a thread waits.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from workq.app import WorkQueue
from workq.lab.fleet import FOLDER
from workq.stores import Stores

VARIABLE: Final = "WORKQ_BENCH_STEPS"
_LEDGER: Final = (
    ("claims", "claim", "claim"),
    ("claims", "claim_hinted", "claim"),
    ("claims", "look", "look"),
    ("outcomes", "settle", "settle"),
    ("hints", "rehinted", "hand on"),
)
"""Part of the ledger, method, step."""
_INFLIGHT: Final = {"hold": "hold", "release": "release"}
_CONSUMER: Final = {"fetch": "fetch", "ack": "fetch"}
_BROKER: Final = {"publish": "hand on"}


class StepTimes:
    """Processor seconds by step and by thread. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: Counter[str] = Counter()
        self._used: dict[int, tuple[str, float, float]] = {}
        """By thread: its kind, what it had used when it was first seen here, and what it has used by now."""
        self._began: float | None = None
        self._whole_s = 0.0

    def timed(self, call: Callable[..., Any], step: str) -> Callable[..., Any]:
        """The same call, counted under `step`."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            self.at_work()
            before = time.thread_time_ns()
            try:
                return call(*args, **kwargs)
            finally:
                with self._lock:
                    self._steps[step] += time.thread_time_ns() - before
                self.at_work()

        return measured

    def at_work(self) -> None:
        """What this thread has used by now."""
        now = time.thread_time()
        me = threading.current_thread()
        with self._lock:
            if self._began is None:
                self._began = time.process_time()
            kind, first, _ = self._used.get(threading.get_ident(), (_kind(me.name), now, now))
            self._used[threading.get_ident()] = kind, first, now
            self._whole_s = time.process_time()

    def document(self) -> dict[str, Any]:
        """Processor seconds since the first step: by step, by kind of thread, and of the whole process."""
        with self._lock:
            threads: dict[str, float] = {}
            for kind, first, now in self._used.values():
                threads[kind] = threads.get(kind, 0.0) + now - first
            return {
                "steps": {name: spent / 1e9 for name, spent in self._steps.items()},
                "threads": threads,
                "whole": self._whole_s - (self._began or 0.0),
            }


def _kind(name: str) -> str:
    """What a thread of a worker does, by its name."""
    for prefix, kind in (("MainThread", "intake"), ("workq-settle", "settle"), ("workq-run", "run")):
        if name.startswith(prefix):
            return kind
    return "other"


_steps: Final = StepTimes() if os.environ.get(VARIABLE) else None


def at_work() -> None:
    """Called by a handler: its thread runs tasks."""
    if _steps is not None:
        _steps.at_work()


class _Timed:
    """An object, some of whose methods are timed."""

    def __init__(self, target: Any, steps: StepTimes, methods: Mapping[str, str]) -> None:
        self._target = target
        for method, step in methods.items():
            setattr(self, method, steps.timed(getattr(target, method), step))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class _TimedBroker(_Timed):
    """Its consumers are timed, too."""

    def __init__(self, target: Any, steps: StepTimes) -> None:
        super().__init__(target, steps, _BROKER)
        self._steps = steps

    def consumer(self, *args: Any, **kwargs: Any) -> Any:
        return _Timed(self._target.consumer(*args, **kwargs), self._steps, _CONSUMER)


class MeasuredQueue(WorkQueue):
    """A queue that writes down its steps when it is closed, if it was asked to."""

    def _connect(self, *, makes: bool) -> Any:
        stores, producer = super()._connect(makes=makes)
        if _steps is None:
            return stores, producer
        for part, method, step in _LEDGER:
            owner = getattr(stores.ledger, part)
            setattr(owner, method, _steps.timed(getattr(owner, method), step))
        inflight: Any = _Timed(stores.inflight, _steps, _INFLIGHT)
        broker: Any = _TimedBroker(stores.broker, _steps)
        return Stores(stores.ledger, broker, inflight, direct=stores.direct, mover=stores.mover), producer

    def close(self) -> None:
        """Also writes `steps-<pid>.json` into the folder of the run."""
        super().close()
        if _steps is not None and FOLDER in os.environ:
            place = Path(os.environ[FOLDER]) / f"steps-{os.getpid()}.json"
            place.write_text(json.dumps(_steps.document()), encoding="utf-8")
