"""`workq status`: how many tasks are where, and what keeps them there: paused queues, late workers, destinations,
ways in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click
from msgspec.structs import asdict

from workq.cli.group import Command
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table, write
from workq.ledger import Pause
from workq.messages.ledger.sql import MessageLedger
from workq.values.lane import is_extra, queue_of
from workq.values.plural import counted

POLLED_WITHIN_S: Final = 180.0
"""A worker tells the ledger each minute what it has found without a broker."""
POLLED_MAX: Final = 10_000


@click.command(cls=Command, examples="workq status\nworkq status -o json\nwatch -n 5 workq status")
@pass_session
def status(session: Session) -> None:
    """How many tasks are where, how long the oldest has been ready, and how many workers live.

    A task that is due counts as ready, whatever its state says. The ready, waiting and running below the table are the
    sums of its columns; `dead of jobs` are among the dead. What is ready in a paused queue has an age of its own, and
    is not in `oldest ready`, for alerts. A worker that has not beaten for longer than a lease is late: it is stopped,
    cut off, or dead and not reaped yet.
    """
    ledger = session.stores().ledger
    counts, times = ledger.questions.counts(), session.settings().times
    paused = _paused(ledger.pauses.all(), counts.oldest_paused_s)
    late_after_s = max(times.lease_s, 2 * times.worker_beat_s)
    late = [
        {"id": one.id, "host": one.host, "pid": one.pid, "beat_age_s": round(one.beat_age_s, 3)}
        for one in ledger.questions.workers()
        if one.beat_age_s > late_after_s
    ]
    destinations = [
        {
            **{name: getattr(one, name) for name in ("name", "state", "who", "why", "failures", "failing_since")},
            **{name: getattr(one, name) for name in ("fault", "error", "rests_until")},
            "in_line": ledger.part(MessageLedger).line.length(one.name),
        }
        for one in ledger.part(MessageLedger).destinations.in_trouble()
    ]
    intakes = [
        {name: getattr(one, name) for name in ("name", "failing_since", "error", "quarantined", "quarantined_at")}
        for one in ledger.part(MessageLedger).intakes.in_trouble()
    ]
    polled = [
        event
        for event in ledger.questions.happened(("polled",), within_s=POLLED_WITHIN_S, limit=POLLED_MAX)
        if "reason" in event.detail
    ]
    found = sum(int(event.detail.get("tasks", 0)) for event in polled)
    document = {
        "queues": {name: asdict(count) for name, count in counts.queues.items()},
        "states": {state.value: number for state, number in counts.states.items()},
        "dead_of_jobs": counts.dead_of_jobs,
        "oldest_ready_s": None if counts.oldest_ready_s is None else round(counts.oldest_ready_s, 3),
        "workers": counts.workers,
        "no_handler": [asdict(one) for one in counts.unknown],
        "paused": paused,
        "late_workers": late,
        "destinations": destinations,
        "intakes": intakes,
        "polled": found,
    }

    def show() -> None:
        columns = [Column("queue"), *(Column(name, is_number=True) for name in ("ready", "waiting", "running"))]
        rows = [(name, count.ready, count.waiting, count.running) for name, count in counts.queues.items()]
        table(session, columns, rows, empty="no task is ready, waiting or running")
        if rows:
            write("")
        record(
            [
                *((state.value, number) for state, number in counts.states.items()),
                ("dead of jobs", counts.dead_of_jobs),
                ("oldest ready", "-" if counts.oldest_ready_s is None else f"{counts.oldest_ready_s:.1f} s"),
                ("workers", counts.workers if not late else f"{counts.workers}, {len(late)} of them late"),
            ]
        )
        if found:
            write("")
            write(f"Workers poll: without the broker they found {counted(found, 'task')} within the last three minutes")
        if paused:
            write("")
            write("Paused: what is ready there waits, and is not in `oldest ready`")
            columns = [Column("queue"), Column("since"), Column("until"), Column("by"), Column("why")]
            columns.append(Column("oldest ready s", is_number=True))
            fields = ("queue", "paused_at", "ends_at", "who", "why", "oldest_ready_s")
            table(session, columns, [[one[field] for field in fields] for one in paused], empty="")
        if late:
            write("")
            write("Late: these workers have not beaten for longer than a lease")
            columns = [Column("id", is_whole=True), Column("host"), Column("pid", is_number=True)]
            columns.append(Column("beat age s", is_number=True))
            table(session, columns, [tuple(one.values()) for one in late], empty="")
        if destinations:
            write("")
            write("Destinations that take no messages now: what is due for them waits")
            columns = [Column("name", is_whole=True), *(Column(name) for name in ("state", "why", "failing since"))]
            columns += [Column("error"), Column("rests until"), Column("in line", is_number=True)]
            shown = ("name", "state", "why", "failing_since", "error", "rests_until", "in_line")
            table(session, columns, [[one[field] for field in shown] for one in destinations], empty="")
        if intakes:
            write("")
            write("Ways in that cannot be read, or have put records into quarantine within a day")
            columns = [Column("name", is_whole=True), Column("failing since"), Column("error")]
            columns += [Column("quarantined", is_number=True), Column("the last at")]
            table(session, columns, [tuple(one.values()) for one in intakes], empty="")
        if counts.unknown:
            write("")
            write("Names that no worker knows: these tasks wait for one that does")
            columns = [Column("name", is_whole=True), Column("tasks", is_number=True), Column("since")]
            table(session, columns, [(one.name, one.tasks, one.since) for one in counts.unknown], empty="")

    answer(session, document, show)


def _paused(pauses: Mapping[str, Pause], oldest_s: Mapping[str, float]) -> list[dict[str, Any]]:
    """Each queue that is paused, once, although each of its bands is; and each band that is paused by itself."""
    found: list[dict[str, Any]] = []
    for name, pause in pauses.items():
        whole = pauses.get(queue_of(name))
        if is_extra(name) and whole is not None and whole.paused_at == pause.paused_at:
            continue
        same = [one for one, other in pauses.items() if one == name or _is_band_of(name, one, pause, other)]
        ages = [oldest_s[one] for one in same if one in oldest_s]
        found.append(
            {
                "queue": name,
                "paused_at": pause.paused_at,
                "ends_at": pause.ends_at,
                "who": pause.who,
                "why": pause.why,
                "oldest_ready_s": round(max(ages), 3) if ages else None,
            }
        )
    return found


def _is_band_of(queue: str, band: str, pause: Pause, other: Pause) -> bool:
    """Whether one decision paused both."""
    return not is_extra(queue) and queue_of(band) == queue and other.paused_at == pause.paused_at
