"""`workq job`: run a job, watch it, and decide about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from workq.cli import exits
from workq.cli.group import CommandGroup, nearest
from workq.cli.inputs import Duration, RateText, TaskId, WholeNumber, arguments
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, cell, clean, line, record, table, text_of, write
from workq.cli.watch import watch as watch_it
from workq.enqueue.relay import publish
from workq.errors import BadSource, NotFound, Refused, UnknownTask, WorkqError
from workq.handlers.said import describe
from workq.jobs.define import Job
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.progress import left_s, told, told_s
from workq.jobs.sources import CsvFile, JsonLines
from workq.jobs.values import (
    CHUNK_MAX,
    JOB_ENDED,
    JOB_STARTS,
    SOURCE_FAILED,
    Begun,
    Collect,
    IfRunning,
    JobRow,
    JobState,
)
from workq.ledger import Unpublished
from workq.operations import Announce, jobs
from workq.values import codec
from workq.values.incarnation import this_person
from workq.values.plural import counted
from workq.values.task import State, Task

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


_ERRORS_SHOWN: Final = 10
EXITS: Final = {
    JobState.SUCCEEDED: exits.DONE,
    JobState.COMPLETED_WITH_FAILURES: exits.FINDINGS,
    JobState.FAILED: exits.FAILED,
    JobState.CANCELLED: exits.FAILED,
}
"""How `workq job watch` ends, when the job has."""


@click.group(
    cls=CommandGroup,
    examples="""workq job run shop.reindex index=v2
    workq job watch 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq job ls""",
)
def job() -> None:
    """Jobs: work that is split into subtasks. Run, watch, pause, throttle, cancel."""


@job.command(
    "run",
    examples="""workq job run shop.reindex index=v2
    workq job run shop.reindex index=v2 --dry-run
    workq job run shop.reindex index=v2 --rate 500/s --if-running queue""",
)
@click.argument("name")
@click.argument("pairs", nargs=-1, metavar="[PARAMETER=VALUE]...")
@click.option("--key", metavar="KEY", help="runs with other keys do not know of each other")
@click.option(
    "--if-running",
    type=click.Choice([one.value for one in IfRunning]),
    default=IfRunning.REFUSE.value,
    show_default=True,
    help="what becomes of it while another of its name and key has not ended",
)
@click.option("--rate", type=RateText(), metavar="N/s", help="so many items a second, at most")
@click.option("--spread", type=Duration(), metavar="TIME", help="its items start evenly over so long a time")
@click.option("--stdin", "form", type=click.Choice(["jsonl", "csv"]), help="its items are standard input, read here")
@click.option("--into", type=TaskId(), metavar="ID", help="with --stdin: go on with this run, behind what it has")
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
    return exits.REFUSED if _begin(session, lambda: call.run(**params)) is None else exits.DONE


def _feed(session: Session, found: Job, form: str, into: str | None, begin: Callable[[], Begun]) -> int:
    """Hand a run what comes on standard input."""
    if into is None:
        begun = _begin(session, begin)
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


def _begin(session: Session, begin: Callable[[], Begun]) -> Begun | None:
    """Begin a run and tell its id; None: it was refused."""
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


@job.command("ls", examples="workq job ls --state running -o json")
@click.option("--state", type=click.Choice([one.value for one in JobState]), help="only those in this state")
@click.option("--name", metavar="NAME", help="only those of this name")
@click.option("--in", "parent", type=TaskId(), metavar="ID", help="only those that are nested in this job")
@click.option("--limit", type=WholeNumber(1, 10_000), default=50, show_default=True, help="at most so many")
@click.option("--after", type=TaskId(), metavar="ID", help="the page after this id")
@pass_session
def ls(
    session: Session, state: str | None, name: str | None, parent: str | None, limit: int, after: str | None
) -> None:
    """Jobs from the newest. The next page begins after the last id."""
    states = () if state is None else (JobState(state),)
    found = (
        session.stores()
        .ledger.part(JobLedger)
        .questions.jobs(name=name, parent_id=parent, states=states, limit=limit, after=after)
    )
    columns = [
        Column("id", is_whole=True),
        Column("name"),
        Column("state"),
        Column("done", is_number=True),
        Column("of", is_number=True),
        Column("failed", is_number=True),
        Column("began"),
    ]
    answer(
        session,
        {"jobs": [document(one) for one in found], "next": found[-1].id if len(found) == limit else None},
        lambda: table(
            session,
            columns,
            [(one.id, one.name, one.state, one.done, one.total, one.failed, one.created_at) for one in found],
            empty="no jobs",
        ),
    )


@job.command(
    "show",
    examples="""workq job show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq job show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --slowest 5 -o json""",
)
@click.argument("job_id", type=TaskId(), metavar="ID")
@click.option("--slowest", type=WholeNumber(0, 1000), default=0, help="and so many of the subtasks that took longest")
@pass_session
def show(session: Session, job_id: str, slowest: int) -> None:
    """How far a job is, how fast, what has failed, and why."""
    ledger = session.stores().ledger
    found = of(ledger, job_id)
    groups = ledger.part(JobLedger).questions.failed_groups(job_id, limit=_ERRORS_SHOWN)
    slow = ledger.part(JobLedger).questions.slowest_subtasks(job_id, limit=slowest) if slowest else []
    source = _failed_source(found, None if found.is_split else ledger.questions.get(found.split_task))

    def as_text() -> None:
        rate = found.rate if found.state is JobState.RUNNING else None
        left = left_s(total=found.total, done=found.done, rate=rate)
        record(
            [
                ("id", found.id),
                ("name", found.name),
                ("state", found.state),
                ("progress", told(done=found.done, total=found.total, is_split=found.is_split)),
                ("succeeded", found.succeeded),
                ("failed", found.failed),
                ("skipped", found.skipped),
                ("cancelled", found.cancelled),
                ("retried", found.retried),
                ("results", found.results or None),
                ("subtasks", f"{found.subtasks}, {found.open_subtasks} of them open"),
                ("rate", None if rate is None else f"{rate:,.0f} items/s"),
                ("left", None if left is None else told_s(left)),
                ("throttle", None if found.rate_max is None else f"{found.rate_max:g} items/s"),
                ("began", found.created_at),
                ("ended", found.ended_at),
                ("ran", told_s(found.ran_s)),
                ("nested in", found.parent_id),
                ("retry of", found.options.failed_of),
                ("run again", found.options.retried_by),
                ("who", found.who),
                ("why", found.why),
                ("error", None if found.error is None else found.error.partition("\n")[0]),
                ("source", None if source is None else _source_told(source)),
            ]
        )
        for group in groups:
            write(
                clean(
                    f"  {counted(group.count, 'item')}: {group.error.partition(chr(10))[0]} (for example {group.item})"
                )
            )
        for one in slow:
            write(f"  {one.task_id}: {told_s(one.ran_s)} for {counted(one.items, 'item')}")

    answer(
        session,
        document(found)
        | {
            "source": source,
            "errors": [{"count": one.count, "error": one.error, "item": one.item} for one in groups],
            "slowest": [{"task": one.task_id, "items": one.items, "ran_s": one.ran_s} for one in slow],
        },
        as_text,
    )


def _failed_source(found: JobRow, splitter: Task | None) -> dict[str, Any] | None:
    """What its source has failed of, how often, and what follows; None: it has not failed, or was read to its end."""
    if splitter is None or not splitter.failures or splitter.error is None:
        return None
    is_tried_again = splitter.state in (State.WAITING, State.READY) and found.state in JOB_STARTS
    is_over = found.error is not None and found.error.startswith(SOURCE_FAILED)
    return {
        "task": splitter.id,
        "state": splitter.state,
        "failures": splitter.failures,
        "failures_max": splitter.failures_max,
        "error": splitter.error.partition("\n")[0],
        "next_at": splitter.due_at if is_tried_again else None,
        "do": f"mend its source, then: workq job resume {found.id}" if is_over else None,
    }


def _source_told(source: dict[str, Any]) -> str:
    tries = f"{counted(source['failures'], 'try has', 'tries have')} failed of at most {source['failures_max']}"
    if source["do"] is not None:
        return f"{tries}, and no other follows; {source['do']}"
    follows = "" if source["next_at"] is None else f", the next is at {text_of(source['next_at'])}"
    return f"{tries}{follows}: {source['error']}"


@job.command(
    "watch",
    examples="""workq job watch 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq job watch 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --timeout 1h -o json""",
)
@click.argument("job_id", type=TaskId(), metavar="ID")
@click.option("--timeout", type=Duration(), metavar="TIME", help="at most so long; then exit 5")
@pass_session
def watch(session: Session, job_id: str, timeout: float | None) -> int:
    """Follow a job until it ends: a bar on a terminal, a line every ten seconds elsewhere, or JSON lines.

    Exit 0 when it succeeded, 3 when some items failed, 1 when it failed or was cancelled, 5 when the time is up.
    """
    ledger = session.stores().ledger
    of(ledger, job_id)
    ended = watch_it(session, looks(ledger, job_id, timeout_s=timeout), document)
    return exits.TIMED_OUT if ended.state not in JOB_ENDED else EXITS[ended.state]


def looks(ledger: Ledger, job_id: str, *, timeout_s: float | None, every_s: float = 0.5) -> Iterator[JobRow]:
    """A job, again and again, until it has ended or the time is up."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        found = of(ledger, job_id)
        yield found
        if found.state in JOB_ENDED or (deadline is not None and time.monotonic() >= deadline):
            return
        time.sleep(every_s)


