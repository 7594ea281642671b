"""What became of the items of a job, a line for each: those that failed, and results that are kept."""

from __future__ import annotations

from typing import Any

import click

from workq.cli.group import Command
from workq.cli.inputs import TaskId
from workq.cli.job.row import job_of
from workq.cli.session import Session, pass_session
from workq.cli.show import cell, line, write
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import Collect
from workq.values import codec


@click.command(
    "failures",
    cls=Command,
    examples="""workq job failures 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f -o json
    workq job failures 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --csv > failed.csv""",
)
@click.argument("job_id", type=TaskId(), metavar="ID")
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
@click.argument("job_id", type=TaskId(), metavar="ID")
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
