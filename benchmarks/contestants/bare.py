"""The bare minimum of a durable enqueue: one row of about 200 bytes by psycopg, committed by itself.

In a table of two columns; or in workq's own, with its indexes and checks, which is the floor below workq's enqueue.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import psycopg

from benchmarks.contestants import task
from workq.values.codec import new_task_id

_TWO_COLUMNS = "INSERT INTO task (payload) VALUES (%s)"
_WORKQ = (
    "INSERT INTO workq_task "
    "(id, payload, name, queue, state, failures_max, crashes_max, due_at, created_at, queued_at) "
    "VALUES (%s, %s, 'bench.noop', 'default', 'ready', 5, 3, now(), now(), now())"
)


class Psycopg(task.Contestant):
    def __init__(self) -> None:
        self._own = threading.local()
        self._is_workqs = task.setting("TABLE") == "workq"

    def prepare(self) -> None:
        if self._is_workqs:
            url = task.setting("POSTGRES_URL")
            subprocess.run([sys.executable, "-m", "workq", "-q", "db", "migrate", "--url", url], check=True)
            return
        with self._connect() as connection:
            connection.execute(
                "CREATE TABLE task (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text NOT NULL)"
            )

    def one(self, index: int) -> None:
        connection: psycopg.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._connect()
        payload = json.dumps({"index": index, "pad": task.PAD})
        if self._is_workqs:
            connection.execute(_WORKQ, (new_task_id(), payload))
        else:
            connection.execute(_TWO_COLUMNS, (payload,))

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(task.setting("POSTGRES_URL"), autocommit=True)


contestant = Psycopg()
