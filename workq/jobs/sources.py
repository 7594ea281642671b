"""Sources: where the items of a job come from, page by page, each page with the cursor behind it.

A source is read in an order that does not change: whoever reads it again from a cursor gets what follows, and nothing
twice. The splitter saves the cursor in the transaction that records the page's subtask, so that a source is read on
where it was left, whoever dies. What a source yields twice is two items.

What goes wrong: a source that raises: what was read before stands, and the splitter is tried again at the cursor, as
any task. Data that waiting does not mend (`BadSource`): the job fails at once, and goes on at the cursor when a person
says so. A file that is not there: it is tried again, because it may be on its way, or on the disk of another worker.
One that never ends: its job has no total, and runs until it is cancelled; no more than a window of it is outstanding.
An item that JSON cannot carry is a failed item of its own.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from workq.errors import BadSource, ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Engine

LINE_MAX_BYTES: Final = 16 << 20
"""A longer line is no line of a file of items."""


@dataclass(frozen=True, slots=True)
class Page:
    """Items that follow each other, and the cursor behind the last of them: anything that JSON can carry.

    `begins`: of one partition, as JSON: where it goes on; None: at its beginning.
    """

    items: list[Any]
    cursor: Any
    begins: str | None = None


class Source(Protocol):
    """What every source promises."""

    def count(self) -> int | None:
        """How many items there are in all; None: not known before they are read."""
        ...

    def pages(self, cursor: Any, size: int) -> Iterator[Page]:
        """What follows a cursor (None: from the beginning), `size` items a page; the last page may be shorter."""
        ...


class Range:
    """Whole numbers, as `range()` takes them. The cursor is how many were read."""

    def __init__(self, *bounds: int) -> None:
        """
        Raises:
            ConfigError: not one to three whole numbers, or a step of 0.
        """
        try:
            self._range = range(*bounds)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Range: need one to three whole numbers, as for range(), got {bounds!r}") from error

    def count(self) -> int | None:
        """See `Source`."""
        return len(self._range)

    def pages(self, cursor: Any, size: int) -> Iterator[Page]:
        """See `Source`."""
        for start in range(cursor or 0, len(self._range), size):
            found = self._range[start : start + size]
            yield Page(list(found), start + len(found))


_NONE: Final = object()


class Items:
    """Anything that can be iterated again from its beginning, in the same order. The cursor is how many were read.

    To read on it is iterated from the beginning, past what was read: for millions of items, take another source.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def count(self) -> int | None:
        """See `Source`."""
        return len(self._items) if isinstance(self._items, Sequence) else None

    def pages(self, cursor: Any, size: int) -> Iterator[Page]:
        """See `Source`."""
        read = cursor or 0
        items = iter(self._items)
        if read and next(islice(items, read - 1, None), _NONE) is _NONE:
            raise ConfigError(
                f"the source had {read} items or more before, and has fewer now; it has to begin anew each time, with "
                "the same items in the same order"
            )
        while found := list(islice(items, size)):
            read += len(found)
            yield Page(found, read)


class Steps:
    """A generator function of a cursor, which yields pairs: an item, and the cursor behind it."""

    def __init__(self, read: Callable[[Any], Iterable[tuple[Any, Any]]]) -> None:
        self._read = read

    def count(self) -> int | None:
        """See `Source`."""
        return None

    def pages(self, cursor: Any, size: int) -> Iterator[Page]:
        """See `Source`."""
        pairs: Iterator[Any] = iter(self._read(cursor))
        while found := list(islice(pairs, size)):
            for one in found:
                if not isinstance(one, tuple) or len(one) != 2:
                    raise BadSource(
                        f"a source of a cursor yields pairs, an item and the cursor behind it; it yielded {one!r:.200}"
                    )
            yield Page([item for item, _ in found], found[-1][1])


