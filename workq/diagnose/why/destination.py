"""It sends a message, and its destination is disabled, rests, or is tried by another message."""

from __future__ import annotations

from workq.diagnose.why.look import Code, TaskLook, Why, rfc3339
from workq.messages.ledger.line import WAITS
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import TASK_NAME, DestinationState, destination_in


def by_destination(look: TaskLook) -> Why | None:
    """What its destination says; None when that takes messages, or it sends none."""
    task = look.task
    if task.name != TASK_NAME:
        return None
    found = look.stores.ledger.questions.get(task.task_id)
    name = destination_in(found.args[0]) if found is not None and found.args else ""
    row = look.stores.ledger.part(MessageLedger).destinations.destination(name)
    if row is None:
        return look.why(
            Code.DESTINATION,
            f"its destination {name!r} was removed",
            f"add it again (workq message destination add {name} ...), or cancel the message",
        )
    if row.state is DestinationState.DISABLED:
        return look.why(
            Code.DESTINATION,
            f"{row.who} disabled destination {name!r} at {rfc3339(row.state_at)}: {row.why}",
            f"to let its messages go: workq message destination enable {name}",
            since=row.state_at,
        )
    if row.rests_until is not None and row.rests_until > task.now:
        return look.why(
            Code.DESTINATION,
            f"destination {name!r} rests until {rfc3339(row.rests_until)}, as nothing was confirmed there since "
            f"{rfc3339(row.failing_since)} ({row.fault}: {row.error})",
            f"wait, or mend it: workq message destination test {name}",
            since=row.failing_since,
            until=row.rests_until,
        )
    if task.waits_for != WAITS:
        return None
    if row.failures:
        return look.why(
            Code.DESTINATION,
            f"destination {name!r} has confirmed nothing since {rfc3339(row.failing_since)} "
            f"({row.fault}: {row.error}), and is tried by one message at a time",
            f"wait, or mend it: workq message destination test {name}",
            since=row.failing_since,
        )
    return look.why(Code.DESTINATION, f"its turn in the line of destination {name!r} comes just now", "nothing")
