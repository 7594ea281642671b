"""`workq task`: one task, or some."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click
from msgspec.structs import asdict

from workq.cli import exits
from workq.cli.bulk import SAMPLE, DecisionWords, decide, why_or_reason_option
from workq.cli.documents import certificate, task_in_full, task_in_short, write_death
from workq.cli.group import CommandGroup
from workq.cli.inputs import (
    Duration,
    InstantText,
    RateText,
    TaskId,
    dry_run_option,
    ids_of,
    page_options,
    task_filters,
    why_option,
    yes_option,
)
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, clean, line, record, table, text_of, write
from workq.enqueue.relay import publish
from workq.errors import NotFound, Refused, WorkqError
from workq.ledger import Unpublished, WhichOpen
from workq.ledger.waiting import is_behind
from workq.operations import Announce, tasks
from workq.stores import Stores
from workq.values.certificate import Certificate
from workq.values.codec import is_task_id
from workq.values.incarnation import this_person
from workq.values.lane import physical
from workq.values.names import check_delay_s
from workq.values.options import OF_EACH_TASK, SHOWN
from workq.values.plural import counted
from workq.values.task import SETTLED, Event, Priority, State, Task

_LOOK_EVERY_S = 0.2
_HINTS_AT_ONCE = 500
_DEATHS_MAX = 20
_OPEN = (State.READY, State.WAITING, State.RUNNING)
_OF_A_DEATH = ("cause", "state", "charged")

COLUMNS = [
    Column("id", is_whole=True),
    Column("name"),
    Column("queue"),
    Column("state"),
    Column("attempt", is_number=True),
    Column("due"),
]


@click.group(
    cls=CommandGroup, examples="workq task ls --state dead\nworkq task show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"
)
def task() -> None:
    """Tasks: list, show, cancel, reschedule, retry."""


@task.command(
    "ls",
    examples="""workq task ls
    workq task ls --state running --queue mail
    workq task ls --limit 1000 -o json | jq -r '.tasks[].id'""",
)
@click.option("--state", type=click.Choice([state.value for state in State]), help="only those in this state")
@task_filters()
@page_options()
@pass_session
def ls(session: Session, state: str | None, queue: str | None, name: str | None, limit: int, after: str | None) -> None:
    """Tasks from the newest. The next page begins after the last id."""
    found = session.stores().ledger.questions.tasks(
        state=None if state is None else State(state), queue=queue, name=name, limit=limit, after=after
    )
    more = found[-1].id if len(found) == limit else None
    answer(
        session,
        {"tasks": [task_in_short(one) for one in found], "next": more},
        lambda: table(
            session,
            COLUMNS,
            [
                (one.id, one.name, physical(one.queue, one.priority), one.state, one.attempt, one.due_at)
                for one in found
            ],
            empty="no tasks",
        ),
    )
    if more is not None and session.output == "table":
        session.note(f"perhaps more: --after {more}")


@task.command(
    "show",
    examples="""workq task show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq task show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --wait 30s -o json""",
)
@click.argument("task_id", type=TaskId(), metavar="ID")
@click.option("--wait", type=Duration(), metavar="TIME", help="until it is settled, at most so long; then exit 5")
@pass_session
def show(session: Session, task_id: str, wait: float | None) -> int:
    """Everything about one task, its history, and the deaths of its workers.

    With --wait, exit 0 when it succeeded, 1 when it is dead or cancelled, 5 when the time is up.
    """
    stores = session.stores()
    deadline = time.monotonic() + (wait or 0.0)
    if wait is not None and session.is_verbose:
        session.note(f"workq: waiting for {task_id}, at most {wait:g} s")
    while True:
        found = stores.ledger.questions.get(task_id)
        if found is None:
            raise NotFound(f"no task {task_id}; list them with: workq task ls")
        if wait is None or found.state in SETTLED or time.monotonic() >= deadline:
            break
        time.sleep(min(_LOOK_EVERY_S, max(0.0, deadline - time.monotonic())))
    history = stores.ledger.questions.history(task_id)
    certificates = _certificates(stores, history)
    answer(session, task_in_full(found, history, certificates), lambda: _show(found, history, certificates))
    if wait is None:
        return exits.DONE
    if found.state not in SETTLED:
        session.note(f"workq: still {found.state} after {wait:g} s")
        return exits.TIMED_OUT
    return exits.DONE if found.state is State.SUCCEEDED else exits.FAILED


def _certificates(stores: Stores, history: Iterable[Event]) -> dict[str, Certificate]:
    """Of the workers that a task lost, as long as their rows are kept: by incarnation, the newest few."""
    lost = [event.worker for event in history if event.kind == "reaped" and event.worker is not None]
    rows = [
        row
        for one in dict.fromkeys(lost[-_DEATHS_MAX:])
        for row in stores.ledger.questions.workers(live_only=False, prefix=one)
    ]
    return {row.id: row.certificate for row in rows if row.certificate is not None}


def _show(found: Task, history: list[Event], certificates: dict[str, Certificate]) -> None:
    about: list[tuple[str, Any]] = [
        ("id", found.id),
        ("name", found.name),
        ("queue", found.queue),
        ("priority", None if found.priority is Priority.NORMAL else found.priority),
        ("state", f"{found.state} (cancel requested)" if found.is_cancel_requested else found.state),
        ("args", list(found.args)),
        ("kwargs", found.kwargs),
        ("key", found.key),
        ("order key", found.order_key),
        ("limit", found.limit),
        ("attempt", found.attempt),
        ("failures", f"{found.failures} of {found.failures_max}"),
        ("crashes", f"{found.crashes} of {found.crashes_max}"),
        *_options(found),
        ("created", found.created_at),
        ("due", None if is_behind(found.due_at, datetime.now(UTC)) else found.due_at),
        ("waits for", found.waits_for),
        ("started", found.started_at),
        ("settled", found.settled_at),
        ("expires", found.expires_at if found.state not in SETTLED else None),
        ("worker", found.worker),
        ("job", found.job_id),
        ("reason", found.reason),
        ("result", found.result),
    ]
    kept = ("id", "name", "queue", "state", "attempt")
    record([(name, value) for name, value in about if name in kept or value not in (None, [], {})])
    if found.error:
        write("error:\n" + "\n".join(f"  {clean(one)}" for one in found.error.splitlines()))
    if history:
        write("history:")
        for one in history:
            attempt = f" attempt {one.attempt}" if one.attempt is not None else ""
            shown = {name: value for name, value in one.detail.items() if one.kind != "reaped" or name in _OF_A_DEATH}
            if one.kind == "handed_back":
                shown["worker"] = one.worker
            detail = "  ".join(f"{name}={_in_short(value)}" for name, value in shown.items())
            write(clean(f"  {text_of(one.at)}  {one.kind}{attempt}  {detail}".rstrip()))
    deaths = [one for one in history if one.kind == "reaped" and "kind" in one.detail]
    if deaths:
        write("deaths of its workers:")
        for one in deaths:
            of = certificates.get(one.worker or "")
            write_death(one, None if of is None else certificate(of))


def _options(found: Task) -> Iterable[tuple[str, Any]]:
    """What it has of its handler's options beside its budgets; None: the default."""
    for one in SHOWN:
        if one in OF_EACH_TASK:
            value = getattr(found, one.name)
            yield one.name.replace("_", " "), None if value == one.default else value


