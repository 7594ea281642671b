"""Pruning: what nobody asks for any more of webhooks is removed.

Bodies go first, whole webhooks later, with their deliveries and attempts, and only when no delivery is open: whoever
sends one once more locks it, and so do we. A transaction is short: a hundred webhooks, or five hundred deliveries.
Where that ends in between, a webhook is left without some of its deliveries, and goes with the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Select, delete, exists, func, select, update
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger import Retention
from workq.ledger.engine.database import Database
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.values import DELIVERY_OPEN, PrunedWebhooks

T = TypeVar("T")

WEBHOOKS_AT_ONCE: Final = 100
DELIVERIES_AT_ONCE: Final = 500
_OPEN: Final = sorted(one.value for one in DELIVERY_OPEN)


class Pruning:
    """Removes old webhooks, and counts what it would remove."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def prune_webhooks(
        self, *, limit: int, body_retention_s: float, retention_s: float, dry_run: bool = False
    ) -> PrunedWebhooks:
        """Drop what webhooks had in them, `body_retention_s` old, and later all that is known of them: `retention_s`.

        None of which a delivery is open, and at most `limit` webhooks. Repeatable.
        """
        w = webhook_tables(self.database).webhook
        gone = self._ids(self._old_webhooks(retention_s, w.c.id).order_by(w.c.created_at).limit(limit))
        bodies = self._old_bodies(body_retention_s, w.c.id).order_by(w.c.created_at)
        emptied = self._ids(bodies.where(w.c.id.not_in(gone)).limit(limit - len(gone))) if len(gone) < limit else []
        if dry_run:
            return PrunedWebhooks(len(gone), len(emptied), 0, 0)
        of_bodies = sum(self._page(self._empty, page) for page in _pages(emptied, WEBHOOKS_AT_ONCE))
        webhooks = deliveries = attempts = 0
        for page in _pages(gone, WEBHOOKS_AT_ONCE):
            d = webhook_tables(self.database).delivery
            of_page = self._ids(select(d.c.id).where(d.c.webhook_id.in_(page), d.c.state.not_in(_OPEN)))
            for part in _pages(of_page, DELIVERIES_AT_ONCE):
                removed = self._page(self._forget_deliveries, part)
                deliveries, attempts = deliveries + removed[0], attempts + removed[1]
            webhooks += self._page(self._forget, page)
        return PrunedWebhooks(webhooks, of_bodies, deliveries, attempts)

    def prunable_rows(self, retention: Retention) -> dict[str, int]:
        """How many rows of webhooks are beyond their retention, by table; `webhook_body`: webhooks whose bodies are."""
        tables = webhook_tables(self.database)
        w, d, a = tables.webhook, tables.delivery, tables.delivery_attempt
        gone = self._old_webhooks(retention.webhooks_s, w.c.id)
        bodies = self._old_bodies(retention.bodies_s, func.count())
        of_gone = select(d.c.id).where(d.c.webhook_id.in_(gone))
        counted = {
            "webhook": self._old_webhooks(retention.webhooks_s, func.count()),
            "webhook_body": bodies.where(w.c.created_at >= self.database.now(-retention.webhooks_s)),
            "delivery": select(func.count()).select_from(d).where(d.c.webhook_id.in_(gone)),
            "delivery_attempt": select(func.count()).select_from(a).where(a.c.delivery_id.in_(of_gone)),
        }
        return self.database.ask(lambda tx: {name: tx.execute(query).scalar_one() for name, query in counted.items()})

    def _ids(self, query: Select[Any]) -> list[str]:
        return self.database.ask(lambda tx: sorted(tx.execute(query).scalars()))

    def _page(self, forget: Callable[[Connection, Sequence[str]], T], page: Sequence[str]) -> T:
        return self.database.run(lambda tx: forget(tx, page))

    def _has_open(self) -> ColumnElement[bool]:
        tables = webhook_tables(self.database)
        d, w = tables.delivery, tables.webhook
        return exists(select(d.c.id).where(d.c.webhook_id == w.c.id, d.c.state.in_(_OPEN)))

    def _old_webhooks(self, retention_s: float, what: Any) -> Select[Any]:
        w = webhook_tables(self.database).webhook
        return select(what).select_from(w).where(w.c.created_at < self.database.now(-retention_s), ~self._has_open())

    def _old_bodies(self, retention_s: float, what: Any) -> Select[Any]:
        return self._old_webhooks(retention_s, what).where(webhook_tables(self.database).webhook.c.body.is_not(None))

    def _empty(self, tx: Connection, webhook_ids: Sequence[str]) -> int:
        if not (closed := self._locked_closed(tx, webhook_ids)):
            return 0
        w = webhook_tables(self.database).webhook
        return tx.execute(update(w).where(w.c.id.in_(closed), w.c.body.is_not(None)).values(body=None)).rowcount

    def _forget_deliveries(self, tx: Connection, delivery_ids: Sequence[str]) -> tuple[int, int]:
        tables = webhook_tables(self.database)
        d, a = tables.delivery, tables.delivery_attempt
        ended = select(d.c.id).where(d.c.id.in_(delivery_ids), d.c.state.not_in(_OPEN)).order_by(d.c.id)
        ids = list(tx.execute(ended.with_for_update()).scalars())
        if not ids:
            return 0, 0
        attempts = tx.execute(delete(a).where(a.c.delivery_id.in_(ids))).rowcount
        return tx.execute(delete(d).where(d.c.id.in_(ids))).rowcount, attempts

    def _forget(self, tx: Connection, webhook_ids: Sequence[str]) -> int:
        tables = webhook_tables(self.database)
        d, w = tables.delivery, tables.webhook
        has_any = exists(select(d.c.id).where(d.c.webhook_id == w.c.id))
        return tx.execute(delete(w).where(w.c.id.in_(webhook_ids), ~has_any)).rowcount

    def _locked_closed(self, tx: Connection, webhook_ids: Sequence[str]) -> list[str]:
        """Those of which no delivery is open, under the locks of their deliveries."""
        d = webhook_tables(self.database).delivery
        locks = select(d.c.webhook_id, d.c.state).where(d.c.webhook_id.in_(webhook_ids)).order_by(d.c.id)
        opened = {row.webhook_id for row in tx.execute(locks.with_for_update()) if row.state in _OPEN}
        return sorted(set(webhook_ids) - opened)


def _pages(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]
