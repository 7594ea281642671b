"""`workq dead`: tasks that are out of budget."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from workq.cli import exits
from workq.cli.documents import task_in_short
from workq.cli.group import Group
from workq.cli.inputs import QueueName, TaskId, WholeNumber, ids_of
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, table, write
from workq.cli.task import revive
from workq.ledger import Ledger
from workq.task import State, Task

_PAGE = 500


@click.group(cls=Group, examples="workq dead ls\nworkq dead retry --all --queue mail")
def dead() -> None:
    """Tasks that failed or crashed too often: list them, send them back."""


@dead.command("ls", examples="workq dead ls\nworkq dead ls --name shop.reindex --limit 200 -o json")
@click.option("--queue", type=QueueName(), help="only those of this queue")
@click.option("--name", metavar="NAME", help="only those of this handler")
@click.option("--limit", type=WholeNumber(1, 10_000), default=50, show_default=True, help="at most so many")
@click.option("--after", type=TaskId(), metavar="ID", help="the page after this id")
@pass_session
def ls(session: Session, queue: str | None, name: str | None, limit: int, after: str | None) -> None:
    """Dead tasks from the newest, with their reason."""
    found = session.stores().ledger.tasks(state=State.DEAD, queue=queue, name=name, limit=limit, after=after)
    more = found[-1].id if len(found) == limit else None
    columns = [Column("id", is_whole=True), Column("name"), Column("queue"), Column("settled"), Column("reason")]
    answer(
        session,
        {"tasks": [task_in_short(one) for one in found], "next": more},
        lambda: table(
            session,
            columns,
            [(one.id, one.name, one.queue, one.settled_at, one.reason) for one in found],
            empty="no dead tasks",
        ),
    )
    if more is not None and session.output == "table":
        session.note(f"perhaps more: --after {more}")


@dead.command(
    "retry",
    examples="""workq dead retry 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq dead retry --all --name shop.reindex --dry-run
    workq dead retry --all --queue mail --yes""",
)
@click.argument("task_ids", nargs=-1, metavar="[ID... | -]")
@click.option("--all", "is_all", is_flag=True, help="all that the filters leave")
@click.option("--queue", type=QueueName(), help="with --all: only those of this queue")
@click.option("--name", metavar="NAME", help="with --all: only those of this handler")
@click.option("--yes", is_flag=True, help="do not ask")
@click.option("--dry-run", is_flag=True, help="only print how many")
@click.option("--why", default="retried by an operator", show_default=True, help="stored in the history")
@click.pass_context
def retry(
    ctx: click.Context,
    task_ids: tuple[str, ...],
    is_all: bool,
    queue: str | None,
    name: str | None,
    yes: bool,
    dry_run: bool,
    why: str,
) -> int:
    """Send dead tasks back, with fresh budgets.

    --all shows the count and asks first; where nobody can answer it needs --yes, and exits with 6 without.
    """
    session = ctx.ensure_object(Session)
    if is_all == bool(task_ids):
        raise click.UsageError("give ids, or --all (perhaps with --queue and --name)", ctx)
    if not is_all and (queue or name):
        raise click.UsageError("--queue and --name belong to --all", ctx)
    ledger = session.stores().ledger
    chosen = [one.id for one in _dead(ledger, queue, name)] if is_all else list(ids_of(task_ids))
    if dry_run:
        count = len(chosen) if is_all else sum(_is_dead(ledger.get(task_id)) for task_id in chosen)
        answer(session, {"dry_run": True, "tasks": count}, lambda: write(f"{count} dead tasks would be sent back"))
        return exits.DONE
    if is_all and chosen and not yes and not _is_confirmed(session, len(chosen)):
        return exits.REFUSED
    if not chosen:
        session.note("no dead tasks")
    return revive(session, chosen, why=why, only=State.DEAD)


def _dead(ledger: Ledger, queue: str | None, name: str | None) -> Iterator[Task]:
    after: str | None = None
    while page := ledger.tasks(state=State.DEAD, queue=queue, name=name, limit=_PAGE, after=after):
        yield from page
        after = page[-1].id


def _is_dead(task: Task | None) -> bool:
    return task is not None and task.state is State.DEAD


def _is_confirmed(session: Session, count: int) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        session.warn(f"{count} dead tasks would be sent back; refused without --yes")
        return False
    try:
        return click.confirm(f"send {count} dead tasks back?", err=True)
    except click.Abort:
        return False