def _in_short(value: Any) -> str:
    lines = text_of(value).strip().splitlines() or [""]
    return lines[0][:200]


@task.command(
    "cancel",
    examples="""workq task cancel 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq task cancel --all --name mail.send --state waiting --older 1d --dry-run
    workq task cancel --all --queue mail --rate 500/s --yes --why "sent twice\"""",
)
@click.argument("task_ids", nargs=-1, metavar="[ID... | -]")
@click.option("--all", "is_all", is_flag=True, help="all that the filters leave")
@click.option("--state", type=click.Choice([state.value for state in _OPEN]), help="only those in this state")
@task_filters()
@click.option(
    "--older", "older_s", type=Duration(), metavar="TIME", help="only those enqueued 10m, 2h, 1d ago or before"
)
@click.option("--newer", "younger_s", type=Duration(), metavar="TIME", help="only those enqueued since")
@click.option("--rate", "per_s", type=RateText(), metavar="RATE", help="at most 100/s, 60/m, ...")
@click.option("--kill", is_flag=True, help="of what runs, end the process; its neighbours run again")
@yes_option()
@dry_run_option()
@why_or_reason_option("cancelled by an operator")
@click.pass_context
def cancel(
    ctx: click.Context,
    /,
    task_ids: tuple[str, ...],
    is_all: bool,
    state: str | None,
    why: str,
    kill: bool,
    **options: Any,
) -> int:
    """Cancel tasks: at once what does not run; what runs is asked to stop.

    --kill is for what does not listen: its supervisor kills the process within `times.sweep_s`, and the other tasks of
    that process run again at no cost.

    `-` reads ids from standard input. Cancelling again, or what has finished, changes nothing and is no error. --all
    shows the count and asks first; where nobody can answer it needs --yes, and exits with 6 without. It takes those
    that are enqueued when it begins. Interrupted, the same command goes on.
    """
    session = ctx.ensure_object(Session)
    filters = {name: options.pop(name) for name in ("queue", "name", "older_s", "younger_s")}
    if is_all == bool(task_ids):
        raise click.UsageError("give ids, or --all (perhaps with filters)", ctx)
    if is_all:
        if kill:
            raise click.UsageError("--kill belongs to ids: it takes the neighbours along", ctx)
        which = WhichOpen(_OPEN if state is None else (State(state),), **filters)
        return cancel_all(session, which, what="task cancel", why=why, options=options)
    if state or any(filters.values()) or any(options.values()):
        raise click.UsageError("filters, --rate, --yes and --dry-run belong to --all", ctx)
    stores, who = session.stores(), this_person()

    def one(task_id: str) -> str:
        return tasks.cancel(stores, task_id, who=who, why=why, kills=kill).value

    return each(session, ids_of(task_ids), one)


