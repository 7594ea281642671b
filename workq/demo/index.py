"""The full-text index that the demo builds, its versions, and the count that proves it complete.

Engines are SQLite FTS5 and tantivy, each a class here. Both make a subtask repeatable: `replace` removes what an
earlier attempt of the same part had written and writes it again, all or nothing. Neither has a rule that would hide a
document which is there twice: if the queue or a handler let that happen, `count` sees it.

On failure: a process that is killed inside `replace` leaves the index as it was before. Another process that writes at
the same time is waited for; after 30 s the attempt fails, and the queue tries it again.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from workq.demo.corpus import Document
from workq.errors import ConfigError, MissingExtra

ENGINES: Final = ("fts5", "tantivy")

_BUSY_S: Final = 30.0

_SCHEMA: Final = (
    # number is not a key: a document that was written twice must be there twice
    "CREATE VIRTUAL TABLE document USING fts5(title, text, number UNINDEXED)",
    # which rows a part wrote, so that the next attempt can remove them: FTS5 finds rows by rowid or by search only
    "CREATE TABLE part (part INTEGER NOT NULL, first_row INTEGER NOT NULL, last_row INTEGER NOT NULL)",
    "CREATE INDEX part_by_part ON part (part)",
)
CHUNK: Final = 500
"""Items of one subtask."""
OLD: Final = "catalog_v1"
NEW: Final = "catalog_v2"
UNREADABLE: Final = 7
"""So many documents cannot be read, until they are mended."""
_FILE: Final = "unreadable.json"
_HEAP_BYTES = 15_000_000
"""The least that tantivy takes for one writing thread; a subtask needs far less."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer of a search; a higher score is a better one."""

    title: str
    text: str
    score: float


class Index(Protocol):
    """What every engine promises. Not for use from several threads at once: open one for each."""

    engine: str

    def replace(self, part: int, documents: Sequence[Document]) -> None:
        """Write the documents of one part in place of those that an earlier attempt wrote. Atomic and repeatable."""
        ...

    def numbers(self) -> Iterator[int]:
        """The number of every document in the index, as often as it is in there."""
        ...

    def search(self, words: str, *, limit: int) -> list[Hit]:
        """The documents that contain all of the words, the best first."""
        ...

    def close(self) -> None:
        """Close files. Repeatable."""
        ...


