"""What only PostgreSQL needs: settings of each statement, also behind a pooler; a limit on silence; closed connections.

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

import select
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from workq.ledger.engine.prepared import send

POOLED: Final = "workq_pooled"
"""In the `info` of a connection: a pooler answers on it."""


SIGN_RIGHTS: Final = ("pg_advisory_lock_shared(bigint)", "pg_try_advisory_xact_lock(bigint)")
"""What gives a sign of life, and what looks for those of others. Everybody may call them, unless it was revoked."""
SIGN_KEY: Final = "hashtextextended({}, 0)"
"""The number of the lock that is the sign of life of a worker, of its id."""


@dataclass(frozen=True, slots=True)
class SessionSign:
    """A sign of life that each session of a process gives: a lock of the session, which many may share.

    `heard_s`: when the server has heard nothing for so long, it ends the session, and the sign with it. Without a
    `worker` that alone: else the sessions of a dead host would use up `max_connections` for two hours.

    `on_refused` is told why a session may not give it, such as for want of a right. The session is used without it.
    """

    worker: str | None
    heard_s: float
    on_refused: Callable[[str], None]

    def give(self, raw: psycopg.Connection[Any]) -> None:
        """Nothing is under way on the connection."""
        try:
            self._give(raw)
            raw.commit()
        except (psycopg.ProgrammingError, psycopg.NotSupportedError) as error:
            raw.rollback()
            self.on_refused(next(iter(str(error).splitlines()), type(error).__name__))

    def _give(self, raw: psycopg.Connection[Any]) -> None:
        """Where the server is reached by a socket of its host, its kernel tells without these limits."""
        idle_s = max(1, int(self.heard_s / 2))
        limits = {
            "tcp_keepalives_idle": idle_s,
            "tcp_keepalives_interval": 1,
            "tcp_keepalives_count": max(1, int(self.heard_s) - idle_s),
            "tcp_user_timeout": int(self.heard_s * 1000),
        }
        raw.execute(";".join(f"SET {name} = {value}" for name, value in limits.items()))
        if self.worker is not None:
            raw.execute(f"SELECT pg_advisory_lock_shared({SIGN_KEY.format('%s')})", (self.worker,))


_IDLE: Final = 0
"""libpq's word for a connection outside of any transaction and statement."""

_Generator = Generator[Any, Any, Any]


def settings_of(statement_timeout_s: float) -> dict[str, str | int]:
    """What holds for everything that workq sends."""
    return {
        "statement_timeout": int(statement_timeout_s * 1000),
        "lock_timeout": int(statement_timeout_s * 500),
        # a plan made while a table was small would read all of it later on: everything has its index here
        "enable_seqscan": "off",
        "jit": "off",  # else what must read all of a small table, at the price of that, is compiled first
        # a process that is stopped inside a transaction must not keep its rows from those who reap it
        "idle_in_transaction_session_timeout": int(statement_timeout_s * 1000),
    }


def keep_set(
    engine: Engine,
    settings: Mapping[str, str | int],
    *,
    on_pooled: Callable[[], None],
    sign: Callable[[], SessionSign | None],
) -> None:
    """Let these settings hold for all that is sent: of the session, or of each transaction where a pooler answers.

    `on_pooled` is told of each new connection on which a pooler answers. On the others a `sign` is given, if there is
    one.
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
                if (given := sign()) is not None:
                    given.give(raw)
        except BaseException:
            raw.close()  # the pool does not know it yet
            raise


def _is_pooled(raw: psycopg.Connection[Any]) -> bool:
    [[pid]] = raw.execute("SELECT pg_backend_pid()").fetchall()
    return bool(pid != raw.info.backend_pid)


def limit_silence(engine: Engine, silence_s: float) -> None:
    """Let no connection of this engine wait longer than that for an answer."""
    connect = connecting(silence_s=silence_s)

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, args: list[Any], parameters: dict[str, Any]) -> Any:
        return connect(*args, **parameters)


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


def notice_closed(engine: Engine) -> None:
    """An idle connection with something to read was closed by the server: it is replaced before anything is sent on it.

    Else a statement that commits itself would be lost on it, and nobody could say whether it stands. So is one on which
    a statement was cut short.
    """

    @event.listens_for(engine, "checkout")
    def _checked_out(raw: Any, _record: Any, _proxy: Any) -> None:
        if is_broken(raw):
            raise DisconnectionError("this connection was closed")


def is_broken(raw: psycopg.Connection[Any]) -> bool:
    """Whether an idle connection was closed by either side, or a statement was cut short on it. Asks nobody."""
    is_idle = not raw.closed and raw.pgconn.transaction_status == _IDLE
    return not is_idle or _is_readable(raw.fileno())


def _is_readable(descriptor: int) -> bool:
    """Whether there is something to read now, or the other side has closed."""
    if not hasattr(select, "poll"):  # where eventlet has patched; `select` is its own there
        return bool(select.select([descriptor], [], [], 0)[0])
    look = select.poll()
    look.register(descriptor, select.POLLIN)
    return bool(look.poll(0))
