"""`workq audit`: is every task in exactly one place?"""

from __future__ import annotations

import logging
from typing import Any, Final

import click

from workq.cli import exits
from workq.cli.group import Command
from workq.cli.inputs import BandName, Duration
from workq.cli.session import Session
from workq.cli.show import Column, answer, table, write
from workq.config import Settings
from workq.diagnose.audit import Audited, Finding, Repaired
from workq.diagnose.audit import audit as look
from workq.diagnose.audit import repair as mend
from workq.diagnose.where import Misplacement
from workq.values.incarnation import this_person
from workq.values.plural import counted

_EXAMPLES = """
workq audit
workq audit --repair
workq audit --scan --queue mail -o json
workq -q audit --wait 10m
"""
SHOWN_MAX: Final = 20


@click.command(cls=Command, examples=_EXAMPLES)
@click.option("--repair", "is_repair", is_flag=True, help="mend what is found")
@click.option(
    "--scan", "is_scan", is_flag=True, help="turn each queue of RabbitMQ once, though workers consume from it"
)
@click.option(
    "--wait", "wait_s", type=Duration(), default="60s", show_default=True, help="for a marker, or a turn, at most"
)
@click.option("--queue", type=BandName(), help="this queue alone")
@click.pass_context
def audit(ctx: click.Context, is_repair: bool, is_scan: bool, wait_s: float, queue: str | None) -> int:
    """Look whether every open task is in exactly one place: unpublished, broker, waiting, held, running, expired.

    Whatever looks wrong is looked at twice, some seconds apart. Exit 3 with findings, repaired or not; 5 when there are
    none but some tasks could not be proved within --wait.
    """
    session = ctx.ensure_object(Session)
    session.configure_log(logging.INFO if session.is_verbose else logging.CRITICAL)
    stores, settings = session.stores(), session.settings()
    audited = look(
        stores,
        settings,
        queue=queue,
        queues=session.queue().registry.queues(),
        is_scan=is_scan,
        wait_s=wait_s,
        tell=session.note,
    )
    repaired = mend(stores, settings, audited, by=this_person()) if is_repair else None
    answer(session, _document(audited, repaired), lambda: _show(session, audited, repaired, settings))
    if audited.findings:
        return exits.FINDINGS
    return exits.TIMED_OUT if audited.unproven else exits.DONE


def _document(audited: Audited, repaired: Repaired | None) -> dict[str, Any]:
    document = {
        "ok": audited.is_ok,
        "tasks": audited.tasks,
        "lost": audited.count(Misplacement.LOST),
        "ghosts": audited.count(Misplacement.GHOST),
        "twins": audited.count(Misplacement.TWIN),
        "orphans": audited.count(Misplacement.ORPHAN),
        "miscounts": audited.count(Misplacement.MISCOUNT),
        "overdue": audited.count(Misplacement.OVERDUE),
        "findings": [_finding(one) for one in audited.findings],
        "mismatches": audited.count(Misplacement.MISMATCH),
        "places": dict(audited.places),
        "unproven": dict(audited.unproven),
        "stale_hints": audited.stale,
        "foreign_messages": audited.foreign,
        "queues": dict(audited.ways),
    }
    if repaired is not None:
        document["repaired"] = {kind.value: count for kind, count in repaired.done.items() if count}
    return document


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "task": one.task,
        "queue": one.queue,
        "worker": one.worker,
        "proof": one.proof,
        "repair": one.repair,
    }


def _show(session: Session, audited: Audited, repaired: Repaired | None, settings: Settings) -> None:
    rows: list[tuple[str, int]] = [(place.value, count) for place, count in audited.places.items()]
    rows += [(kind.value, count) for kind in Misplacement if (count := audited.count(kind))]
    rows += [("unproven", sum(audited.unproven.values()))] if audited.unproven else []
    table(session, [Column("place"), Column("tasks", is_number=True)], rows)
    if audited.findings:
        write("")
        columns = [Column("finding"), Column("task", is_whole=True), Column("queue"), Column("proof"), Column("repair")]
        shown = [(one.kind, one.task, one.queue, one.proof, one.repair) for one in audited.findings[:SHOWN_MAX]]
        table(session, columns, shown)
        if len(audited.findings) > SHOWN_MAX:
            write(f"... and {len(audited.findings) - SHOWN_MAX} more: -o json lists them all")
    write("")
    for line in _next(audited, repaired, settings):
        write(line)


def _next(audited: Audited, repaired: Repaired | None, settings: Settings) -> list[str]:
    """What it comes to, and what to do."""
    lines = []
    if audited.is_ok:
        lines.append(f"ok: {counted(audited.tasks, 'task')}, each in exactly one place")
    if repaired is not None and audited.findings:
        done = ", ".join(f"{count} {kind.value}" for kind, count in repaired.done.items() if count) or "nothing"
        left = f"; {repaired.left} left alone: harmless, or moved meanwhile" if repaired.left else ""
        lines.append(f"repaired: {done}{left}")
    elif audited.findings:
        lines.append("mend it: workq audit --repair (a running sweep mends most of it as well)")
    if audited.count(Misplacement.OVERDUE):
        lines.append(f"does anything sweep? Each worker does, every {settings.times.sweep_s:g} s; or: workq sweep")
    for queue, count in audited.unproven.items():
        lines.append(
            f"unproven: {counted(count, 'task')} of queue {queue}; wait longer (--wait 10m), or turn the queue "
            f"(workq audit --scan --queue {queue})"
        )
    return lines