class Keyset:
    """The rows of a query that is asked for page after page: `... WHERE id > :cursor ORDER BY id LIMIT :limit`.

    A row of one column is an item as it is; of several, a mapping by their names. The cursor is the first column of the
    last row. No two rows may share it: the second would be passed over, where a page ends between them. Two that do are
    found, because each page asks for one row more. Every page is a statement of its own, and holds nothing open.
    """

    def __init__(
        self, database: str | Engine | Callable[[], Engine], query: str, *, start: Any = 0, total: str | None = None
    ) -> None:
        """
        Args:
            database: a URL of SQLAlchemy's, an engine, or a function that answers one.
            query: with `:cursor` and `:limit`, in the order of its first column, which no two rows share.
            start: the cursor of the first page: less than any.
            total: a query that answers how many rows there are.

        Raises:
            ConfigError: the query has no `:cursor` or no `:limit`.
        """
        for name in (":cursor", ":limit"):
            if name not in query:
                raise ConfigError(
                    f"Keyset: the query needs {name}, such as ... WHERE id > :cursor ORDER BY id LIMIT :limit"
                )
        self._database = database
        self._query = query
        self._start = start
        self._total = total

    def count(self) -> int | None:
        """See `Source`."""
        if self._total is None:
            return None
        from sqlalchemy import text

        with self._engine() as engine, engine.connect() as connection:
            return int(connection.execute(text(self._total)).scalar_one())

    def pages(self, cursor: Any, size: int) -> Iterator[Page]:
        """See `Source`."""
        from sqlalchemy import text

        after = self._start if cursor is None else cursor
        query = text(self._query)
        with self._engine() as engine:
            while True:
                with engine.connect() as connection:
                    found = connection.execute(query, {"cursor": after, "limit": size + 1})
                    names, read = list(found.keys()), found.all()
                if not read:
                    return
                _check_rows(names, read)
                rows = read[:size]
                if after in (rows[0][0], rows[-1][0]):
                    raise BadSource(
                        f"Keyset: a page has the row of its cursor, {after!r:.200}, once more: "
                        "the query must be ordered by its first column, and begin behind :cursor"
                    )
                after = rows[-1][0]
                items = [row[0] if len(names) == 1 else dict(zip(names, row, strict=True)) for row in rows]
                yield Page(items, after)
                if len(rows) < size:
                    return

    def _engine(self) -> Any:
        from contextlib import nullcontext

        from sqlalchemy import create_engine

        if isinstance(self._database, str):
            engine = create_engine(self._database)
            return _Disposing(engine)
        return nullcontext(self._database() if callable(self._database) else self._database)


def _check_rows(names: list[str], rows: Sequence[Any]) -> None:
    """Refuse what would lose an item or a part of one.

    Raises:
        BadSource: two columns of one name, or two rows that follow each other with one key.
    """
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise BadSource(
            f"Keyset: the query answers two columns of the name {doubled!r}, and an item would have one of them: name "
            f"each by itself, such as ... AS other_{doubled}"
        )
    for row, following in pairwise(rows):
        if row[0] == following[0]:
            raise BadSource(
                f"Keyset: two rows have the key {names[0]} = {row[0]!r:.200}, and where a page ends between them, "
                "one is passed over: order by a first column that is unique, such as the primary key, or one that "
                f"joins {names[0]} and a unique column"
            )


class _Disposing:
    """An engine of ours, for a `with` block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Engine:
        return self._engine

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()


class _Lines:
    """The lines of a file, or of standard input (`-`). The cursor is how many bytes were read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def count(self) -> int | None:
        """See `Source`: only whoever reads all lines knows."""
        return None

    def _opened(self) -> BinaryIO:
        if self._path == "-":
            return sys.stdin.buffer
        try:
            return Path(self._path).open("rb")
        except OSError as error:
            raise ConfigError(
                f"cannot read {os.fspath(self._path)}: {error.strerror}; put it there, or give its whole path"
            ) from error

    @property
    def _name(self) -> str:
        return "standard input" if self._path == "-" else os.fspath(self._path)

    def _go_to(self, file: BinaryIO, place: _Place, cursor: int) -> None:
        if self._path == "-":
            place.lines += _lines_in(file, cursor - place.bytes)
        else:
            file.seek(cursor)
            place.begin, place.lines = cursor, 0
        place.bytes = cursor

    def _line(self, place: _Place) -> str:
        """The last line that was read, as a person finds it. Lines before the cursor are counted only now."""
        before = 0
        if place.begin:
            file = self._opened()
            try:
                before = _lines_in(file, place.begin)
            finally:
                file.close()
        return f"line {before + place.lines:,} (at byte {place.line_begin})"

    def _close(self, file: BinaryIO) -> None:
        if self._path != "-":
            file.close()

    def _read_lines(self, file: BinaryIO, at: _Place) -> Generator[str]:
        while line := file.readline(LINE_MAX_BYTES + 1):
            at.line_begin, at.bytes, at.lines = at.bytes, at.bytes + len(line), at.lines + 1
            if len(line) > LINE_MAX_BYTES:
                raise BadSource(f"{self._name}: {self._line(at)} has more than {LINE_MAX_BYTES} bytes")
            try:
                text = line.decode("utf-8-sig" if at.line_begin == 0 else "utf-8")
            except UnicodeDecodeError as error:
                raise BadSource(f"{self._name}: {self._line(at)} is not UTF-8 ({error.reason})") from error
            yield text


