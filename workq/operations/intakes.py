"""What a person decides about ways in."""

from __future__ import annotations

from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import check_destination_name
from workq.stores import Stores


def remove(stores: Stores, name: str, *, who: str, why: str) -> None:
    """Forget a way in, and how far it was read. Its messages stay; a process that serves it reads no more.

    Raises:
        NotFound: there is none of that name.
    """
    stores.ledger.part(MessageLedger).intakes.remove(check_destination_name(name), who=who, why=why)
