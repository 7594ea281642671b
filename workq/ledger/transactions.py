"""A handler's own transaction: its own writes and its task's success stand together, or not.

The fence comes last: the task succeeds under its attempt and token just before the commit. Whoever has lost the task
meanwhile (reaped while it was paused, say) finds nothing to settle, and all that it wrote is rolled back. No row of the
task is locked before: a handler that hangs in its transaction keeps nobody from reaping it. What follows attempts
(after_settle.py) is called in it, as in any other that settles.

When the connection breaks in COMMIT, the task's row tells how that ended, once its lock is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, select

from workq.errors import CommitUnknown, LedgerUnavailable, Refused, Unavailable
from workq.ledger.after_settle import Afterwards
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import guarded
from workq.ledger.outcomes import Outcomes
from workq.values.failpoints import reach
from workq.values.task import Claim, Done, Outcome, Settlement, State


class HandlerTransactions:
    """Transactions of a running handler."""

    def __init__(self, database: Database, *, outcomes: Outcomes) -> None:
        self.database = database
        self._outcomes = outcomes

    @property
    def is_entered(self) -> bool:
        """Whether this thread is inside of `transaction`."""
        return self.database.is_entered

    @contextmanager
    def transaction(self, claim: Claim, *, succeeds: Callable[[], Outcome] = Done) -> Iterator[Connection]:
        """A transaction of the claim's handler: at the end of its block the task succeeds in it, without a result.

        It stands as a whole, or not at all. What the block raises rolls it back and passes. `succeeds`: asked at its
        end, the outcome that whoever follows attempts is told.

        Raises:
            Refused: the attempt does not run any more, or the block has ended the transaction itself.
            LedgerUnavailable: it did not stand; CommitUnknown: the ledger stayed away after it broke in COMMIT.
        """
        self._outcomes.prepare(claim)
        afterwards: list[Afterwards] = []

        def conclude(tx: Connection) -> None:
            reach("transaction.before_settle")
            if not self._outcomes.succeed_in(tx, claim):
                raise taken_away(claim)
            afterwards.extend(self._outcomes.count_success(tx, Settlement(claim, succeeds())))
            reach("transaction.before_commit")

        with self.within(claim, conclude, has_stood=lambda tx: self.stands(tx, claim, State.SUCCEEDED)) as connection:
            yield connection
        reach("transaction.after_commit")
        self._outcomes.follow_later(afterwards)

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
