"""`workq queue`: the queues with their bands, what waits in them, and who serves them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from workq.broker import Depth
from workq.cli import exits
from workq.cli.bulk import why_or_reason_option
from workq.cli.group import CommandGroup, nearest
from workq.cli.inputs import BandName, Duration, dry_run_option, why_option, yes_option
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table, text_of, write
from workq.cli.task import cancel_all
from workq.errors import BrokerUnavailable
from workq.ledger import Pause, QueueCount, WhichOpen
from workq.operations import queues
from workq.values.incarnation import this_person
from workq.values.lane import is_extra, meant, queue_of
from workq.values.names import check_delay_s
from workq.values.plural import counted
from workq.values.task import State

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


_TITLES: Final = ("queue", "ready", "waiting", "running", "hints", "hints_unacked", "consumers", "paused")
_LOOK_EVERY_S: Final = 0.2
_LOOKS_APART_S: Final = 1.0
_TELL_EVERY_S: Final = 10.0


@click.group(
    cls=CommandGroup,
    examples="""workq queue ls
    workq queue show mail
    workq queue pause mail --why "the mail server moves" --for 2h
    workq queue resume mail""",
)
def queue() -> None:
    """Queues: their backlog, who serves them; pause, drain and purge them."""


@queue.command("ls", examples="workq queue ls\nworkq queue ls -o json")
@pass_session
def ls(session: Session) -> int:
    """Each queue with its tasks, as the ledger counts them, and its hints, as the broker does.

    A hint carries up to 100 tasks, so the numbers differ; on Kafka each counts until its offset is committed. Queues
    without an open task are shown when the application has a task for them, or when they are paused. Tasks of high and
    low priority wait in lines of their own, such as mail~high and mail~low, which are shown from the first one on.
    """
    ledger = session.stores().ledger
    counts, used = ledger.questions.counts().queues, ledger.lanes.bands()
    paused = {name for name in ledger.pauses.all() if not is_extra(name)}
    found, status = _looked_at(session, sorted({*counts, *used, *paused, *session.queue().registry.queues()}), counts)
    answer(
        session,
        {"queues": found},
        lambda: table(session, _columns(), [_row(one) for one in found], empty="no queues"),
    )
    return status


@queue.command("show", examples="workq queue show mail\nworkq queue show mail -o json")
@click.argument("name", type=BandName(), metavar="QUEUE")
@pass_session
def show(session: Session, name: str) -> int:
    """One queue: its tasks, its hints, and the worker processes that serve it; of its bands, or of one of them."""
    _warn_of_unknown(session, name)
    ledger = session.stores().ledger
    counts, used = ledger.questions.counts().queues, ledger.lanes.bands()
    bands = [one for one in meant(name) if one == name or not is_extra(one) or one in used or one in counts]
    found, status = _looked_at(session, bands, counts)
    about = _together(name, found)
    serving = [row for row in ledger.questions.workers() if queue_of(name) in row.queues]
    about["workers"] = [{"id": row.id, "host": row.host, "threads": row.threads} for row in serving]

    def as_text() -> None:
        processes, threads = len(serving), sum(row.threads for row in serving)
        by = f"{counted(processes, 'process', 'processes')} with {counted(threads, 'thread')}" if serving else "nobody"
        titles = [title.replace("_", " ") for title in _TITLES]
        record([*zip(titles, _row(about), strict=True), ("served by", by)])
        if len(found) > 1:
            table(session, _columns(), [_row(one) for one in found], empty="no bands")

    answer(session, about, as_text)
    return status


@queue.command(
    "pause",
    examples="""workq queue pause mail --why "the mail server moves" --for 2h
    workq queue pause mail --why "incident 42\"""",
)
@click.argument("name", type=BandName(), metavar="QUEUE")
@why_option(None, "stored, and told by: workq why, workq queue show")
@click.option("--for", "for_s", type=Duration(), metavar="TIME", help="it ends by itself after 90s, 10m, 2h or 1d")
@pass_session
def pause(session: Session, name: str, why: str, for_s: float | None) -> None:
    """Start nothing of a queue any more, until it is resumed. What runs goes on; what is enqueued waits.

    Like all commands for a queue, it acts on all priorities; mail~low is the band of one.

    It holds for every claim that begins after it, in every worker, and through restarts and losses of everything but
    the ledger. One that is under way at that moment may still stand, some milliseconds later.
    """
    made = _paused(session, name, why, for_s)
    running = _running(session.stores().ledger, name)
    answer(session, _pause(made) | {"queue": name, "running": running}, lambda: write(_told(made, running)))


