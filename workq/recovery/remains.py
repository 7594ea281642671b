"""Remains: what a worker of this machine that cannot act any more has left on its board.

Its process is gone, or it is stopped. Whoever sweeps on the same machine settles what had ended there before the claims
end, and so no more runs again than what the threads were running. A stopped process that wakes settles the same under
the same fence, which changes nothing. Only of a process that is gone it is evidence which attempts had started: one
that wakes goes on.

Nobody on another machine can read it: there, also what had ended and was not settled runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from workq.ledger import Evidence, WorkerRow
from workq.values.incarnation import is_gone, this_machine
from workq.values.task import Settlement
from workq.worker.crash_board import Board


@dataclass(frozen=True, slots=True)
class Remains:
    """The evidence of a worker's end with what its board says, and what is to be settled in its place.

    `board` None: there is none here, or its process lives.
    """

    evidence: Evidence
    outcomes: Sequence[Settlement] = ()
    board: Board | None = None


def remains_of(row: WorkerRow, evidence: Evidence) -> Remains:
    """What is left of a worker, beside what is known already. Reads only."""
    if row.machine is None or row.machine != this_machine() or not _cannot_act(row.pid):
        return Remains(evidence)
    board = Board.of(row.id)
    if board is None:
        return Remains(evidence)
    started, outcomes = board.started(), board.outcomes()
    if not _cannot_act(row.pid):  # it woke while we read
        return Remains(evidence)
    if is_gone(row.pid):
        attempts = {one.task_id: one.attempt for one in started}
        ended = frozenset(one.task_id for one in started if one.is_ended)
        evidence = replace(evidence, started=attempts, ended=ended, is_seen=False)
    return Remains(evidence, outcomes, board)


def _cannot_act(pid: int) -> bool:
    try:
        return is_gone(pid) or psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
