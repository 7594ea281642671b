"""`workq certify`: the fault suite, against the servers of this application."""

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

_MINUTES_MAX: Final = 1440.0
_EXAMPLES = """
workq certify
workq certify --minutes 10 --processes 2 -o json
workq certify --seed 7 --only kill-everything,wipe-inflight
workq certify --remove certify_0a1b2c3d
"""


@click.command(cls=Command, examples=_EXAMPLES)
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
@click.option("--remove", metavar="NAMESPACE", help="remove what a killed or kept run left, and do nothing else")
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
    from workq.cli.scratch import remove_namespace
    from workq.lab.certify import report as told
    from workq.lab.certify import trial
    from workq.lab.certify.values import CertifyWishes, new_seed

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
    with private_files(), ended_by_signals():
        report = trial.run(settings, wishes, tell=session.note)
    answer(session, told.document(report), lambda: write("\n".join(map(clean, told.page(report).split("\n")))))
    if report.kept is not None:
        session.note(f"kept: {report.kept}, and the namespace {report.namespace}")
    for one in report.not_removed:
        session.warn(f"not removed: {one}")
    return exits.DONE if report.verdict.is_clean and not report.not_removed else exits.FINDINGS
