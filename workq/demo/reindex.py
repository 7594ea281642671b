"""The demo's application, as `workq worker --app workq.demo.reindex:wq` serves it: a job that builds an index anew.

As one does it with a search engine: a new version beside the one that is searched, filled chunk by chunk; when every
document is in there, the alias that searches go through is moved. The old version stays, for the way back.

Where the stores are comes from the settings, as for every application; what to index and where comes from three more
variables of the environment, all set by `workq demo reindex`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from workq import WorkQueue
from workq.demo.corpus import Corpus, open_corpus
from workq.demo.index import CHUNK, Index, count, open_index, point, unreadable

FOLDER: Final = "WORKQ_DEMO_FOLDER"
ENGINE: Final = "WORKQ_DEMO_ENGINE"
CORPUS: Final = "WORKQ_DEMO_CORPUS"
QUEUE: Final = "demo"
WHY: Final = "its text cannot be read"

wq = WorkQueue()


@wq.task(name="demo.swap", queue=QUEUE)
def swap(ended: dict[str, Any]) -> None:
    """Let searches go to the new version, if it has every document once."""
    version = ended["params"]["version"]
    with closing(_index(version)) as index:
        counted = count(index, _corpus().numbers())
    if not counted.is_complete:
        raise RuntimeError(f"{version} has {counted.found} of {counted.expected} documents: it is not searched")
    point(_folder(), version)


@wq.job(name="demo.reindex", queue=QUEUE, chunk=CHUNK, failures_max=1, on_success=swap)
def reindex(items: list[int], *, version: str) -> dict[int, str]:
    """Index one chunk; answers what cannot be.

    Repeatable: an attempt that was killed, before or after its commit, is done again, in place of the one before. A
    chunk is known by its first item.
    """
    bad = set(unreadable(_folder()))
    good = [item for item in items if item not in bad]
    with closing(_index(version)) as index:
        index.replace(items[0], _corpus().read(good))
    return {item: WHY for item in items if item in bad}


@reindex.source
def items(cursor: int | None) -> Iterator[tuple[int, int]]:
    """All that is to be indexed, behind a cursor."""
    return _corpus().items(cursor)


def _folder() -> Path:
    return Path(os.environ.get(FOLDER, ""))


def _corpus() -> Corpus:
    return open_corpus(os.environ.get(CORPUS, "unicode"), _folder())


def _index(version: str) -> Index:
    return open_index(os.environ.get(ENGINE, "fts5"), _folder() / version)
