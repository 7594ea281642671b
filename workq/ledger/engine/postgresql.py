"""What only PostgreSQL needs: settings that hold for each statement, also behind a pooler; and a limit on silence.

A pooler in transaction mode (PgBouncer) gives each transaction another session of the server, shared with other
clients: what is prepared in it, or set for it, is not there the next time, and disturbs others. A pooler is recognised
when a connection opens: it makes up the key with which a client may cancel its statement, so the process number in that
key is not the one of the session. On such a connection nothing is prepared, what is set is set for each transaction,
together with its BEGIN, and no statement is outside of a transaction. So the mode of the pooler does not matter.

The limit on silence is on our side.
The server ends its own statements after `statement_timeout`, and the kernel finds hosts that are gone. A server that is
stopped but whose kernel still acknowledges packets (SIGSTOP, a frozen machine, a stuck disk) is found by neither, and
libpq would wait for ever. So every wait for an answer ends here: the connection is closed, and the ledger decides as
for any lost connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from workq.ledger.engine.prepared import send

POOLED: Final = "workq_pooled"
"""In the `info` of a connection: a pooler answers on it."""

_Generator = Generator[Any, Any, Any]


def keep_set(engine: Engine, settings: Mapping[str, str | int], *, on_pooled: Callable[[], None]) -> None:
    """Let these settings hold for all that is sent: of the session, or of each transaction where a pooler answers.

    `on_pooled` is told of each new connection on which a pooler answers.
    """
    for_session = ";".join(f"SET {name} = {value}" for name, value in settings.items())
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED;" + ";".join(
        f"SET LOCAL {name} = {value}" for name, value in settings.items()
    )

    def _began(connection: Connection) -> None:
        if POOLED in connection.info:
            send(connection, begin).close()

    @event.listens_for(engine, "connect")
    def _connected(raw: psycopg.Connection[Any], record: ConnectionPoolEntry) -> None:
        try:
            if _is_pooled(raw):
                raw.rollback()
                raw.autocommit = True  # the driver begins nothing by itself: `_began` does
                raw.prepare_threshold = None
                record.info[POOLED] = True
                # once, and not where no pooler answers: each transaction pays for a listener
                event.listen(engine, "begin", _began)
                on_pooled()
            else:
                raw.execute(for_session)
                raw.commit()
        except BaseException:
            raw.close()  # the pool does not know it yet
            raise


def _is_pooled(raw: psycopg.Connection[Any]) -> bool:
    [[pid]] = raw.execute("SELECT pg_backend_pid()").fetchall()
    return bool(pid != raw.info.backend_pid)


def connecting(*, silence_s: float) -> Callable[..., psycopg.Connection[Any]]:
    """How to open a connection that waits at most `silence_s` seconds for each answer."""

    class Limited(psycopg.Connection[Any]):
        def wait(self, gen: _Generator, *args: Any, **options: Any) -> Any:
            return super().wait(_ended(gen, self, time.monotonic() + silence_s, silence_s), *args, **options)

    return Limited.connect


def _ended(gen: _Generator, connection: psycopg.Connection[Any], deadline: float, silence_s: float) -> _Generator:
    """`gen`, which psycopg resumes about ten times a second while the server is silent, until the deadline."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                gen.close()
                connection.pgconn.finish()
                raise psycopg.OperationalError(f"no answer from the server within {silence_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value
