"""`workq certify`: the fault suite, against the servers of this application."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import click

from workq.cli import exits
from workq.cli.group import Command
from workq.cli.inputs import WholeNumber
from workq.cli.session import Session, check_folder
from workq.cli.show import answer, clean, write

_MINUTES_MAX: Final = 1440.0
_EXAMPLES = """
workq certify
workq certify --minutes 10 --processes 2 -o json
workq certify --seed 7 --only kill-everything,wipe-inflight
workq certify --remove certify_0a1b2c3d
"""


class Decimal(click.ParamType[float]):
    """A number within bounds."""

    name = "number"

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            found = float(value)
        except ValueError:
            found = float("nan")
        if not self.least <= found <= self.most:
            self.fail(f"{str(value)[:60]!a} is not a number from {self.least:g} to {self.most:g}", param, ctx)
        return found


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
    from workq.certify import report as told
    from workq.certify import trial

    session = ctx.ensure_object(Session)
    settings = session.settings()
    session.say_default(settings)
    check_folder(settings.ledger)
    if remove is not None:
        return _remove(session, remove)
    wishes = trial.Wishes(
        minutes=minutes,
        seed=trial.new_seed() if seed is None else seed,
        processes=processes,
        threads=threads,
        rate=rate,
        divide=divide,
        only=frozenset(filter(None, (only or "").split(","))),
        keep=keep,
    )
    with _signals():
        report = trial.run(settings, wishes, tell=session.note)
    answer(session, told.document(report), lambda: write("\n".join(map(clean, told.page(report).split("\n")))))
    if report.kept is not None:
        session.note(f"kept: {report.kept}, and the namespace {report.namespace}")
    for one in report.not_removed:
        session.warn(f"not removed: {one}")
    return exits.DONE if report.verdict.is_clean and not report.not_removed else exits.FINDINGS


def _remove(session: Session, name: str) -> int:
    from workq.app import WorkQueue
    from workq.certify.scratch import Scratch, settings_for

    settings = session.settings()
    scratch = Scratch(settings_for(settings, name, settings.times), WorkQueue())
    try:
        left = scratch.remove()
    finally:
        scratch.close()
    for one in left:
        session.warn(f"not removed: {one}")
    return exits.FAILED if left else exits.DONE


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run in order, like Ctrl-C."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
