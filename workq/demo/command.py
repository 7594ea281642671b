"""`workq demo`: its commands, and the options of `workq demo reindex`.

What happens is in `play.py`, how it is told in `tell.py`. Exit 0 when every document is in the index once; 1 when
anything is missing, there twice, or not finished; 2 when what was asked for is not there (an engine, a corpus, a
server). Ctrl-C and SIGTERM end the run in order: nothing is left.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from workq.cli.group import CommandGroup, Lazy
from workq.cli.inputs import WholeNumber
from workq.cli.private import private_files
from workq.cli.session import Session, pass_session
from workq.cli.stopping import ended_by_signals
from workq.demo import ending
from workq.demo.corpus import CORPORA
from workq.demo.ending import PROCESSES_MAX, THREADS_MAX
from workq.demo.index import ENGINES

if TYPE_CHECKING:
    from workq.demo.play import Report


@click.group(
    cls=CommandGroup,
    examples="workq demo reindex\nworkq demo webhooks\nworkq demo reindex --servers",
    lazy={
        "webhooks": Lazy(
            "workq.demo.webhooks.command:webhooks",
            "Send events to five receivers, four of them difficult, and ask them what has arrived.",
        )
    },
)
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
    from workq.demo.play import ReindexWishes, play
    from workq.demo.voice import speaking

    wishes = ReindexWishes(
        engine=engine,
        corpus=corpus,
        servers=servers,
        processes=processes,
        threads=threads,
        keep=keep,
        kill=not no_kill,
    )
    with (
        private_files(),
        ended_by_signals(),
        speaking(is_quiet=session.is_quiet, is_colored=session.is_colored, what=tell.WHAT, styles=tell.STYLES) as voice,
    ):
        report = play(wishes, tell.Story(voice))
    status = ended(session, report)
    if keep is not None:
        session.note(f"kept in {report.scene.folder}: index, worker.log, and the ledger unless it was on a server")
    return status


def ended(session: Session, report: Report) -> int:
    """Print the proof, and answer the exit status that it deserves."""
    from workq.demo import tell

    return ending.ended(
        session,
        is_proved=report.is_proved,
        page=lambda: tell.page(report),
        document=lambda: tell.document(report),
    )
