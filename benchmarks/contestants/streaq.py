# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""streaq on Redis streams; what a dead worker held is claimed again after 60 s idle."""

from __future__ import annotations

from streaq import Worker

from benchmarks.contestants import task

CHUNK = 500

worker = Worker(redis_url=task.setting("REDIS_URL"), concurrency=16)


@worker.task(silent=True)
async def noop(index: int, _pad: str) -> None:
    await task.arun(index)


class Streaq(task.AsyncContestant):
    async def open(self) -> None:
        await worker.__aenter__()

    async def one(self, index: int) -> None:
        await noop.enqueue(index, task.PAD)

    async def later(self, index: int, delay_s: float) -> None:
        await noop.enqueue(index, task.PAD).start(delay=delay_s)

    async def many(self, indices: range) -> None:
        for chunk in task.chunks(indices, CHUNK):
            await worker.enqueue_many([noop.enqueue(index, task.PAD) for index in chunk])

    async def close(self) -> None:
        await worker.__aexit__(None, None, None)

    def worker(self, number: int) -> None:
        assert number == 0
        task.become([task.program("streaq"), "run", "--workers", "2", "benchmarks.contestants.streaq:worker"])


contestant = Streaq()