def cancel_all(session: Session, which: WhichOpen, *, what: str, why: str, options: Mapping[str, Any]) -> int:
    """Cancel all of these, after a look and a question; answers the exit status."""
    ledger = session.stores().ledger
    counts = ledger.bulk.open_count(which)
    shown = ", ".join(f"{number} {state}" for state, number in counts.items())
    kept = {name: one for name, one in asdict(which).items() if one is not None}
    kept["states"] = [state.value for state in which.states]
    return decide(
        session,
        DecisionWords(what, f"tasks ({shown})" if shown else "tasks", "cancelled", "open", why, kept),
        lambda bulk: bulk.cancel(which),
        count=sum(counts.values()),
        sample=lambda: ledger.bulk.open_ids(which, limit=SAMPLE),
        document=lambda tally: {"cancelled": tally.done, "asked": tally.asked},
        options=options,
    )


@task.command(
    "reschedule",
    examples="""workq task reschedule 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --in 2h
    workq task reschedule 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --at 2026-11-23T03:00Z
    workq task ls --state waiting --name mail.send -o json | jq -r '.tasks[].id' | workq task reschedule - --now""",
)
@click.argument("task_ids", nargs=-1, required=True, metavar="ID... | -")
@click.option("--in", "delay_s", type=Duration(), metavar="TIME", help="run them in 90s, 10m, 2h or 1d")
@click.option("--at", type=InstantText(), metavar="TIME", help="run them at 2026-11-21T03:00Z")
@click.option("--now", "is_now", is_flag=True, help="run them as soon as a worker is free")
@why_option("rescheduled by an operator", "stored in the history")
@pass_session
def reschedule(
    session: Session, task_ids: tuple[str, ...], delay_s: float | None, at: datetime | None, is_now: bool, why: str
) -> int:
    """Let ready and waiting tasks be due at another time, whatever they waited for. `-` reads ids from standard input.

    What runs or is settled is refused. A hint that comes at the old time changes nothing.
    """
    if (delay_s is not None) + (at is not None) + is_now != 1:
        raise click.UsageError("--in, --at and --now: give one of them")
    when = tasks.due(delay_s=None if at else check_delay_s(delay_s or 0.0, "--in"), at=at)

    def one(stores: Stores, announce: Announce, task_id: str) -> Unpublished:
        return tasks.reschedule(stores, task_id, when, who=this_person(), why=why, announce=announce)

    return _hint_each(session, ids_of(task_ids), one)


