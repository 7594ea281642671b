"""`workq limit`: the limits that are in use, and how many wait for each."""

from __future__ import annotations

import click
from msgspec.structs import asdict

from workq.cli.group import CommandGroup
from workq.cli.inputs import WholeNumber
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table
from workq.errors import NotFound
from workq.limits.ledger.limits import Limits


@click.group(cls=CommandGroup, examples="workq limit ls\nworkq limit show endpoint:example.org")
def limit() -> None:
    """Limits: how many tasks run at once, or start in a time, of all that share one."""


@limit.command("ls", examples="workq limit ls\nworkq limit ls -o json")
@click.option("--limit", "most", type=WholeNumber(1, 10_000), default=100, show_default=True, help="so many at most")
@pass_session
def ls(session: Session, most: int) -> None:
    """Each limit that is in use: how many of its tasks run, are about to start, and wait for their turn."""
    found = [asdict(one) for one in session.stores().ledger.part(Limits).all(limit=most)]
    columns = [
        Column("key", is_whole=True),
        *(Column(name, is_number=True) for name in ("running", "coming", "parked")),
    ]
    answer(
        session,
        {"limits": found},
        lambda: table(session, columns, [tuple(one.values())[:4] for one in found], empty="no limit is in use"),
    )


@limit.command("show", examples="workq limit show endpoint:example.org")
@click.argument("key")
@pass_session
def show(session: Session, key: str) -> None:
    """One limit."""
    found = next(iter(session.stores().ledger.part(Limits).all(key=key)), None)
    if found is None:
        raise NotFound(f"no limit {key[:100]!r} is in use; list those that are with: workq limit ls")
    about = asdict(found)
    answer(session, about, lambda: record([(name, one) for name, one in about.items() if one is not None]))
