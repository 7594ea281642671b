# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""Dramatiq on RabbitMQ or Redis. It always acknowledges after the run. It has no bulk enqueue."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker

from benchmarks.contestants import task

IS_REDIS = task.setting("STORE") == "redis"
IS_CONFIRMED = task.setting("CONFIRM", "1") == "1"

if IS_REDIS:
    broker = RedisBroker(url=task.setting("REDIS_URL"))
else:
    broker = RabbitmqBroker(url=task.setting("RABBITMQ_URL"), confirm_delivery=IS_CONFIRMED)
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop", queue_name="bench")
def noop(index: int, _pad: str) -> None:
    task.run(index)


class Dramatiq(task.Contestant):
    def prepare(self) -> None:
        if not IS_REDIS:
            broker.declare_queue("bench", ensure=True)

    def one(self, index: int) -> None:
        noop.send(index, task.PAD)

    def later(self, index: int, delay_s: float) -> None:
        noop.send_with_options(args=(index, task.PAD), delay=round(1e3 * delay_s))

    def fill(self, indices: range) -> None:
        if not IS_REDIS:
            broker.confirm_delivery = False  # before the first connection: only the drain after it is measured
        self.many(indices)

    def flush(self) -> None:
        broker.close()  # closes each connection in order, after what was sent on it

    def worker(self, number: int) -> None:
        assert number == 0
        shape = ("-p", task.setting("PROCESSES"), "-t", task.setting("THREADS"))
        prefetch = task.setting("PREFETCH")
        more = {"dramatiq_queue_prefetch": prefetch} if prefetch else {}
        task.become([task.program("dramatiq"), "benchmarks.contestants.dramatiq:broker", *shape], **more)


contestant = Dramatiq()