@dataclass(frozen=True, slots=True)
class Count:
    """What is in the index, against what should be: numbers of documents."""

    expected: int
    found: int
    lost: tuple[int, ...]
    twice: tuple[int, ...]
    foreign: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every document is in the index once, and nothing else is."""
        return not (self.lost or self.twice or self.foreign)


def count(index: Index, expected: Iterable[int]) -> Count:
    """Count in the index itself, not in the queue. `found`: expected documents that are there, each counted once."""
    wanted = set(expected)
    seen = Counter(index.numbers())
    return Count(
        expected=len(wanted),
        found=len(wanted & seen.keys()),
        lost=tuple(sorted(wanted - seen.keys())),
        twice=tuple(sorted(number for number, times in seen.items() if times > 1)),
        foreign=tuple(sorted(seen.keys() - wanted)),
    )


def create_index(engine: str, folder: Path) -> None:
    """Make an empty index in the folder.

    Raises:
        ConfigError: there is no such engine, or the SQLite of this Python has no FTS5.
        MissingExtra: tantivy is not installed.
    """
    if engine == "tantivy":
        TantivyIndex.create(folder)
    else:
        _check_engine(engine)
        Fts5Index.create(folder)


def open_index(engine: str, folder: Path) -> Index:
    """Open the index that `create_index` made.

    Raises:
        ConfigError: there is no such engine. MissingExtra: tantivy is not installed.
    """
    if engine == "tantivy":
        return TantivyIndex(folder)
    _check_engine(engine)
    return Fts5Index(folder)


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise ConfigError(f"engine {engine!r} is not known; use one of {', '.join(ENGINES)}")


class Fts5Index:
    """An index in one SQLite file. SQLite lets one process write at a time; the others wait."""

    engine = "SQLite FTS5"

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(
            f"{_file(folder).as_uri()}?mode=rw", uri=True, timeout=_BUSY_S, isolation_level=None
        )
        # an index can be built again: a machine that loses power may cost the last commits, a killed process does not
        self._connection.execute("PRAGMA synchronous = NORMAL")

    @staticmethod
    def create(folder: Path) -> None:
        """Make the empty index.

        Raises:
            ConfigError: this Python's SQLite was built without FTS5.
        """
        connection = sqlite3.connect(_file(folder), isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")  # kept in the file: every later connection has it
            for statement in _SCHEMA:
                connection.execute(statement)
        except sqlite3.OperationalError as error:
            if "fts5" not in str(error):
                raise
            raise ConfigError(
                "engine fts5: the SQLite of this Python was built without FTS5; use --engine tantivy"
            ) from error
        finally:
            connection.close()

    def replace(self, part: int, documents: Sequence[Document]) -> None:
        """See `Index.replace`. One transaction: the file has all of the part, or what it had before."""
        with self._writing() as tx:
            earlier = tx.execute("SELECT first_row, last_row FROM part WHERE part = ?", (part,)).fetchall()
            for rows in earlier:
                tx.execute("DELETE FROM document WHERE rowid BETWEEN ? AND ?", rows)
            tx.execute("DELETE FROM part WHERE part = ?", (part,))
            last = tx.execute("SELECT rowid FROM document ORDER BY rowid DESC LIMIT 1").fetchone()
            first = 1 if last is None else last[0] + 1
            tx.executemany(
                "INSERT INTO document (rowid, title, text, number) VALUES (?, ?, ?, ?)",
                ((row, one.title, one.text, one.number) for row, one in enumerate(documents, first)),
            )
            tx.execute("INSERT INTO part VALUES (?, ?, ?)", (part, first, first + len(documents) - 1))

    def numbers(self) -> Iterator[int]:
        """See `Index.numbers`. FTS5 proves first that what can be searched is what is stored, or raises."""
        self._connection.execute("INSERT INTO document (document) VALUES ('integrity-check')")
        return (row[0] for row in self._connection.execute("SELECT number FROM document"))

    def search(self, words: str, *, limit: int) -> list[Hit]:
        """See `Index.search`. Ranked by bm25, which is negative here: lower is better."""
        terms = " ".join('"' + word.replace('"', '""') + '"' for word in words.split())
        found = self._connection.execute(
            "SELECT title, text, bm25(document) FROM document WHERE document MATCH ? ORDER BY rank, number LIMIT ?",
            (terms, limit),
        )
        return [Hit(title, text, -score) for title, text, score in found]

    def close(self) -> None:
        """Close the file. Repeatable."""
        self._connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")  # the write lock first: what is read below is what is changed
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _file(folder: Path) -> Path:
    return folder.absolute() / "index.db"


def alias(folder: Path) -> str:
    """The version that is searched."""
    return (folder / "alias").read_text(encoding="utf-8")


def point(folder: Path, version: str) -> None:
    """Let it be searched from now on. Atomic."""
    new = folder / f"alias.{os.getpid()}"
    new.write_text(version, encoding="utf-8")
    new.replace(folder / "alias")


def unreadable(folder: Path) -> list[int]:
    """The items whose text cannot be read now."""
    try:
        found: list[int] = json.loads((folder / _FILE).read_bytes())
    except FileNotFoundError:  # somebody has mended it
        return []
    return found


def make_unreadable(folder: Path, items: list[int]) -> None:
    """Some from all over these, none the first of its chunk: that one names the chunk."""
    step = max(1, len(items) // UNREADABLE)
    places = [place + 1 if place % CHUNK == 0 else place for place in range(step // 2, len(items), step)]
    found = [items[min(place, len(items) - 1)] for place in places[:UNREADABLE]]
    (folder / _FILE).write_text(json.dumps(found), encoding="utf-8")


def mend(folder: Path) -> None:
    """All can be read from now on."""
    (folder / _FILE).unlink(missing_ok=True)


class TantivyIndex:
    """An index in a folder of files.

    tantivy allows one writer for an index in all processes; whoever comes second gets LockBusy, and a program that
    swallows it has lost documents in silence. Here a writer is opened for one subtask, under a lock of the operating
    system that the others wait for, and every error of tantivy fails the attempt, so that the queue tries it again.

    A process that is killed while it writes leaves the last commit in force, and the kernel takes both locks back.
    """

    engine = "tantivy"

    def __init__(self, folder: Path) -> None:
        self._tantivy = _tantivy()
        self._lock = folder / "index.lock"
        self._index = self._tantivy.Index.open(str(_tantivy_folder(folder)))

    @staticmethod
    def create(folder: Path) -> None:
        """Make the empty index.

        Raises:
            MissingExtra: tantivy is not installed.
        """
        library = _tantivy()
        schema = library.SchemaBuilder()
        schema.add_integer_field("number", stored=False, indexed=False, fast=True)
        schema.add_integer_field("part", stored=False, indexed=True)
        schema.add_text_field("title", stored=True)
        schema.add_text_field("text", stored=True)
        _tantivy_folder(folder).mkdir()
        library.Index(schema.build(), str(_tantivy_folder(folder)))

    def replace(self, part: int, documents: Sequence[Document]) -> None:
        """See `Index.replace`. One commit: what an earlier attempt wrote goes when the new documents come."""
        with self._alone():
            writer = self._index.writer(heap_size=_HEAP_BYTES, num_threads=1)
            try:
                writer.delete_documents_by_term("part", part)
                for one in documents:
                    writer.add_document(
                        self._tantivy.Document(number=one.number, part=part, title=one.title, text=one.text)
                    )
                writer.commit()
            finally:
                writer.wait_merging_threads()  # ends the writer: its lock is free when ours is

    def numbers(self) -> Iterator[int]:
        """See `Index.numbers`."""
        self._index.reload()
        searcher = self._index.searcher()
        if not searcher.num_docs:
            return iter(())
        found = searcher.search(self._tantivy.Query.all_query(), limit=searcher.num_docs, count=False)
        return iter(searcher.fast_field_values("number", [address for _, address in found.hits]))

    def search(self, words: str, *, limit: int) -> list[Hit]:
        """See `Index.search`. Ranked by bm25."""
        self._index.reload()
        searcher = self._index.searcher()
        terms = " ".join('"' + word + '"' for word in words.replace('"', " ").replace("\\", " ").split())
        if not terms:
            return []
        query = self._index.parse_query(terms, ["title", "text"], conjunction_by_default=True)
        hits = []
        for score, address in searcher.search(query, limit=limit).hits:
            document = searcher.doc(address)
            hits.append(Hit(str(document.get_first("title")), str(document.get_first("text")), float(score)))
        return hits

    def close(self) -> None:
        """Nothing stays open. Repeatable."""

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, and with the process
            yield


def _tantivy_folder(folder: Path) -> Path:
    return folder / "index"


def _tantivy() -> Any:
    try:
        import tantivy
    except ImportError as error:
        raise MissingExtra("engine tantivy is not installed; install workq with its extra: tantivy") from error
    return tantivy
