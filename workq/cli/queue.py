"""`workq queue`: the queues."""

from __future__ import annotations

from typing import Any

import click

from workq.broker import Depth
from workq.cli import exits
from workq.cli.group import Group
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, table
from workq.errors import BrokerUnavailable


@click.group(cls=Group, examples="workq queue ls\nworkq queue ls -o json")
def queue() -> None:
    """Queues and their backlog."""


@queue.command("ls", examples="workq queue ls\nworkq queue ls -o json")
@pass_session
def ls(session: Session) -> int:
    """Each queue with its tasks, as the ledger counts them, and its hints, as the broker does.

    A hint carries up to 100 tasks, so the numbers differ. Queues without an open task are shown when the application
    has a task for them.
    """
    stores = session.stores()
    counts = stores.ledger.counts().queues
    names = sorted({*counts, *session.queue().registry.queues()})
    depths: dict[str, Depth] = {}
    status = exits.DONE
    try:
        depths = dict(stores.broker.depths(names))
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
    titles = ("queue", "ready", "waiting", "running", "hints", "hints_unacked", "consumers")
    columns = [Column(title.replace("_", " "), is_number=title != "queue") for title in titles]
    answer(
        session,
        {"queues": found},
        lambda: table(session, columns, [[one[title] for title in titles] for one in found], empty="no queues"),
    )
    return status
