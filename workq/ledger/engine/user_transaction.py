"""Entered: while somebody else's statements are in a transaction of ours, it stays the one that was begun.

What is in it stands as a whole, with our first statement and our last. So a commit or rollback of theirs is refused.
And so is the end of ours after an error that has ended the transaction in the server, although the block swallowed it:
a deadlock on MariaDB, a full disk on SQLite. A savepoint that is set at the begin tells: it is gone then. SQLite would
write what follows by itself; it is asked before each statement whether the transaction is still there.

On PostgreSQL their statements are planned as the server is set up, not as the ledger's own are.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from workq.errors import Refused

OPTION: Final = "workq_entered"
"""The execution option of such a connection: each statement passes SQLAlchemy's events."""
_BEGIN: Final = "SAVEPOINT workq_entered"
_END: Final = "RELEASE SAVEPOINT workq_entered"
_BEGIN_POSTGRESQL: Final = f"SET LOCAL enable_seqscan TO DEFAULT; SET LOCAL jit TO DEFAULT; {_BEGIN}"
_END_POSTGRESQL: Final = f"{_END}; SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
_CURE: Final = (
    "so its task has not succeeded; let a database error leave the block, or use a savepoint of your own for what may "
    "fail: connection.begin_nested()"
)


class Entered:
    """Somebody else's part of a transaction that is begun: from here on, until `end`."""

    def __init__(self, connection: Connection) -> None:
        """Send one statement.

        Raises:
            DBAPIError: as whatever a database refuses.
        """
        self._connection = connection.execution_options(**{OPTION: True})
        self._transaction = connection.get_transaction()
        self._is_sqlite = connection.dialect.name == "sqlite"
        self._is_postgresql = connection.dialect.name == "postgresql"
        self._send(_BEGIN_POSTGRESQL if self._is_postgresql else _BEGIN)
        event.listen(connection, "commit", self._committing)
        if self._is_sqlite:
            event.listen(connection, "before_cursor_execute", self._sending)

    def end(self) -> None:
        """Ours again: it is still the transaction that was begun.

        Raises:
            Refused: it is not; nothing may be committed. DBAPIError: the connection is lost.
        """
        connection = self._connection
        if connection.get_transaction() is not self._transaction or not connection.in_transaction():
            raise Refused(f"transaction(): it was ended inside of its block, {_CURE}")
        if self._is_sqlite:
            event.remove(connection, "before_cursor_execute", self._sending)
        try:
            self._send(_END_POSTGRESQL if self._is_postgresql else _END)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            raise Refused(f"transaction(): a statement inside of its block has ended it, {_CURE}") from error
        event.remove(connection, "commit", self._committing)

    def _send(self, text: str) -> None:
        self._connection.exec_driver_sql(text, execution_options={"no_parameters": True})

    def _committing(self, _: Connection) -> None:
        self._connection.invalidate()  # SQLAlchemy takes it for committed now, and would not roll it back
        raise Refused("transaction(): it commits by itself at the end of its block, with the task's success")

    def _sending(self, connection: Connection, *_: Any) -> None:
        raw: Any = connection.connection.driver_connection
        if not raw.in_transaction:
            raise Refused(f"transaction(): an error inside of its block has ended it, {_CURE}")