@job.command("pause", examples='workq job pause 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --why "the search engine moves"')
@click.argument("job_id", type=TaskId(), metavar="ID")
@click.option("--why", required=True, metavar="TEXT", help="stored, and told by: workq job show")
@click.option("--force", "is_forced", is_flag=True, help="it is paused at once: what still runs is not waited for")
@pass_session
def pause(session: Session, job_id: str, why: str, is_forced: bool) -> None:
    """Start none of its subtasks until it is resumed. What runs goes on; then it is paused."""
    _told(session, jobs.pause(session.stores(), job_id, who=this_person(), why=why, is_forced=is_forced))


@job.command("resume", examples="workq job resume 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f")
@click.argument("job_id", type=TaskId(), metavar="ID")
@click.option("--why", default="resumed by an operator", show_default=True, metavar="TEXT", help="stored")
@pass_session
def resume(session: Session, job_id: str, why: str) -> None:
    """Let a paused job go on; or one whose source has failed, where it was in it."""
    found, count = jobs.resume(session.stores(), job_id, who=this_person(), why=why, announce=_announcing(session))
    if found is None:
        text = f"the job's row is gone: {counted(count, 'subtask')} of it goes on like any other task"
        answer(session, {"id": job_id, "tasks": count}, lambda: write(text))
        return
    _told(session, found)


