"""`workq worker`: run tasks; `workq worker ls`: who does; `workq worker show`: one of them, and how it ended."""

from __future__ import annotations

import logging
import os

import click

from workq.cli.documents import certificate, worker_in_full, write_certificate
from workq.cli.documents import worker as document
from workq.cli.exits import leave_when_told
from workq.cli.group import CommandGroup, nearest
from workq.cli.inputs import QueueNames, WholeNumber
from workq.cli.session import Session, log_format_option, pass_session
from workq.cli.show import Column, answer, clean, record, table, text_of, write
from workq.config.sqlite import is_there, sqlite_file
from workq.errors import ConfigError, NotFound
from workq.ledger import WorkerRow
from workq.supervisor.first_process import check_unpatched, leave_first_process
from workq.values.task import Task

_EXAMPLES = """
workq worker --app shop.tasks:wq
workq worker --app shop.tasks:wq --queues mail,reports --processes 4 --threads 8
workq worker --app shop.tasks:wq --drain
workq worker ls
workq worker show web-7.d93f29b9.29304
"""


@click.group(cls=CommandGroup, invoke_without_command=True, examples=_EXAMPLES, subcommand_metavar="[ls | show]")
@click.option("--queues", type=QueueNames(), metavar="A,B", help="which queues  [default: those of the app's tasks]")
@click.option("--processes", type=WholeNumber(1, 64), default=1, show_default=True, help="consumer processes, 1 to 64")
@click.option(
    "--threads",
    type=WholeNumber(1, 1000),
    default=4,
    show_default=True,
    help="threads of each, and coroutines at once: 1 to 1000",
)
@click.option("--drain", is_flag=True, help="leave when nothing is due")
@log_format_option
@click.pass_context
def worker(ctx: click.Context, queues: list[str] | None, processes: int, threads: int, drain: bool) -> int | None:
    """Run the tasks of your application, until SIGTERM or Ctrl-C.

    The first signal lets running tasks finish within the grace; the second one ends at once, and others take over.
    """
    if ctx.invoked_subcommand is not None:
        return None
    leave_when_told()
    leave_first_process()
    session = ctx.ensure_object(Session)
    app, path = session.application()
    check_unpatched(path)
    own = app.registry.queues()
    if not own:
        raise ConfigError(f"{path} has no tasks; register them with @wq.task in its module, or in one that it imports")
    for name in queues or []:
        if name not in own:
            session.warn(f"no task of {path} uses the queue {name!r} by default{nearest(name, own)}")
    if session.is_verbose and hasattr(os, "geteuid") and os.geteuid() == 0:
        session.warn("running as root: handlers may do whatever root may")
    session.may_make(app.settings)
    file = sqlite_file(app.settings.ledger)
    if file is not None and not is_there(file):  # one that was deleted is not made anew without a word
        session.note(f"making a new ledger: {file.absolute()}")

    from workq.supervisor.supervisor import Supervisor

    level = logging.DEBUG if session.is_verbose else logging.ERROR if session.is_quiet else logging.INFO
    session.configure_log(level)
    return Supervisor(
        app,
        app_path=path,
        queues=queues or own,
        processes=processes,
        threads=threads,
        is_drain=drain,
        log_level=level,
    ).run()


@worker.command("ls", examples="workq worker ls\nworkq worker ls --all -o json")
@click.option("--all", "is_all", is_flag=True, help="also those that left or were reaped within a day")
@pass_session
def ls(session: Session, is_all: bool) -> None:
    """The worker processes that live, newest first."""
    found = session.stores().ledger.questions.workers(live_only=not is_all)
    columns = [
        Column("id", is_whole=True),
        Column("host"),
        Column("pid", is_number=True),
        Column("state"),
        Column("queues"),
        Column("threads", is_number=True),
        Column("beat age s", is_number=True),
        Column("started"),
        Column("evidence"),
    ]
    rows: list[tuple[object, ...]] = [
        (
            one.id,
            one.host,
            one.pid,
            one.state,
            ",".join(one.queues),
            one.threads,
            one.beat_age_s,
            one.started_at,
            one.evidence,
        )
        for one in found
    ]
    if not is_all:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    answer(
        session,
        {"workers": [document(one) for one in found]},
        lambda: table(session, columns, rows, empty="no workers"),
    )


@worker.command(
    "show",
    examples="""workq worker show web-7.d93f29b9.29304.6b011c1e.f45b23c6
    workq worker show web-7.d93f29b9.29304 -o json""",
)
@click.argument("worker_id", metavar="ID")
@pass_session
def show(session: Session, worker_id: str) -> None:
    """One worker process: what it runs, or how it ended. The beginning of its id is enough where it is unique.

    The certificate of a death says what is known of it and what is not, and who was charged with what. It is kept for
    a day; what concerns a task stays in the history of that task.
    """
    ledger = session.stores().ledger
    found = ledger.questions.workers(live_only=False, prefix=worker_id) if worker_id else []
    if not found:
        raise NotFound(f"no worker's id begins with {worker_id[:120]!r}; list them with: workq worker ls --all")
    found = [one for one in found if one.id == worker_id] or found
    if len(found) > 1:
        some = ", ".join(one.id for one in found[:3])
        raise ConfigError(f"{len(found)} workers have ids that begin with {worker_id[:120]!r}: {some}; give more of it")
    one = found[0]
    running = ledger.questions.running(one.id)
    answer(session, worker_in_full(one, running), lambda: _show(one, running))


def _show(one: WorkerRow, running: list[Task]) -> None:
    about = [
        ("id", one.id),
        ("state", one.state),
        ("host", one.host),
        ("pid", one.pid),
        ("supervisor", one.parent),
        ("machine", one.machine),
        ("queues", ",".join(one.queues)),
        ("threads", one.threads),
        ("started", one.started_at),
        ("last beat", one.beat_at),
        ("ended", one.ended_at),
        ("memory", None if one.memory_bytes is None else f"{one.memory_bytes >> 20} MiB at the last beat"),
        ("evidence", one.evidence if one.certificate is None else None),
    ]
    record([(name, value) for name, value in about if value is not None])
    if one.state == "live" or running:
        write("runs:" if running else "runs: nothing")
        for task in running:
            write(clean(f"  {task.id}  {task.name}  attempt {task.attempt}  started {text_of(task.started_at)}"))
    if one.certificate is not None:
        write_certificate(certificate(one.certificate))
