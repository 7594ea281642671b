"""The tables of messages: where they go, and what is sent."""

from __future__ import annotations

from workq.ledger.columns import TableSpace, body, identity, instant, integer, optional, required, smallint, word
from workq.ledger.engine.database import Database

SINCE = 16


class MessageTables:
    """Destinations, and the messages that are sent to them."""

    def __init__(self, space: TableSpace) -> None:
        self.destination = space.table(
            "destination",
            "Destinations: where messages go.",
            required("name", word(64), since=SINCE),
            required("kind", word(20), "amqp, kafka, stomp, redis, http, call", since=SINCE),
            required("options", body(), "of its kind, as JSON, without secrets", since=SINCE),
            optional("sealed", body(), "its URL, as JSON; encrypted, if there is a key", since=SINCE),
            required("policy", body(), "its limits, deadline and levels, as JSON", since=SINCE),
            required("state", word(10), since=SINCE),
            required("state_at", instant(), "since when", since=SINCE),
            optional("who", word(200), "who decided that", since=SINCE),
            optional("why", word(200), since=SINCE),
            required("failures", integer(), "in a row", since=SINCE),
            optional("failing_since", instant(), "nothing was confirmed since then", since=SINCE),
            optional("fault", word(20), "of the last failure: away, refused, no_target, late, asked", since=SINCE),
            optional("error", body(), "of the last failure, in one line", since=SINCE),
            optional("rests_until", instant(), "nothing is sent to it before", since=SINCE),
            required("created_at", instant(), since=SINCE),
            required("changed_at", instant(), since=SINCE),
            space.rule("destination_state", "state IN ('enabled', 'disabled')"),
            key=("name",),
            since=SINCE,
        )

        self.message = space.table(
            "message",
            "Messages: what is sent at its time. The state of a message is that of its task.",
            required("id", word(100), "as the destination sees it: workq-id", since=SINCE),
            required("destination", word(64), since=SINCE),
            required("task_id", identity(), "the task that sends it, or did so last", since=SINCE),
            required("sending", integer(), "1, and one more for each restore", since=SINCE),
            optional("body", body(), "NULL: kept no longer, as its task is not", since=SINCE),
            required("is_binary", smallint(), "the body is base64 of what is sent", since=SINCE),
            required("content_type", word(200), since=SINCE),
            optional("message_key", body(), "Kafka's key", since=SINCE),
            optional("headers", body(), "of the sender, as JSON", since=SINCE),
            optional("order_key", word(200), since=SINCE),
            required("due_at", instant(), "not to be sent before", since=SINCE),
            required("created_at", instant(), since=SINCE),
            optional("removed_at", instant(), "when retention took its body", since=SINCE),
            space.index("message_by_destination", "destination", "created_at", "id", since=SINCE),
            space.index("message_by_time", "created_at", "id", since=SINCE),
            space.index("message_by_task", "task_id", since=SINCE),
            space.index("message_removed", "removed_at", where="removed_at IS NOT NULL", since=SINCE),
            since=SINCE,
        )


def message_tables(database: Database) -> MessageTables:
    """The tables of this slice in one database, under its namespace."""
    return database.tables.part(MessageTables)
