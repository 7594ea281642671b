"""Recording tasks: one transaction, ours or the caller's.

The ids are made by the client, so a commit whose outcome is unknown is simply repeated: rows that stand already are
found by their ids. A key is decided by the unique constraint on `live_key`, never by looking first.

In the caller's transaction everything happens inside a savepoint: what cannot be recorded leaves the rest of that
transaction as it was. When the caller's connection breaks, the caller's transaction is gone, and the task with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.types import Float

from workq.errors import ConfigError, KeyConflict
from workq.ledger import Within
from workq.ledger.database import Database, without_values
from workq.task import Enqueued, NewTask, State

_TRIES: Final = 5
_DEFAULT_PORTS: Final = {"postgresql": 5432, "mysql": 3306}


def live_key(name: str, key: str | None) -> str | None:
    """What the unique constraint compares: a key belongs to the name of its task. No name contains a slash."""
    return None if key is None else f"{name}/{key}"


class Recording:
    """The part of the ledger that producers write."""

    database: Database

    def record(
        self, tasks: Sequence[NewTask], *, connection: Any = None, within: Within | None = None
    ) -> list[Enqueued]:
        if not tasks:
            return []
        if connection is not None:
            return self._record_within(_core_connection(connection, self.database), tasks, within)
        try:
            return self.database.run(lambda tx: self._all_at_once(tx, tasks, within))
        except IntegrityError:  # a key is taken, or rows of an unknown commit stand already
            return self.database.run(lambda tx: self._one_by_one(tx, tasks, within))

    def _record_within(self, tx: Connection, tasks: Sequence[NewTask], within: Within | None) -> list[Enqueued]:
        try:
            _begin_in_sqlite(tx)
            try:
                with tx.begin_nested():
                    return self._all_at_once(tx, tasks, within)
            except IntegrityError:
                with tx.begin_nested():
                    return self._one_by_one(tx, tasks, within)
        except IntegrityError as error:
            raise without_values(error) from None
        except DBAPIError as error:
            raise self.database.translate(error) from error

    def _all_at_once(self, tx: Connection, tasks: Sequence[NewTask], within: Within | None) -> list[Enqueued]:
        self._insert(tx, tasks, within)
        return [Enqueued(task.id, _first_state(task), True) for task in tasks]

    def _insert(self, tx: Connection, tasks: Sequence[NewTask], within: Within | None) -> None:
        rows: list[dict[str, Any]] = [
            {
                "id": task.id,
                "name": task.name,
                "queue": task.queue,
                "state": _first_state(task),
                "delay_s": task.delay_s,
                "failures_max": task.failures_max,
                "crashes_max": task.crashes_max,
                "live_key": live_key(task.name, task.key),
                "task_key": task.key,
                "payload": task.payload,
            }
            for task in tasks
        ]
        now = self.database.now
        statement = insert(self.database.tables.task)
        stamped = ["created_at", "queued_at"] if within is None else ["created_at", "queued_at", "published_at"]
        if self.database.dialect == "mysql" and len(rows) > 1:
            # its driver sends many rows at once only where every value is plain: one question for the clock, then
            instant: datetime = tx.execute(select(now())).scalar_one()
            for row in rows:
                row["due_at"] = instant + timedelta(seconds=row.pop("delay_s"))
                row.update(dict.fromkeys(stamped, instant))
        else:
            due_at = now(bindparam("delay_s", type_=Float()))
            statement = statement.values(due_at=due_at, **{name: now() for name in stamped})
        tx.execute(statement, rows)
        if within is not None:
            within(tx, tasks)

    def _one_by_one(self, tx: Connection, tasks: Sequence[NewTask], within: Within | None) -> list[Enqueued]:
        return [self._record_one(tx, task, within) for task in tasks]

    def _record_one(self, tx: Connection, task: NewTask, within: Within | None) -> Enqueued:
        for _ in range(_TRIES):
            try:
                with tx.begin_nested():
                    self._insert(tx, [task], within)
                return Enqueued(task.id, _first_state(task), True)
            except IntegrityError:
                standing = self._standing(tx, task)
                if standing is not None:
                    return standing
                if task.key is None:
                    raise
                # the key's holder was settled between our insert and our look: it is free now
        raise KeyConflict(f"key {task.key!r} of {task.name} changes hands too fast to be taken; try again")

    def _standing(self, tx: Connection, task: NewTask) -> Enqueued | None:
        """The row in whose place this task would be: itself, from a commit that we could not see, or its key's."""
        t = self.database.tables.task
        columns = select(t.c.id, t.c.state, t.c.name, t.c.task_key, t.c.payload)
        itself = tx.execute(columns.where(t.c.id == task.id)).first()
        if itself is not None:
            return Enqueued(task.id, State(itself.state), True)
        if task.key is None:
            return None
        holder = tx.execute(columns.where(t.c.live_key == live_key(task.name, task.key))).first()
        if holder is None:
            return None
        if (holder.name, holder.task_key, holder.payload) != (task.name, task.key, task.payload):
            raise KeyConflict(
                f"key {task.key!r} of {task.name} is held by task {holder.id} ({holder.state}) with other arguments. "
                f"Use another key, or wait until that task is settled; look at it with: workq task show {holder.id}"
            )
        return Enqueued(holder.id, State(holder.state), False)


def _first_state(task: NewTask) -> State:
    return State.WAITING if task.delay_s > 0.0 else State.READY


def _begin_in_sqlite(tx: Connection) -> None:
    """Python's driver does not begin a transaction for a savepoint: releasing it would commit, against the caller."""
    if tx.dialect.name == "sqlite" and not getattr(tx.connection.dbapi_connection, "in_transaction", True):
        tx.exec_driver_sql("BEGIN IMMEDIATE")


def _core_connection(given: Any, database: Database) -> Connection:
    """The caller's SQLAlchemy connection, also out of a session, if it leads to this ledger."""
    connection = given
    if not isinstance(given, Connection):
        of_session = getattr(given, "connection", None)
        if callable(of_session) and not inspect.iscoroutinefunction(of_session):
            connection = of_session()
    if not isinstance(connection, Connection):
        raise ConfigError(
            f"connection: need an SQLAlchemy Connection or Session, got {type(given).__name__}; "
            "for an AsyncSession use `await session.run_sync(lambda s: task.options(connection=s).enqueue(...))`"
        )
    if connection.closed:
        raise ConfigError("connection: it is closed; pass one with an open transaction")
    if _place(database.url) != _place(connection.engine.url):
        raise ConfigError(
            f"connection: it leads to {_shown(connection.engine.url)}, but the ledger is {database.where}; "
            "a task can only share a transaction with its own ledger. Use the same host, port and database in both URLs"
        )
    return connection


def _place(url: URL) -> tuple[str, ...]:
    """Which database a URL leads to, however it is spelled. Two names of one remote host count as two places."""
    backend = url.get_backend_name().replace("mariadb", "mysql")
    if backend == "sqlite":
        return backend, str(Path((url.database or "").removeprefix("file:")).resolve())
    host = url.host or _first(url.query.get("host")) or "localhost"
    if host.startswith("/") or host in ("127.0.0.1", "::1", ""):  # a socket's folder is this host, too
        host = "localhost"
    port = url.port or _first(url.query.get("port")) or _DEFAULT_PORTS.get(backend, 0)
    return backend, host.lower(), str(port), url.database or url.username or ""


def _first(value: str | tuple[str, ...] | None) -> str | None:
    return value[0] if isinstance(value, tuple) else value


def _shown(url: URL) -> str:
    return url.set(query={}).render_as_string(hide_password=True)