def _lines_in(file: BinaryIO, size: int) -> int:
    """Read so many bytes; answers how many lines end in them."""
    lines = 0
    while size > 0 and (passed := file.read(min(size, 1 << 20))):
        size -= len(passed)
        lines += passed.count(b"\n")
    return lines


@dataclass(slots=True)
class _Place:
    """How far a file was read. `lines`: those since byte `begin`; `line_begin`: where the last of them begins."""

    bytes: int = 0
    lines: int = 0
    begin: int = 0
    line_begin: int = 0


class JsonLines(_Lines):
    """A file with one JSON value a line; empty lines are none. An object that has one key twice is refused."""

    def pages(self, cursor: Any, size: int) -> Iterator[Page]:
        """See `Source`."""
        file = self._opened()
        try:
            place = _Place()
            self._go_to(file, place, cursor or 0)
            values = self._values(file, place)
            while found := list(islice(values, size)):
                yield Page(found, place.bytes)
        finally:
            self._close(file)

    def _values(self, file: BinaryIO, place: _Place) -> Iterator[Any]:
        for line in self._read_lines(file, place):
            if line.strip():
                try:
                    value = json.loads(line.rstrip(), object_pairs_hook=_object)
                except _DoubledKey as error:
                    raise BadSource(f"{self._name}: {self._line(place)} has {error}; rename one of them") from error
                except (ValueError, RecursionError) as error:
                    said = f"{error.msg}, at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
                    raise BadSource(f"{self._name}: {self._line(place)} is not JSON: {said}") from error
                yield value


class _DoubledKey(ValueError):
    """An object of JSON has one key twice, of which Python would keep the last."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _DoubledKey(f"an object with the key {next(key for key in keys if keys.count(key) > 1)!r:.200} twice")
    return found


class CsvFile(_Lines):
    """A CSV file whose first line names the columns; a row is a mapping of text by these names."""

    def __init__(self, path: str | os.PathLike[str], *, delimiter: str = ",") -> None:
        super().__init__(path)
        self._delimiter = delimiter

    def pages(self, cursor: Any, size: int) -> Iterator[Page]:
        """See `Source`."""
        file = self._opened()
        try:
            place = _Place()
            rows = csv.reader(self._read_lines(file, place), delimiter=self._delimiter, strict=True)
            names = self._next(rows, place)
            if names is None:
                return
            if doubled := sorted({name for name in names if names.count(name) > 1}):
                raise BadSource(f"{self._name}: the first line names {doubled[0]!r} more than once; rename one")
            if cursor is not None:
                self._go_to(file, place, cursor)
            while found := list(islice(self._rows(rows, names, place), size)):
                yield Page(found, place.bytes)
        finally:
            self._close(file)

    def _rows(self, rows: Iterator[list[str]], names: list[str], place: _Place) -> Iterator[dict[str, str]]:
        while (row := self._next(rows, place)) is not None:
            if not row:
                continue
            if len(row) != len(names):
                raise BadSource(
                    f"{self._name}: the row that ends in {self._line(place)} has {len(row)} fields; "
                    f"the first line names {len(names)}"
                )
            yield dict(zip(names, row, strict=True))

    def _next(self, rows: Iterator[list[str]], place: _Place) -> list[str] | None:
        try:
            return next(rows, None)
        except csv.Error as error:
            raise BadSource(f"{self._name}: the row that ends in {self._line(place)} is not CSV: {error}") from error
