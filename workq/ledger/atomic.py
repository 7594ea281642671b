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
from workq.ledger.claims import Claiming
from workq.ledger.engine.states import guarded
from workq.ledger.job_care import Tending
from workq.ledger.job_counts import Change, Rest, Wishes
from workq.values.failpoints import reach
from workq.values.task import Claim, Done, NewSubtask, State


class Succeeding(Claiming, Tending):
    """The part of the ledger that a running handler writes with."""

    @property
    def is_entered(self) -> bool:
        """Whether this thread is inside of `transaction`."""
        return self.database.is_entered

    @contextmanager
    def transaction(self, claim: Claim, *, added: Callable[[], Sequence[NewSubtask]] = tuple) -> Iterator[Connection]:
        """A transaction of the claim's handler: at the end of its block the task succeeds in it, without a result.

        It stands as a whole, or not at all. What the block raises rolls it back and passes. `added`: asked at its end,
        subtasks that the handler has added to its job.

        Raises:
            Refused: the attempt does not run any more, or the block has ended the transaction itself.
            LedgerUnavailable: it did not stand; CommitUnknown: the ledger stayed away after it broke in COMMIT.
        """
        wishes = Wishes()
        succeed = self.database.kept("settle one Done", partial(self._settle_statement, Done))
        fence = {"b_id": claim.task_id, "b_attempt": claim.attempt, "b_token": claim.token}

        def conclude(tx: Connection) -> None:
            reach("transaction.before_settle")
            if not succeed.write(tx, fence | {"b_result": None, "b_reason": None}):
                raise taken_away(claim)
            if claim.job_id is not None:
                done = Change(claim.task_id, claim.attempt, rest=Rest.SUCCEEDED, added=tuple(added()))
                self.count(tx, {claim.job_id: [done]}, wishes)
            reach("transaction.before_commit")

        with self.within(claim, conclude, has_stood=lambda tx: self.stands(tx, claim, State.SUCCEEDED)) as connection:
            yield connection
        reach("transaction.after_commit")
        self.untold.extend(self.fulfil(wishes))

    @contextmanager
    def within(
        self,
        claim: Claim,
        conclude: Callable[[Connection], None],
        *,
        has_stood: Callable[[Connection], bool],
    ) -> Iterator[Connection]:
        """A transaction of the handler's that begins while its attempt runs, and that `conclude` fences at its end.

        `has_stood`: whether a commit that was lost stands, asked when nobody else has the task's row.
        """

        def begin(tx: Connection) -> None:
            if not self.stands(tx, claim, State.RUNNING):
                raise taken_away(claim)

        def look(tx: Connection) -> bool:
            """Behind a lost transaction that may still be open."""
            c = self.database.tables.task.c
            tx.execute(select(c.id).where(c.id == claim.task_id).with_for_update()).all()
            return has_stood(tx)

        try:
            with self.database.transaction(begin=begin, conclude=conclude) as connection:
                yield connection
        except CommitUnknown as unknown:
            try:
                stands = self.database.run(look)
            except Unavailable:
                raise unknown from None
            if not stands:
                raise LedgerUnavailable(
                    f"the connection to the ledger at {self.database.where} broke in COMMIT; nothing of it stands"
                ) from unknown

    def stands(self, tx: Connection, claim: Claim, state: State) -> bool:
        """Whether this attempt is in a state."""
        c = self.database.tables.task.c
        query = select(c.id).where(
            c.id == claim.task_id, c.attempt == claim.attempt, c.token == claim.token, guarded(c.state, state)
        )
        return tx.execute(query).first() is not None


def taken_away(claim: Claim) -> Refused:
    """What whoever has lost its task is told."""
    return Refused(
        f"task {claim.task_id}: attempt {claim.attempt} does not run any more (it was taken away, or has succeeded "
        "before); nothing of this transaction stands, and there is nothing to do"
    )
