"""The port of ways in: what each kind of broker does, so that its records become messages.

    check        are these options right? Before any I/O, and once, when the way in is stored
    open         a connection to one topic or queue, with what was checked
    fetch        some records, and the positions behind them
    quarantine   records that cannot be read, kept where a person finds them; confirmed
    passed       what was recorded is let go
    close        the connection; what was fetched and not recorded comes again

Beside its readers, a way in can be asked, which joins no group and moves nothing:

    backlog      how many records wait
    faults       what would keep records from being taken in
    peek         the next records, where a look at them counts for nothing

A kind knows no message. It gives records as they are, in their order, and lets go what the ledger has. How each record
is read: reading.py; how a batch is taken in: taker.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workq.config.addresses import Allowed
from workq.messages.intake.values import BrokerRecord, IntakeBacklog, IntakeBatch, IntakeOffset, Position
from workq.messages.kinds import DestinationAddress

TakePartition = Callable[[str, int, str | None], Position]
"""Takes a partition in the ledger: topic, partition, id of the topic."""


class IntakeLink(ABC):
    """An open way in. One thread uses it."""

    @abstractmethod
    def fetch(self, *, limit: int, timeout_s: float) -> IntakeBatch:
        """Up to `limit` records, or none within `timeout_s` or a little longer. It connects when that is needed.

        Raises:
            ReachFailed: nothing can be read just now. LedgerUnavailable: a partition could not be taken.
        """

    @abstractmethod
    def quarantine(self, unreadable: Sequence[tuple[BrokerRecord, str]], *, timeout_s: float) -> None:
        """Keep these where a person finds them, each with what is wrong with it; confirmed when this returns.

        Repeatable: what was confirmed before is not sent again while this link stands.

        Raises:
            ReachFailed: not all of them are kept.
        """

    @abstractmethod
    def passed(self, batch: IntakeBatch) -> None:
        """This batch is recorded: let it go. Raises nothing that a broker can cause; what is not let go comes again."""

    @abstractmethod
    def close(self) -> None:
        """Give up what was fetched and not passed, and the connection, within a few seconds. Repeatable."""


class IntakeInspector(ABC):
    """What can be asked of a way in beside its readers. One thread uses it. It connects anew for each question.

    Each function raises ReachFailed when there is no answer, or the topic or the queue is not there. `offsets`: how far
    each partition was taken in, as the ledger has it.
    """

    @abstractmethod
    def backlog(self, offsets: Sequence[IntakeOffset], *, timeout_s: float) -> IntakeBacklog:
        """How many records wait to be taken in."""

    @abstractmethod
    def faults(self, *, timeout_s: float) -> list[str]:
        """What would keep records from being read, or from being set aside: one line each, without secrets."""

    @abstractmethod
    def peek(self, offsets: Sequence[IntakeOffset], *, limit: int, timeout_s: float) -> list[BrokerRecord]:
        """The records that would be read next, of each partition in their order.

        Raises:
            Refused: this kind of broker counts each look.
        """


class IntakeKind(ABC):
    """One kind of way in."""

    name: str
    """As `--kind` and the ledger have it."""

    @abstractmethod
    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options as they are stored, defaults filled in. No I/O; see `Kind.check` of destinations.

        Raises:
            ConfigError: one is missing, unknown or not right. MissingExtra: the kind's library is not installed.
        """

    @abstractmethod
    def open(self, address: DestinationAddress, *, allowed: Allowed, take: TakePartition) -> IntakeLink:
        """A link, which connects when it is first used. `take`: for brokers whose partitions have owners."""

    @abstractmethod
    def inspector(self, address: DestinationAddress, *, allowed: Allowed) -> IntakeInspector:
        """What can be asked beside the readers."""
