"""`workq handler`: the tasks that an application has, and what each does when it fails. It asks no server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from workq.cli.group import CommandGroup
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table
from workq.handlers.handler import Handler
from workq.handlers.retry import Retries, timeline
from workq.values.options import OF_EACH_TASK
from workq.values.plural import counted

SHOWN_MAX = 50
"""So many attempts of a timeline are shown."""
_COLUMNS = ("name", "queue", "priority", *(one.name for one in OF_EACH_TASK), "time_limit_s", "retry")


@click.group(cls=CommandGroup, examples="workq handler ls\nworkq handler show shop.charge")
def handler() -> None:
    """Handlers: what your application has registered. Asks no server."""


@handler.command("ls", examples="workq handler ls --app shop.tasks:wq\nworkq handler ls -o json")
@pass_session
def ls(session: Session) -> int:
    """Each task of the application with its queue, budgets, time limit and retry policy."""
    app, path = session.application()
    found = [_document(app.handler(name)) for name in app.registry.names()]
    titles = [title for title in _COLUMNS if title != "priority"]
    columns = [Column(title.replace("_", " "), is_whole=title == "name") for title in titles]
    answer(
        session,
        {"handlers": found},
        lambda: table(
            session, columns, [[one[title] for title in titles] for one in found], empty=f"{path} has no tasks"
        ),
    )
    return 0


@handler.command("show", examples="workq handler show shop.charge\nworkq handler show shop.charge -o json")
@click.argument("name")
@pass_session
def show(session: Session, name: str) -> int:
    """One task of the application, and the timeline of its attempts.

    The timeline is the least and the most time from the first failure to each start, without the attempts themselves.
    """
    app, _ = session.application()
    one = app.handler(name)
    starts = _timeline(one)
    document = _document(one) | {
        "timeline": None if starts is None else [{"least_s": least, "most_s": most} for least, most in starts]
    }
    answer(session, document, lambda: _write(document, one, starts))
    return 0


def _document(one: Handler[..., Any]) -> dict[str, Any]:
    retries = one.retries
    return {
        "name": one.name,
        "queue": one.defaults.queue,
        "priority": one.defaults.priority,
        **one.defaults.carried(),
        "time_limit_s": one.time_limit_s,
        "limit": None if one.defaults.limit is None else asdict(one.defaults.limit),
        "batch": None if one.batch is None else asdict(one.batch),
        "retry": _policy(retries),
        "retry_on": None if retries.on is None else [kind.__name__ for kind in retries.on],
        "give_up_on": [kind.__name__ for kind in retries.give_up_on],
    }


def _policy(retries: Retries) -> str:
    if not callable(retries.policy):
        return repr(retries.policy)
    return f"{getattr(retries.policy, '__qualname__', type(retries.policy).__name__)}()"


def _timeline(one: Handler[..., Any]) -> list[tuple[float, float]] | None:
    """None when a function of the user decides."""
    if callable(one.retries.policy):
        return None
    return timeline(one.retries.policy, min(one.defaults.failures_max, SHOWN_MAX))


def _write(document: dict[str, Any], one: Handler[..., Any], starts: list[tuple[float, float]] | None) -> None:
    pairs = [(name.replace("_", " "), document[name]) for name in _COLUMNS]
    if (limit := document["limit"]) is not None:
        pairs.append(("limit", ", ".join(f"{name} {value}" for name, value in limit.items() if value is not None)))
    if one.batch is not None:
        pairs.append(("batch", f"{counted(one.batch.size, 'task')}, or those of {one.batch.linger_s:g} s"))
    if document["retry_on"] is not None:
        pairs.append(("retry on", ", ".join(document["retry_on"]) or "no error"))
    if document["give_up_on"]:
        pairs.append(("give up on", ", ".join(document["give_up_on"])))
    if starts is None:
        pairs.append(("attempts", "the function decides when each is due"))
    for number, (least, most) in enumerate(starts or (), start=2):
        pairs.append((f"attempt {number}", _span(least, most)))
    if starts is not None and len(starts) + 1 < one.defaults.failures_max:
        pairs.append(("...", f"up to attempt {one.defaults.failures_max}"))
    record(pairs)


def _span(least_s: float, most_s: float) -> str:
    least, most = _duration(least_s), _duration(most_s)
    when = least if least == most else f"{least} to {most}"
    return f"{when} after the first failure"


def _duration(seconds: float) -> str:
    """To two units: `1 h 5 min`, `2.5 s`."""
    if seconds < 60.0:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    left, parts = round(seconds), []
    for size, unit in units:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
