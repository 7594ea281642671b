"""`workq queue`: the queues, what waits in them, and who serves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from workq.broker import Depth
from workq.cli import exits
from workq.cli.group import Group
from workq.cli.inputs import QueueName
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table
from workq.cli.task import cancel_all
from workq.errors import BrokerUnavailable
from workq.ledger import QueueCount, WhichOpen
from workq.task import State

_TITLES: Final = ("queue", "ready", "waiting", "running", "hints", "hints_unacked", "consumers")


@click.group(cls=Group, examples="workq queue ls\nworkq queue show mail\nworkq queue purge mail --dry-run")
def queue() -> None:
    """Queues and their backlog."""


@queue.command("ls", examples="workq queue ls\nworkq queue ls -o json")
@pass_session
def ls(session: Session) -> int:
    """Each queue with its tasks, as the ledger counts them, and its hints, as the broker does.

    A hint carries up to 100 tasks, so the numbers differ. Queues without an open task are shown when the application
    has a task for them.
    """
    counts = session.stores().ledger.counts().queues
    names = sorted({*counts, *session.queue().registry.queues()})
    found, status = _looked_at(session, names, counts)
    columns = [Column(title.replace("_", " "), is_number=title != "queue") for title in _TITLES]
    answer(
        session,
        {"queues": found},
        lambda: table(session, columns, [[one[title] for title in _TITLES] for one in found], empty="no queues"),
    )
    return status


@queue.command("show", examples="workq queue show mail\nworkq queue show mail -o json")
@click.argument("name", type=QueueName(), metavar="QUEUE")
@pass_session
def show(session: Session, name: str) -> int:
    """One queue: its tasks, its hints, and the worker processes that serve it."""
    ledger = session.stores().ledger
    [about], status = _looked_at(session, [name], ledger.counts().queues)
    serving = [row for row in ledger.workers() if name in row.queues]
    about["workers"] = [{"id": row.id, "host": row.host, "threads": row.threads} for row in serving]

    def as_text() -> None:
        processes, threads = len(serving), sum(row.threads for row in serving)
        by = f"{processes} process{'es' * (processes > 1)} with {threads} threads" if serving else "nobody"
        record([*((title.replace("_", " "), about[title]) for title in _TITLES), ("served by", by)])

    answer(session, about, as_text)
    return status


@queue.command(
    "purge",
    examples="""workq queue purge mail --dry-run
    workq queue purge mail --yes --reason "the campaign was withdrawn\"""",
)
@click.argument("name", type=QueueName(), metavar="QUEUE")
@click.option("--yes", is_flag=True, help="do not ask")
@click.option("--dry-run", is_flag=True, help="only print how many")
@click.option("--reason", default="purged by an operator", show_default=True, help="stored with the tasks")
@pass_session
def purge(session: Session, /, name: str, reason: str, **options: bool) -> int:
    """Cancel every task of a queue that does not run. Those that run, and those enqueued meanwhile, are left alone.

    It shows the count and asks first; where nobody can answer it needs --yes, and exits with 6 without. Interrupted,
    the same command goes on. The tasks are kept like other cancelled ones, and `workq task retry` brings one back.
    """
    which = WhichOpen((State.READY, State.WAITING), queue=name)
    return cancel_all(session, which, what="queue purge", reason=reason, options=options)


def _looked_at(
    session: Session, names: Sequence[str], counts: Mapping[str, QueueCount]
) -> tuple[list[dict[str, Any]], int]:
    """What ledger and broker say of these queues, and the exit status: the broker may be away."""
    depths: dict[str, Depth] = {}
    status = exits.DONE
    try:
        depths = dict(session.stores().broker.depths(names))
    except BrokerUnavailable as error:
        session.warn(str(error))
        status = exits.UNREACHABLE
    found: list[dict[str, Any]] = []
    for name in names:
        count, depth = counts.get(name), depths.get(name)
        found.append(
            {
                "queue": name,
                "ready": count.ready if count else 0,
                "waiting": count.waiting if count else 0,
                "running": count.running if count else 0,
                "hints": depth.ready if depth else None,
                "hints_unacked": depth.unacked if depth else None,
                "consumers": depth.consumers if depth else None,
            }
        )
    return found, status
