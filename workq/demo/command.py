"""`workq demo`: its commands, their options and exit statuses.

What happens is in `play.py`, how it is told in `tell.py`; of webhooks and of messages, in those below `webhooks/` and
`messages/`. A demo ends with its proof on standard output. Exit 0 when every document is in the index once, or every
event or message has arrived, and nothing else; 1 when anything is missing, there twice without a reason, early, or not
finished; 2 when what was asked for is not there (an engine, a corpus, the extra, a server). Ctrl-C and SIGTERM end the
run in order: nothing is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from workq.cli.exits import DONE, FAILED, ended_by_signals
from workq.cli.group import CommandGroup
from workq.cli.inputs import WholeNumber, stacked
from workq.cli.lab import private_files
from workq.cli.session import Session, pass_session
from workq.demo.corpus import CORPORA
from workq.demo.index import ENGINES
from workq.demo.messages.plan import COUNT, COUNT_MIN, KINDS, WITHIN_MIN_S, WITHIN_S
from workq.demo.voice import Voice, speaking, write_page
from workq.demo.webhooks.roles import EVENTS, EVENTS_MIN

if TYPE_CHECKING:
    from workq.demo.messages.play import MessageReport
    from workq.demo.play import Report
    from workq.demo.webhooks.play import WebhookReport

PROCESSES_MAX: Final = 64
THREADS_MAX: Final = 64
EVENTS_MAX: Final = 100_000
MESSAGES_MAX: Final = 1_000_000
WITHIN_MAX_S: Final = 600.0
F = TypeVar("F", bound=Callable[..., Any])


def _worker_options(*, threads: int, kept: str) -> Callable[[F], F]:
    """What every demo may be told of its worker, and of what it leaves."""
    return stacked(
        click.option(
            "--servers", is_flag=True, help="on private RabbitMQ, Redis and PostgreSQL instead of one SQLite file"
        ),
        click.option(
            "--processes", type=WholeNumber(1, PROCESSES_MAX), default=2, show_default=True, help="of the worker"
        ),
        click.option(
            "--threads", type=WholeNumber(1, THREADS_MAX), default=threads, show_default=True, help="of each process"
        ),
        click.option(
            "--keep",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help=f"leave {kept} in a new folder",
        ),
        click.option("--no-kill", is_flag=True, help="kill nobody"),
    )


@contextmanager
def _voice(session: Session, what: str, styles: Mapping[str, str]) -> Iterator[Voice]:
    """Who tells it, in a run that a signal ends in order, and whose files are the user's alone."""
    with (
        private_files(),
        ended_by_signals(),
        speaking(is_quiet=session.is_quiet, is_colored=session.is_colored, what=what, styles=styles) as voice,
    ):
        yield voice


def _keeps(session: Session, keep: Path | None, folder: Path, what: str) -> None:
    """Say what stays, if anything does."""
    if keep is not None:
        session.note(f"kept in {folder}: {what}")


@click.group(
    cls=CommandGroup,
    examples="workq demo reindex\nworkq demo webhooks\nworkq demo messages\nworkq demo reindex --servers",
)
def demo() -> None:
    """See it work: real data, real processes, one of them killed."""


