"""Log lines: what an outcome, a death, a time or a receiver has made of a task, as it is told to the log.

Pure: values in, decisions out (see ledger/engine/after_commit.py). What goes on without harm is not among them: a
success, a snooze, a task that its worker has handed back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Row

from workq.ledger.answers import Settled
from workq.ledger.engine.after_commit import Decision
from workq.values.certificate import Certificate, Charge
from workq.values.lane import queue_of
from workq.values.task import Cancelled, Dead, Delivered, Failed, Settlement, State, Unhandled, Worked

if TYPE_CHECKING:
    from workq.ledger.charge import ClaimVerdict

_CLASS: Final = re.compile(r"[^\W\d][\w.]*(?=: |$)")
_EVENTS: Final = {State.WAITING: "task.retry", State.DEAD: "task.dead", State.CANCELLED: "task.cancelled"}


def by_outcomes(settlements: Iterable[Settlement], settled: Iterable[Settled]) -> Iterator[Decision]:
    """Of settlements, as their worker gave them; of what has come late there is none."""
    for one, result in zip(settlements, settled, strict=True):
        if result.state in _EVENTS and (told := _by_outcome(one, result.state, result.delay_s)) is not None:
            yield told


def _by_outcome(one: Settlement, state: State, delay_s: float) -> Decision | None:
    claim, outcome, kind = one.claim, one.outcome, None
    fields = _fields(claim.task_id, claim.name, claim.queue, claim.attempt)
    if claim.job_id is not None:
        fields["job"] = claim.job_id
    if isinstance(outcome, Delivered):
        fields |= {"delivery": outcome.sent.delivery_id, "endpoint": outcome.sent.endpoint_id}
        kind, outcome = outcome.sent.error_class, outcome.then
    error = ""
    match outcome:
        case Failed(error=error) | Worked(error=error):
            pass
        case Dead(reason=reason, error=error):
            fields["reason"] = reason
        case Unhandled(error=error) if state is State.DEAD:
            fields["reason"] = kind = "no_handler"
        case Cancelled(reason=reason):
            fields["reason"] = reason
        case _:
            return None
    if state is State.WAITING:
        fields["next_at"] = _in(delay_s)
    found, line = headline(error)
    fields |= {"error": line} if line else {}
    below = error.partition("\n\n")[2] if state is State.DEAD else None
    return Decision(_EVENTS[state], fields, of=claim.name, kind=kind or found, traceback=below or None)


def by_death(verdicts: Iterable[ClaimVerdict], worker: str, certificate: Certificate) -> Iterator[Decision]:
    """Of the claims of a worker that is gone."""
    for one in verdicts:
        row = one.row
        fields = _fields(row.id, row.name, row.queue, row.attempt)
        fields |= {"worker": worker, "cause": certificate.cause, "charged": one.charge.value}
        given = one.parameters
        kind, line = headline(given["b_error"] or "")
        if one.state is State.DEAD:
            yield Decision(
                "task.dead",
                fields | {"reason": given["b_reason"], "error": line},
                of=row.name,
                kind=certificate.kind.value,
            )
        elif one.state is State.CANCELLED:
            yield Decision("task.cancelled", fields, of=row.name, kind=certificate.kind.value)
        elif one.charge is Charge.FAILURE:
            fields |= {"error": line, "next_at": _in(one.delay_s)}
            yield Decision("task.retry", fields, of=row.name, kind=kind)
        else:
            event = "task.returned" if one.charge is Charge.NOTHING else "task.crashed"
            yield Decision(event, fields, of=row.name, kind=certificate.kind.value)


def by_time(rows: Iterable[Row[Any]]) -> Iterator[Decision]:
    """Of tasks that nobody started before they expired: rows with id, name, queue and attempt."""
    for row in rows:
        yield Decision("task.expired", _fields(row.id, row.name, row.queue, row.attempt), of=row.name)


def headline(error: str) -> tuple[str, str]:
    """The class of an error, where there is one, and its text without its traceback (handlers/said.py, `describe`)."""
    first, _, traceback = error.partition("\n\n")
    lines = traceback.split("\n")
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    if frames:  # what was raised may have lines of its own
        said = "\n".join(line for line in lines[frames[-1] :] if not line.startswith("  "))
        first = said if said.startswith(f"{first}\n") else first
    found = _CLASS.match(first) if traceback or first.startswith("TimeLimit: ") else None
    return found.group() if found else "", first


def _fields(task_id: str, name: str, queue: str, attempt: int) -> dict[str, Any]:
    return {"task": task_id, "task_name": name, "queue": queue_of(queue), "attempt": attempt}


def _in(delay_s: float) -> str:
    """The instant, by this host's clock."""
    at = datetime.fromtimestamp(time.time() + delay_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
