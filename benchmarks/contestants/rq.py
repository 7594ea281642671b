# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""RQ on Redis, SimpleWorker: no fork for each job. Retry lets its maintenance run abandoned jobs again."""

from __future__ import annotations

from datetime import timedelta

from redis import Redis
from rq import Queue, Retry

from benchmarks.contestants import task

CHUNK = 500

queue = Queue("bench", connection=Redis.from_url(task.setting("REDIS_URL")))


def noop(index: int, _pad: str) -> None:
    task.run(index)


class Rq(task.Contestant):
    def one(self, index: int) -> None:
        queue.enqueue(noop, index, task.PAD, retry=Retry(max=3), result_ttl=0)

    def later(self, index: int, delay_s: float) -> None:
        queue.enqueue_in(timedelta(seconds=delay_s), noop, index, task.PAD, result_ttl=0)

    def many(self, indices: range) -> None:
        for chunk in task.chunks(indices, CHUNK):
            queue.enqueue_many(
                [Queue.prepare_data(noop, (index, task.PAD), retry=Retry(max=3), result_ttl=0) for index in chunk]
            )

    def worker(self, number: int) -> None:
        del number  # both are alike
        scheduler = ("--with-scheduler",) if task.setting("SCHEDULER") else ()
        shape = (*scheduler, "-w", "rq.worker.SimpleWorker", "-u", task.setting("REDIS_URL"), "-q")
        task.become([task.program("rq"), "worker", *shape, "bench"])


contestant = Rq()
