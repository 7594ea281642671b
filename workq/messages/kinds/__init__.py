"""The port of destinations: what each kind of destination does, in five functions.

    check    are these options right? Before any I/O, and once, when the destination is stored.
    open     a connection to one destination, with what was checked
    send     some messages, and what the destination said of each
    test     would a message arrive? Nothing is left behind
    close    the connection

A kind knows neither the ledger nor a task. It says what came of each message, and the carrier decides what that means.
A message is `Confirmed` only by the destination's own word: a publisher confirm, a delivery report, a receipt, a 2xx.
Everything else is `Unsent`, also what may have arrived: it is sent again, and every copy has the same id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from workq.config.addresses import Allowed


class Posting(msgspec.Struct, frozen=True):
    """One message, as it is sent.

    `id`: the same in every copy, and in what a person restores. `sending`: 1, and one more for each restore; a broker's
    own key against duplicates is `id` and `sending`. `key`: Kafka's key, or None. `headers`: those of the sender;
    `workq-id` comes beside them.
    """

    id: str
    sending: int
    body: bytes
    content_type: str
    key: str | None = None
    headers: Mapping[str, str] = {}


class SendFault(StrEnum):
    """What an unsent message failed at."""

    AWAY = "away"
    """The destination does not answer, or has lost the connection: every message to it fares so."""
    REFUSED = "refused"
    """The destination does not want us: login, rights, certificate, an address that is not allowed."""
    NO_TARGET = "no_target"
    """The destination stands, but what the message is for is not there: exchange, topic, address, queue."""
    MESSAGE = "message"
    """This message alone is not taken: too large, a header that cannot be sent. It will not be, however often."""
    LATE = "late"
    """No confirm came in time. It may have arrived."""
    ASKED = "asked"
    """The destination asked for less: see `after_s`."""


class Confirmed(msgspec.Struct, frozen=True):
    """The destination has it. `where`: what it told of the place (`orders[3]@1207`), for a person."""

    where: str | None = None


class Unsent(msgspec.Struct, frozen=True):
    """The destination did not confirm it. `text`: one line, without secrets. `after_s`: the wait it asked for."""

    fault: SendFault
    text: str
    after_s: float | None = None


Answer = Confirmed | Unsent


@dataclass(frozen=True, slots=True)
class DestinationAddress:
    """What one destination is: its kind's options as `check` gave them, and what is sealed of it.

    `name`: for messages to people. `url`: with its password, so it is never shown; its masked form is in `options`.
    """

    name: str
    options: Mapping[str, Any]
    url: str | None = field(default=None, repr=False)


class DestinationLink(ABC):
    """An open connection to one destination. One thread at a time uses it; it may be another one each time."""

    @abstractmethod
    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        """Send these in their order, wait for every confirm, and answer for each, in the same order.

        It answers within `timeout_s`, and raises nothing that a destination can cause. One message that cannot be sent
        keeps no other back. After a lost connection the next call makes a new one.
        """

    @abstractmethod
    def test(self, *, timeout_s: float) -> list[str]:
        """Why a message would not arrive, one line for each reason; an empty list: it would.

        It changes nothing: no message is left, nothing is declared.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection, within a second. Repeatable."""


class Kind(ABC):
    """One kind of destination."""

    name: str
    """As `--kind` and the ledger have it."""

    @abstractmethod
    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options as they are stored, defaults filled in. No I/O.

        `url` is given as it is, with its password; in the answer it is masked. The caller seals the one that was given.

        Raises:
            ConfigError: one is missing, unknown or not right: which, why, and what it may be.
            MissingExtra: the kind's library is not installed.
        """

    @abstractmethod
    def open(self, address: DestinationAddress, *, allowed: Allowed) -> DestinationLink:
        """A link, which connects when it is first used. `allowed`: the addresses that it may reach, asked at each
        connection, for every address that a name has and that a broker advertises."""
