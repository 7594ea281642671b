"""Kept: a statement that is sent all the time. SQLAlchemy writes it, once; from then on it goes to the driver itself.

SQLAlchemy's way from a statement to its rows costs some 200 us of processor time a call, more than the drivers' own and
as much as a page of ids costs the server. What stays SQLAlchemy's: the text, the connection and its transaction, and
how errors are told. A kept statement has the same text for every call, except that PostgreSQL gets another one where it
names a single row (see id_lists.py).

MySQL's lists of ids have another text for each length (see id_lists.py): there, everything goes through SQLAlchemy. So
does what is sent on a connection of the caller's, or inside of a handler's transaction (see user_transaction.py).

What goes wrong: as if SQLAlchemy had sent it. A call that is cut short, by a signal or a time limit, leaves its
connection in a state that nobody knows: it is not used again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, Engine, Executable
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import Float, TypeEngine

from workq.ledger.engine.id_lists import IDS, OF_ONE
from workq.ledger.engine.user_transaction import OPTION

Given = Mapping[str, Any]
Trace = Callable[[str, Any], None]
"""Is told each text and its parameters, as the driver gets them."""

_NONE: Final[Given] = {}
_COUNTED: Final = {"preserve_rowcount": True}


class Kept:
    """One statement, of one database. Thread-safe."""

    def __init__(
        self, statement: Executable, engine: Engine, commits_itself: Engine | None, *, trace: Callable[[], Trace | None]
    ) -> None:
        """`commits_itself`: another engine of the same database, on which every statement does, and nothing is begun.

        `trace` answers who is to be told when a statement is sent.
        """
        self._statement = statement
        self._engine = engine
        self._commits_itself = commits_itself
        self._trace = trace
        self._dialect = engine.dialect
        self._is_direct = self._dialect.name != "mysql"
        if self._is_direct:
            self._compile(statement, self._dialect)

    def rows(self, tx: Connection, given: Given = _NONE) -> Sequence[tuple[Any, ...]]:
        """Send it; what it answers, in the order of its columns."""
        if not self._goes_direct(tx):
            return tx.execute(self._statement, given).all()
        cursor: Any = self._sent(tx, self._text_for(given), self._bound(given))
        try:
            found: list[tuple[Any, ...]] = cursor.fetchall()
        finally:
            cursor.close()
        return [self._read(row) for row in found] if self._readers else found

    def _read(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for place, reader in self._readers:
            values[place] = reader(values[place])
        return tuple(values)

    def write(self, tx: Connection, given: Given = _NONE) -> int:
        """Send it; how many rows it wrote."""
        if not self._goes_direct(tx):
            return tx.execute(self._statement, given, execution_options=_COUNTED).rowcount
        return self._count(self._sent(tx, self._text_for(given), self._bound(given)))

    def write_each(self, tx: Connection, given: Sequence[Given]) -> int:
        """Send it once for each; how many rows that wrote."""
        if len(given) == 1:
            return self.write(tx, given[0])
        if not self._goes_direct(tx):
            return tx.execute(self._statement, list(given), execution_options=_COUNTED).rowcount
        return self._count(self._sent(tx, self._text, self._bound_each(given), is_many=True))

    @staticmethod
    def _count(cursor: Any) -> int:
        count: int = cursor.rowcount  # a closed one does not know it any more
        cursor.close()
        return count

    def _compile(self, statement: Executable, dialect: Dialect) -> None:
        compile_it: Any = partial(statement.compile, dialect=dialect)  # type: ignore[attr-defined]  # all of ours have it
        compiled = compile_it()
        self._text: str = str(compiled)
        self._text_of_one = self._text
        if dialect.name == "postgresql" and IDS in compiled.params:
            self._text_of_one = str(compile_it(compile_kwargs=OF_ONE))
        is_positional = compiled.positional
        names: list[str] = compiled.positiontup if is_positional else list(compiled.params)
        binds = {name: _Bind(compiled.binds[name], dialect) for name in names}
        self._own = [(name, one) for name, one in binds.items() if not one.is_given]
        self._processes = [
            (name, one.process) for name, one in binds.items() if one.is_given and one.process is not None
        ]
        self._pick = _picking(names, is_positional=is_positional)
        types = [column.type for column in getattr(statement, "exported_columns", ())]
        readers = [_reader(one, dialect) for one in types]
        self._readers = [(place, reader) for place, reader in enumerate(readers) if reader is not None]
        """What the driver's values of these columns are read with."""

    def _text_for(self, given: Given) -> str:
        return self._text_of_one if len(given.get(IDS, ())) == 1 else self._text

    def _goes_direct(self, tx: Connection) -> bool:
        """A caller's connection may have another driver, or one that it has told to answer in another way."""
        is_ours = tx.engine is self._engine or tx.engine is self._commits_itself
        return self._is_direct and is_ours and not tx.get_execution_options().get(OPTION, False)

    def _bound(self, given: Given) -> Any:
        return self._bound_each((given,))[0]

    def _bound_each(self, given: Sequence[Given]) -> list[Any]:
        """The parameters of each, as the driver wants them. The statement's own are asked for once."""
        own = {name: bind.own() for name, bind in self._own}
        bound: list[Any] = []
        for one in given:
            row = {**own, **one}
            for name, process in self._processes:
                row[name] = process(row[name])
            bound.append(self._pick(row))
        return bound

    def _sent(self, tx: Connection, text: str, values: Any, *, is_many: bool = False) -> Any:
        if tx.engine is self._engine and not tx.in_transaction():
            tx.begin()  # as SQLAlchemy would
        if (trace := self._trace()) is not None:
            trace(text, values[0] if is_many else values)
        return send(tx, text, values, is_many=is_many)


