"""The handler's own writes and the task's success in one transaction: both stand, or neither.

The fence comes last: the task succeeds under its attempt and token just before the commit. Whoever has lost the task
meanwhile (reaped while it was paused, say) finds nothing to settle, and all that it wrote is rolled back. No row of the
task is locked before: a handler that hangs in its transaction keeps nobody from reaping it.

When the connection breaks in COMMIT, the task's row tells how that ended, once its lock is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from sqlalchemy import Connection, select

from workq.errors import CommitUnknown, LedgerUnavailable, Refused, Unavailable
from workq.failpoints import reach
from workq.ledger.claims import Claiming
from workq.ledger.counting import Change, Rest, Wishes
from workq.ledger.states import guarded
from workq.ledger.tending import Tending
from workq.task import Claim, Done, NewSubtask, State


class Succeeding(Claiming, Tending):
    """The part of the ledger that a running handler writes with."""

    @property
    def is_entered(self) -> bool:
        return self.database.is_entered

    @contextmanager
    def transaction(self, claim: Claim, *, added: Callable[[], Sequence[NewSubtask]] = tuple) -> Iterator[Connection]:
        wishes = Wishes()
        succeed = self.database.kept("settle one Done", partial(self._settle_statement, Done))
        fence = {"b_id": claim.task_id, "b_attempt": claim.attempt, "b_token": claim.token}

        def begin(tx: Connection) -> None:
            if not self._stands(tx, claim, State.RUNNING):
                raise _taken_away(claim)

        def conclude(tx: Connection) -> None:
            reach("transaction.before_settle")
            if not succeed.write(tx, fence | {"b_result": None, "b_reason": None}):
                raise _taken_away(claim)
            if claim.job_id is not None:
                done = Change(claim.task_id, claim.attempt, rest=Rest.SUCCEEDED, added=tuple(added()))
                self.count(tx, {claim.job_id: [done]}, wishes)
            reach("transaction.before_commit")

        try:
            with self.database.transaction(begin=begin, conclude=conclude) as connection:
                yield connection
        except CommitUnknown as error:
            if not self._has_succeeded(claim, error):
                raise LedgerUnavailable(
                    f"the connection to the ledger at {self.database.where} broke in COMMIT; nothing of it stands"
                ) from error
        reach("transaction.after_commit")
        self.untold.extend(self.fulfil(wishes))

    def _has_succeeded(self, claim: Claim, unknown: CommitUnknown) -> bool:
        """How a lost commit ended; raises the same again when the ledger does not answer."""
        try:
            return self.database.run(lambda tx: self._stands(tx, claim, State.SUCCEEDED, is_locking=True))
        except Unavailable:
            raise unknown from None

    def _stands(self, tx: Connection, claim: Claim, state: State, *, is_locking: bool = False) -> bool:
        """Whether this attempt is in a state. Locking waits for a lost transaction that may still be open."""
        c = self.database.tables.task.c
        query = select(c.id).where(
            c.id == claim.task_id, c.attempt == claim.attempt, c.token == claim.token, guarded(c.state, state)
        )
        if is_locking:
            tx.execute(select(c.id).where(c.id == claim.task_id).with_for_update()).all()
        return tx.execute(query).first() is not None


def _taken_away(claim: Claim) -> Refused:
    return Refused(
        f"task {claim.task_id}: attempt {claim.attempt} does not run any more (it was taken away, or has succeeded "
        "before); nothing of this transaction stands, and there is nothing to do"
    )
