"""What every contestant shares: the task's body, its payload, and the shape of a contestant.

Runs inside the environment of each contestant, so it and what it imports need the standard library only.

The driver gives, in the environment:

- `BENCH_RECORDS`: the file that each task appends its record to;
- `BENCH_BODY_S`: how long a task takes, in seconds; empty or 0 for a no-op;
- `BENCH_RABBITMQ_URL`, `BENCH_REDIS_URL`, `BENCH_POSTGRES_URL`, `BENCH_KAFKA_URL` with `BENCH_NAMESPACE` (which
  names of topics begin with), `BENCH_ARTEMIS_URL` with `BENCH_ADDRESS`: fresh places on the private servers, where
  needed;
- `BENCH_FOLDER`: an empty folder, for contestants that keep their queue in a file;
- `BENCH_...` settings of the variant, from the roster.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.records import RECORD, STARTED

PROBE = -1
"""The index of tasks that only show that workers are up."""

PAD = "x" * 172
"""With the index, the argument's names and JSON's marks this makes about 200 bytes."""

BODY_S = float(os.environ.get("BENCH_BODY_S") or 0.0)

_RECORDS = os.open(os.environ["BENCH_RECORDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def record(index: int) -> None:
    """Append one record. Atomic: one write to a file opened for appending."""
    os.write(_RECORDS, RECORD.pack(time.time(), index, os.getpid()))


def run(index: int) -> None:
    """The body of a task, for peers whose natural form is a plain function."""
    if BODY_S > 0.0 and index >= 0:
        record(STARTED + index)
        time.sleep(BODY_S)
    record(index)


async def arun(index: int) -> None:
    """The body of a task, for peers whose natural form is a coroutine."""
    if BODY_S > 0.0 and index >= 0:
        record(STARTED + index)
        await asyncio.sleep(BODY_S)
    record(index)


def setting(name: str, default: str = "") -> str:
    """One setting of the variant, without its prefix `BENCH_`."""
    return os.environ.get(f"BENCH_{name}", default)


def chunks(indices: range, size: int) -> list[range]:
    """The same indices in ranges of at most `size`."""
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def program(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).parent / name)


def become(command: Sequence[str], **environment: str) -> NoReturn:
    """Replace this process: the driver then watches and kills the peer's own command, nothing around it."""
    os.execve(command[0], list(command), {**os.environ, **environment})  # noqa: S606 - there shall be no shell


class Contestant:
    """A queue that is called from threads. `play.py` measures it; a subclass says how each step is spelled."""

    def prepare(self) -> None:
        """Make tables or queues, once, before anything is enqueued."""

    def is_up(self) -> bool:
        """Whether all workers are up, as far as records of probes do not show it."""
        return True

    def one(self, index: int) -> None:
        """Enqueue one task in the documented way. Returns when it is as safe as this variant makes it."""
        raise NotImplementedError

    def later(self, index: int, delay_s: float) -> None:
        """Enqueue one task that is due in so many seconds, in the documented way."""
        raise NotImplementedError

    def many_at(self, indices: Sequence[int], at: float) -> None:
        """Enqueue many that are all due at one moment (seconds since the epoch), in the way for many."""
        for index in indices:
            self.later(index, max(0.0, at - time.time()))

    def many(self, indices: range) -> None:
        """Enqueue many in the way the documentation offers for many; one by one where it offers none."""
        for index in indices:
            self.one(index)

    def fill(self, indices: range) -> None:
        """Enqueue many as fast as possible, when only what follows is measured."""
        self.many(indices)

    def flush(self) -> None:
        """Return when everything that was enqueued has reached the servers."""

    def worker(self, number: int) -> None:
        """Become the worker of this number (0, 1, ...); never returns while tasks may come."""
        raise NotImplementedError


class AsyncContestant:
    """A queue that is called from an event loop; as `Contestant`, opened and closed around each step."""

    async def prepare(self) -> None:
        """Make tables or queues, once, before anything is enqueued. Called without `open()`."""

    async def open(self) -> None:
        """Connect."""

    async def one(self, index: int) -> None:
        """Enqueue one task in the documented way. Returns when it is as safe as this variant makes it."""
        raise NotImplementedError

    async def later(self, index: int, delay_s: float) -> None:
        """Enqueue one task that is due in so many seconds, in the documented way."""
        raise NotImplementedError

    async def many(self, indices: range) -> None:
        """Enqueue many in the way the documentation offers for many."""
        raise NotImplementedError

    async def close(self) -> None:
        """Disconnect."""

    def worker(self, number: int) -> None:
        """Become the worker of this number (0, 1, ...); never returns while tasks may come."""
        raise NotImplementedError
