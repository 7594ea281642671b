"""The demo's application, as `workq worker --app workq.demo.reindex:wq` serves it: one handler that indexes one slice.

Where the stores are comes from the settings, as for every application; what to index and where comes from three more
variables of the environment, all set by `workq demo reindex`.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Final

from workq import WorkQueue
from workq.demo.corpus import open_corpus
from workq.demo.index import open_index

FOLDER: Final = "WORKQ_DEMO_FOLDER"
ENGINE: Final = "WORKQ_DEMO_ENGINE"
CORPUS: Final = "WORKQ_DEMO_CORPUS"
QUEUE: Final = "demo"

wq = WorkQueue()


@wq.task(name="demo.reindex", queue=QUEUE)
def reindex(part: int, start: int, end: int) -> int:
    """Index one slice of the corpus; answers how many documents it has.

    Repeatable: an attempt that was killed, before or after its commit, is simply done again.
    """
    folder = Path(os.environ.get(FOLDER, ""))
    corpus = open_corpus(os.environ.get(CORPUS, "unicode"), folder)
    documents = corpus.read(start, end)
    with closing(open_index(os.environ.get(ENGINE, "fts5"), folder)) as index:
        index.replace(part, documents)
    return len(documents)
