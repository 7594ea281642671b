"""The jobs that `benchmarks.jobs` measures, as `workq worker --app benchmarks.indexing:wq` serves them.

`index` is a reindex as users write it: ids in, rows read from a catalogue, written into a full-text index, committed.
`plain` is the same work in a loop, without a queue. The environment names the folder of both files.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from itertools import islice
from pathlib import Path

from workq import Keyset, Range, WorkQueue
from workq.demo.corpus import package_stanzas, packages
from workq.jobs.define import Job

FOLDER = "WORKQ_BENCH_FOLDER"
QUEUE = "bench"
CHUNK = 500
KILLS_MAX = 100
"""What is killed on purpose, as often as a slow machine makes it, is not to be given up."""


def opened(folder: Path, name: str) -> sqlite3.Connection:
    """One of the files: the catalogue of rows that are to be indexed, or an index."""
    connection = sqlite3.connect(folder / f"{name}.db", timeout=60)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def fill(folder: Path, *, most: int) -> int:
    """Write the descriptions of the packages that this machine knows; answers how many they are."""
    connection = opened(folder, "catalogue")
    connection.execute("PRAGMA journal_mode = WAL")
    with connection:
        connection.execute("CREATE TABLE package (id INTEGER PRIMARY KEY, name TEXT NOT NULL, text TEXT NOT NULL)")
        connection.executemany(
            "INSERT INTO package (name, text) VALUES (?, ?)", islice(packages(package_stanzas()), most)
        )
    [count] = connection.execute("SELECT count(*) FROM package").fetchone()
    connection.close()
    return int(count)


def new_index(folder: Path, name: str) -> None:
    """An empty index of that name, in place of the one before."""
    connection = opened(folder, name)
    connection.execute("PRAGMA journal_mode = WAL")
    with connection:
        connection.execute("DROP TABLE IF EXISTS package")
        connection.execute("CREATE VIRTUAL TABLE package USING fts5 (name, text)")
    connection.close()


def indexed(folder: Path, name: str) -> int:
    """How many rows an index has."""
    connection = opened(folder, name)
    [count] = connection.execute("SELECT count(*) FROM package").fetchone()
    connection.close()
    return int(count)


def index(ids: list[int], *, folder: str, name: str) -> None:
    """One chunk: read, write, commit."""
    source, target = opened(Path(folder), "catalogue"), opened(Path(folder), name)
    try:
        wanted = "SELECT id, name, text FROM package WHERE id IN (SELECT value FROM json_each(?))"
        rows = source.execute(wanted, (json.dumps(ids),)).fetchall()
        with target:
            target.executemany("INSERT OR REPLACE INTO package (rowid, name, text) VALUES (?, ?, ?)", rows)
    finally:
        source.close()
        target.close()


def ids(folder: str) -> Keyset:
    """Where they come from, page by page."""
    return Keyset(
        f"sqlite:///{folder}/catalogue.db",
        "SELECT id FROM package WHERE id > :cursor ORDER BY id LIMIT :limit",
        total="SELECT count(*) FROM package",
    )


def plain(folder: Path, name: str) -> float:
    """The same work without a queue; answers its seconds."""
    began = time.perf_counter()
    for page in ids(str(folder)).pages(None, CHUNK):
        index(page.items, folder=str(folder), name=name)
    return time.perf_counter() - began


def wait(numbers: list[int], *, to: int, seconds: float) -> None:  # noqa: ARG001 - as every handler
    """A chunk that takes so long."""
    time.sleep(seconds)


def count(numbers: list[int], *, to: int) -> None:
    """A chunk that takes no time."""


def up_to(to: int) -> Range:
    """So many numbers."""
    return Range(to)


def jobs(app: WorkQueue) -> dict[str, Job]:
    """Register the three; answers them by name."""
    register = [
        app.job(name="bench.index", chunk=CHUNK, queue=QUEUE, source=ids)(index),
        app.job(name="bench.wait", chunk=10, queue=QUEUE, source=up_to, crashes_max=KILLS_MAX)(wait),
        app.job(name="bench.count", chunk=CHUNK, queue=QUEUE, source=up_to)(count),
    ]
    return {job.name.removeprefix("bench."): job for job in register}


if FOLDER in os.environ:
    wq = WorkQueue()
    jobs(wq)