@task.command(
    "retry",
    examples="""workq task retry 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq task retry - < ids.txt""",
)
@click.argument("task_ids", nargs=-1, required=True, metavar="ID... | -")
@why_option("retried by an operator", "stored in the history")
@pass_session
def retry(session: Session, task_ids: tuple[str, ...], why: str) -> int:
    """Send dead or cancelled tasks back, with fresh budgets. `-` reads ids from standard input.

    They are due now, whatever time they had.
    """
    return revive(session, ids_of(task_ids), why=why)


def revive(session: Session, task_ids: Iterable[str], *, why: str, only: State | None = None) -> int:
    """Revive tasks one by one and publish their hints; answers the exit status."""

    def one(stores: Stores, announce: Announce, task_id: str) -> Unpublished:
        return tasks.revive(stores, task_id, who=this_person(), why=why, announce=announce, only=only)

    return _hint_each(session, task_ids, one)


def _hint_each(session: Session, task_ids: Iterable[str], act: Callable[[Stores, Announce, str], Unpublished]) -> int:
    """Do what makes a task need a new hint, one by one, and publish the hints, some at a time."""
    stores = session.stores()
    unhinted: list[Unpublished] = []

    def one(task_id: str) -> str:
        row = act(stores, unhinted.extend, task_id)
        if len(unhinted) >= _HINTS_AT_ONCE:
            _publish(session, stores, unhinted)
        return "ready" if row.delay_s <= 0.0 else "waiting"

    try:
        return each(session, task_ids, one)
    finally:
        _publish(session, stores, unhinted)


def _publish(session: Session, stores: Stores, rows: list[Unpublished]) -> None:
    if rows:
        sent = publish(stores, rows, deadline_s=session.settings().times.confirm_s)
        if sent < len(rows):
            session.note(
                f"{counted(len(rows) - sent, 'hint is', 'hints are')} not confirmed; the sweep publishes what is left"
            )
        rows.clear()


def each(session: Session, task_ids: Iterable[str], act: Callable[[str], str]) -> int:
    """Do one thing to each task and print one result for each; answers 1 when any failed, 2 when none was an id."""
    results: list[dict[str, Any]] = []
    failed = malformed = 0
    try:
        for task_id in task_ids:
            result: dict[str, Any] = {"id": task_id, "ok": False}
            if not is_task_id(task_id):
                malformed += 1
                result["error"] = "not a task id"
            else:
                try:
                    result |= {"ok": True, "result": act(task_id)}
                except (NotFound, Refused) as error:
                    result["error"] = str(error).removeprefix(f"task {task_id} ").removeprefix(f"task {task_id}: ")
            failed += not result["ok"]
            results.append(result)
            if session.output == "table":
                line(session, result, f"{task_id}  {result.get('result') or 'failed: ' + result['error']}")
    except WorkqError:
        if session.output == "json" and results:
            answer(session, {"results": results}, lambda: None)  # what was done stands
        raise
    if session.output == "json":
        answer(session, {"results": results}, lambda: None)
    if results and malformed == len(results):
        raise click.UsageError("no task id among them; one looks like 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f")
    return exits.FAILED if failed else exits.DONE