def send(tx: Connection, text: str, values: Any = (), *, is_many: bool = False) -> Any:
    """Give a text and its values (of each row, when there are many) to the driver of a connection; the cursor.

    Nothing is begun. Raises as SQLAlchemy does.
    """
    with DriverOf(tx, text) as raw:
        cursor = raw.cursor()
        if is_many:
            cursor.executemany(text, values)
        else:
            cursor.execute(text, values)
    return cursor


class DriverOf:
    """The driver's own connection, for what it is asked for in `text`. What goes wrong is raised as SQLAlchemy does."""

    __slots__ = ("_text", "_tx")

    def __init__(self, tx: Connection, text: str) -> None:
        self._tx = tx
        self._text = text

    def __enter__(self) -> Any:
        return self._tx.connection.driver_connection

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            return
        tx, dialect = self._tx, self._tx.dialect
        if not isinstance(error, dialect.loaded_dbapi.Error):
            tx.invalidate(error)  # cut short by whatever it was: nobody knows what the connection is in the middle of
            return
        lost = dialect.is_disconnect(error, tx.connection.driver_connection, None)
        if lost:
            tx.invalidate(error)
        raise DBAPIError.instance(
            self._text,
            None,
            error,
            dialect.loaded_dbapi.Error,
            hide_parameters=True,
            connection_invalidated=lost,
            dialect=dialect,
        ) from error


def _reader(kind: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """What the driver's value becomes. A float is one already, for which SQLAlchemy asks the type of the column."""
    return None if isinstance(kind, Float) else kind.dialect_impl(dialect).result_processor(dialect, None)


def _picking(names: Sequence[str], *, is_positional: bool) -> Callable[[dict[str, Any]], Any]:
    """From all that is known of a row, what the driver wants."""
    if not is_positional:
        return lambda row: {name: row[name] for name in names}
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple(row[name] for name in names)


class _Bind:
    """One parameter: given by the caller, or the statement's own, which may be asked for each time."""

    __slots__ = ("_ask", "_fixed", "is_given", "process")

    def __init__(self, bind: BindParameter[Any], dialect: Dialect) -> None:
        self.process = bind.type.dialect_impl(dialect).bind_processor(dialect)
        self.is_given = bind.required
        self._ask = bind.callable
        self._fixed = None if bind.required else self._processed(bind.effective_value)

    def own(self) -> Any:
        """The value of one that is not given."""
        return self._fixed if self._ask is None else self._processed(self._ask())

    def _processed(self, value: Any) -> Any:
        return value if self.process is None else self.process(value)