@demo.command(
    examples="workq demo reindex\nworkq demo reindex --engine tantivy --corpus debian\nworkq demo reindex --servers\n"
    "workq demo reindex --kafka"
)
@click.option(
    "--engine", type=click.Choice(ENGINES), default="fts5", show_default=True, help="what the index is made with"
)
@click.option("--corpus", type=click.Choice(CORPORA), default="unicode", show_default=True, help="what is indexed")
@click.option("--kafka", is_flag=True, help="on private Kafka, Redis and PostgreSQL")
@_worker_options(threads=2, kept="index, ledger and log")
@pass_session
def reindex(
    session: Session,
    engine: str,
    corpus: str,
    kafka: bool,
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

    wishes = ReindexWishes(
        engine=engine,
        corpus=corpus,
        servers=servers,
        kafka=kafka,
        processes=processes,
        threads=threads,
        keep=keep,
        kill=not no_kill,
    )
    with _voice(session, tell.WHAT, tell.STYLES) as voice:
        report = play(wishes, tell.Story(voice))
    status = ended(session, report)
    _keeps(session, keep, report.scene.folder, "index, worker.log, and the ledger unless it was on a server")
    return status


@demo.command(
    short_help="Send events to five receivers, four of them difficult, and ask them what has arrived.",
    examples="workq demo webhooks\nworkq demo webhooks --events 500\nworkq demo webhooks --servers",
)
@click.option(
    "--events", type=WholeNumber(EVENTS_MIN, EVENTS_MAX), default=EVENTS, show_default=True, help="so many are sent"
)
@_worker_options(threads=32, kept="ledger and log")
@pass_session
def webhooks(
    session: Session, events: int, servers: bool, processes: int, threads: int, keep: Path | None, no_kill: bool
) -> int:
    """Send events to receivers that are flaky, slow, rate limiting and once gone, and ask them what has arrived.

    The events are sent in transactions of an application's own rows, one of which is rolled back, and delivered by
    `workq worker`, a real process with real children. When 30 % have arrived, one of them is killed with SIGKILL. One
    receiver leaves: what waits for it is held, released when it is back, and what it had refused is sent again. At the
    end every event is counted at its receiver, by signature and id, with its retries and its waits. Everything happens
    in a temporary folder. It needs the extra [webhooks].
    """
    from workq.demo.webhooks import tell
    from workq.demo.webhooks.play import WebhookWishes, play

    wishes = WebhookWishes(
        events=events, servers=servers, processes=processes, threads=threads, keep=keep, kill=not no_kill
    )
    with _voice(session, tell.WHAT, tell.STYLES) as voice:
        report = play(wishes, tell.WebhookStory(voice))
    status = webhooks_ended(session, report)
    _keeps(session, keep, report.scene.folder, "worker.log, and the ledger unless it was on a server")
    return status


@demo.command(
    short_help="Send messages at their time to RabbitMQ, Kafka, HTTP and a function, and ask those what has arrived.",
    examples="workq demo messages\nworkq demo messages --count 1000 --within 5 --kind http --kind call\n"
    "workq demo messages --servers",
)
@click.option(
    "--count", type=WholeNumber(COUNT_MIN, MESSAGES_MAX), default=COUNT, show_default=True, help="so many are sent"
)
@click.option(
    "--within",
    type=click.FloatRange(WITHIN_MIN_S, WITHIN_MAX_S),
    default=WITHIN_S,
    show_default=True,
    metavar="SECONDS",
    help="they are due one after the other, in this time",
)
@click.option(
    "--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="only to these, which then have to be there"
)
@_worker_options(threads=8, kept="ledger and log")
@pass_session
def messages(
    session: Session,
    count: int,
    within: float,
    kinds: tuple[str, ...],
    servers: bool,
    processes: int,
    threads: int,
    keep: Path | None,
    no_kill: bool,
) -> int:
    """Send messages that are due within seconds, and ask the destinations what has arrived, and when.

    They go to a queue of a private RabbitMQ, a topic of a private Kafka, a receiver of HTTP and a Python function: what
    the machine lacks is left out. They are sent by `workq worker`, a real process with real children. Some are
    cancelled and some moved just before their time. One process is killed with SIGKILL, with messages in its hands that
    may have arrived, and the receiver of HTTP is away for a while. At the end every message is counted at its
    destination: what is missing, early, or there with another id; copies, and how late they were. Everything happens in
    a temporary folder.
    """
    from workq.demo.messages import tell
    from workq.demo.messages.play import MessageWishes, play

    wishes = MessageWishes(
        count=count,
        within_s=within,
        kinds=kinds,
        servers=servers,
        processes=processes,
        threads=threads,
        keep=keep,
        kill=not no_kill,
    )
    with _voice(session, tell.WHAT, tell.STYLES) as voice:
        report = play(wishes, tell.MessageStory(voice))
    status = messages_ended(session, report)
    _keeps(session, keep, report.scene.folder, "worker.log, and the ledger unless it was on a server")
    return status


def ended(session: Session, report: Report) -> int:
    """Print the proof of `workq demo reindex`; answers the exit status that it deserves."""
    from workq.demo import tell

    return _proof(report.is_proved, tell.document(report) if session.output == "json" else tell.page(report))


def webhooks_ended(session: Session, report: WebhookReport) -> int:
    """Print the proof of `workq demo webhooks`; answers the exit status that it deserves."""
    from workq.demo.webhooks import tell

    return _proof(report.is_proved, tell.document(report) if session.output == "json" else tell.page(report))


def messages_ended(session: Session, report: MessageReport) -> int:
    """Print the proof of `workq demo messages`; answers the exit status that it deserves."""
    from workq.demo.messages import tell

    return _proof(report.is_proved, tell.document(report) if session.output == "json" else tell.page(report))


def _proof(is_proved: bool, told: str | dict[str, Any]) -> int:
    write_page(told if isinstance(told, str) else json.dumps(told))
    return DONE if is_proved else FAILED
