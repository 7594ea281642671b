"""Decide about a job: pause, resume, cancel, throttle it, or run again what has failed of it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from workq.cli import exits
from workq.cli.group import Command
from workq.cli.inputs import RateText, TaskId, WholeNumber, why_option
from workq.cli.job.begin import if_running_option, tell_begun
from workq.cli.job.look import document
from workq.cli.session import Session, pass_session
from workq.cli.show import answer, text_of, write
from workq.enqueue.relay import publish
from workq.jobs.progress import told
from workq.jobs.values import CHUNK_MAX, Begun, IfRunning, JobRow
from workq.ledger import Unpublished
from workq.operations import Announce, jobs
from workq.values.incarnation import this_person
from workq.values.plural import counted


@click.command(
    "pause",
    cls=Command,
    examples='workq job pause 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --why "the search engine moves"',
)
@click.argument("job_id", type=TaskId("job"), metavar="ID")
@why_option(None, "stored, and told by: workq job show")
@click.option("--force", "is_forced", is_flag=True, help="it is paused at once: what still runs is not waited for")
@pass_session
def pause(session: Session, job_id: str, why: str, is_forced: bool) -> None:
    """Start none of its subtasks until it is resumed. What runs goes on; then it is paused."""
    _told(session, jobs.pause(session.stores(), job_id, who=this_person(), why=why, is_forced=is_forced))


@click.command("resume", cls=Command, examples="workq job resume 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f")
@click.argument("job_id", type=TaskId("job"), metavar="ID")
@why_option("resumed by an operator")
@pass_session
def resume(session: Session, job_id: str, why: str) -> None:
    """Let a paused job go on; or one whose source has failed, where it was in it."""
    found, count = jobs.resume(session.stores(), job_id, who=this_person(), why=why, announce=_announcing(session))
    if found is None:
        text = f"the job's row is gone: {counted(count, 'subtask')} of it goes on like any other task"
        answer(session, {"id": job_id, "tasks": count}, lambda: write(text))
        return
    _told(session, found)


@click.command(
    "cancel", cls=Command, examples='workq job cancel 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --why "the wrong index"'
)
@click.argument("job_id", type=TaskId("job"), metavar="ID")
@why_option("cancelled by an operator")
@click.option("--force", "is_forced", is_flag=True, help="it is cancelled at once: what still runs is not waited for")
@pass_session
def cancel(session: Session, job_id: str, why: str, is_forced: bool) -> None:
    """Start nothing of it any more, from this moment on. What runs is asked to stop; then it is cancelled."""
    stores, announce = session.stores(), _announcing(session)
    _told(session, jobs.cancel(stores, job_id, who=this_person(), why=why, announce=announce, is_forced=is_forced))


@click.command(
    "throttle",
    cls=Command,
    examples="""workq job throttle 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --rate 500/s
    workq job throttle 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --off""",
)
@click.argument("job_id", type=TaskId("job"), metavar="ID")
@click.option("--rate", type=RateText(), metavar="N/s", help="items a second, at most")
@click.option("--off", is_flag=True, help="as fast as it can")
@why_option("throttled by an operator")
@click.pass_context
def throttle(ctx: click.Context, job_id: str, rate: float | None, off: bool, why: str) -> None:
    """Another rate from now on: also for what is waiting already, not for what runs."""
    if (rate is None) != off:
        raise click.UsageError("--rate and --off: give one of them", ctx)
    session = ctx.ensure_object(Session)
    stores, announce = session.stores(), _announcing(session)
    _told(session, jobs.throttle(stores, job_id, items_per_s=rate, who=this_person(), why=why, announce=announce))


@click.command(
    "retry",
    cls=Command,
    examples="""workq job retry 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq job retry 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --chunk 1 --if-running queue""",
)
@click.argument("job_id", type=TaskId("job"), metavar="ID")
@click.option("--failed", is_flag=True, expose_value=False, help="its failed items: there is no other way yet")
@click.option("--chunk", type=WholeNumber(1, CHUNK_MAX), help="items of one subtask; by default as before")
@click.option("--rate", type=RateText(), metavar="N/s", help="so many items a second, at most")
@if_running_option
@why_option("retried by an operator")
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

    return exits.REFUSED if tell_begun(session, begin) is None else exits.DONE


def _announcing(session: Session) -> Announce:
    """What was let go gets its hints; what cannot be published now, a sweep relays."""

    def announce(hints: Sequence[Unpublished]) -> None:
        if hints:
            publish(session.stores(), hints, deadline_s=session.settings().times.confirm_s)

    return announce


def _told(session: Session, found: JobRow) -> None:
    text = f"{found.state}: {told(done=found.done, total=found.total, is_split=found.is_split)}"
    answer(session, document(found), lambda: write(text_of(text)))
