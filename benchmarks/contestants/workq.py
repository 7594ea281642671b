"""workq itself, on any of its legs: `WorkQueue()` finds the servers in `WORKQ_..._URL`, which the driver sets."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.contestants import task
from workq import WorkQueue

QUEUE = "default"

os.environ["WORKQ_QUEUE_TYPE"] = task.setting("QUEUE_TYPE", "quorum")
wq = WorkQueue()


@wq.task(name="bench.noop", queue=QUEUE)
def noop(index: int, _pad: str) -> None:
    task.run(index)


class Workq(task.Contestant):
    def prepare(self) -> None:
        subprocess.run([sys.executable, "-m", "workq", "-q", "db", "migrate"], check=True)

    def is_up(self) -> bool:
        """On Kafka, when each process has partitions: until then it runs probes that it finds in the ledger."""
        if not task.setting("KAFKA_URL"):
            return True
        depth = wq.stores.broker.depths([QUEUE], with_consumers=True)[QUEUE]
        return depth.consumers is not None and depth.consumers >= int(task.setting("PROCESSES"))

    def one(self, index: int) -> None:
        noop.enqueue(index, task.PAD)

    def later(self, index: int, delay_s: float) -> None:
        noop.options(delay_s=delay_s).enqueue(index, task.PAD)

    def many(self, indices: range) -> None:
        noop.enqueue_many((index, task.PAD) for index in indices)

    def flush(self) -> None:
        wq.close()

    def worker(self, number: int) -> None:
        assert number == 0
        shape = ("--processes", task.setting("PROCESSES"), "--threads", task.setting("THREADS"))
        task.become([sys.executable, "-m", "workq", "worker", "--app", "benchmarks.contestants.workq:wq", *shape])


contestant = Workq()
