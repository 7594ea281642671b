"""Taker: takes in the records of one way in, batch by batch: read, set aside, record, let go.

A batch and the positions behind it are recorded in one transaction. A crash before it: the records come again. A crash
after it, before they are let go: Kafka's are read on from the ledger's position, RabbitMQ's come again and are known by
their ids. What cannot be read is confirmed by the quarantine before its position is passed; a crash between both may
leave a second copy there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from workq.errors import KeyConflict, NotFound, Unavailable
from workq.messages.intake import IntakeLink
from workq.messages.intake.reading import read_record, refuse_unknown
from workq.messages.intake.values import (
    BATCH,
    BrokerRecord,
    IntakeBatch,
    IntakeRow,
    Overtaken,
    Step,
    TakenIn,
    Unreadable,
)
from workq.messages.kinds.reach import ReachFailed
from workq.messages.ledger.sql import MessageLedger
from workq.values.failpoints import reach

if TYPE_CHECKING:
    from workq.enqueue.producer import Producer

log = logging.getLogger("workq.intake")

QUARANTINE_S: Final = 10.0
_TRIES: Final = 5


class IntakeTaker:
    """Takes in from one link."""

    def __init__(
        self, row: IntakeRow, link: IntakeLink, *, ledger: MessageLedger, producer: Producer, owner: str
    ) -> None:
        """`owner`: the incarnation that has taken the partitions of this link."""
        self._row = row
        self._link = link
        self._ledger = ledger
        self._producer = producer
        self._owner = owner
        self._pending: tuple[IntakeBatch, list[Step | Unreadable]] | None = None
        """Fetched, read and not recorded yet."""

    def round(self, *, timeout_s: float) -> int:
        """Take in what comes within `timeout_s`; answers how many records that were.

        Raises:
            ReachFailed: nothing can be read, or the quarantine does not take what could not be.
            LedgerUnavailable: what was fetched is kept, and is the batch of the next round: RabbitMQ counts what is
                sent back.
            NotFound: the way in was removed.
        """
        batch, steps = self._pending or (self._link.fetch(limit=BATCH, timeout_s=timeout_s), [])
        self._pending = None
        if not batch.records and not batch.moves:
            return 0
        steps = steps or [read_record(one, to=self._row.destination) for one in batch.records]
        try:
            found = self._take_in(batch, steps)
        except Overtaken as error:
            log.warning("intake.overtaken: %s", error)
            self._link.close()
            return 0
        except (Unavailable, ReachFailed):
            self._pending = batch, steps
            raise
        if batch.lost:
            log.error("intake.lost", extra={"intake": self._row.name, "n": batch.lost})
        reach("intake.after_record")
        self._link.passed(batch)
        log.debug("intake.taken", extra={"intake": self._row.name, "recorded": found.recorded})
        return len(batch.records)

    def _take_in(self, batch: IntakeBatch, steps: list[Step | Unreadable]) -> TakenIn:
        for left in reversed(range(_TRIES)):
            self._look(steps)
            aside = [
                (record, step.reason)
                for record, step in zip(batch.records, steps, strict=True)
                if isinstance(step, Unreadable)
            ]
            if aside:
                reach("intake.before_quarantine")
                self._link.quarantine(aside, timeout_s=QUARANTINE_S)
                log.warning("intake.quarantined: %s", aside[-1][1], extra={"intake": self._row.name, "n": len(aside)})
            reach("intake.before_record")
            try:
                return self._record(batch, [one for one in steps if not isinstance(one, Unreadable)], aside)
            except (NotFound, KeyConflict):  # a destination was removed, or an id recorded, since the look
                if not left or self._ledger.intakes.intake(self._row.name) is None:
                    raise
        raise AssertionError

    def _record(self, batch: IntakeBatch, steps: list[Step], aside: Sequence[tuple[BrokerRecord, str]]) -> TakenIn:
        return self._producer.record_by(
            lambda hints: self._ledger.taken.record(
                self._row.name,
                steps,
                owner=self._owner,
                moves=batch.moves,
                unreadable=[reason for _, reason in aside],
                hints=hints,
            )
        )

    def _look(self, steps: list[Step | Unreadable]) -> None:
        """What the ledger would refuse becomes unreadable."""
        refuse_unknown(steps, self._ledger.taken.standing([one for one in steps if not isinstance(one, Unreadable)]))
