# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""Procrastinate on PostgreSQL. Nobody retries the jobs of a dead worker until the application asks for them."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector

from benchmarks.contestants import task

CHUNK = 500

app = App(connector=PsycopgConnector(conninfo=task.setting("POSTGRES_URL")))


@app.task(name="noop")
async def noop(index: int, pad: str) -> None:
    del pad
    await task.arun(index)


class Procrastinate(task.AsyncContestant):
    async def prepare(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await app.open_async()

    async def one(self, index: int) -> None:
        await noop.defer_async(index=index, pad=task.PAD)

    async def later(self, index: int, delay_s: float) -> None:
        due_in = {"milliseconds": round(1e3 * delay_s)}
        await noop.configure(schedule_in=due_in).defer_async(index=index, pad=task.PAD)

    async def many(self, indices: range) -> None:
        for chunk in task.chunks(indices, CHUNK):
            await noop.batch_defer_async(*({"index": index, "pad": task.PAD} for index in chunk))

    async def close(self) -> None:
        await app.close_async()

    def worker(self, number: int) -> None:
        del number  # both are alike
        what = ("--app", "benchmarks.contestants.procrastinate.app", "--log-level", "warning", "worker", "-c", "10")
        task.become([task.program("procrastinate"), *what])


contestant = Procrastinate()
