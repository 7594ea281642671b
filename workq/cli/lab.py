"""`workq bench` and `workq certify`: how fast this is, and the fault suite, on the servers of this application."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from workq.cli import exits
from workq.cli.exits import ended_by_signals
from workq.cli.group import Command
from workq.cli.inputs import Decimal, WholeNumber
from workq.cli.session import Session
from workq.cli.show import answer, clean, write
from workq.config.sqlite import check_folder

if TYPE_CHECKING:
    from workq.lab.bench.trial import BenchReport
    from workq.lab.certify.report import CertifyReport

_EXAMPLES: Final = """
workq bench
workq bench --tasks 2000 --runs 1
workq bench --processes 4 --threads 4 -o json
workq bench --remove bench_0a1b2c3d
"""
_MINUTES_MAX: Final = 1440.0
_CERTIFY_EXAMPLES = """
workq certify
workq certify --minutes 10 --processes 2 -o json
workq certify --seed 7 --only kill-everything,wipe-inflight
workq certify --remove certify_0a1b2c3d
"""
_remove_option = click.option(
    "--remove", metavar="NAMESPACE", help="remove what a killed or kept run left, and do nothing else"
)
R = TypeVar("R", "BenchReport", "CertifyReport")


@contextmanager
def private_files() -> Iterator[None]:
    """What this process makes meanwhile, and what it starts makes, this user alone may read.

    Not for what runs an application's own handlers: their files have the modes that the user has chosen.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def remove_namespace(session: Session, name: str) -> int:
    """Remove tables, queues and keys of one run that was killed, or was asked to keep them; answers the exit status."""
    from workq.app import WorkQueue
    from workq.lab.namespace import Namespace, settings_for

    settings = session.settings()
    namespace = Namespace(settings_for(settings, name, settings.times), WorkQueue())
    try:
        left = namespace.remove()
    finally:
        namespace.close()
    for one in left:
        session.warn(f"not removed: {one}")
    return exits.FAILED if left else exits.DONE


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
@_remove_option
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
    report = _run(session, lambda: trial.run(settings, wishes, tell=session.note), told=trial)
    return exits.FINDINGS if report.missing or report.not_removed else exits.DONE


@click.command(cls=Command, examples=_CERTIFY_EXAMPLES)
@click.option(
    "--minutes", type=Decimal(0.1, _MINUTES_MAX), default=3.0, show_default=True, help="how long faults strike"
)
@click.option("--seed", type=WholeNumber(0, 10**9), help="of the faults  [default: a new one]")
@click.option("--processes", type=WholeNumber(1, 16), default=1, show_default=True, help="of each of the two workers")
@click.option("--threads", type=WholeNumber(1, 64), default=4, show_default=True, help="of each process")
@click.option("--rate", type=Decimal(1, 100_000), default=200.0, show_default=True, help="tasks enqueued a second")
@click.option(
    "--divide", type=Decimal(1, 20), metavar="N", help="your times, divided by N  [default: 5; 10 below a minute]"
)
@click.option("--only", metavar="FAULTS", help="some faults, separated by commas; a wrong name lists them all")
@click.option("--keep", is_flag=True, help="leave namespace, logs, journal and testimony")
@_remove_option
@click.pass_context
def certify(
    ctx: click.Context,
    minutes: float,
    seed: int | None,
    processes: int,
    threads: int,
    rate: float,
    divide: float | None,
    only: str | None,
    keep: bool,
    remove: str | None,
) -> int:
    """Kill workers, cut connections, purge and wipe on your own servers, and count what is lost.

    Works in a namespace of its own (tables, queues and keys that begin with certify_), beside yours and removed
    afterwards; nothing else is touched. Two workers are started, real tasks are enqueued, and what their handlers write
    into a file is compared with the ledger. Exit 3 with findings.
    """
    from workq.lab.certify import report as told
    from workq.lab.certify import trial
    from workq.lab.certify.report import CertifyWishes, new_seed

    session = ctx.ensure_object(Session)
    settings = session.settings()
    session.say_default(settings)
    check_folder(settings.ledger)
    if remove is not None:
        return remove_namespace(session, remove)
    wishes = CertifyWishes(
        minutes=minutes,
        seed=new_seed() if seed is None else seed,
        processes=processes,
        threads=threads,
        rate=rate,
        divide=divide,
        only=frozenset(filter(None, (only or "").split(","))),
        keep=keep,
    )
    report = _run(session, lambda: trial.run(settings, wishes, tell=session.note), told=told)
    return exits.DONE if report.verdict.is_clean and not report.not_removed else exits.FINDINGS


def _run(session: Session, run: Callable[[], R], *, told: Any) -> R:
    """Run it in files of its own, and tell what came of it by the module `told`."""
    with private_files(), ended_by_signals():
        report = run()
    answer(session, told.document(report), lambda: write("\n".join(map(clean, told.page(report).split("\n")))))
    if report.kept is not None:
        session.note(f"kept: {report.kept}, and the namespace {report.namespace}")
    for one in report.not_removed:
        session.warn(f"not removed: {one}")
    return report
