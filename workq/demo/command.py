"""`workq demo`: options, signals and the exit status. What happens is in `play.py`, how it is told in `tell.py`.

Exit 0 when every document is in the index once; 1 when anything is missing, there twice, or not finished; 2 when what
was asked for is not there (an engine, a corpus, a server). Ctrl-C and SIGTERM end the run in order: nothing is left.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from workq.cli.exits import DONE, FAILED
from workq.cli.group import Group
from workq.cli.inputs import WholeNumber
from workq.cli.session import Session, pass_session
from workq.demo.corpus import CORPORA
from workq.demo.index import ENGINES

if TYPE_CHECKING:
    from workq.demo.play import Report

PROCESSES_MAX: Final = 64
THREADS_MAX: Final = 64


@click.group(cls=Group, examples="workq demo reindex\nworkq demo reindex --servers")
def demo() -> None:
    """See it work: real data, real processes, one of them killed."""


@demo.command(
    examples="workq demo reindex\nworkq demo reindex --engine tantivy --corpus debian\nworkq demo reindex --servers"
)
@click.option(
    "--engine", type=click.Choice(ENGINES), default="fts5", show_default=True, help="what the index is made with"
)
@click.option("--corpus", type=click.Choice(CORPORA), default="unicode", show_default=True, help="what is indexed")
@click.option("--servers", is_flag=True, help="on private RabbitMQ, Redis and PostgreSQL instead of one SQLite file")
@click.option("--processes", type=WholeNumber(1, PROCESSES_MAX), default=2, show_default=True, help="of the worker")
@click.option("--threads", type=WholeNumber(1, THREADS_MAX), default=2, show_default=True, help="of each process")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="leave index, ledger and log in a new folder",
)
@click.option("--no-kill", is_flag=True, help="kill nobody")
@pass_session
def reindex(
    session: Session,
    engine: str,
    corpus: str,
    servers: bool,
    processes: int,
    threads: int,
    keep: Path | None,
    no_kill: bool,
) -> int:
    """Build a new version of a full-text index as a job, kill a worker process on the way, and count what is missing.

    The names of the characters that Python carries are indexed by `workq worker`, a real process with real children.
    At 30 % one of them is killed with SIGKILL, and at 60 % the job is paused. Some documents cannot be read, so that it
    ends with failures; mended, they alone are run again, and searches go to the new version. At the end the documents
    are counted in the index, not in the queue. Everything happens in a temporary folder.
    """
    from workq.demo import tell
    from workq.demo.play import Wishes, play

    wishes = Wishes(
        engine=engine,
        corpus=corpus,
        servers=servers,
        processes=processes,
        threads=threads,
        keep=keep,
        kill=not no_kill,
    )
    with _signals(), tell.narrator(is_quiet=session.is_quiet, is_colored=session.is_colored) as narrator:
        report = play(wishes, narrator)
    status = ended(session, report)
    if keep is not None:
        session.note(f"kept in {report.scene.folder}: index, worker.log, and the ledger unless it was on a server")
    return status


def ended(session: Session, report: Report) -> int:
    """Print the proof, and answer the exit status that it deserves."""
    from workq.demo import tell

    tell.write_page(json.dumps(tell.document(report)) if session.output == "json" else tell.page(report))
    return DONE if report.is_proved else FAILED


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run in order, like Ctrl-C."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