@queue.command("resume", examples='workq queue resume mail\nworkq queue resume mail --why "the mail server has moved"')
@click.argument("name", type=BandName(), metavar="QUEUE")
@why_option("resumed by an operator")
@pass_session
def resume(session: Session, name: str, why: str) -> None:
    """Let a paused queue go on: its workers notice within a second. What is not paused stays so, and is no error."""
    _warn_of_unknown(session, name)
    is_resumed = queues.resume(session.stores(), name, who=this_person(), why=why)
    text = "resumed" if is_resumed else "it was not paused"
    answer(session, {"queue": name, "resumed": is_resumed}, lambda: write(text))


@queue.command("drain", examples='workq queue drain mail --why "before the migration" --wait 10m')
@click.argument("name", type=BandName(), metavar="QUEUE")
@why_option(None, "as for: workq queue pause")
@click.option("--for", "for_s", type=Duration(), metavar="TIME", help="as for: workq queue pause")
@click.option(
    "--wait", "wait_s", type=Duration(), default="10m", show_default=True, help="at most, until nothing of it runs"
)
@pass_session
def drain(session: Session, name: str, why: str, for_s: float | None, wait_s: float) -> int:
    """Pause a queue, and wait until nothing of it runs any more. It stays paused, also when the time is up: exit 5.

    What waits in the queue stays there, and starts when the queue is resumed. How many tasks still run is told
    meanwhile, on standard error.

    A claim that was under way when the pause began may still stand some milliseconds later. So nothing has to run at
    two looks, a second apart; the second is taken even when the time is up.
    """
    made = _paused(session, name, why, for_s)
    ledger = session.stores().ledger
    deadline = time.monotonic() + wait_s
    told_at = float("-inf")
    while running := _running(ledger, name) or _running_a_moment_later(ledger, name):
        now = time.monotonic()
        if now - told_at >= _TELL_EVERY_S:
            told_at, left_s = now, max(0.0, deadline - now)
            still = counted(running, "task that still runs", "tasks that still run")
            session.note(f"queue {name!r} is paused; waiting for {still}, {left_s:.0f} s at most")
        if now > deadline:
            break
        time.sleep(_LOOK_EVERY_S)
    backlog = sum(ledger.bulk.open_count(WhichOpen((State.READY, State.WAITING), queue=name)).values())
    document = _pause(made) | {"queue": name, "running": running, "backlog": backlog}
    answer(session, document, lambda: write(_drained(name, made, running, backlog, wait_s)))
    return exits.TIMED_OUT if running else exits.DONE


@queue.command(
    "purge",
    examples="""workq queue purge mail --dry-run
    workq queue purge mail --yes --why "the campaign was withdrawn\"""",
)
@click.argument("name", type=BandName(), metavar="QUEUE")
@yes_option()
@dry_run_option()
@why_or_reason_option("purged by an operator")
@pass_session
def purge(session: Session, /, name: str, why: str, **options: bool) -> int:
    """Cancel every task of a queue that does not run. Those that run, and those enqueued meanwhile, are left alone.

    It shows the count and asks first; where nobody can answer it needs --yes, and exits with 6 without. Interrupted,
    the same command goes on. The tasks are kept like other cancelled ones, and `workq task retry` brings one back.
    """
    _warn_of_unknown(session, name)
    which = WhichOpen((State.READY, State.WAITING), queue=name)
    return cancel_all(session, which, what="queue purge", why=why, options=options)


def _warn_of_unknown(session: Session, name: str) -> None:
    """A queue that nothing here uses may be a typing error: the nearest is proposed."""
    ledger = session.stores().ledger
    serving = {queue for row in ledger.questions.workers() for queue in row.queues}
    used = {queue_of(one) for one in (*ledger.questions.counts().queues, *ledger.lanes.bands(), *ledger.pauses.all())}
    known = sorted(serving | used | set(session.queue().registry.queues()))
    queue = queue_of(name)
    if queue not in known:
        session.warn(f"no open task, worker or handler here uses the queue {queue!r}{nearest(queue, known)}")


