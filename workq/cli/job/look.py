"""Look at jobs: list them, show one, follow one until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from workq.cli import exits
from workq.cli.group import Command
from workq.cli.inputs import Duration, TaskId, WholeNumber, page_options
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, cell, clean, is_plain, line, record, table, text_of, write
from workq.errors import NotFound
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.progress import left_s, told, told_s
from workq.jobs.values import JOB_ENDED, JOB_STARTS, SOURCE_FAILED, Collect, JobRow, JobState
from workq.values import codec
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
LINE_EVERY_S: Final = 10.0


def follow(session: Session, looks: Iterator[JobRow], document: Callable[[JobRow], dict[str, Any]]) -> JobRow:
    """Tell of each look; answers the last."""
    if session.output == "json" or is_plain() or session.is_quiet:
        return _in_lines(session, looks, document)
    return _in_a_bar(looks)


def _in_lines(session: Session, looks: Iterator[JobRow], document: Callable[[JobRow], dict[str, Any]]) -> JobRow:
    told_at = float("-inf")
    last: tuple[JobState, int] | None = None
    found: JobRow | None = None
    for found in looks:
        now = time.monotonic()
        has_moved = (found.state, found.done) != last
        is_turn = last is None or found.state != last[0] or now - told_at >= LINE_EVERY_S
        if has_moved and (is_turn or found.state in JOB_ENDED):
            line(session, document(found), sentence(found))
            told_at, last = now, (found.state, found.done)
    if found is None:
        raise RuntimeError("nobody has looked")
    return found


def _in_a_bar(looks: Iterator[JobRow]) -> JobRow:
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}")) as progress:
        bar = progress.add_task("", total=None, said="")
        found: JobRow | None = None
        for found in looks:
            progress.update(bar, description=found.name, total=found.total, completed=found.done, said=sentence(found))
    if found is None:
        raise RuntimeError("nobody has looked")
    return found


def sentence(found: JobRow) -> str:
    """How far it is, in one line."""
    parts = [f"{found.state}: {told(done=found.done, total=found.total, is_split=found.is_split)}"]
    if found.options.is_partitioned and found.state not in JOB_ENDED:
        parts.append(f"{found.open_subtasks:,} of {found.subtasks:,} partitions open")
    if found.failed:
        parts.append(f"{found.failed:,} failed")
    if found.state is JobState.RUNNING and found.rate:
        parts.append(f"{found.rate:,.0f} items/s")
        left = left_s(total=found.total, done=found.done, rate=found.rate)
        if left is not None:
            parts.append(f"{told_s(left)} left")
    return ", ".join(parts)


def job_of(ledger: Ledger, job_id: str) -> JobRow:
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


@click.command("ls", cls=Command, examples="workq job ls --state running -o json")
@click.option("--state", type=click.Choice([one.value for one in JobState]), help="only those in this state")
@click.option("--name", metavar="NAME", help="only those of this name")
@click.option("--in", "parent", type=TaskId("job"), metavar="ID", help="only those that are nested in this job")
@page_options()
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


@click.command(
    "show",
    cls=Command,
    examples="""workq job show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq job show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --slowest 5 -o json""",
)
@click.argument("job_id", type=TaskId("job"), metavar="ID")
@click.option("--slowest", type=WholeNumber(0, 1000), default=0, help="and so many of the subtasks that took longest")
@pass_session
def show(session: Session, job_id: str, slowest: int) -> None:
    """How far a job is, how fast, what has failed, and why."""
    ledger = session.stores().ledger
    found = job_of(ledger, job_id)
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


@click.command(
    "watch",
    cls=Command,
    examples="""workq job watch 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq job watch 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --timeout 1h -o json""",
)
@click.argument("job_id", type=TaskId("job"), metavar="ID")
@click.option("--timeout", type=Duration(), metavar="TIME", help="at most so long; then exit 5")
@pass_session
def watch(session: Session, job_id: str, timeout: float | None) -> int:
    """Follow a job until it ends: a bar on a terminal, a line every ten seconds elsewhere, or JSON lines.

    Exit 0 when it succeeded, 3 when some items failed, 1 when it failed or was cancelled, 5 when the time is up.
    """
    ledger = session.stores().ledger
    job_of(ledger, job_id)
    ended = follow(session, looks(ledger, job_id, timeout_s=timeout), document)
    return exits.TIMED_OUT if ended.state not in JOB_ENDED else EXITS[ended.state]


def looks(ledger: Ledger, job_id: str, *, timeout_s: float | None, every_s: float = 0.5) -> Iterator[JobRow]:
    """A job, again and again, until it has ended or the time is up."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        found = job_of(ledger, job_id)
        yield found
        if found.state in JOB_ENDED or (deadline is not None and time.monotonic() >= deadline):
            return
        time.sleep(every_s)


@click.command(
    "failures",
    cls=Command,
    examples="""workq job failures 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f -o json
    workq job failures 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --csv > failed.csv""",
)
@click.argument("job_id", type=TaskId("job"), metavar="ID")
@click.option("--csv", "is_csv", is_flag=True, help="as CSV: item, failures, error")
@pass_session
def failures(session: Session, job_id: str, is_csv: bool) -> None:
    """The items that have failed for good, a line for each: the item, how often it was tried, its last error."""
    ledger = session.stores().ledger
    job_of(ledger, job_id)
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


@click.command(
    "results",
    cls=Command,
    examples="""workq job results 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f -o json > results.jsonl
    workq job results 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --csv > results.csv""",
)
@click.argument("job_id", type=TaskId("job"), metavar="ID")
@click.option("--csv", "is_csv", is_flag=True, help="as CSV: item, result, note")
@pass_session
def results(session: Session, job_id: str, is_csv: bool) -> None:
    """What is kept of the results of its items, a line for each, in the order in which they came.

    What is kept, its handler's job says: collect="sample" or "all".
    """
    ledger = session.stores().ledger
    found = job_of(ledger, job_id)
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


def _csv(values: list[Any]) -> str:
    import csv
    import io

    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([cell(one) for one in values])
    return out.getvalue()
