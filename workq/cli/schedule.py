"""`workq schedule`: what ticks, when next, and what each tick has become."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from workq.cli.group import CommandGroup
from workq.cli.inputs import ScheduleName, WholeNumber, why_option
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, table, text_of, write
from workq.errors import NotFound
from workq.operations import schedules
from workq.schedules.ledger import Schedules
from workq.schedules.tick import now_as_task
from workq.schedules.timetable import ScheduleRow
from workq.values import codec
from workq.values.incarnation import this_person
from workq.values.lane import split
from workq.values.plural import counted

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


@click.group(cls=CommandGroup, examples="workq schedule ls\nworkq schedule next nightly\nworkq schedule run nightly")
def schedule() -> None:
    """Schedules: list them, see when they tick, run one now, pause and resume it."""


@schedule.command("ls", examples="workq schedule ls\nworkq schedule ls -o json")
@pass_session
def ls(session: Session) -> None:
    """Each schedule with its timetable, when it ticked last, and when it ticks next."""
    found = session.stores().ledger.part(Schedules).all()
    columns = [Column("name"), Column("timetable"), Column("handler"), Column("last"), Column("next"), Column("paused")]
    answer(
        session,
        {"schedules": [_document(one) for one in found]},
        lambda: table(
            session,
            columns,
            [(one.name, one.timetable.shown(), one.task_name, one.last_at, one.next_at, _pause(one)) for one in found],
            empty="no schedules; an application declares them with wq.schedule(), and workers write them here",
        ),
    )


@schedule.command("next", examples="workq schedule next nightly\nworkq schedule next nightly --count 20")
@click.argument("name", type=ScheduleName(), metavar="NAME")
@click.option("--count", type=WholeNumber(1, 1000), default=5, show_default=True, help="so many ticks")
@pass_session
def next_ticks(session: Session, name: str, count: int) -> None:
    """When a schedule ticks next, in UTC and in its own time zone, and what its last ticks have become."""
    ledger = session.stores().ledger
    row = _found(ledger, name)
    coming = list(islice(_coming(row), count))
    last = ledger.part(Schedules).ticks(name, limit=count)

    def as_text() -> None:
        for at, task_id in reversed(last):
            write(f"{text_of(at)}  {task_id}")
        for at in coming:
            write(f"{text_of(at)}  {row.timetable.local(at)}")

    document = {"next": coming, "last": [{"at": at, "task": task_id} for at, task_id in last]}
    answer(session, _document(row) | document, as_text)


@schedule.command("run", examples="workq schedule run nightly\nworkq schedule run nightly -o json | jq -r .id")
@click.argument("name", type=ScheduleName(), metavar="NAME")
@pass_session
def run(session: Session, name: str) -> None:
    """Enqueue the task of a schedule now, besides its ticks. Its timetable stays as it is, paused or not."""
    stores = session.stores()
    task_id = now_as_task(stores, _found(stores.ledger, name), confirm_s=session.settings().times.confirm_s)
    answer(session, {"id": task_id, "schedule": name}, lambda: write(task_id))


@schedule.command("pause", examples='workq schedule pause nightly --why "the disk is full"')
@click.argument("name", type=ScheduleName(), metavar="NAME")
@why_option(None, "stored, and told by: workq schedule ls")
@pass_session
def pause(session: Session, name: str, why: str) -> None:
    """Let a schedule not tick until it is resumed. What has become a task already stays one."""
    schedules.pause(session.stores(), name, who=this_person(), why=why)
    answer(session, {"schedule": name, "paused": True}, lambda: write("paused until it is resumed"))


@schedule.command("resume", examples="workq schedule resume nightly")
@click.argument("name", type=ScheduleName(), metavar="NAME")
@why_option("resumed by an operator")
@pass_session
def resume(session: Session, name: str, why: str) -> None:
    """Let a paused schedule tick again, from now on: what it would have ticked meanwhile is left out."""
    is_resumed = schedules.resume(session.stores(), name, who=this_person(), why=why)
    text = "resumed" if is_resumed else "it was not paused"
    answer(session, {"schedule": name, "resumed": is_resumed}, lambda: write(text))


@schedule.command("rm", examples="workq schedule rm nightly")
@click.argument("name", type=ScheduleName(), metavar="NAME")
@why_option("removed by an operator")
@pass_session
def rm(session: Session, name: str, why: str) -> None:
    """Forget a schedule that no application declares any more; a worker that does writes it again when it starts."""
    if not schedules.remove(session.stores(), name, who=this_person(), why=why):
        raise _unknown(name)
    answer(session, {"schedule": name, "removed": True}, lambda: write("removed"))


@schedule.command("sync", examples="workq schedule sync --app shop.tasks:wq")
@pass_session
def sync(session: Session) -> None:
    """Write the application's schedules into the ledger, as its workers do when they start."""
    session.may_make(session.settings())
    ledger = session.queue().stores.ledger
    given = session.queue().registry.schedules()
    changed = [one.name for one in given if ledger.part(Schedules).schedule(one)]
    strange = sorted({row.name for row in ledger.part(Schedules).all()} - {one.name for one in given})

    def as_text() -> None:
        write(f"{counted(len(given), 'schedule')}, {len(changed)} of them new or changed")
        if strange:
            session.note(f"not of this application: {', '.join(strange)}; if nobody wants one: workq schedule rm NAME")

    answer(session, {"schedules": len(given), "changed": changed, "others": strange}, as_text)


def _found(ledger: Ledger, name: str) -> ScheduleRow:
    row = next((one for one in ledger.part(Schedules).all() if one.name == name), None)
    if row is None:
        raise _unknown(name)
    return row


def _coming(row: ScheduleRow) -> Any:
    at: datetime | None = row.next_at
    while at is not None:
        yield at
        at = row.timetable.after(at)


def _pause(row: ScheduleRow) -> str | None:
    return None if row.paused_at is None else f"by {row.who}: {row.why}"


def _document(row: ScheduleRow) -> dict[str, Any]:
    paused = None if row.paused_at is None else {"paused_at": row.paused_at, "who": row.who, "why": row.why}
    queue, priority = split(row.queue)
    return {
        "name": row.name,
        "rule": row.timetable.rule,
        "text": row.timetable.text,
        "tz": row.timetable.zone,
        "missed": row.missed,
        "handler": row.task_name,
        "queue": queue,
        "priority": priority,
        "payload": codec.decode(row.payload),
        "last_at": row.last_at,
        "next_at": row.next_at,
        "paused": paused,
    }


def _unknown(name: str) -> NotFound:
    return NotFound(f"no schedule {name!r}; list them with: workq schedule ls")
