"""Begin a job of the application, also over items that come on standard input."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import click

from workq.cli import exits
from workq.cli.group import Command, nearest
from workq.cli.inputs import Duration, RateText, TaskId, arguments
from workq.cli.session import Session, pass_session
from workq.cli.show import answer, clean, write
from workq.errors import BadSource, Refused, UnknownTask, WorkqError
from workq.handlers.said import describe
from workq.jobs.define import Job
from workq.jobs.sources import CsvFile, JsonLines
from workq.jobs.values import Begun, IfRunning
from workq.values import codec
from workq.values.plural import counted

if_running_option: Final = click.option(
    "--if-running",
    type=click.Choice([one.value for one in IfRunning]),
    default=IfRunning.REFUSE.value,
    show_default=True,
    help="what becomes of it while another of its name and key has not ended",
)


@click.command(
    "run",
    cls=Command,
    examples="""workq job run shop.reindex index=v2
    workq job run shop.reindex index=v2 --dry-run
    workq job run shop.reindex index=v2 --rate 500/s --if-running queue""",
)
@click.argument("name")
@click.argument("pairs", nargs=-1, metavar="[PARAMETER=VALUE]...")
@click.option("--key", metavar="KEY", help="runs with other keys do not know of each other")
@if_running_option
@click.option("--rate", type=RateText(), metavar="N/s", help="so many items a second, at most")
@click.option("--spread", type=Duration(), metavar="TIME", help="its items start evenly over so long a time")
@click.option("--stdin", "form", type=click.Choice(["jsonl", "csv"]), help="its items are standard input, read here")
@click.option("--into", type=TaskId("job"), metavar="ID", help="with --stdin: go on with this run, behind what it has")
@click.option("--dry-run", is_flag=True, help="count the items, show the first subtasks, begin nothing")
@pass_session
def run(
    session: Session,
    name: str,
    pairs: tuple[str, ...],
    key: str | None,
    if_running: str,
    rate: float | None,
    spread: float | None,
    form: str | None,
    into: str | None,
    dry_run: bool,
) -> int:
    """Begin a job of your application. A VALUE that is JSON is that value; anything else is text.

    With --stdin it reads its items here, and ends when the last of them is recorded; interrupted, the job waits for
    the others: give the same input again, with --into ID. Exit 6: another of its name and key has not ended.
    """
    if form is None and into is not None:
        raise click.UsageError("--into: it goes with --stdin")
    if form is not None and (dry_run or if_running == IfRunning.JOIN):
        raise click.UsageError("--stdin: it goes neither with --dry-run nor with --if-running join")
    app, path = session.application()
    found = app.registry.jobs.get(name)
    if found is None:
        known = sorted(app.registry.jobs)
        hint = nearest(name, known) or f"; it has {', '.join(known[:20]) or 'none'}"
        raise UnknownTask(f"{path} has no job {name[:200]!r}{hint}")
    params = arguments(pairs)
    call = found.options(key=key, if_running=if_running, rate=rate, spread_s=spread)
    try:
        found.check(params)
    except TypeError as error:
        raise click.UsageError(f"{name}: {error}") from error
    if dry_run:
        _foresee(session, found, params)
        return exits.DONE
    if into is None:
        session.may_make(app.settings)
    if form is not None:
        return _feed(session, found, form, into, lambda: call.open_feed(**params))
    return exits.REFUSED if tell_begun(session, lambda: call.run(**params)) is None else exits.DONE


def _feed(session: Session, found: Job, form: str, into: str | None, begin: Callable[[], Begun]) -> int:
    """Hand a run what comes on standard input."""
    if into is None:
        begun = tell_begun(session, begin)
        if begun is None:
            return exits.REFUSED
        into = begun.id
    try:
        row = found.feed_into(into, JsonLines("-") if form == "jsonl" else CsvFile("-"))
    except Refused as error:
        session.warn(str(error))
        return exits.REFUSED
    except BaseException:
        session.warn(
            f"job {into} waits for the rest: give the same input again with --into {into}, or: workq job cancel {into}"
        )
        raise
    session.note(f"{counted(row.split, 'item')}, {row.failed} of them could not be recorded")
    return exits.DONE


def tell_begun(session: Session, begin: Callable[[], Begun]) -> Begun | None:
    """Begin a job and tell its id; None: it was refused."""
    try:
        begun = begin()
    except Refused as error:
        session.warn(str(error))
        return None
    answer(
        session,
        {"id": begun.id, "created": begun.created},
        lambda: write(f"{begun.id}{'' if begun.created else '  (it was running already)'}"),
    )
    return begun


def _foresee(session: Session, found: Job, params: dict[str, Any]) -> None:
    """What a run would be."""
    chunk = found.job_options.chunk
    try:
        source = found.items(params)
        total = source.count()
        pages = [page.items for page in islice(source.pages(None, chunk), 3)]
    except WorkqError:
        raise
    except Exception as error:  # it is the application's
        said = describe(error).partition("\n")[0]
        raise BadSource(
            f"the source of {found.name} raised {said}; nothing was begun: mend the source, or what it reads, and try "
            "again (-v shows where)"
        ) from error
    chunks = None if total is None else -(-total // chunk)
    what, total = ("partitions", None) if found.job_options.is_partitioned else ("items", total)

    def as_text() -> None:
        if chunks is None:
            write(f"streaming: nobody knows how many {what}")
        else:
            write(
                f"{chunks:,} {what}"
                if total is None
                else f"{counted(total, 'item')}, {counted(chunks, 'subtask')} of up to {chunk}"
            )
        for items in pages:
            write(clean(codec.storable(codec.encode(items, path="items", max_bytes=1 << 30), characters_max=200)))

    answer(session, {"items": total, "subtasks": chunks, "chunk": chunk, "first": pages}, as_text)
