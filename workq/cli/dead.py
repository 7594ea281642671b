"""`workq dead`: tasks that are out of budget: listed, grouped, sent back, discarded, exported.

One engine (bulk.py) for all of it: the count comes first, an interruption loses nothing, and the same command goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import asdict, replace

from workq.cli import exits
from workq.cli.bulk import SAMPLE, DecisionWords, decide
from workq.cli.documents import task_in_full, task_in_short
from workq.cli.group import CommandGroup
from workq.cli.inputs import (
    Duration,
    Fingerprint,
    RateText,
    WholeNumber,
    dry_run_option,
    ids_of,
    page_options,
    stacked,
    task_filters,
    why_option,
    yes_option,
)
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, in_json, table, write
from workq.cli.task import each, revive
from workq.errors import Refused
from workq.ledger import Which
from workq.operations import tasks
from workq.operations.bulk import GROUPS_MAX, Bulk, Tally
from workq.values.incarnation import this_person
from workq.values.lane import physical
from workq.values.task import State, Task

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


_PAGE = 500


@click.group(
    cls=CommandGroup, examples="workq dead groups\nworkq dead retry --group 5d41402abc4b2a76 --canary 3 --rate 50/s"
)
def dead() -> None:
    """Tasks that failed or crashed too often: list and group them, send them back, discard or export them."""


_filters: Final = stacked(
    click.option("--group", type=Fingerprint(), metavar="GROUP", help="only those of this group"),
    task_filters(),
    click.option("--older", "older_s", type=Duration(), metavar="TIME", help="only those dead for 10m, 2h, 1d"),
    click.option("--newer", "younger_s", type=Duration(), metavar="TIME", help="only those dead for less"),
)
"""Which of the dead are meant."""


def _which(options: dict[str, Any]) -> Which:
    return Which(**{name: options[name] for name in ("group", "queue", "name", "older_s", "younger_s")})


@dead.command("ls", examples="workq dead ls\nworkq dead ls --name shop.reindex --limit 200 -o json")
@task_filters()
@page_options()
@pass_session
def ls(session: Session, queue: str | None, name: str | None, limit: int, after: str | None) -> None:
    """Dead tasks from the newest, with their reason. Those of jobs are counted apart: `workq job retry` is for them."""
    ledger = session.stores().ledger
    found = ledger.questions.tasks(state=State.DEAD, queue=queue, name=name, limit=limit, after=after)
    of_jobs = ledger.bulk.dead_count(Which(queue=queue, name=name, of_job=True))
    more = found[-1].id if len(found) == limit else None
    columns = [
        *(Column("id", is_whole=True), Column("name"), Column("queue"), Column("settled"), Column("reason")),
        Column("job", is_whole=True),
    ]
    answer(
        session,
        {"tasks": [task_in_short(one) for one in found], "of_jobs": of_jobs, "next": more},
        lambda: table(
            session,
            columns,
            [
                (one.id, one.name, physical(one.queue, one.priority), one.settled_at, one.reason, one.job_id)
                for one in found
            ],
            empty="no dead tasks",
        ),
    )
    _note_of_jobs(session, of_jobs)
    if more is not None and session.output == "table":
        session.note(f"perhaps more: --after {more}")


@dead.command("groups", examples="workq dead groups\nworkq dead groups --queue mail --newer 1d -o json")
@_filters
@click.option("--limit", type=WholeNumber(1, GROUPS_MAX), default=50, show_default=True, help="at most so many")
@pass_session
def groups(session: Session, /, limit: int, **options: Any) -> None:
    """The dead by what they died of, the largest group first.

    Two deaths are alike when handler, reason, place in the code and the words of the error are, apart from ids and
    numbers in it.
    """
    found = session.stores().ledger.bulk.dead_groups(_which(options), limit=limit)
    columns = [
        *(Column("group", is_whole=True), Column("tasks", is_number=True), Column("name"), Column("reason")),
        *(Column("first"), Column("last"), Column("sample", is_whole=True), Column("of jobs", is_number=True)),
    ]
    answer(
        session,
        {"groups": [asdict(one) for one in found]},
        lambda: table(
            session,
            columns,
            [
                (one.group, one.tasks, one.name, one.reason, one.first_at, one.last_at, one.sample, one.of_jobs)
                for one in found
            ],
            empty="no dead tasks",
        ),
    )


@dead.command(
    "retry",
    examples="""workq dead retry 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq dead retry --all --name shop.reindex --dry-run
    workq dead retry --group 5d41402abc4b2a76 --canary 3 --rate 50/s --yes""",
)
@click.argument("task_ids", nargs=-1, metavar="[ID... | -]")
@click.option("--all", "is_all", is_flag=True, help="all that the filters leave")
@_filters
@click.option("--rate", "per_s", type=RateText(), metavar="RATE", help="at most 100/s, 60/m, ...")
@click.option(
    "--canary", type=WholeNumber(1, 1000), metavar="N", help="N of each group first; the others if they do well"
)
@click.option("--canary-wait", "wait_s", type=Duration(), default="60s", show_default=True, help="for the canaries")
@yes_option()
@dry_run_option()
@why_option("retried by an operator", "stored in the history")
@click.pass_context
def retry(ctx: click.Context, /, task_ids: tuple[str, ...], is_all: bool, why: str, **options: Any) -> int:
    """Send dead tasks back, with fresh budgets.

    --all and --group show the count and ask first; where nobody can answer they need --yes, and exit with 6 without. A
    canary that fails in its first attempt stops its group: exit 3. Interrupted, the same command goes on. Those of jobs
    stay: `workq job retry` runs their failed items again.
    """
    session = ctx.ensure_object(Session)
    which = _chosen(ctx, task_ids, options, is_all=is_all)
    if which is None:
        if options["per_s"] or options["canary"]:
            raise click.UsageError("--rate and --canary belong to --all or --group", ctx)
        ids = list(ids_of(task_ids))
        if options["dry_run"]:
            return _counted_only(session, ids, session.stores().ledger.bulk.revivable_count, "would be sent back")
        return revive(session, ids, why=why, only=State.DEAD)

    ledger = session.stores().ledger
    count = ledger.bulk.revivable_count(which)
    mine = replace(which, of_job=False)
    _note_of_jobs(session, ledger.bulk.dead_count(replace(which, of_job=True)))
    if held := ledger.bulk.dead_count(mine) - count:
        session.note(f"{held} more have a key that is held, or that others of them have: they stay dead")

    def act(bulk: Bulk) -> None:
        if options["canary"]:
            bulk.retry_with_canaries(mine, canaries=options["canary"], wait_s=options["wait_s"])
        else:
            bulk.retry(mine)

    return _bulk(session, mine, act, count, what="dead retry", done="sent back", why=why, options=options)


@dead.command(
    "discard",
    examples="""workq dead discard 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --why "the order was withdrawn"
    workq dead discard --group 5d41402abc4b2a76 --older 7d --yes""",
)
@click.argument("task_ids", nargs=-1, metavar="[ID... | -]")
@click.option("--all", "is_all", is_flag=True, help="all that the filters leave")
@_filters
@yes_option()
@dry_run_option()
@why_option("discarded by an operator", "stored with the tasks")
@click.pass_context
def discard(ctx: click.Context, /, task_ids: tuple[str, ...], is_all: bool, why: str, **options: Any) -> int:
    """Give dead tasks up: they are cancelled as `discarded`, and kept as long as other cancelled ones are.

    `workq task retry` still brings them back, until then.
    """
    session = ctx.ensure_object(Session)
    which = _chosen(ctx, task_ids, options, is_all=is_all)
    if which is not None:

        def act(bulk: Bulk) -> None:
            bulk.discard(which)

        count = session.stores().ledger.bulk.dead_count(which)
        return _bulk(session, which, act, count, what="dead discard", done="discarded", why=why, options=options)
    ids = list(ids_of(task_ids))
    if options["dry_run"]:
        return _counted_only(session, ids, session.stores().ledger.bulk.dead_count, "would be discarded")
    ledger = session.stores().ledger

    def one(task_id: str) -> str:
        if not tasks.discard(session.stores(), task_id, who=this_person(), why=why):
            found = ledger.questions.get(task_id)
            raise Refused(f"no task {task_id}" if found is None else f"it is {found.state}, not dead")
        return "discarded"

    return each(session, ids, one)


@dead.command(
    "export", examples="workq dead export > dead.jsonl\nworkq dead export --group 5d41402abc4b2a76 | jq .error"
)
@_filters
@pass_session
def export(session: Session, /, **options: Any) -> None:
    """Dead tasks as lines of JSON on standard output: arguments, error, every attempt, the deaths of their workers."""
    ledger = session.stores().ledger
    for task in _dead(ledger, _which(options)):
        write(json.dumps(in_json(task_in_full(task, ledger.questions.history(task.id)))))


# -- what they share


def _note_of_jobs(session: Session, count: int) -> None:
    if count and session.output == "table":
        session.note(f"{count} of the dead are of jobs: workq job retry JOB runs their failed items again")


def _chosen(ctx: click.Context, task_ids: tuple[str, ...], options: dict[str, Any], *, is_all: bool) -> Which | None:
    """Which of the dead the filters mean; None: those that are named."""
    which = _which(options)
    if is_all + bool(options["group"]) + bool(task_ids) == 0 or (task_ids and (is_all or options["group"])):
        raise click.UsageError("give ids, or --all or --group (perhaps with other filters)", ctx)
    if task_ids and which != Which():
        raise click.UsageError("filters belong to --all or --group", ctx)
    return None if task_ids else which


def _bulk(
    session: Session,
    which: Which,
    act: Callable[[Bulk], None],
    count: int,
    *,
    what: str,
    done: str,
    why: str,
    options: dict[str, Any],
) -> int:
    ledger = session.stores().ledger

    def document(tally: Tally) -> dict[str, Any]:
        stopped = [
            {"group": one.group, "name": one.name, "tasks": one.tasks, "why": trouble} for one, trouble in tally.stopped
        ]
        return {"tasks": tally.done, "refused": tally.refused, "stopped": stopped}

    return decide(
        session,
        DecisionWords(what, "dead tasks", done, "dead", why, {name: one for name, one in asdict(which).items() if one}),
        act,
        count=count,
        sample=lambda: ledger.bulk.dead_ids(which, after=None, limit=SAMPLE),
        document=document,
        options=options,
    )


def _dead(ledger: Ledger, which: Which) -> Iterator[Task]:
    after: str | None = None
    while page := ledger.bulk.dead_ids(which, after=after, limit=_PAGE):
        after = page[-1]
        yield from (
            task for one in page if (task := ledger.questions.get(one)) is not None and task.state is State.DEAD
        )


def _counted_only(session: Session, task_ids: list[str], count_of: Callable[[Which], int], what: str) -> int:
    pages = [tuple(task_ids[start : start + _PAGE]) for start in range(0, len(task_ids), _PAGE)]
    count = sum(count_of(Which(ids=page)) for page in pages)
    answer(session, {"dry_run": True, "tasks": count}, lambda: write(f"{count} of them {what}"))
    return exits.FINDINGS if count else exits.DONE
