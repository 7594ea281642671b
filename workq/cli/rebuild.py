"""`workq rebuild`: the whole broker from the ledger."""

from __future__ import annotations

import logging
import time
from typing import Any

import click

from workq.cli import exits
from workq.cli.bulk import is_confirmed
from workq.cli.group import Command
from workq.cli.inputs import BandName, dry_run_option, why_option, yes_option
from workq.cli.session import Session
from workq.cli.show import Column, answer, table, write
from workq.ledger.history import who_and_why
from workq.values.lane import meant
from workq.values.plural import counted

_TELL_EVERY_S = 2.0
_EXAMPLES = """
workq rebuild --dry-run
workq rebuild --queue mail
workq rebuild --yes -o json
"""


@click.command(cls=Command, examples=_EXAMPLES)
@click.option("--queue", type=BandName(), help="only this one")
@why_option("rebuilt by an operator", "stored in the history")
@yes_option()
@dry_run_option()
@click.pass_context
def rebuild(ctx: click.Context, queue: str | None, why: str, yes: bool, dry_run: bool) -> int:
    """Send every hint again: for a broker that came back empty, or a new one.

    Every task that is ready or waiting, and that no worker holds, gets a fresh hint, in the order in which they are
    due. Workers may run meanwhile. It may be interrupted and run again: the sweep sends what is left, and a hint too
    many costs a look. It shows the count and asks first; where nobody can answer it needs --yes, and exits with 6
    without.
    """
    from workq.recovery.rebuild import Rebuilt, count
    from workq.recovery.rebuild import rebuild as fill
    from workq.values.incarnation import this_person

    session = ctx.ensure_object(Session)
    session.configure_log(logging.INFO if session.is_verbose else logging.CRITICAL)
    stores, settings = session.stores(), session.settings()
    queues = None if queue is None else list(meant(queue))
    counts = {name: number for name, number in count(stores, queues).items() if number or name == queue}
    tasks = sum(counts.values())
    if dry_run:
        rows = sorted(counts.items())
        columns = [Column("queue"), Column("tasks", is_number=True)]
        answer(
            session,
            {"dry_run": True, "tasks": tasks, "queues": counts},
            lambda: table(session, columns, rows, empty="no task waits"),
        )
        return exits.FINDINGS if tasks else exits.DONE
    stores.broker.check()
    if tasks and not yes and not is_confirmed(session, f"hints for {counted(tasks, 'task')} would be sent again"):
        return exits.REFUSED
    by = {"what": "rebuild", **who_and_why(this_person(), why), "queue": queue}
    done = Rebuilt()
    told_at = time.monotonic()

    def told(so_far: Rebuilt) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _TELL_EVERY_S:
            told_at = time.monotonic()
            session.note(f"{so_far.tasks} of {counted(tasks, 'task')}, {so_far.seconds:.0f} s")

    stores.ledger.history.note("manual", detail={**by, "tasks_open": tasks})
    fill(stores, settings, queues=queues, told=told, done=done)
    document: dict[str, Any] = {
        "dry_run": False,
        "tasks": done.tasks,
        "hints": done.hints,
        "later": done.later,
        "held": done.held,
        "markers": done.markers,
        "seconds": round(done.seconds, 3),
    }
    stores.ledger.history.note("manual", detail={**by, **document})
    answer(
        session,
        document,
        lambda: write(f"{counted(done.tasks, 'task')}, {counted(done.hints, 'hint')}, {done.seconds:.1f} s"),
    )
    if done.later:
        session.note(
            f"{counted(done.later, 'task is', 'tasks are')} due later than the broker can delay a hint: "
            "the sweep sends it then"
        )
    return exits.DONE
