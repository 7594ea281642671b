"""Transfers by a handler that dies at every boundary between two statements of its transaction, drawn from a seed.

A process of its own: each attempt is a fork of it, which ends there as a kill would end it. Whoever is left buries it
(`reap`), and the next attempt goes on. At last the book must say that each transfer happened once.

    python -m tests.system.bank CRASHES SEED        how many crashed at each boundary, and what the book says, as JSON

Several may run at once. Whoever starts them makes the book.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from tests.contract.given import NoPartition, incarnation
from tests.system import witness
from tests.system.witness import read_book, wq
from workq.ledger import Evidence
from workq.values import failpoints
from workq.values.task import Claim, Outcome, State
from workq.worker.attempt import run_sync

BOUNDARIES = (
    "begun",
    "debited",
    "credited",
    "transaction.before_settle",
    "transaction.before_commit",
    "transaction.after_commit",
)
LIVES_EACH = 0.2
"""How many of all attempts are let live."""


class Desk(NoPartition):
    """The ledger, for one attempt."""

    def is_cancelled(self, claim: Claim) -> bool:
        return False

    def transaction(self, claim: Claim, *, succeeds: Callable[[], Outcome]) -> AbstractContextManager[Connection]:
        return wq.stores.ledger.transactions.transaction(claim, succeeds=succeeds)


def attempt(claim: Claim, dies_at: str | None) -> int:
    """The exit status of one attempt in a fork."""
    child = os.fork()
    if child == 0:
        try:
            arm(dies_at)
            run_sync(claim, wq.handler("witness.transfer"), {"a": [0], "k": {}}, Desk())
        except BaseException:  # a fork must not go on as its parent, whatever it was
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def arm(dies_at: str | None) -> None:
    """Die there, in this process."""
    if dies_at in failpoints.POINTS:
        failpoints._armed = failpoints._Armed(f"{dies_at}:exit137")

    def at_boundary(name: str) -> None:
        if name == dies_at:
            os._exit(137)

    witness.at_boundary = at_boundary


def main(crashes_min: int, seed: int) -> None:
    rng = random.Random(seed)
    ledger = wq.stores.ledger
    crashes: Counter[str] = Counter()
    transfers: list[str] = []
    handler = wq.handler("witness.transfer")
    while crashes.total() < crashes_min:
        [one] = ledger.tasks.record([handler.new_task(handler.options(connection=None)._options, (0,), {})])
        transfers.append(one.id)
        while True:
            worker = incarnation()
            ledger.workers.join(worker, queues=["witness"], threads=1)
            claims = ledger.claims.claim([one.id], by=worker.id)
            if not claims:  # the last one died behind its commit
                break
            dies_at = None if rng.random() < LIVES_EACH else rng.choice(BOUNDARIES)
            status = attempt(claims[0], dies_at)
            if status != (0 if dies_at is None else 137):
                raise SystemExit(f"{one.id}: an attempt that was to die at {dies_at} ended with {status}")
            crashes[str(dies_at)] += dies_at is not None
            # nobody is charged: its budget is not what is tried here
            ledger.workers.reap(worker.id, Evidence("SIGKILL", started={}))
    crashes += Counter()  # without what is zero
    book = read_book(wq)
    found = [ledger.questions.get(task_id) for task_id in transfers]
    print(
        json.dumps(
            {
                "transfers": len(transfers),
                "crashes": crashes,
                "succeeded": sum(task is not None and task.state is State.SUCCEEDED for task in found),
                "right": sum(book[task_id, side] == 1 for task_id in transfers for side in ("debit", "credit")),
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
