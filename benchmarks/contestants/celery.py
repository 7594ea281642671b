# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""Celery on RabbitMQ, acknowledging late. It has no bulk enqueue: `group` sends one by one."""

from __future__ import annotations

from celery import Celery

from benchmarks.contestants import task

app = Celery("bench", broker=task.setting("RABBITMQ_URL"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    task_acks_late=True,
    task_default_queue="bench",
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=int(task.setting("MULTIPLIER")),
)


@app.task(name="noop")
def noop(index: int, _pad: str) -> None:
    task.run(index)


class CeleryContestant(task.Contestant):
    def prepare(self) -> None:
        with app.connection_for_write() as connection:
            app.amqp.queues["bench"].bind(connection.default_channel).declare()

    def one(self, index: int) -> None:
        noop.delay(index, task.PAD)

    def later(self, index: int, delay_s: float) -> None:
        noop.apply_async((index, task.PAD), countdown=delay_s)

    def fill(self, indices: range) -> None:
        app.conf.broker_transport_options = {}  # before the first connection: only the drain after it is measured
        self.many(indices)

    def flush(self) -> None:
        app.close()

    def worker(self, number: int) -> None:
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING", "-n", f"w{number}@%h")
        concurrency = task.setting("CONCURRENCY")
        shape = ("-P", task.setting("POOL"), *(("-c", concurrency) if concurrency else ()))
        task.become([task.program("celery"), "-A", "benchmarks.contestants.celery:app", "worker", *shape, *quiet])


contestant = CeleryContestant()
