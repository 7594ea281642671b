"""The port of the ledger: webhooks, their endpoints, deliveries and attempts.

What holds for all of it is said in `workq/ledger/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from workq.ledger.answers import HintRows, PrunedWebhooks, Retention, Unpublished
from workq.webhooks.values import (
    AttemptRow,
    Cause,
    DeliveryRow,
    DeliveryState,
    EndpointChange,
    EndpointRow,
    EndpointState,
    NewEndpoint,
    NewWebhook,
    Parcel,
    SentTo,
    WhichDeliveries,
)


class Webhooks(Protocol):
    """This part of what every ledger promises."""

    def send(
        self, webhook: NewWebhook, *, connection: Any = None, hints: HintRows | None = None
    ) -> tuple[list[SentTo], list[Unpublished]]:
        """Record a webhook for everybody who wants it, in one transaction, ours or the caller's.

        Answers its deliveries, also those that stand since it was sent before, and the hints that are to be sent.

        Raises:
            NotFound: there is no such endpoint. KeyConflict: another webhook has that id.
        """
        ...

    def parcels(self, delivery_ids: Sequence[str]) -> dict[str, Parcel]:
        """What is needed to send these now, by their ids; one that is gone is missing in the answer."""
        ...

    def add_endpoint(self, new: NewEndpoint) -> EndpointRow:
        """Record an endpoint. Refused: there is another one of that name. Repeatable."""
        ...

    def endpoint(self, endpoint_id: str) -> EndpointRow | None:
        """One endpoint, or None."""
        ...

    def endpoints(
        self,
        *,
        topic: str | None = None,
        state: EndpointState | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[EndpointRow]:
        """Endpoints by their names, a page at a time: `after` is the last name of the page before."""
        ...

    def change_endpoint(self, endpoint_id: str, change: EndpointChange, *, sealed_before: str | None = None) -> None:
        """Change what the change names, from the next attempt on. NotFound, or Refused: what is sealed is another."""
        ...

    def remove_endpoint(self, endpoint_id: str) -> None:
        """Forget an endpoint with its deliveries. NotFound, or Refused: something is on its way to it."""
        ...

    def disable_endpoint(self, endpoint_id: str, *, who: str, why: str) -> None:
        """Send nothing to an endpoint any more, from now on; what is under way ends. NotFound. Repeatable."""
        ...

    def enable_endpoint(self, endpoint_id: str, *, who: str, why: str) -> int:
        """Send to it again what is sent from now on; answers how many deliveries are held. NotFound. Repeatable."""
        ...

    def hold_deliveries(self, *, limit: int, dry_run: bool = False) -> int:
        """Hold what is open of endpoints that are disabled; answers how many. Repeatable."""
        ...

    def release_held(self, endpoint_id: str, *, limit: int = 500) -> tuple[int, list[Unpublished]]:
        """Send what is held of an endpoint, a page at a time; answers how many that were, and hints.

        What stands behind another one of its order has no hint. NotFound, or Refused: it is disabled.
        """
        ...

    def discard_held(self, endpoint_id: str, *, why: str, limit: int = 500) -> int:
        """Give up what is held of an endpoint, a page at a time; answers how many that were. NotFound."""
        ...

    def want_delivery(self, delivery_id: str) -> None:
        """A person wants a delivery that is open, however old it is. Repeatable."""
        ...

    def resendable(self, which: WhichDeliveries, *, limit: int = 500, after: str | None = None) -> list[str]:
        """Deliveries that have ended and can be sent again, from the oldest, a page at a time."""
        ...

    def resend(
        self, delivery_ids: Sequence[str], *, cause: Cause, hints: HintRows | None = None
    ) -> tuple[list[str], list[Unpublished]]:
        """Send deliveries that have ended once more; answers which, and the hints that are to be sent. Repeatable.

        Those are left out that are open, whose endpoint is gone or disabled, and whose body is kept no longer. They
        come last in the order that their endpoint keeps.
        """
        ...

    def tend_deliveries(self, *, limit: int, dry_run: bool = False) -> int:
        """End deliveries whose tasks were ended by others than their handler; answers how many. Repeatable."""
        ...

    def prune_webhooks(
        self, *, limit: int, body_retention_s: float, retention_s: float, dry_run: bool = False
    ) -> PrunedWebhooks:
        """Drop what webhooks had in them, `body_retention_s` old, and later all that is known of them: `retention_s`.

        None of which a delivery is open, and at most `limit` webhooks. Repeatable.
        """
        ...

    def prunable_rows(self, retention: Retention) -> dict[str, int]:
        """How many rows there are beyond their retention, by table; `webhook_body`: webhooks whose bodies are."""
        ...

    def delivery(self, delivery_id: str) -> DeliveryRow | None:
        """One delivery, or None."""
        ...

    def deliveries(self, which: WhichDeliveries, *, limit: int = 100, after: str | None = None) -> list[DeliveryRow]:
        """Deliveries by id from the newest, a page at a time: `after` is the last id of the page before."""
        ...

    def delivery_counts(self, which: WhichDeliveries) -> dict[DeliveryState, int]:
        """How many there are, in each state in which there are any."""
        ...

    def attempts(self, delivery_id: str, *, limit: int = 200) -> list[AttemptRow]:
        """The newest attempts of a delivery, the oldest first."""
        ...

    def webhook_body(self, webhook_id: str) -> str | None:
        """What is sent, or None: it is kept no longer, or never was."""
        ...
