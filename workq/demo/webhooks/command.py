"""`workq demo webhooks`: options and the exit status. What happens is in `play.py`, how it is told in `tell.py`.

Exit 0 when every event has arrived, and nothing else; 1 when anything is missing, came twice without a reason, or has
not ended; 2 when what was asked for is not there (the extra, a server). Ctrl-C and SIGTERM end the run in order:
nothing is left.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from workq.cli.group import Command
from workq.cli.inputs import WholeNumber
from workq.cli.private import private_files
from workq.cli.session import Session, pass_session
from workq.cli.stopping import ended_by_signals
from workq.demo import ending
from workq.demo.ending import PROCESSES_MAX, THREADS_MAX
from workq.demo.webhooks.roles import EVENTS, EVENTS_MIN

if TYPE_CHECKING:
    from workq.demo.webhooks.play import WebhookReport

EVENTS_MAX: Final = 100_000


@click.command(
    cls=Command, examples="workq demo webhooks\nworkq demo webhooks --events 500\nworkq demo webhooks --servers"
)
@click.option(
    "--events", type=WholeNumber(EVENTS_MIN, EVENTS_MAX), default=EVENTS, show_default=True, help="so many are sent"
)
@click.option("--servers", is_flag=True, help="on private RabbitMQ, Redis and PostgreSQL instead of one SQLite file")
@click.option("--processes", type=WholeNumber(1, PROCESSES_MAX), default=2, show_default=True, help="of the worker")
@click.option("--threads", type=WholeNumber(1, THREADS_MAX), default=32, show_default=True, help="of each process")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="leave ledger and log in a new folder",
)
@click.option("--no-kill", is_flag=True, help="kill nobody")
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
    from workq.demo.voice import speaking
    from workq.demo.webhooks import tell
    from workq.demo.webhooks.play import WebhookWishes, play

    wishes = WebhookWishes(
        events=events, servers=servers, processes=processes, threads=threads, keep=keep, kill=not no_kill
    )
    with (
        private_files(),
        ended_by_signals(),
        speaking(is_quiet=session.is_quiet, is_colored=session.is_colored, what=tell.WHAT, styles=tell.STYLES) as voice,
    ):
        report = play(wishes, tell.WebhookStory(voice))
    status = ended(session, report)
    if keep is not None:
        session.note(f"kept in {report.scene.folder}: worker.log, and the ledger unless it was on a server")
    return status


def ended(session: Session, report: WebhookReport) -> int:
    """Print the proof, and answer the exit status that it deserves."""
    from workq.demo.webhooks import tell

    return ending.ended(
        session,
        is_proved=report.is_proved,
        page=lambda: tell.page(report),
        document=lambda: tell.document(report),
    )
