# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""FastStream on Kafka, with its documentation's settings for at least once: it commits after each task, or each batch.

By default it commits on a timer, whatever became of the task. What else would lose tasks, or let them wait: a publish
that does not wait for all replicas, a new group that begins at the end of the topic, and fewer partitions than
consumers.

Taskiq's broker for Kafka (1.0.0) takes no part: it hands over tasks that cannot be acked, and commits on a timer.
"""

from __future__ import annotations

import asyncio

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker
from faststream.kafka.schemas import Topic
from pydantic import BaseModel

from benchmarks.contestants import task

PROCESSES = 2
CONSUMERS = int(task.setting("CONSUMERS", "1"))
"""Of one process."""
BATCH = 50
"""Tasks that are published as one: each is about 300 bytes with its headers, and a batch takes 16 kB (default)."""
AT_ONCE = 500
TOPIC = f"{task.setting('NAMESPACE')}.noop"


class Noop(BaseModel):
    """The message of a task."""

    index: int
    pad: str


broker = KafkaBroker(task.setting("KAFKA_URL").removeprefix("kafka://"), acks="all")
app = FastStream(broker)
topic = Topic(TOPIC, num_partitions=PROCESSES * CONSUMERS)
at_least_once = {"group_id": "bench", "ack_policy": AckPolicy.NACK_ON_ERROR, "auto_offset_reset": "earliest"}

if most := task.setting("MAX_RECORDS"):

    @broker.subscriber(topic, batch=True, max_records=int(most), **at_least_once)
    async def noops(messages: list[Noop]) -> None:
        for one in messages:
            await task.arun(one.index)

else:

    @broker.subscriber(topic, max_workers=CONSUMERS, **at_least_once)
    async def noop(message: Noop) -> None:
        await task.arun(message.index)


class Faststream(task.AsyncContestant):
    async def prepare(self) -> None:
        await broker.start()  # makes the topic
        await broker.stop()

    async def open(self) -> None:
        await broker.connect()

    async def one(self, index: int) -> None:
        await broker.publish(Noop(index=index, pad=task.PAD), topic=TOPIC)

    async def many(self, indices: range) -> None:
        for chunk in task.chunks(indices, AT_ONCE):
            await asyncio.gather(*(self._batch(batch) for batch in task.chunks(chunk, BATCH)))

    async def _batch(self, indices: range) -> None:
        await broker.publish_batch(*(Noop(index=index, pad=task.PAD) for index in indices), topic=TOPIC)

    async def close(self) -> None:
        await broker.stop()

    def worker(self, number: int) -> None:
        assert number == 0
        shape = ("--workers", str(PROCESSES), "--log-level", "warning")
        task.become([task.program("faststream"), "run", "benchmarks.contestants.faststream:app", *shape])


contestant = Faststream()
