"""`workq status`: how many tasks are where."""

from __future__ import annotations

from dataclasses import asdict

import click

from workq.cli.group import Command
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table, write


@click.command(cls=Command, examples="workq status\nworkq status -o json\nwatch -n 5 workq status")
@pass_session
def status(session: Session) -> None:
    """How many tasks are where, how long the oldest has been ready, and how many workers live.

    A task that is due counts as ready, whatever its state says.
    """
    counts = session.stores().ledger.counts()
    document = {
        "queues": {name: asdict(count) for name, count in counts.queues.items()},
        "states": {state.value: number for state, number in counts.states.items()},
        "oldest_ready_s": None if counts.oldest_ready_s is None else round(counts.oldest_ready_s, 3),
        "workers": counts.workers,
        "no_handler": [asdict(one) for one in counts.unknown],
    }

    def show() -> None:
        columns = [Column("queue"), *(Column(name, is_number=True) for name in ("ready", "waiting", "running"))]
        rows = [(name, count.ready, count.waiting, count.running) for name, count in counts.queues.items()]
        table(session, columns, rows, empty="no task is ready, waiting or running")
        if rows:
            write("")
        record(
            [
                *((state.value, number) for state, number in counts.states.items()),
                ("oldest ready", "-" if counts.oldest_ready_s is None else f"{counts.oldest_ready_s:.1f} s"),
                ("workers", counts.workers),
            ]
        )
        if counts.unknown:
            write("")
            write("Names that no worker knows: these tasks wait for one that does")
            columns = [Column("name", is_whole=True), Column("tasks", is_number=True), Column("since")]
            table(session, columns, [(one.name, one.tasks, one.since) for one in counts.unknown], empty="")

    answer(session, document, show)
