"""Taker: takes in the records of one way in, batch by batch: read, set aside, record, let go.

A batch and the positions behind it are recorded in one transaction. A crash before it: the records come again. A crash
after it, before they are let go: Kafka's are read on from the ledger's position, RabbitMQ's come again and are known by
their ids. What cannot be read is confirmed by the quarantine before its position is passed; a crash between both may
leave a second copy there.

Where the ledger is there and a batch cannot be recorded, its halves are rehearsed: a record that fails alone, where a
plain message to the same destination would not, goes to the quarantine, too. So no record stops those behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from workq.errors import KeyConflict, NotFound, SchemaMismatch, Unavailable
from workq.messages.bodies import TEXT
from workq.messages.intake import IntakeLink
from workq.messages.intake.reading import read_record, refuse_unknown, unrecordable
from workq.messages.intake.values import (
    BATCH,
    BrokerRecord,
    CancelOf,
    IntakeBatch,
    IntakeRow,
    Overtaken,
    Step,
    TakenIn,
    Unreadable,
)
from workq.messages.kinds.reach import ReachFailed
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import NewMessage
from workq.values.codec import new_task_id
from workq.values.failpoints import reach

if TYPE_CHECKING:
    from workq.enqueue.producer import Producer
    from workq.ledger import HintRows, Unpublished

log = logging.getLogger("workq.intake")

QUARANTINE_S: Final = 10.0
_TRIES: Final = 5
_NO_RECORDS_FAULT: Final = (Unavailable, SchemaMismatch, Overtaken, NotFound, KeyConflict)
"""What says nothing of a record, or is found by the next look."""


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
            LedgerUnavailable: the batch could not be recorded just now.
            NotFound: the way in was removed.

        Whatever it raises after a batch was fetched, the batch is kept for the next round: RabbitMQ counts what is sent
        back.
        """
        batch, steps = self._pending or (self._fetch(timeout_s), [])
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
        except Exception:
            self._pending = batch, steps
            raise
        if batch.lost:
            log.error("intake.lost", extra={"intake": self._row.name, "n": batch.lost})
        reach("intake.after_record")
        self._link.passed(batch)
        log.debug("intake.taken", extra={"intake": self._row.name, "recorded": found.recorded})
        return len(batch.records)

    def _fetch(self, timeout_s: float) -> IntakeBatch:
        try:
            return self._link.fetch(limit=BATCH, timeout_s=timeout_s)
        except (ReachFailed, Unavailable):
            raise
        except Exception:  # it may have passed over some records: they come again
            self._link.close()
            raise

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
                try:
                    return self._record(batch, [one for one in steps if not isinstance(one, Unreadable)], aside)
                except _NO_RECORDS_FAULT:
                    raise
                except Exception as error:
                    if not left or not self._refuse_bad(steps):
                        raise
                    log.warning("intake.halved: %s", unrecordable(error).reason, extra={"intake": self._row.name})
            except (NotFound, KeyConflict):  # a destination was removed, or an id recorded, since the look
                if not left or self._ledger.intakes.intake(self._row.name) is None:
                    raise
        raise AssertionError

    def _refuse_bad(self, steps: list[Step | Unreadable]) -> bool:
        """What the ledger cannot record becomes unreadable, in its place; answers whether there is any."""
        bad = self._bad_of(steps, [place for place, one in enumerate(steps) if not isinstance(one, Unreadable)])
        for place, found in bad.items():
            steps[place] = found
        return bool(bad)

    def _bad_of(self, steps: Sequence[Step | Unreadable], places: Sequence[int]) -> dict[int, Unreadable]:
        """The places of these that cannot be recorded, each alone, and why."""
        chosen = [one for place in places if not isinstance(one := steps[place], Unreadable)]
        try:
            self._rehearse(chosen)
        except _NO_RECORDS_FAULT:
            raise
        except Exception as error:
            if len(places) > 1:
                half = len(places) // 2
                return self._bad_of(steps, places[:half]) | self._bad_of(steps, places[half:])
            self._rehearse(_plain(chosen))  # raises: it is not for this record
            return {places[0]: unrecordable(error)}
        return {}

    def _rehearse(self, steps: Sequence[Step]) -> None:
        def rehearse(hints: HintRows | None) -> tuple[None, list[Unpublished]]:
            self._ledger.taken.rehearse(self._row.name, steps, hints=hints)
            return None, []

        self._producer.record_by(rehearse)

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


def _plain(steps: Sequence[Step]) -> list[Step]:
    """Messages to the same destinations that say nothing."""
    destinations = [one.destination for one in steps if not isinstance(one, CancelOf)]
    ids = [new_task_id() for _ in destinations]
    return [
        NewMessage(id=one, task_id=one, destination=to, body="", is_binary=False, content_type=TEXT)
        for one, to in zip(ids, destinations, strict=True)
    ]
