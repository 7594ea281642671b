"""The tables of messages: where they go, what is sent, and the ways in."""

from __future__ import annotations

from workq.ledger.columns import (
    TableSpace,
    bigint,
    body,
    identity,
    instant,
    integer,
    optional,
    required,
    smallint,
    word,
)
from workq.ledger.engine.database import Database

SINCE = 16
_17 = 17


class MessageTables:
    """Destinations, the messages that are sent to them, and the brokers that messages are taken in from."""

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
            optional("probe", identity(), "the task that tries it, while it fails", since=_17),
            optional("probe_until", instant(), "for so long no other one tries it", since=_17),
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
            optional("ended", word(10), "how its task had ended, which retention removed", since=_17),
            optional("intake", word(64), "the way in whose record it was", since=_17),
            space.index("message_by_destination", "destination", "created_at", "id", since=SINCE),
            space.index("message_by_time", "created_at", "id", since=SINCE),
            space.index("message_by_task", "task_id", since=SINCE),
            space.index("message_removed", "removed_at", where="removed_at IS NOT NULL", since=SINCE),
            since=SINCE,
        )

        self.waiting_message = space.table(
            "waiting_message",
            "Messages that wait for their destination, in the order of their time.",
            required("destination", word(64), since=_17),
            required("due_at", instant(), "of the message", since=_17),
            required("task_id", identity(), since=_17),
            key=("destination", "due_at", "task_id"),
            since=_17,
        )

        self.intake = space.table(
            "intake",
            "Ways in: topics and queues of others whose records become messages.",
            required("name", word(64), since=SINCE),
            required("kind", word(20), "kafka, amqp", since=SINCE),
            required("options", body(), "of its kind, as JSON, without secrets", since=SINCE),
            optional("sealed", body(), "its URL, as JSON; encrypted, if there is a key", since=SINCE),
            optional("destination", word(64), "of records that name none", since=SINCE),
            required("recorded", bigint(), "records that became messages", since=SINCE),
            required("kept", bigint(), "messages of it that are there", default=0, since=_17),
            required("repeated", bigint(), "records whose id was there", since=SINCE),
            required("cancelled", bigint(), "records that asked to cancel a message", since=SINCE),
            required("quarantined", bigint(), "records that could not be read", since=SINCE),
            optional("quarantined_why", body(), "what was wrong with the last of them", since=SINCE),
            optional("quarantined_at", instant(), since=SINCE),
            optional("error", body(), "why nothing could be read, in one line", since=SINCE),
            optional("failing_since", instant(), "nothing could be read since then", since=SINCE),
            optional("taken_at", instant(), "when something was taken in last", since=SINCE),
            required("created_at", instant(), since=SINCE),
            key=("name",),
            since=SINCE,
        )

        self.intake_offset = space.table(
            "intake_offset",
            "How far each partition of a topic was taken in, and by which process: moved together with the records.",
            required("intake", word(64), since=SINCE),
            required("topic", word(249), since=SINCE),
            required("part", integer(), "the partition", since=SINCE),
            optional("next_offset", bigint(), "of the next record; NULL: from the beginning", since=SINCE),
            optional("topic_id", word(40), "as Kafka tells it: a topic that was made anew begins anew", since=SINCE),
            required("owner", word(120), "the incarnation that took the partition last", since=SINCE),
            required(
                "epoch", bigint(), "1, and one more each time it is taken: an older owner moves nothing", since=SINCE
            ),
            required("changed_at", instant(), since=SINCE),
            key=("intake", "topic", "part"),
            since=SINCE,
        )


def message_tables(database: Database) -> MessageTables:
    """The tables of this slice in one database, under its namespace."""
    return database.tables.part(MessageTables)
