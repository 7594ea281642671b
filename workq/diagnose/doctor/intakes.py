"""Ways in: that no process serves, that cannot be read, that have lost records; and what their brokers tell of them.

A broker is asked beside its readers (messages/intake_inspection.py), for some seconds at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from workq.config import Settings
from workq.diagnose.doctor.check import Check, Level
from workq.diagnose.doctor.naming import COUNTED_MAX, NAMED_MAX, named
from workq.values.plural import counted

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger
    from workq.messages.intake.values import IntakeBacklog


def look(ledger: Ledger, settings: Settings, served: set[str]) -> Iterator[Check]:
    """`served`: the queues of processes that live."""
    from workq.messages.intake.values import LINE
    from workq.messages.intake_inspection import IntakeInspection
    from workq.messages.kinds import SendFault
    from workq.messages.ledger.sql import MessageLedger

    part = ledger.part(MessageLedger)
    rows = part.intakes.all(limit=COUNTED_MAX)
    if not rows:
        return
    inspection = IntakeInspection(settings, part)
    backlogs, faults = inspection.backlogs(rows), inspection.faults(rows)
    unserved = [one.name for one in rows if LINE + one.name not in served]
    if unserved:
        yield Check(
            "messages",
            Level.WARNING,
            f"no live process takes in from {named(_waiting(one, backlogs[one]) for one in unserved)}: start one, "
            "workq intake run, or forget it, workq intake rm",
        )
    for row in rows:
        for fault in faults[row.name]:
            level = Level.WARNING if fault.fault is SendFault.AWAY else Level.ERROR
            yield Check("messages", level, f"intake {row.name!r} cannot take in: {fault.text}")
        if lost := backlogs[row.name].lost:
            yield Check(
                "messages",
                Level.ERROR,
                f"intake {row.name!r} has lost {counted(lost, 'record')}: the topic has removed what was not read yet; "
                "let its retention be longer than your longest outage, and run more processes",
            )
    for one in part.intakes.in_trouble(limit=NAMED_MAX):
        if one.failing_since is not None:
            text = f"cannot be read since {one.failing_since:%Y-%m-%dT%H:%M:%SZ}: {one.error}"
            yield Check("messages", Level.WARNING, f"intake {one.name!r} {text}")
        if one.quarantined_at is not None:
            text = (
                f"has put {counted(one.quarantined, 'record')} into quarantine, the last at "
                f"{one.quarantined_at:%Y-%m-%dT%H:%M:%SZ}: {one.quarantined_why}"
            )
            yield Check("messages", Level.WARNING, f"intake {one.name!r} {text}")


def _waiting(name: str, backlog: IntakeBacklog) -> str:
    if backlog.records is None:
        return f"{name} (what waits is unknown)"
    return f"{name} ({counted(backlog.records, 'record waits', 'records wait')})"
