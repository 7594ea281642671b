# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""PgQueuer on PostgreSQL, logged tables, asyncpg and uvloop.

`pgq run` of 1.6.0 does not start with the typer that it asks for, so the worker does what that command does.
"""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries

from benchmarks.contestants import task

CHUNK = 500
CONNECTIONS = 8


def encoded(index: int) -> bytes:
    return json.dumps({"index": index, "pad": task.PAD}).encode()


class Pgqueuer(task.AsyncContestant):
    async def prepare(self) -> None:
        connection = await asyncpg.connect(task.setting("POSTGRES_URL"))
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(task.setting("POSTGRES_URL"), min_size=1, max_size=CONNECTIONS)
        self._connection = await asyncpg.connect(task.setting("POSTGRES_URL"))
        is_pooled = task.setting("STEP") == "enqueue-threads"
        self._queries = Queries(AsyncpgPoolDriver(self._pool) if is_pooled else AsyncpgDriver(self._connection))

    async def one(self, index: int) -> None:
        await self._queries.enqueue("noop", encoded(index))

    async def later(self, index: int, delay_s: float) -> None:
        await self._queries.enqueue("noop", encoded(index), execute_after=timedelta(seconds=delay_s))

    async def many(self, indices: range) -> None:
        for chunk in task.chunks(indices, CHUNK):
            payloads = [encoded(index) for index in chunk]
            await self._queries.enqueue(["noop"] * len(chunk), payloads, [0] * len(chunk))

    async def close(self) -> None:
        await self._connection.close()
        await self._pool.close()

    def worker(self, number: int) -> None:
        del number  # both are alike
        uvloop.run(self._work())

    async def _work(self) -> None:
        connection = await asyncpg.connect(task.setting("POSTGRES_URL"))
        queuer = PgQueuer(AsyncpgDriver(connection))

        @queuer.entrypoint("noop")
        async def noop(job) -> None:
            await task.arun(json.loads(job.payload)["index"])

        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, queuer.shutdown.set)
        most = task.setting("CONCURRENT")
        await queuer.run(batch_size=int(task.setting("BATCH")), max_concurrent_tasks=int(most) if most else None)


contestant = Pgqueuer()
