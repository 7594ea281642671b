# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""Taskiq on RabbitMQ (quorum queue, confirms) or Redis streams. For many, its documentation gathers single calls."""

from __future__ import annotations

import asyncio

from taskiq.serializers import ORJSONSerializer
from taskiq_aio_pika import AioPikaBroker
from taskiq_redis import RedisStreamBroker

from benchmarks.contestants import task

AT_ONCE = 500

if task.setting("STORE") == "redis":
    broker = RedisStreamBroker(url=task.setting("REDIS_URL")).with_serializer(ORJSONSerializer())
else:
    broker = AioPikaBroker(task.setting("RABBITMQ_URL"), qos=200).with_serializer(ORJSONSerializer())


@broker.task(task_name="noop")
async def noop(index: int, _pad: str) -> None:
    await task.arun(index)


class Taskiq(task.AsyncContestant):
    async def prepare(self) -> None:
        await broker.startup()
        await broker.shutdown()

    async def open(self) -> None:
        await broker.startup()

    async def one(self, index: int) -> None:
        await noop.kiq(index, task.PAD)

    async def many(self, indices: range) -> None:
        for chunk in task.chunks(indices, AT_ONCE):
            await asyncio.gather(*(self.one(index) for index in chunk))

    async def close(self) -> None:
        await broker.shutdown()

    def worker(self, number: int) -> None:
        assert number == 0
        shape = ("--workers", "2", "--max-async-tasks", "200", "--no-parse", "--log-level", "WARNING")
        task.become([task.program("taskiq"), "worker", "benchmarks.contestants.taskiq:broker", *shape])


contestant = Taskiq()
