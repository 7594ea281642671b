"""`workq worker`: run tasks; `workq worker ls`: who does."""

from __future__ import annotations

import logging
import os

import click

from workq.cli.documents import worker as document
from workq.cli.group import Group, nearest
from workq.cli.inputs import QueueNames, WholeNumber
from workq.cli.session import Session, check_folder, pass_session
from workq.cli.show import Column, answer, table
from workq.errors import ConfigError

_EXAMPLES = """
workq worker --app shop.tasks:wq
workq worker --app shop.tasks:wq --queues mail,reports --processes 4 --threads 8
workq worker --app shop.tasks:wq --drain
workq worker ls
"""


@click.group(cls=Group, invoke_without_command=True, examples=_EXAMPLES, subcommand_metavar="[ls]")
@click.option("--queues", type=QueueNames(), metavar="A,B", help="which queues  [default: those of the app's tasks]")
@click.option("--processes", type=WholeNumber(1, 64), default=1, show_default=True, help="consumer processes, 1 to 64")
@click.option("--threads", type=WholeNumber(1, 1000), default=4, show_default=True, help="threads of each, 1 to 1000")
@click.option("--drain", is_flag=True, help="leave when nothing is due")
@click.pass_context
def worker(ctx: click.Context, queues: list[str] | None, processes: int, threads: int, drain: bool) -> int | None:
    """Run the tasks of your application, until SIGTERM or Ctrl-C.

    The first signal lets running tasks finish within the grace; the second one ends at once, and others take over.
    """
    if ctx.invoked_subcommand is not None:
        return None
    session = ctx.ensure_object(Session)
    app, path = session.application()
    own = app.registry.queues()
    if not own:
        raise ConfigError(f"{path} has no tasks; register them with @wq.task in its module, or in one that it imports")
    for name in queues or []:
        if name not in own:
            session.warn(f"no task of {path} uses the queue {name!r} by default{nearest(name, own)}")
    if session.is_verbose and hasattr(os, "geteuid") and os.geteuid() == 0:
        session.warn("running as root: handlers may do whatever root may")
    session.say_default(app.settings)
    check_folder(app.settings.ledger)
    app.stores.ledger.clock()
    for check in (app.stores.broker.check, app.stores.inflight.check):
        check()

    from workq.logs import configure
    from workq.supervisor import Supervisor

    level = logging.DEBUG if session.is_verbose else logging.WARNING if session.is_quiet else logging.INFO
    configure(level)
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
    found = session.stores().ledger.workers(live_only=not is_all)
    columns = [
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
        (one.host, one.pid, one.state, ",".join(one.queues), one.threads, one.beat_age_s, one.started_at, one.evidence)
        for one in found
    ]
    if not is_all:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    answer(
        session,
        {"workers": [document(one) for one in found]},
        lambda: table(session, columns, rows, empty="no workers"),
    )
