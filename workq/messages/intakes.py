"""Intakes: ways in, added, looked at, opened. Everything is checked before it is stored.

What people decide about them besides: operations/intakes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from workq.config.addresses import Allowed
from workq.messages.destinations import MESSAGE_ALLOW
from workq.messages.intake import IntakeLink, TakePartition
from workq.messages.intake.registry import intake_kind_of
from workq.messages.intake.values import IntakeRow, NewIntake
from workq.messages.kinds import DestinationAddress
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import check_destination_name
from workq.outbound.vault import Vault
from workq.values.incarnation import this_person

if TYPE_CHECKING:
    from workq.app import WorkQueue


@dataclass(frozen=True, slots=True)
class MessageIntake:
    """A way in: `options` are those of its kind, its URL without its password among them. Counts are of records.

    `to`: the destination of records that name none. `quarantined_why`: what was wrong with the last of those that
    could not be read. `error`: why nothing can be read, since `failing_since`.
    """

    name: str
    kind: str
    options: dict[str, Any]
    to: str | None
    recorded: int
    repeated: int
    cancelled: int
    quarantined: int
    quarantined_why: str | None
    quarantined_at: datetime | None
    error: str | None
    failing_since: datetime | None
    taken_at: datetime | None
    created_at: datetime


class MessageIntakes:
    """The ways in of an application's messages."""

    def __init__(self, app: WorkQueue) -> None:
        self._app = app
        self._vault = Vault(app.settings.secret_key)
        self._allowed = Allowed.of(app.settings.message_allow, setting=MESSAGE_ALLOW)

    def add(
        self,
        name: str,
        *,
        kind: str,
        to: str | None = None,
        why: str = "added by a person",
        who: str | None = None,
        **options: Any,
    ) -> MessageIntake:
        """Add a way in. Nothing is contacted.

        Args:
            name: what `workq intake run` is told.
            kind: `kafka` or `amqp`.
            to: the destination of records that name none; it has to be there.
            why: kept in the history.
            who: kept in the history; `user@host` of the process without it.
            options: those of its kind, such as `url`, `topic` and `queue`.

        Raises:
            ConfigError: something of it is wrong; nothing was stored. MissingExtra: the kind's library is missing.
            NotFound: there is no such destination. Refused: there is an intake of that name.
        """
        checked = intake_kind_of(kind).check(options)
        new = NewIntake(check_destination_name(name), kind, checked, self._vault.seal_url(str(options["url"])), to)
        ledger = self._app.stores.ledger.part(MessageLedger)
        if to is not None:
            ledger.destinations.required(check_destination_name(to))
        by = who or this_person()
        return _told(ledger.intakes.add_intake(new, who=by, why=why, is_same=self._vault.has_same_url))

    def get(self, name: str) -> MessageIntake:
        """One way in.

        Raises:
            NotFound: there is none of that name.
        """
        return _told(self._ledger.intakes.required(check_destination_name(name)))

    def all(self) -> Iterator[MessageIntake]:
        """All of them, by their names."""
        after: str | None = None
        while page := self._ledger.intakes.all(after=after):
            yield from map(_told, page)
            after = page[-1].name

    def seal(self) -> int:
        """Write the URLs of all ways in anew, with the newest key of WORKQ_SECRET_KEY; answers how many."""
        count = 0
        after: str | None = None
        while page := self._ledger.intakes.all(after=after):
            for row in page:
                if row.sealed is not None:
                    sealed = self._vault.seal_url(self._vault.open_url(row.sealed))
                    self._ledger.intakes.reseal(row.name, before=row.sealed, sealed=sealed)
                    count += 1
            after = page[-1].name
        return count

    def open(self, row: IntakeRow, *, take: TakePartition) -> IntakeLink:
        """A link to what a way in reads.

        Raises:
            ConfigError: its URL is encrypted with a key that is not here. MissingExtra: the kind's library is missing.
        """
        url = None if row.sealed is None else self._vault.open_url(row.sealed)
        address = DestinationAddress(row.name, row.options, url)
        return intake_kind_of(row.kind).open(address, allowed=self._allowed, take=take)

    @property
    def _ledger(self) -> MessageLedger:
        return self._app.existing.ledger.part(MessageLedger)


def _told(row: IntakeRow) -> MessageIntake:
    return MessageIntake(
        name=row.name,
        kind=row.kind,
        options=dict(row.options),
        to=row.destination,
        recorded=row.recorded,
        repeated=row.repeated,
        cancelled=row.cancelled,
        quarantined=row.quarantined,
        quarantined_why=row.quarantined_why,
        quarantined_at=row.quarantined_at,
        error=row.error,
        failing_since=row.failing_since,
        taken_at=row.taken_at,
        created_at=row.created_at,
    )
