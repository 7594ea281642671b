"""Sources: where the items of a job come from, page by page, each page with the cursor behind it.

A source is read in an order that does not change: whoever reads it again from a cursor gets what follows, and nothing
twice. The splitter saves the cursor in the transaction that records the page's subtask, so that a source is read on
where it was left, whoever dies. What a source yields twice is two items.

What goes wrong: a source that raises: what was read before stands, and the splitter is tried again at the cursor, as
any task. One that never ends: its job has no total, and runs until it is cancelled; no more than a window of it is
outstanding. An item that JSON cannot carry is a failed item of its own.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from workq.errors import ConfigError

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
                    raise ConfigError(
                        f"a source of a cursor yields pairs, an item and the cursor behind it; it yielded {one!r:.200}"
                    )
            yield Page([item for item, _ in found], found[-1][1])


class Keyset:
    """The rows of a query that is asked for page after page: `... WHERE id > :cursor ORDER BY id LIMIT :limit`.

    A row of one column is an item as it is; of several, a mapping by their names. The cursor is the first column of the
    last row. Every page is a statement of its own, and holds nothing open.
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
                    found = connection.execute(query, {"cursor": after, "limit": size})
                    names, rows = list(found.keys()), found.all()
                if not rows:
                    return
                if rows[-1][0] == after:
                    raise ConfigError(
                        f"Keyset: a page ends where it began, at {after!r:.200}: "
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
            raise ConfigError(f"cannot read {os.fspath(self._path)}: {error.strerror}") from error

    def _go_to(self, file: BinaryIO, cursor: int) -> None:
        if self._path != "-":
            file.seek(cursor)
            return
        left = cursor
        while left > 0 and (passed := file.read(min(left, 1 << 20))):
            left -= len(passed)

    def _close(self, file: BinaryIO) -> None:
        if self._path != "-":
            file.close()

    def _read_lines(self, file: BinaryIO, at: _Place) -> Generator[str]:
        while line := file.readline(LINE_MAX_BYTES + 1):
            if len(line) > LINE_MAX_BYTES:
                raise ConfigError(f"{self._path}: at byte {at.bytes}: a line of more than {LINE_MAX_BYTES} bytes")
            start, at.bytes = at.bytes, at.bytes + len(line)
            try:
                yield line.decode("utf-8-sig" if start == 0 else "utf-8")
            except UnicodeDecodeError as error:
                raise ConfigError(f"{self._path}: at byte {start}: not UTF-8 ({error.reason})") from error


@dataclass(slots=True)
class _Place:
    """How far a file was read."""

    bytes: int = 0


class JsonLines(_Lines):
    """A file with one JSON value a line; empty lines are none."""

    def pages(self, cursor: Any, size: int) -> Iterator[Page]:
        """See `Source`."""
        file = self._opened()
        try:
            place = _Place(cursor or 0)
            self._go_to(file, place.bytes)
            values = self._values(file, place)
            while found := list(islice(values, size)):
                yield Page(found, place.bytes)
        finally:
            self._close(file)

    def _values(self, file: BinaryIO, place: _Place) -> Iterator[Any]:
        for line in self._read_lines(file, place):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    start = place.bytes - len(line.encode())
                    raise ConfigError(f"{self._path}: the line at byte {start} is not JSON: {error}") from error


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
                raise ConfigError(f"{self._path}: the first line names {doubled[0]!r} more than once; rename one")
            if cursor is not None:
                self._go_to(file, cursor if self._path != "-" else cursor - place.bytes)
                place.bytes = cursor
            while found := list(islice(self._rows(rows, names, place), size)):
                yield Page(found, place.bytes)
        finally:
            self._close(file)

    def _rows(self, rows: Iterator[list[str]], names: list[str], place: _Place) -> Iterator[dict[str, str]]:
        while (row := self._next(rows, place)) is not None:
            if not row:
                continue
            if len(row) != len(names):
                raise ConfigError(
                    f"{self._path}: the row that ends at byte {place.bytes} has {len(row)} fields; "
                    f"the first line names {len(names)}"
                )
            yield dict(zip(names, row, strict=True))

    def _next(self, rows: Iterator[list[str]], place: _Place) -> list[str] | None:
        try:
            return next(rows, None)
        except csv.Error as error:
            raise ConfigError(f"{self._path}: the row that ends at byte {place.bytes}: {error}") from error
