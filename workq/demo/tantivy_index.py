"""The demo's index in tantivy: the optional engine, a Rust library with a file format of its own.

tantivy allows one writer for an index in all processes; whoever comes second gets LockBusy, and a program that swallows
it has lost documents in silence. Here a writer is opened for one subtask, under a lock of the operating system that the
others wait for, and every error of tantivy fails the attempt, so that the queue tries it again.

A process that is killed while it writes leaves the last commit in force, and the kernel takes both locks back.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workq.demo.corpus import Document
from workq.demo.engine import Hit
from workq.errors import MissingExtra

_HEAP_BYTES = 15_000_000
"""The least that tantivy takes for one writing thread; a subtask needs far less."""


class TantivyIndex:
    """An index in a folder of files."""

    engine = "tantivy"

    def __init__(self, folder: Path) -> None:
        self._tantivy = _library()
        self._lock = folder / "index.lock"
        self._index = self._tantivy.Index.open(str(_place(folder)))

    @staticmethod
    def create(folder: Path) -> None:
        """Make the empty index.

        Raises:
            MissingExtra: tantivy is not installed.
        """
        library = _library()
        schema = library.SchemaBuilder()
        schema.add_integer_field("number", stored=False, indexed=False, fast=True)
        schema.add_integer_field("part", stored=False, indexed=True)
        schema.add_text_field("title", stored=True)
        schema.add_text_field("text", stored=True)
        _place(folder).mkdir()
        library.Index(schema.build(), str(_place(folder)))

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


def _place(folder: Path) -> Path:
    return folder / "index"


def _library() -> Any:
    try:
        import tantivy
    except ImportError as error:
        raise MissingExtra("engine tantivy is not installed; install workq with its extra: tantivy") from error
    return tantivy
