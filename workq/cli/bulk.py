"""How a command decides about many tasks at once: it counts, asks, acts, and tells and records how far it came."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from workq.cli import exits
from workq.cli.exits import ended_by_signals
from workq.cli.inputs import Words
from workq.cli.session import Session
from workq.cli.show import answer, write
from workq.operations.bulk import Bulk, RateCap, Tally
from workq.values.incarnation import this_person
from workq.values.plural import counted

_FORMERLY: Final = "workq.cli.bulk.reason"
SAMPLE: Final = 3
"""How many ids are shown of those that are meant."""


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class DecisionWords:
    """What is decided, in the words of its messages: "3 `tasks` would be `done`", and "the others are still `before`".

    `what` and `which` are recorded.
    """

    what: str
    tasks: str
    done: str
    before: str
    why: str
    which: Mapping[str, Any]


def why_or_reason_option(default: str) -> Callable[[F], F]:
    """`--why`, which is stored with the tasks; and for one version `--reason`, its former name."""

    def decorate(function: F) -> F:
        why = click.option(
            "--why",
            type=Words(),
            default=default,
            show_default=True,
            metavar="TEXT",
            help="stored with the tasks",
            callback=_why,
        )
        formerly = click.option(
            "--reason", type=Words(), hidden=True, is_eager=True, expose_value=False, callback=_formerly
        )
        return formerly(why(function))

    return decorate


def _why(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    return str(ctx.meta.get(_FORMERLY, value))


def _formerly(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).warn("--reason is --why now; the next version does not know it any more")
        ctx.meta[_FORMERLY] = value


def is_confirmed(session: Session, what: str) -> bool:
    """Ask on a terminal; refuse where nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        session.warn(f"{what}; refused without --yes")
        return False
    try:
        return click.confirm(f"{what}: do it?", err=True)
    except click.Abort:
        return False


def decide(
    session: Session,
    decision: DecisionWords,
    act: Callable[[Bulk], None],
    *,
    count: int,
    sample: Callable[[], list[str]],
    document: Callable[[Tally], dict[str, Any]],
    options: Mapping[str, Any],
) -> int:
    """Ask, unless `--yes` was given; then act, and say and record what was done, however it ended.

    `count` is how many would be decided, `sample()` names a few of them.
    """
    tasks = decision.tasks.replace("tasks", "task") if count == 1 else decision.tasks
    would_be = f"{count} {tasks} would be {decision.done}"
    if options["dry_run"]:
        answer(session, {"dry_run": True, "tasks": count, "sample": sample()}, lambda: write(would_be))
        return exits.FINDINGS if count else exits.DONE
    if count and not options["yes"] and not is_confirmed(session, would_be):
        return exits.REFUSED
    tally = Tally()
    is_whole = False
    with ended_by_signals() as ending:
        bulk = Bulk(
            session.stores(),
            confirm_s=session.settings().times.confirm_s,
            who=this_person(),
            why=decision.why,
            pace=RateCap(options.get("per_s")),
            tally=tally,
            held_back=ending.held_back,
        )
        try:
            act(bulk)
            is_whole = True
        finally:
            with ending.held_back():
                bulk.record(decision.what, which=dict(decision.which))
                if not is_whole:
                    session.warn(
                        f"{_told(tally, decision)}; the others are still {decision.before}: the same command goes on "
                        "with them"
                    )
    for group, trouble in tally.stopped:
        session.warn(f"group {group.group} ({group.name}) was stopped: {trouble}")
    for task_id, refused in list(tally.refused.items())[:SAMPLE]:
        session.warn(f"{task_id}: {refused}")
    if tally.unconfirmed:
        session.note(
            f"{counted(tally.unconfirmed, 'hint is', 'hints are')} not confirmed; the sweep publishes what is left"
        )
    answer(session, document(tally), lambda: write(_told(tally, decision)))
    return exits.FINDINGS if tally.stopped or tally.refused else exits.DONE


def _told(tally: Tally, decision: DecisionWords) -> str:
    return f"{tally.done} {decision.done}" + (f", {tally.asked} that run were asked to stop" if tally.asked else "")