@job.command("cancel", examples='workq job cancel 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --why "the wrong index"')
@click.argument("job_id", type=TaskId(), metavar="ID")
@click.option("--why", default="cancelled by an operator", show_default=True, metavar="TEXT", help="stored")
@click.option("--force", "is_forced", is_flag=True, help="it is cancelled at once: what still runs is not waited for")
@pass_session
def cancel(session: Session, job_id: str, why: str, is_forced: bool) -> None:
    """Start nothing of it any more, from this moment on. What runs is asked to stop; then it is cancelled."""
    stores, announce = session.stores(), _announcing(session)
    _told(session, jobs.cancel(stores, job_id, who=this_person(), why=why, announce=announce, is_forced=is_forced))


@job.command(
    "throttle",
    examples="""workq job throttle 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --rate 500/s
    workq job throttle 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --off""",
)
@click.argument("job_id", type=TaskId(), metavar="ID")
@click.option("--rate", type=RateText(), metavar="N/s", help="items a second, at most")
@click.option("--off", is_flag=True, help="as fast as it can")
@click.option("--why", default="throttled by an operator", show_default=True, metavar="TEXT", help="stored")
@click.pass_context
def throttle(ctx: click.Context, job_id: str, rate: float | None, off: bool, why: str) -> None:
    """Another rate from now on: also for what is waiting already, not for what runs."""
    if (rate is None) != off:
        raise click.UsageError("--rate and --off: give one of them", ctx)
    session = ctx.ensure_object(Session)
    stores, announce = session.stores(), _announcing(session)
    _told(session, jobs.throttle(stores, job_id, items_per_s=rate, who=this_person(), why=why, announce=announce))


@job.command(
    "retry",
    examples="""workq job retry 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq job retry 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --chunk 1 --if-running queue""",
)
@click.argument("job_id", type=TaskId(), metavar="ID")
@click.option("--failed", is_flag=True, expose_value=False, help="its failed items: there is no other way yet")
@click.option("--chunk", type=WholeNumber(1, CHUNK_MAX), help="items of one subtask; by default as before")
@click.option("--rate", type=RateText(), metavar="N/s", help="so many items a second, at most")
@click.option(
    "--if-running",
    type=click.Choice([one.value for one in IfRunning]),
    default=IfRunning.REFUSE.value,
    show_default=True,
    help="what becomes of it while another of its name and key has not ended",
)
@click.option("--why", default="retried by an operator", show_default=True, metavar="TEXT", help="stored")
@pass_session
def retry(session: Session, job_id: str, chunk: int | None, rate: float | None, if_running: str, why: str) -> int:
    """Begin a job over the failed items of one that has ended, with its parameters and what follows its end.

    Each item gets a fresh budget of failures. What no subtask could carry is left out. Its dead subtasks are dead no
    more: the new job has their items. Exit 6: it has not ended, nothing of it has failed, another job runs these items
    again or has done so (see `run again` in: workq job show), or another of its name and key has not ended.
    """
    stores = session.stores()

    def begin() -> Begun:
        return jobs.retry(
            stores,
            job_id,
            who=this_person(),
            why=why,
            announce=_announcing(session),
            chunk=chunk,
            items_per_s=rate,
            if_running=IfRunning(if_running),
        )

    return exits.REFUSED if _begin(session, begin) is None else exits.DONE


