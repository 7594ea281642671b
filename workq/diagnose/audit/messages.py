"""Of messages: has each the task that sends it, each such task its message, and each way in what it has recorded?

One look proves it: see messages/ledger/matches.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from workq.diagnose.audit.finding import Finding
from workq.diagnose.where import Misplacement
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import QUEUE
from workq.stores import Stores
from workq.values.plural import counted

FOUND_MAX = 1000
"""Of each kind, so many are named."""


def mismatches(stores: Stores) -> Iterator[Finding]:
    """What does not match."""
    matches = stores.ledger.part(MessageLedger).matches
    for lone in matches.without_task(limit=FOUND_MAX):
        proof = f"message {lone.message_id} to {lone.destination} has no task, and retention has not removed it"
        yield _finding(lone.task_id, proof, "send it again under another id")
    for task_id in matches.without_message(limit=FOUND_MAX):
        yield _finding(task_id, "it is to send a message, and is the task of none", f"workq cancel {task_id}")
    for task_id in matches.without_place(limit=FOUND_MAX):
        proof = "it waits for its destination, and stands in no line: nobody lets it go on"
        yield _finding(task_id, proof, f"workq task reschedule {task_id} --in 0s")
    for one in matches.miscounted_intakes():
        proof = f"of way in {one.name}, {counted(one.kept, 'message')} should be there, and there are {one.found}"
        yield _finding(one.name, proof, "find who has changed workq_message by hand")


def _finding(task: str, proof: str, repair: str) -> Finding:
    return Finding(Misplacement.MISMATCH, task, QUEUE, proof, repair)
