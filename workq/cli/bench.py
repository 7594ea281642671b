"""`workq bench`: how fast this is, on the servers of this application."""

from __future__ import annotations

from typing import Final

import click

from workq.cli import exits
from workq.cli.group import Command
from workq.cli.inputs import Decimal, WholeNumber
from workq.cli.private import private_files
from workq.cli.session import Session
from workq.cli.show import answer, clean, write
from workq.cli.stopping import ended_by_signals
from workq.config.sqlite import check_folder

_EXAMPLES: Final = """
workq bench
workq bench --tasks 2000 --runs 1
workq bench --processes 4 --threads 4 -o json
workq bench --remove bench_0a1b2c3d
"""


@click.command(cls=Command, examples=_EXAMPLES)
@click.option(
    "--tasks", type=WholeNumber(100, 10_000_000), default=20_000, show_default=True, help="how many to enqueue in bulk"
)
@click.option("--runs", type=WholeNumber(1, 100), default=3, show_default=True, help="how often each is measured")
@click.option("--processes", type=WholeNumber(1, 64), default=2, show_default=True, help="of the worker")
@click.option("--threads", type=WholeNumber(1, 1000), default=1, show_default=True, help="of each process")
@click.option(
    "--seconds", type=Decimal(1, 3600), default=10.0, show_default=True, help="how long latency is measured, each time"
)
@click.option("--keep", is_flag=True, help="leave namespace, logs and records")
@click.option("--remove", metavar="NAMESPACE", help="remove what a killed or kept run left, and do nothing else")
@click.pass_context
def bench(
    ctx: click.Context,
    tasks: int,
    runs: int,
    processes: int,
    threads: int,
    seconds: float,
    keep: bool,
    remove: str | None,
) -> int:
    """Measure enqueueing, running, latency and a killed worker on your own servers.

    Works in a namespace of its own (tables, queues and keys that begin with bench_), beside yours and removed
    afterwards; nothing else is touched. The servers are loaded as much as this machine can: not for the busiest hour.
    Exit 3 when a task was missing.
    """
    from workq.cli.scratch import remove_namespace
    from workq.lab.bench import report as told
    from workq.lab.bench import trial

    session = ctx.ensure_object(Session)
    settings = session.settings()
    session.say_default(settings)
    check_folder(settings.ledger)
    if remove is not None:
        return remove_namespace(session, remove)
    wishes = trial.BenchWishes(
        tasks=tasks, runs=runs, processes=processes, threads=threads, latency_s=seconds, keep=keep
    )
    with private_files(), ended_by_signals():
        report = trial.run(settings, wishes, tell=session.note)
    answer(session, told.document(report), lambda: write("\n".join(map(clean, told.page(report).split("\n")))))
    if report.kept is not None:
        session.note(f"kept: {report.kept}, and the namespace {report.namespace}")
    for one in report.not_removed:
        session.warn(f"not removed: {one}")
    return exits.FINDINGS if report.missing or report.not_removed else exits.DONE
