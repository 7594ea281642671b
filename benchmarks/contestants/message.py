"""Messages of workq to a queue of RabbitMQ, `at=` their instant, on any ladder. The reader is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from benchmarks.contestants import mailbox, task
from workq import WorkQueue
from workq.messages import Messages

DESTINATION: Final = "mailbox"
PAGE: Final = 1_000
"""Messages that are recorded in one transaction, where there are many."""

os.environ["WORKQ_LADDER"] = task.setting("LADDER")
os.environ["WORKQ_MESSAGE_ALLOW"] = "loopback"
wq = WorkQueue()
messages = Messages(wq)


class MessageContestant(task.Contestant):
    def prepare(self) -> None:
        mailbox.declare()
        subprocess.run([sys.executable, "-m", "workq", "-q", "db", "migrate"], check=True)
        url = task.setting("RABBITMQ_URL")
        messages.destinations.add(DESTINATION, kind="amqp", url=url, exchange="", routing_key=mailbox.QUEUE)
        wq.close()

    def is_up(self) -> bool:
        """The mailbox alone writes records: it does not show who has sent."""
        return len(wq.stores.ledger.questions.workers()) >= int(task.setting("PROCESSES"))

    def one(self, index: int) -> None:
        messages.send(DESTINATION, mailbox.body(index).decode())

    def many_at(self, indices: Sequence[int], at: float) -> None:
        due = datetime.fromtimestamp(at, UTC)
        for start in range(0, len(indices), PAGE):
            page = [{"body": mailbox.body(one).decode(), "at": due} for one in indices[start : start + PAGE]]
            messages.send_many(DESTINATION, page)

    def flush(self) -> None:
        wq.close()

    def worker(self, number: int) -> None:
        if number == 0:
            mailbox.read()
        shape = ("--processes", task.setting("PROCESSES"), "--threads", task.setting("THREADS"))
        task.become([sys.executable, "-m", "workq", "worker", "--app", "benchmarks.contestants.message:wq", *shape])


contestant = MessageContestant()
