"""The tables of webhooks: where they go, what is sent, each on its way to one endpoint, and each time it was sent."""

from __future__ import annotations

from workq.ledger.columns import (
    TableSpace,
    body,
    double,
    identity,
    instant,
    integer,
    optional,
    required,
    smallint,
    word,
)
from workq.ledger.engine.database import Database


class WebhookTables:
    """Endpoints, webhooks, their deliveries, and the attempts of each delivery."""

    def __init__(self, space: TableSpace) -> None:
        self.endpoint = space.table(
            "endpoint",
            "Endpoints: where webhooks go.",
            required("id", word(64)),
            required("topic", word(200), "what is sent to a topic goes to all of its endpoints"),
            required("url", body()),
            required("types", body(), "of events that it wants, as JSON: invoice.paid, invoice.*, *"),
            required("sealed", body(), "its secrets and its own headers, as JSON; encrypted, if there is a key"),
            required("options", body(), "when it is tried again, its limits and deadlines, as JSON"),
            required("state", word(10)),
            required("state_at", instant(), "since when"),
            optional("who", word(200), "who decided that"),
            optional("why", word(200)),
            optional("failing_since", instant(), "nothing has arrived there since then"),
            required("failures", integer(), "in a row"),
            required("warned", smallint(), "so many percent of what disables it were told"),
            required("created_at", instant()),
            required("changed_at", instant()),
            space.rule("endpoint_state", "state IN ('enabled', 'disabled')"),
            space.index("endpoint_by_topic", "topic"),
        )

        self.webhook = space.table(
            "webhook",
            "Webhooks: what is sent, byte for byte.",
            required("id", word(100), "as receivers see it"),
            required("type", word(200), "of the event"),
            optional("topic", word(200), "NULL: it was sent to one endpoint"),
            optional("body", body(), "NULL: kept no longer"),
            required("data_hash", word(64), "SHA-256 of what its body was made of"),
            optional("order_key", word(200), "as it was sent; endpoints may keep the order of each"),
            required("created_at", instant()),
            space.index("webhook_by_time", "created_at"),
            space.index("webhook_with_body", "created_at", where="body IS NOT NULL", on=("sqlite", "postgresql")),
        )

        self.delivery = space.table(
            "delivery",
            "Deliveries: one webhook on its way to one endpoint.",
            required("id", identity()),
            required("webhook_id", word(100)),
            required("endpoint_id", word(64)),
            required("task_id", identity(), "the task that sends it, or did so last"),
            required("state", word(10), "see reference/states.md"),
            required("cause", word(10), "why that task was recorded"),
            required("attempts", integer(), "made so far"),
            optional("status", integer(), "of the last answer"),
            optional("error_class", word(20), "of the last attempt; NULL: it has succeeded"),
            required("created_at", instant()),
            optional("attempted_at", instant()),
            optional("next_at", instant(), "when it is tried again"),
            optional("ended_at", instant()),
            space.unique("delivery_once", "webhook_id", "endpoint_id"),
            space.rule("delivery_state", "state IN ('pending', 'held', 'succeeded', 'exhausted', 'gone', 'cancelled')"),
            space.index("delivery_by_endpoint", "endpoint_id", "state", "id"),
            space.index("delivery_by_state", "state", "id"),
            space.index("delivery_by_task", "task_id"),
        )

        self.delivery_attempt = space.table(
            "delivery_attempt",
            "Each time that a webhook was sent, or could not be.",
            required("task_id", identity()),
            required("attempt", integer(), "of the task"),
            required("delivery_id", identity()),
            required("number", integer(), "of the delivery"),
            required("cause", word(10)),
            required("url", body(), "where it went"),
            optional("status", integer(), "NULL: there was no answer"),
            optional("error_class", word(20), "NULL: it has succeeded"),
            optional("error", body()),
            required("duration_ms", double()),
            optional("answer", body(), "the first 16 KiB"),
            required("is_cut", smallint(), "there was more"),
            required("at", instant(), "when it had ended"),
            optional("next_at", instant(), "when it is tried again"),
            space.index("delivery_attempt_by_delivery", "delivery_id"),
            key=(
                "task_id",
                "attempt",
            ),
        )


def webhook_tables(database: Database) -> WebhookTables:
    """The tables of this slice in one database, under its namespace."""
    return database.tables.part(WebhookTables)