@job.command(
    "failures",
    examples="""workq job failures 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f -o json
    workq job failures 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --csv > failed.csv""",
)
@click.argument("job_id", type=TaskId(), metavar="ID")
@click.option("--csv", "is_csv", is_flag=True, help="as CSV: item, failures, error")
@pass_session
def failures(session: Session, job_id: str, is_csv: bool) -> None:
    """The items that have failed for good, a line for each: the item, how often it was tried, its last error."""
    ledger = session.stores().ledger
    of(ledger, job_id)
    after = 0
    if is_csv:
        write(_csv(["item", "failures", "error"]))
    while page := ledger.part(JobLedger).questions.failed_items(job_id, after=after):
        for number, one in page:
            after = number
            error = one.error.partition("\n")[0]
            if is_csv:
                write(_csv([one.item, one.failures, error]))
            else:
                item = {"item": codec.decode(one.item), "failures": one.failures, "error": one.error}
                if one.cursor is not None:
                    item["cursor"] = codec.decode(one.cursor)
                line(session, item, f"{one.item}  {one.failures}  {error}")


@job.command(
    "results",
    examples="""workq job results 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f -o json > results.jsonl
    workq job results 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --csv > results.csv""",
)
@click.argument("job_id", type=TaskId(), metavar="ID")
@click.option("--csv", "is_csv", is_flag=True, help="as CSV: item, result, note")
@pass_session
def results(session: Session, job_id: str, is_csv: bool) -> None:
    """What is kept of the results of its items, a line for each, in the order in which they came.

    What is kept, its handler's job says: collect="sample" or "all".
    """
    ledger = session.stores().ledger
    found = of(ledger, job_id)
    if found.options.collect not in (Collect.SAMPLE, Collect.ALL):
        session.note(f"job {job_id} keeps no results (collect={found.options.collect}); it has told {found.results}")
    after = 0
    if is_csv:
        write(_csv(["item", "result", "note"]))
    while page := ledger.part(JobLedger).questions.job_results(job_id, after=after):
        for number, one in page:
            after = number
            if is_csv:
                write(_csv([one.item, one.value, one.note]))
            else:
                value = None if one.value is None else codec.decode(one.value)
                told = {"item": codec.decode(one.item), "result": value, "note": one.note}
                line(session, told, f"{one.item}  {one.value if one.note is None else one.note}")


def of(ledger: Ledger, job_id: str) -> JobRow:
    """A job that is there."""
    found = ledger.part(JobLedger).questions.job(job_id)
    if found is None:
        raise NotFound(f"no job {job_id}; list them with: workq job ls")
    return found


def document(found: JobRow) -> dict[str, Any]:
    """A job as JSON."""
    return {
        "id": found.id,
        "name": found.name,
        "key": found.key,
        "state": found.state,
        "params": codec.decode(found.params)["k"],
        "total": found.total,
        "split": found.split,
        "is_split": found.is_split,
        "done": found.done,
        "succeeded": found.succeeded,
        "failed": found.failed,
        "skipped": found.skipped,
        "cancelled": found.cancelled,
        "retried": found.retried,
        "results": found.results,
        "subtasks": found.subtasks,
        "open_subtasks": found.open_subtasks,
        "rate": found.rate,
        "rate_max": found.rate_max,
        "left_s": left_s(total=found.total, done=found.done, rate=found.rate),
        "ran_s": found.ran_s,
        "paused_s": found.paused_s,
        "created_at": found.created_at,
        "started_at": found.started_at,
        "ended_at": found.ended_at,
        "who": found.who,
        "why": found.why,
        "error": found.error,
        "parent": found.parent_id,
        "failed_of": found.options.failed_of,
        "retried_by": found.options.retried_by,
    }


def _announcing(session: Session) -> Announce:
    """What was let go gets its hints; what cannot be published now, a sweep relays."""

    def announce(hints: Sequence[Unpublished]) -> None:
        if hints:
            publish(session.stores(), hints, deadline_s=session.settings().times.confirm_s)

    return announce


def _told(session: Session, found: JobRow) -> None:
    text = f"{found.state}: {told(done=found.done, total=found.total, is_split=found.is_split)}"
    answer(session, document(found), lambda: write(text_of(text)))


def _csv(values: list[Any]) -> str:
    import csv
    import io

    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([cell(one) for one in values])
    return out.getvalue()
