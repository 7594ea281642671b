"""`workq sweep`: one repair pass, or one every few seconds."""

from __future__ import annotations

import logging
import signal
import threading
from datetime import UTC, datetime
from typing import Any

import click

from workq.cli import exits
from workq.cli.group import Command
from workq.cli.inputs import Choices, Duration, WholeNumber
from workq.cli.session import Session
from workq.cli.show import Column, answer, instant, line, table
from workq.config import Settings
from workq.errors import BrokerUnavailable, Unavailable
from workq.logs import configure
from workq.stores import Stores
from workq.sweep import STEPS, Swept
from workq.sweep import sweep as one_pass

_EXAMPLES = """
workq sweep
workq sweep --dry-run
workq sweep --only relay,reap --limit 5000 -o json
workq sweep --every 5s
"""
_COUNTS = (
    "relayed",
    "reaped_workers",
    "returned",
    "rehinted",
    "dead",
    "orphans",
    "promoted",
    "pruned",
    "pruned_events",
    "pruned_workers",
)


@click.command(cls=Command, examples=_EXAMPLES)
@click.option("--every", "every_s", type=Duration(), metavar="TIME", help="run on, with a pass every 5s, 1m, ...")
@click.option("--dry-run", is_flag=True, help="the same counts, changing nothing; exit 3 when there is work")
@click.option("--only", type=Choices(STEPS), metavar="STEPS", help=f"some of {','.join(STEPS)}")
@click.option("--limit", type=WholeNumber(1, 1_000_000), default=1000, show_default=True, help="rows of each step")
@click.pass_context
def sweep(ctx: click.Context, every_s: float | None, dry_run: bool, only: list[str] | None, limit: int) -> int:
    """Repair what was lost: relay hints, end the claims of the dead, return orphans, promote what is due, prune.

    Workers sweep too; this is for cron, and for the day when no worker runs. Any number may run at once.
    """
    if every_s is not None and dry_run:
        raise click.UsageError("--every and --dry-run: give one of them", ctx)
    session = ctx.ensure_object(Session)
    configure(logging.INFO if session.is_verbose else logging.CRITICAL)
    steps = only or list(STEPS)
    if every_s is not None:
        return _run_on(session, every_s, steps, limit)
    stores, settings = session.stores(), session.settings()
    stores.broker.check()  # one pass and no second try: a broker that is away is an answer
    done = one_pass(stores, settings, only=steps, limit=limit, dry_run=dry_run)
    rows = [(name.replace("_", " "), getattr(done, name)) for name in _COUNTS]
    answer(
        session,
        {"dry_run": dry_run, **_counts(done)},
        lambda: table(session, [Column("would do" if dry_run else "done"), Column("count", is_number=True)], rows),
    )
    if done.is_quiet:
        session.note("the in-flight store is young: nobody is reaped for three beats")
    return exits.FINDINGS if dry_run and done.changes else exits.DONE


def _run_on(session: Session, every_s: float, steps: list[str], limit: int) -> int:
    """Until SIGTERM or SIGINT. A store that is away is one line when it goes and one when it is back."""
    from workq.schedule import run_every

    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    settings: Settings = session.settings()
    away: list[str] = []
    failures: list[Exception] = []

    def opened() -> Stores:
        stores = session.stores()
        if away:
            stores.broker.check()
        return stores

    def tick() -> None:
        try:
            done = one_pass(opened(), settings, only=steps, limit=limit)
            if done.unconfirmed:
                raise BrokerUnavailable(f"broker: {done.unconfirmed} hints were not confirmed")
        except Unavailable as error:
            if not away:
                session.warn(f"sweep waits: {error}")
                away.append(str(error))
            return
        except Exception as error:  # in the ticker's thread nobody would hear of it
            failures.append(error)
            stop.set()
            return
        if away:
            away.clear()
            session.note("workq: sweep goes on")
        if done.changes:
            document = {"at": datetime.now(UTC), **_counts(done)}
            counts = " ".join(f"{name}={getattr(done, name)}" for name in _COUNTS if getattr(done, name))
            line(session, document, f"{instant(datetime.now(UTC))} {counts}")

    run_every(tick, every_s=every_s, until=stop)
    if failures:
        raise failures[0]
    return exits.DONE


def _counts(done: Swept) -> dict[str, Any]:
    return {
        **{name: getattr(done, name) for name in _COUNTS},
        "suspected_workers": done.suspected_workers,
        "quiet": done.is_quiet,
    }