def _looked_at(
    session: Session, names: Sequence[str], counts: Mapping[str, QueueCount]
) -> tuple[list[dict[str, Any]], int]:
    """What ledger and broker say of these queues, and the exit status: the broker may be away."""
    pauses = session.stores().ledger.pauses.all()
    depths: dict[str, Depth] = {}
    status = exits.DONE
    try:
        depths = dict(session.stores().broker.depths(names, with_consumers=True))
    except BrokerUnavailable as error:
        session.warn(str(error))
        status = exits.UNREACHABLE
    found: list[dict[str, Any]] = []
    for name in names:
        count, depth = counts.get(name), depths.get(name)
        found.append(
            {
                "queue": name,
                "ready": count.ready if count else 0,
                "waiting": count.waiting if count else 0,
                "running": count.running if count else 0,
                "hints": depth.ready if depth else None,
                "hints_unacked": depth.unacked if depth else None,
                "consumers": depth.consumers if depth else None,
                "paused": _pause(pauses[name]) if name in pauses else None,
            }
        )
    return found, status


def _paused(session: Session, name: str, why: str, for_s: float | None) -> Pause:
    ends_in_s = None if for_s is None else check_delay_s(for_s, "--for")
    _warn_of_unknown(session, name)
    return queues.pause(session.stores(), name, who=this_person(), why=why, for_s=ends_in_s)


def _running(ledger: Ledger, name: str) -> int:
    return ledger.bulk.open_count(WhichOpen((State.RUNNING,), queue=name)).get(State.RUNNING, 0)


def _running_a_moment_later(ledger: Ledger, name: str) -> int:
    """By now, a claim that was under way when the queue was paused can be seen."""
    time.sleep(_LOOKS_APART_S)
    return _running(ledger, name)


def _pause(made: Pause) -> dict[str, Any]:
    return {"paused_at": made.paused_at, "ends_at": made.ends_at, "who": made.who, "why": made.why}


def _told(made: Pause, running: int) -> str:
    end = "until it is resumed" if made.ends_at is None else f"until {text_of(made.ends_at)}"
    return f"paused {end}; " + (
        f"{running} of its tasks still run{'s' if running == 1 else ''}" if running else "nothing of it runs"
    )


def _drained(name: str, made: Pause, running: int, backlog: int, wait_s: float) -> str:
    """What came of it, what is left, and what to do next."""
    until = "" if made.ends_at is None else f" until {text_of(made.ends_at)}"
    stays = f"it stays paused{until}, and {counted(backlog, 'task waits', 'tasks wait')} in it"
    go_on = f"to let it go on: workq queue resume {name}"
    if not running:
        return f"queue {name!r} is drained: nothing of it runs; {stays}; {go_on}"
    still = counted(running, "task of it still runs", "tasks of it still run")
    look = f"workq task ls --queue {name} --state running"
    return f"queue {name!r} is not drained: after {wait_s:g} s {still}; {stays}; which run: {look}; {go_on}"


def _together(name: str, bands: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What there is of a queue in all of its bands. Where these differ, it is paused as its band `normal` is.

    Of consumers, who serve the bands alike, the most are told.
    """
    about: dict[str, Any] = {"queue": name}
    for title in _TITLES[1:-1]:
        numbers = [one[title] for one in bands if one[title] is not None]
        about[title] = (max if title == "consumers" else sum)(numbers) if numbers else None
    named = [one["paused"] for one in bands if len(bands) == 1 or not is_extra(one["queue"])]
    return about | {"paused": named[0], "bands": bands}


def _columns() -> list[Column]:
    return [Column(title.replace("_", " "), is_number=title not in ("queue", "paused")) for title in _TITLES]


def _row(about: Mapping[str, Any]) -> list[Any]:
    """What is shown of a queue, in the order of the titles."""
    paused = about["paused"]
    shown = None if paused is None else f"by {paused['who']}: {paused['why']}"
    return [shown if title == "paused" else about[title] for title in _TITLES]
