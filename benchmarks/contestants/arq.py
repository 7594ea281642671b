# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""arq on Redis, tuned: with its defaults it looks for 10 jobs every half second. It has no bulk enqueue: gathered."""

from __future__ import annotations

import asyncio

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import create_worker

from benchmarks.contestants import task

AT_ONCE = 50


async def noop(_context, index: int, _pad: str) -> None:
    await task.arun(index)


class WorkerSettings:
    functions = (noop,)
    keep_result = 0
    max_jobs = 100
    poll_delay = 0.01
    redis_settings = RedisSettings.from_dsn(task.setting("REDIS_URL"))


class Arq(task.AsyncContestant):
    async def open(self) -> None:
        self._pool = await create_pool(WorkerSettings.redis_settings)

    async def one(self, index: int) -> None:
        await self._pool.enqueue_job("noop", index, task.PAD)

    async def later(self, index: int, delay_s: float) -> None:
        await self._pool.enqueue_job("noop", index, task.PAD, _defer_by=delay_s)

    async def many(self, indices: range) -> None:
        for chunk in task.chunks(indices, AT_ONCE):
            await asyncio.gather(*(self.one(index) for index in chunk))

    async def close(self) -> None:
        await self._pool.aclose()

    def worker(self, number: int) -> None:
        del number  # both are alike
        create_worker(WorkerSettings).run()  # what its command does, without a line of log for each job


contestant = Arq()
