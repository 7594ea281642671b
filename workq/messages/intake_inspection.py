"""IntakeInspection: what waits in the ways in, what is wrong with them, and a look at what comes next.

A broker is asked beside its readers, for `LOOK_S` at most; what it does not tell is unknown, and never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from workq.config import Settings
from workq.config.addresses import Allowed
from workq.errors import BrokerUnavailable, Refused, WorkqError
from workq.messages.destinations import MESSAGE_ALLOW
from workq.messages.intake import IntakeInspector
from workq.messages.intake.reading import read_record, refuse_unknown
from workq.messages.intake.registry import intake_kind_of
from workq.messages.intake.values import BrokerRecord, CancelOf, IntakeBacklog, IntakeRow, Step, Unreadable
from workq.messages.kinds import DestinationAddress, SendFault, Unsent
from workq.messages.kinds.reach import ReachFailed, within
from workq.messages.ledger.sql import MessageLedger
from workq.outbound.vault import Vault

T = TypeVar("T")
LOOK_S: Final = 8.0
"""So long one way in is asked, at most."""
PEEK_S: Final = 15.0
_SPARE_S: Final = 1.0
"""What a question may take beyond its own bound, until it is left alone."""
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class IntakeFault:
    """What keeps records of a way in from being taken in. `fault`: of the broker, as for destinations."""

    fault: SendFault
    text: str


@dataclass(frozen=True, slots=True)
class PeekedRecord:
    """A record as it would be read next.

    `id`: of the message that it would become, or that it cancels. `at` None: at once. `reason`: why it would go to
    quarantine. `is_recorded`: its id is in the ledger already, and it would be recorded no second time.
    """

    where: str
    id: str | None
    destination: str | None
    at: datetime | None
    is_cancel: bool = False
    is_recorded: bool = False
    reason: str | None = None


class IntakeInspection:
    """Looks at ways in. Nothing changes by them."""

    def __init__(self, settings: Settings, ledger: MessageLedger) -> None:
        self._ledger = ledger
        self._vault = Vault(settings.secret_key)
        self._allowed = Allowed.of(settings.message_allow, setting=MESSAGE_ALLOW)

    def backlogs(self, rows: Sequence[IntakeRow]) -> dict[str, IntakeBacklog]:
        """How many records wait in each of these, which are asked some at a time."""
        offsets = {row.name: self._ledger.intakes.offsets(row.name) for row in rows}

        def backlog(row: IntakeRow) -> IntakeBacklog:
            try:
                return self._asked(
                    row, lambda inspector: inspector.backlog(offsets[row.name], timeout_s=LOOK_S), within_s=LOOK_S
                )
            except (ReachFailed, WorkqError) as error:
                return IntakeBacklog(None, unknown=str(error))

        return dict(zip([row.name for row in rows], _together(backlog, rows), strict=True))

    def faults(self, rows: Sequence[IntakeRow]) -> dict[str, list[IntakeFault]]:
        """What is wrong with each of these, as far as its broker tells."""

        def found(row: IntakeRow) -> list[IntakeFault]:
            try:
                told = self._asked(row, lambda inspector: inspector.faults(timeout_s=LOOK_S), within_s=LOOK_S)
            except ReachFailed as error:
                return [IntakeFault(error.unsent.fault, error.unsent.text)]
            except WorkqError as error:
                return [IntakeFault(SendFault.REFUSED, str(error))]
            return [IntakeFault(SendFault.REFUSED, one) for one in told]

        return dict(zip([row.name for row in rows], _together(found, rows), strict=True))

    def peek(self, row: IntakeRow, *, limit: int) -> list[PeekedRecord]:
        """The next records of a way in, as they would be read.

        Raises:
            Refused: its kind counts each look, or the broker does not want us. BrokerUnavailable: it does not answer.
        """
        offsets = self._ledger.intakes.offsets(row.name)
        try:
            records = self._asked(
                row, lambda inspector: inspector.peek(offsets, limit=limit, timeout_s=PEEK_S), within_s=PEEK_S
            )
        except ReachFailed as error:
            kind = BrokerUnavailable if error.unsent.fault is SendFault.AWAY else Refused
            raise kind(f"intake {row.name!r}: {error}") from None
        steps: list[Step | Unreadable] = [read_record(one, to=row.destination) for one in records]
        known = self._ledger.taken.standing([one for one in steps if not isinstance(one, Unreadable)])
        refuse_unknown(steps, known)
        return [_peeked(record, step, known.messages) for record, step in zip(records, steps, strict=True)]

    def _asked(self, row: IntakeRow, ask: Callable[[IntakeInspector], T], *, within_s: float) -> T:
        url = None if row.sealed is None else self._vault.open_url(row.sealed)
        address = DestinationAddress(row.name, row.options, url)
        inspector = intake_kind_of(row.kind).inspector(address, allowed=self._allowed)
        late = f"no answer within {within_s + _SPARE_S:.0f} s"
        try:
            return within(lambda: ask(inspector), within_s + _SPARE_S, late=late)
        except TimeoutError:
            raise ReachFailed(Unsent(SendFault.AWAY, late)) from None


def _together(ask: Callable[[IntakeRow], T], rows: Sequence[IntakeRow]) -> Iterator[T]:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="workq-look") as pool:
        yield from pool.map(ask, rows)


def _peeked(record: BrokerRecord, step: Step | Unreadable, known: Mapping[str, str]) -> PeekedRecord:
    match step:
        case Unreadable(reason=reason):
            return PeekedRecord(record.where, None, None, None, reason=reason)
        case CancelOf(message_id=message_id):
            return PeekedRecord(record.where, message_id, None, None, is_cancel=True)
        case _:
            return PeekedRecord(record.where, step.id, step.destination, step.at, is_recorded=step.id in known)
