"""`workq order`: the order keys with open tasks, and those that a dead task blocks."""

from __future__ import annotations

from typing import Any

import click

from workq.cli.group import CommandGroup
from workq.cli.inputs import WholeNumber
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table
from workq.errors import NotFound
from workq.order.ledger.order import Order, SequenceRow


@click.group(cls=CommandGroup, examples="workq order ls --blocked\nworkq order show customer:7")
def order() -> None:
    """Order keys: whose tasks run one at a time, in the order of their commits."""


@order.command("ls", examples="workq order ls\nworkq order ls --blocked -o json")
@click.option("--blocked", "is_blocked", is_flag=True, help="only those that wait for a person: their first is dead")
@click.option("--limit", type=WholeNumber(1, 10_000), default=100, show_default=True, help="so many keys at most")
@pass_session
def ls(session: Session, is_blocked: bool, limit: int) -> None:
    """Each order key with open tasks: whose turn it is, and how many wait behind it.

    A key is blocked when the task whose turn it is has died. It goes on when a person revives that task
    (`workq task retry ID`) or gives it up (`workq dead discard ID`). A key whose task has ended otherwise goes on with
    the next sweep: each worker sweeps every few seconds, and `workq sweep` does it at once.
    """
    found = session.stores().ledger.part(Order).sequences(blocked_only=is_blocked, limit=limit)
    columns = [
        Column("key", is_whole=True),
        Column("turn of", is_whole=True),
        Column("state"),
        Column("behind", is_number=True),
        Column("blocked since"),
    ]
    answer(
        session,
        {"keys": [_document(one) for one in found]},
        lambda: table(
            session,
            columns,
            [(one.key, one.head, one.state, one.behind, one.blocked_since) for one in found],
            empty="no order key is blocked" if is_blocked else "no order key has open tasks",
        ),
    )
    if session.output == "table" and (count := sum(one.moves_on for one in found)):
        goes = "1 key goes" if count == 1 else f"{count} keys go"
        session.note(f"{goes} on with the next sweep: the task whose turn it was has ended; if none runs: workq sweep")


@order.command("show", examples="workq order show customer:7")
@click.argument("key")
@pass_session
def show(session: Session, key: str) -> None:
    """One order key."""
    found = next(iter(session.stores().ledger.part(Order).sequences(key=key)), None)
    if found is None:
        raise NotFound(f"no open task has the order key {key[:100]!r}; list the keys with: workq order ls")
    about = _document(found)
    answer(session, about, lambda: record([(name.replace("_", " "), value) for name, value in about.items()]))


def _document(one: SequenceRow) -> dict[str, Any]:
    return {
        "key": one.key,
        "turn_of": one.head,
        "state": one.state,
        "behind": one.behind,
        "blocked_since": one.blocked_since,
        "moves_on": one.moves_on,
    }
