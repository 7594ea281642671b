# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""SAQ on Redis, with retries: its sweep runs again what a dead worker held. It has no bulk enqueue: gathered."""

from __future__ import annotations

import asyncio
import time

from saq import Queue

from benchmarks.contestants import task

AT_ONCE = 50

queue = Queue.from_url(task.setting("REDIS_URL"))


async def noop(_context, *, index: int, pad: str) -> None:
    del pad
    await task.arun(index)


settings = {"queue": queue, "functions": [noop], "concurrency": 10}


class Saq(task.AsyncContestant):
    async def open(self) -> None:
        await queue.connect()

    async def one(self, index: int) -> None:
        await queue.enqueue("noop", index=index, pad=task.PAD, retries=3, ttl=-1)

    async def later(self, index: int, delay_s: float) -> None:
        due_at = time.time() + delay_s
        await queue.enqueue("noop", index=index, pad=task.PAD, retries=3, ttl=-1, scheduled=due_at)

    async def many(self, indices: range) -> None:
        for chunk in task.chunks(indices, AT_ONCE):
            await asyncio.gather(*(self.one(index) for index in chunk))

    async def close(self) -> None:
        await queue.disconnect()

    def worker(self, number: int) -> None:
        del number  # both are alike
        task.become([task.program("saq"), "benchmarks.contestants.saq.settings", "--quiet"])


contestant = Saq()
