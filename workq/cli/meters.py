"""`workq meters`: duplicate starts with their causes, late results, lost hints, recovery times beside the promise."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from workq.cli import exits
from workq.cli.group import Command
from workq.cli.inputs import Duration
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table, write
from workq.diagnose.message_meters import MessageMeters, measure_messages
from workq.diagnose.meters import Meters, Spread, measure
from workq.values.plural import counted


@click.command(
    cls=Command,
    examples="workq meters\nworkq meters --since 7d\nworkq meters -o json | jq .duplicates",
)
@click.option("--since", type=Duration(), default="24h", show_default=True, metavar="TIME", help="how far back")
@pass_session
def meters(session: Session, since: float) -> int:
    """What the promise costs in fact: what started twice and why, what came late, how long recoveries took.

    Computed from the ledger's rows and events, which are kept for a while. Changes nothing. Exit 3 when a recovery took
    longer than promised.

    A recovery is shown from the last beat of its worker on, which is up to one beat (worker_beat_s) before the death;
    that beat is taken off before it is compared with the bound. Deaths that a supervisor saw (killed, hard_limit,
    cancel, shutdown) are shown and not compared.
    """
    ledger = session.stores().ledger
    found = measure(ledger, session.settings().times, within_s=since)
    messages = measure_messages(ledger, within_s=since)
    told = document(found) | {"messages": of_messages(messages)}

    def show() -> None:
        _show(session, found)
        _show_messages(session, messages)

    answer(session, told, show)
    return exits.FINDINGS if found.findings else exits.DONE


def document(found: Meters) -> dict[str, Any]:
    """The meters in JSON. The shape is stable: names are only added."""
    return {
        "ok": not found.findings,
        "since_s": found.within_s,
        "complete": found.is_complete,
        "starts": found.starts,
        "duplicates": {
            "total": sum(found.duplicates.values()),
            "per_million": found.duplicates_per_million,
            "causes": found.duplicates,
            "assumed": found.assumed,
        },
        "late_results": found.late_results,
        "hints_lost": {"tasks": found.hints_lost, "proofs": found.losses, "started": asdict(found.hints_lost_started)},
        "polled": found.polled,
        "polled_idle": found.polled_idle,
        "recoveries": [
            {
                "cause": one.cause,
                **asdict(one.measured),
                "promised_s": one.promised_s,
                "exceeded": one.exceeded,
            }
            for one in found.recoveries
        ],
        "findings": found.findings,
    }


def of_messages(found: MessageMeters) -> dict[str, Any]:
    """The meters of messages in JSON. The shape is stable: names are only added."""
    return {
        "outcomes": {state.value: count for state, count in found.outcomes.items()},
        "attempts": {str(number): count for number, count in found.attempts.items()},
        "late": asdict(found.late),
        "complete": found.is_complete,
        "intakes": [asdict(one) for one in found.intakes],
    }


def _show_messages(session: Session, found: MessageMeters) -> None:
    if found.intakes:
        write("")
        counts = ("recorded", "duplicates", "cancelled", "quarantined")
        columns = [Column("way in", is_whole=True), *(Column(one, is_number=True) for one in counts)]
        table(session, columns, [(one.name, *(getattr(one, each) for each in counts)) for one in found.intakes])
    if not found.outcomes:
        return
    write("")
    outcomes = ", ".join(f"{count} {state}" for state, count in found.outcomes.items())
    attempts = ", ".join(f"{count} in {counted(number, 'attempt')}" for number, count in found.attempts.items())
    late = _spread(found.late) if found.late.count else None
    record([("messages", outcomes), ("confirmed", attempts or None), ("later than due", late)])
    if not found.is_complete:
        session.note("only the newest messages are counted; use a shorter --since")


def _show(session: Session, found: Meters) -> None:
    causes = ", ".join(f"{count} {cause}" for cause, count in found.duplicates.items())
    total, share = sum(found.duplicates.values()), found.duplicates_per_million
    twice = f"{total} ({causes}): {share:,.0f} of a million starts" if causes else f"{total}"
    if found.assumed:
        twice += f"; of {found.assumed} nobody saw whether the first attempt had begun"
    lost = f"{found.hints_lost} (proved by {counted(found.losses, 'marker')})" if found.losses else 0
    lines: list[tuple[str, object]] = [("starts", found.starts), ("started twice", twice)]
    lines += [("late results", found.late_results), ("hints lost", lost)]
    if found.polled:
        lines.append(("found by polling", f"{counted(found.polled, 'task')}, while the broker was away"))
    if found.polled_idle:
        lines.append(
            (
                "found while idle",
                f"{counted(found.polled_idle, 'task')}, whose hints waited for other workers, or never came",
            )
        )
    record(lines)
    if found.hints_lost_started.count:
        write(f"started after the proof of the loss: {_spread(found.hints_lost_started)}")
    if found.recoveries:
        write("")
        columns = [
            Column("recovery"),
            *(Column(one, is_number=True) for one in ("count", "p50", "p95", "max", "bound")),
        ]
        rows = [
            (one.cause, one.measured.count, one.measured.p50_s, one.measured.p95_s, one.measured.max_s, one.promised_s)
            for one in found.recoveries
        ]
        table(session, columns, rows)
    if not found.is_complete:
        session.note("there were more events than are read at once: only the newest are counted; use a shorter --since")
    for finding in found.findings:
        session.warn(finding)


def _spread(spread: Spread) -> str:
    return f"p50 {spread.p50_s} s, p95 {spread.p95_s} s, at most {spread.max_s} s"
