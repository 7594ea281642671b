"""Verdicts: what becomes of the claims of a worker that is gone, who is charged, and the certificate of its death.

Pure: rows and evidence in, values out. What is decided here is written by workers.py, plans.py and audits.py, each
write under the fence of its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from workq.ledger import Evidence, Reaped, Unpublished
from workq.ledger.engine.states import CLAIMABLE, NOTED, SUSPECT
from workq.ledger.history import ERROR_MAX
from workq.values import codec
from workq.values.certificate import (
    CLAIMS_MAX,
    STACK_MAX,
    STARTED_UNKNOWN,
    Certificate,
    Charge,
    ProofOfEnd,
    Ran,
    fields_of,
    kept,
    unknown_of,
)
from workq.values.fingerprint import fingerprint
from workq.values.task import OnCrash, State

WAIT_MAX_S = 3600.0
"""No longer does a task wait that has failed by its worker's death."""
_SUSPICION = {Charge.PRESENCE: NOTED, Charge.SUSPICION: SUSPECT, Charge.CRASH: SUSPECT}


class ClaimVerdict:
    """What becomes of one claim whose worker is gone."""

    __slots__ = ("charge", "delay_s", "parameters", "ran", "row", "state")

    def __init__(
        self,
        row: Row[Any],
        evidence: Evidence,
        state: State,
        charge: Charge,
        *,
        reason: str | None = None,
        error: str | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.row, self.charge, self.delay_s = row, charge, delay_s
        self.state = State.CANCELLED if row.cancel_requested_at is not None else state
        self.parameters = {
            "b_id": row.id,
            "b_attempt": row.attempt,
            "b_token": row.token,
            "b_state": state,
            "b_reason": reason,
            "b_error": codec.storable(error, characters_max=ERROR_MAX) if error else None,
            "b_fingerprint": fingerprint(row.name, reason or "", error) if self.state is State.DEAD else None,
            "b_delay_s": delay_s,
            "b_failed": int(charge is Charge.FAILURE),
            "b_crashed": int(charge is Charge.CRASH),
            "b_suspect": _SUSPICION.get(charge, 0),
        }
        stack = evidence.facts.stacks.get(row.id)
        self.ran = Ran(
            task_id=row.id,
            attempt=row.attempt,
            name=row.name,
            state=self.state.value,
            charged=charge,
            started=_has_started(row, evidence),
            ran_s=evidence.facts.ran_s.get(row.id),
            stack=None if stack is None else kept(stack, STACK_MAX),
        )

    def hint(self, reserved_until: datetime | None) -> Unpublished | None:
        """What is to be published now that the task is ready or waiting again."""
        if self.state not in CLAIMABLE:
            return None
        row = self.row
        return Unpublished(row.id, row.queue, row.attempt, self.delay_s, reserved_until=reserved_until)


def verdicts_of(rows: Sequence[Row[Any]], evidence: Evidence, *, is_all: bool = True) -> list[ClaimVerdict]:
    """What becomes of the claims of one dead incarnation: of all of them, or of some that were left over.

    Who is charged: with a failure what exceeded its hard limit; with the crash the attempt that was running, if it was
    the only one; what was running in company becomes suspect, and runs alone from then on. Where nobody saw a crash (a
    pause, a lost host), and for what had ended and was only not settled, presence is noted, and costs nothing. Whoever
    was noted or suspected before is charged with the crash; so is nobody else. Nobody is charged in a process that was
    killed for want of memory beside another that had used more.

    A task may say what it wants instead (`OnCrash`), once it had started: to have failed, or that a person is asked.
    """
    running = [row.id for row in rows if _is_running(row, evidence)]
    return [_verdict(row, evidence, is_alone=is_all and running == [row.id]) for row in rows]


def _has_started(row: Row[Any], evidence: Evidence) -> bool:
    return evidence.started is None or evidence.started.get(row.id) == row.attempt


def _is_running(row: Row[Any], evidence: Evidence) -> bool:
    """Whether its process was seen to die while this attempt's handler ran."""
    is_known = evidence.is_seen and evidence.started is not None
    return is_known and _has_started(row, evidence) and row.id not in evidence.ended


def _verdict(row: Row[Any], evidence: Evidence, *, is_alone: bool) -> ClaimVerdict:
    if evidence.failed and row.id in evidence.failed:
        return _failed(row, evidence, "time_limit", *evidence.failed[row.id])
    has_started = _has_started(row, evidence)
    # whoever was at fault, and also where nothing is charged (at shutdown): nobody knows what it has done
    if row.on_crash == OnCrash.ASK and (has_started or row.id in evidence.facts.ran_s):
        how = (
            "nothing is known of its attempt"
            if evidence.kind is ProofOfEnd.FORGOTTEN
            else "its worker process died while it ran"
        )
        error = f"{how}, and on_crash is 'ask': {evidence.cause}"
        return ClaimVerdict(
            row, evidence, State.DEAD, Charge.CRASH, reason="worker_lost: a person decides", error=error
        )
    if evidence.failed or evidence.is_bystander or not has_started:
        return ClaimVerdict(row, evidence, State.READY, Charge.NOTHING)
    if row.on_crash == OnCrash.FAIL:
        return _failed(row, evidence, "worker_lost", f"its worker process died: {evidence.cause}", _wait_s(row))
    error = f"its worker process died: {evidence.cause}"
    if not (is_alone or row.is_suspect or row.crashes):
        charge = Charge.SUSPICION if _is_running(row, evidence) else Charge.PRESENCE
        return ClaimVerdict(row, evidence, State.READY, charge, error=error)
    if row.crashes + 1 >= row.crashes_max:
        return ClaimVerdict(row, evidence, State.DEAD, Charge.CRASH, reason="worker_lost", error=error)
    return ClaimVerdict(row, evidence, State.READY, Charge.CRASH, error=error)


def _failed(row: Row[Any], evidence: Evidence, what: str, error: str, delay_s: float) -> ClaimVerdict:
    """It counts as a failure: it waits for its next attempt, or is out of budget."""
    if row.failures + 1 >= row.failures_max:
        reason = f"failures_max reached: {what}"
        return ClaimVerdict(row, evidence, State.DEAD, Charge.FAILURE, reason=reason, error=error)
    return ClaimVerdict(row, evidence, State.WAITING, Charge.FAILURE, error=error, delay_s=max(delay_s, 0.001))


def _wait_s(row: Row[Any]) -> float:
    """Whoever finds the dead may not know the handler, and so not its policy: the waits of `Exponential()`, evenly."""
    failures: int = row.failures
    return min(WAIT_MAX_S, 2.0 ** min(failures + 1, 30))


def certificate_of(row: Any, evidence: Evidence, verdicts: Sequence[ClaimVerdict]) -> Certificate:
    """What is known of a death: the worker's row (if there is one), the evidence, and what came of its claims."""
    facts = evidence.facts
    is_assumed = evidence.started is None and not evidence.failed and bool(verdicts)
    claims = sorted((verdict.ran for verdict in verdicts), key=lambda ran: (not ran.started, ran.task_id))
    return Certificate(
        kind=evidence.kind,
        cause=kept(evidence.cause),
        host=row.host if row is not None else None,
        pid=row.pid if row is not None else None,
        exit_status=facts.exit_status,
        signal=facts.signal,
        oom=facts.oom,
        memory_bytes=facts.memory_bytes,
        memory_age_s=facts.memory_age_s,
        peak_bytes=facts.peak_bytes,
        beat_memory_bytes=row.memory_bytes if row is not None else None,
        beat_age_s=round((row.now - row.beat_at).total_seconds(), 3) if row is not None else None,
        stack_note=facts.stack_note,
        unknown=(*facts.unknown, *unknown_of(evidence.kind), *((STARTED_UNKNOWN,) if is_assumed else ())),
        claims=tuple(claims[:CLAIMS_MAX]),
        claims_more=max(0, len(claims) - CLAIMS_MAX),
    )


def in_history(certificate: Certificate, verdict: ClaimVerdict) -> dict[str, Any]:
    """The essentials of a certificate for one task. Its own words come first; what is not known is absent."""
    document = fields_of(certificate)
    for name in ("claims", "claims_more"):
        document.pop(name, None)
    ran = {name: value for name, value in fields_of(verdict.ran).items() if name in ("ran_s", "stack")}
    return {
        "kind": document.pop("kind"),
        "cause": document.pop("cause"),
        "state": verdict.state.value,
        "charged": verdict.charge.value,
        "started": verdict.ran.started,
        **ran,
        **document,
    }


def reaped_as(worker: str, verdicts: Sequence[ClaimVerdict], reserved_until: datetime | None) -> Reaped:
    hints = tuple(hint for verdict in verdicts if (hint := verdict.hint(reserved_until)) is not None)
    return Reaped(worker, len(hints), sum(verdict.state is State.DEAD for verdict in verdicts), hints)
