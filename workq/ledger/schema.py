"""The ledger's tables, for SQLAlchemy. The SQL that people review and `workq db migrate` applies is in `sql/`.

A test proves that both say the same on every dialect. The prefix of every name is the namespace, so that several
applications share a database without seeing each other.

`task` is the record and the sole authority; `worker` has one row per incarnation; `event` is appended only; `marker`
has the messages that prove others lost; `pause` the queues that a person has paused, `band` the bands of priority that
are in use, `kill` the attempts that one wants ended by force; `window` the keys that are held for a time; `sequence`
the order keys with open tasks, and `position` the positions of those; `schedule` what ticks, and `tick` each tick that
became a task; `endpoint` where webhooks go, `webhook` what is sent, `delivery` one webhook on its way to one endpoint,
and `delivery_attempt` each time that it was sent; `throttle` the limits in use, `permit` who has a share of one,
`parked` who waits for one; `job` the jobs, `subtask` the chunks that they count, `failed_item` and `job_result` what
came of items; `meta` the version of the schema; `hint`, `hold` and `lease` are the broker and the in-flight store of
the embedded queue.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    UUID,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import text
from sqlalchemy.types import TypeEngine

from workq.ledger.engine.instants import Instant

SCHEMA_VERSION: Final = 15


class _Text(TypeDecorator[str]):
    """Text that is compared byte by byte, on MySQL too, by types of its own.

    Those are imported where MySQL is: the others' dialects take a tenth of the time that a process takes to start.
    """

    impl: TypeEngine[str] | type[TypeEngine[str]] = String
    cache_ok = True

    def __init__(self, length: int | None, charset: str = "utf8mb4", *, is_fixed: bool = False) -> None:
        super().__init__()
        self.impl = Text() if length is None else String(length)
        self.length = length
        self.charset = charset
        self.is_fixed = is_fixed

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name not in ("mysql", "mariadb"):
            return self.impl_instance
        from sqlalchemy.dialects import mysql

        how: dict[str, str] = {"charset": self.charset, "collation": f"{self.charset}_bin"}
        if self.length is None:
            return dialect.type_descriptor(mysql.LONGTEXT(**how))
        return dialect.type_descriptor((mysql.CHAR if self.is_fixed else mysql.VARCHAR)(self.length, **how))


def _id() -> TypeEngine[Any]:
    return _Text(36, "ascii", is_fixed=True).with_variant(UUID(as_uuid=False), "postgresql")


def _word(length: int) -> TypeEngine[Any]:
    """A name or key."""
    return _Text(length)


def _body() -> TypeEngine[Any]:
    return _Text(None)


def _serial() -> TypeEngine[Any]:
    return BigInteger().with_variant(Integer(), "sqlite")


def _is_postgresql(*_: Any, dialect: Dialect, **__: Any) -> bool:
    return dialect.name == "postgresql"


def _is_not_postgresql(*_: Any, dialect: Dialect, **__: Any) -> bool:
    return dialect.name != "postgresql"


def _is_not_mysql(*_: Any, dialect: Dialect, **__: Any) -> bool:
    return dialect.name not in ("mysql", "mariadb")


class Tables:
    """The tables of one namespace, in a database of this dialect."""

    def __init__(self, namespace: str, dialect: str) -> None:
        def name(of: str) -> str:
            return f"{namespace}_{of}"

        def known(**options: Any) -> dict[str, Any]:
            """Those of them that are this dialect's: SQLAlchemy imports each dialect that an option names."""
            return {option: value for option, value in options.items() if option.partition("_")[0] == dialect}

        def rows(where: str) -> dict[str, Any]:
            """An index of these rows alone."""
            return known(postgresql_where=text(where), sqlite_where=text(where))

        def partial(of: str, *columns: str, where: str) -> Index:
            return Index(name(of), *columns, **rows(where))

        def rule(of: str, check: str) -> CheckConstraint:
            return CheckConstraint(check, name=name(of))

        unhinted = "published_at IS NULL AND state IN ('ready', 'waiting')"
        self.metadata = MetaData()
        in_innodb = known(mysql_engine="InnoDB", mysql_charset="utf8mb4", mysql_collate="utf8mb4_bin")
        self.task = Table(
            name("task"),
            self.metadata,
            Column("id", _id(), nullable=False),
            Column("name", _word(200), nullable=False),
            Column("queue", _word(100), nullable=False),
            Column("state", _word(10), nullable=False),
            Column("due_at", Instant(), nullable=False),
            Column("attempt", Integer, nullable=False, server_default="0"),
            Column("token", _word(32)),
            Column("worker", _word(120)),
            Column("failures", Integer, nullable=False, server_default="0"),
            Column("crashes", Integer, nullable=False, server_default="0"),
            Column("failures_max", Integer, nullable=False),
            Column("crashes_max", Integer, nullable=False),
            Column("live_key", _word(401)),
            Column("task_key", _word(200)),
            Column("job_id", _id()),
            Column("created_at", Instant(), nullable=False),
            Column("queued_at", Instant(), nullable=False),
            Column("published_at", Instant()),
            Column("relay_until", Instant()),
            Column("started_at", Instant()),
            Column("settled_at", Instant()),
            Column("cancel_requested_at", Instant()),
            Column("reason", _word(200)),
            Column("payload", _body(), nullable=False),
            Column("result", _body()),
            Column("error", _body()),
            Column("is_suspect", SmallInteger, nullable=False, server_default=text("0")),
            Column("expires_at", Instant()),
            Column("fingerprint", _word(16)),
            Column("on_crash", _word(5)),
            Column("order_key", _word(200)),
            Column("limit_key", _word(200)),
            Column("limit_most", Integer),
            Column("limit_rate", _word(10)),
            Column("after_death", _word(5)),
            PrimaryKeyConstraint("id", name=name("task_pk")),
            UniqueConstraint("live_key", name=name("task_live_key")).ddl_if(callable_=_is_not_postgresql),
            # the other rows, nearly all, need no place in it; MySQL knows no such index, SQLite drops no constraint
            Index(name("task_live_key"), "live_key", unique=True, **rows("live_key IS NOT NULL")).ddl_if(
                dialect="postgresql"
            ),
            rule("task_state", "state IN ('ready', 'waiting', 'running', 'succeeded', 'dead', 'cancelled')"),
            rule("task_running_has_a_fence", "state <> 'running' OR (token IS NOT NULL AND worker IS NOT NULL)"),
            rule("task_settled_has_a_time", "(state IN ('succeeded', 'dead', 'cancelled')) = (settled_at IS NOT NULL)"),
            rule("task_settled_frees_its_key", "live_key IS NULL OR state IN ('ready', 'waiting', 'running')"),
            rule("task_counts_are_not_negative", "attempt >= 0 AND failures >= 0 AND crashes >= 0"),
            partial("task_open", "state", "queue", "due_at", where="state IN ('ready', 'waiting')"),
            *(
                partial("task_unpublished", *columns, where=unhinted).ddl_if(callable_=ours)
                for columns, ours in (
                    # PostgreSQL takes the NULL for granted, as the condition says it, and cannot begin behind it
                    (("state", "due_at"), _is_postgresql),
                    (("published_at", "state", "due_at"), _is_not_postgresql),
                )
            ),
            partial("task_expiring", "expires_at", where="expires_at IS NOT NULL AND state IN ('ready', 'waiting')"),
            partial("task_running", "state", "worker", where="state = 'running'"),
            # MySQL has no partial index: each row that was ever recorded would have a place in it
            partial("task_dead", "fingerprint", "id", where="state = 'dead'").ddl_if(callable_=_is_not_mysql),
            partial("task_settled", "state", "settled_at", where="state IN ('succeeded', 'dead', 'cancelled')"),
            **known(postgresql_with={"fillfactor": 80}),
            **in_innodb,
        )
        self.worker = Table(
            name("worker"),
            self.metadata,
            Column("id", _word(120), nullable=False),
            Column("state", _word(10), nullable=False),
            Column("host", _word(100), nullable=False),
            Column("pid", Integer, nullable=False),
            Column("queues", _body(), nullable=False),
            Column("threads", Integer, nullable=False),
            Column("started_at", Instant(), nullable=False),
            Column("beat_at", Instant(), nullable=False),
            Column("suspected_at", Instant()),
            Column("ended_at", Instant()),
            Column("evidence", _body()),
            Column("machine", _word(60)),
            Column("parent", Integer),
            Column("memory_bytes", BigInteger),
            PrimaryKeyConstraint("id", name=name("worker_pk")),
            rule("worker_state", "state IN ('live', 'left', 'reaped')"),
            Index(name("worker_by_state"), "state", "beat_at"),
            **in_innodb,
        )
        self.event = Table(
            name("event"),
            self.metadata,
            Column("id", _serial(), nullable=False, autoincrement=True),
            Column("at", Instant(), nullable=False),
            Column("kind", _word(20), nullable=False),
            Column("task_id", _id()),
            Column("attempt", Integer),
            Column("worker", _word(120)),
            Column("detail", _body(), nullable=False),
            PrimaryKeyConstraint("id", name=name("event_pk")),
            Index(name("event_by_task"), "task_id"),
            Index(name("event_by_time"), "at"),
            **in_innodb,
        )
        self.hint = Table(
            name("hint"),
            self.metadata,
            Column("id", _serial(), nullable=False, autoincrement=True),
            Column("queue", _word(100), nullable=False),
            Column("due_at", Instant(), nullable=False),
            Column("body", _body(), nullable=False),
            Column("size", SmallInteger, nullable=False),
            Column("consumer", _word(120)),
            Column("delivered_at", Instant()),
            Column("deliveries", Integer, nullable=False, server_default="0"),
            PrimaryKeyConstraint("id", name=name("hint_pk")),
            Index(name("hint_by_queue"), "queue", "due_at", "id"),
            Index(name("hint_by_consumer"), "consumer"),
            **in_innodb,
        )
        self.hold = Table(
            name("hold"),
            self.metadata,
            Column("task_id", _id(), nullable=False),
            Column("queue", _word(100), nullable=False),
            Column("worker", _word(120), nullable=False),
            Column("attempt", Integer),
            Column("since", Instant(), nullable=False),
            PrimaryKeyConstraint("task_id", name=name("hold_pk")),
            Index(name("hold_by_worker"), "worker"),
            Index(name("hold_by_queue"), "queue"),
            **in_innodb,
        )
        self.lease = Table(
            name("lease"),
            self.metadata,
            Column("worker", _word(120), nullable=False),
            Column("expires_at", Instant(), nullable=False),
            Column("reaped_at", Instant()),
            PrimaryKeyConstraint("worker", name=name("lease_pk")),
            **in_innodb,
        )
        self.marker = Table(
            name("marker"),
            self.metadata,
            Column("id", _id(), nullable=False),
            Column("queue", _word(100), nullable=False),
            Column("band", SmallInteger, nullable=False),
            Column("sent_at", Instant(), nullable=False),
            Column("returned_at", Instant()),
            Column("closed_at", Instant()),
            Column("depth", Integer),
            Column("lost", Integer, nullable=False, server_default="0"),
            PrimaryKeyConstraint("id", name=name("marker_pk")),
            Index(name("marker_by_line"), "queue", "band", "sent_at"),
            **in_innodb,
        )
        self.pause = Table(
            name("pause"),
            self.metadata,
            Column("queue", _word(100), nullable=False),
            Column("paused_at", Instant(), nullable=False),
            Column("ends_at", Instant()),
            Column("who", _word(200), nullable=False),
            Column("why", _word(200), nullable=False),
            PrimaryKeyConstraint("queue", name=name("pause_pk")),
            **in_innodb,
        )
        self.band = Table(
            name("band"),
            self.metadata,
            Column("queue", _word(100), nullable=False),
            Column("made_at", Instant(), nullable=False),
            PrimaryKeyConstraint("queue", name=name("band_pk")),
            **in_innodb,
        )
        self.window = Table(
            name("window"),
            self.metadata,
            Column("id", _word(401), nullable=False),
            Column("task_id", _id(), nullable=False),
            Column("ends_at", Instant(), nullable=False),
            PrimaryKeyConstraint("id", name=name("window_pk")),
            Index(name("window_by_end"), "ends_at"),
            **in_innodb,
        )
        self.sequence = Table(
            name("sequence"),
            self.metadata,
            Column("id", _word(200), nullable=False),
            Column("last", BigInteger, nullable=False),
            Column("head_position", BigInteger, nullable=False),
            Column("head_task", _id(), nullable=False),
            PrimaryKeyConstraint("id", name=name("sequence_pk")),
            **in_innodb,
        )
        self.position = Table(
            name("position"),
            self.metadata,
            Column("order_key", _word(200), nullable=False),
            Column("position", BigInteger, nullable=False),
            Column("task_id", _id(), nullable=False),
            Column("due_at", Instant(), nullable=False),
            Column("after_death", _word(5), nullable=False),
            PrimaryKeyConstraint("order_key", "position", name=name("position_pk")),
            **in_innodb,
        )
        self.throttle = Table(
            name("throttle"),
            self.metadata,
            Column("id", _word(200), nullable=False),
            Column("last", BigInteger, nullable=False),
            Column("changed_at", Instant(), nullable=False),
            Column("closed_until", Instant()),
            PrimaryKeyConstraint("id", name=name("throttle_pk")),
            **in_innodb,
        )
        self.permit = Table(
            name("permit"),
            self.metadata,
            Column("id", _serial(), nullable=False, autoincrement=True),
            Column("limit_key", _word(200), nullable=False),
            Column("task_id", _id(), nullable=False),
            Column("attempt", Integer),
            Column("at", Instant(), nullable=False),
            PrimaryKeyConstraint("id", name=name("permit_pk")),
            Index(name("permit_by_limit"), "limit_key"),
            **in_innodb,
        )
        self.parked = Table(
            name("parked"),
            self.metadata,
            Column("limit_key", _word(200), nullable=False),
            Column("number", BigInteger, nullable=False),
            Column("task_id", _id(), nullable=False),
            PrimaryKeyConstraint("limit_key", "number", name=name("parked_pk")),
            **in_innodb,
        )
        self.kill = Table(
            name("kill"),
            self.metadata,
            Column("task_id", _id(), nullable=False),
            Column("attempt", Integer, nullable=False),
            Column("worker", _word(120), nullable=False),
            Column("asked_at", Instant(), nullable=False),
            PrimaryKeyConstraint("task_id", "attempt", name=name("kill_pk")),
            **in_innodb,
        )
        self.schedule = Table(
            name("schedule"),
            self.metadata,
            Column("name", _word(200), nullable=False),
            Column("rule", _word(5), nullable=False),
            Column("text", _word(150), nullable=False),
            Column("zone", _word(64), nullable=False),
            Column("missed", _word(4), nullable=False),
            Column("task_name", _word(200), nullable=False),
            Column("queue", _word(100), nullable=False),
            Column("payload", _body(), nullable=False),
            Column("failures_max", Integer, nullable=False),
            Column("crashes_max", Integer, nullable=False),
            Column("expires_s", Double),
            Column("changed_at", Instant(), nullable=False),
            Column("next_at", Instant()),
            Column("last_at", Instant()),
            Column("paused_at", Instant()),
            Column("who", _word(200)),
            Column("why", _word(200)),
            Column("on_crash", _word(5)),
            Column("limit_key", _word(200)),
            Column("limit_most", Integer),
            Column("limit_rate", _word(10)),
            PrimaryKeyConstraint("name", name=name("schedule_pk")),
            rule("schedule_rule", "rule IN ('cron', 'every', 'at')"),
            rule("schedule_missed", "missed IN ('skip', 'once', 'all')"),
            **in_innodb,
        )
        self.tick = Table(
            name("tick"),
            self.metadata,
            Column("id", _serial(), nullable=False, autoincrement=True),
            Column("schedule", _word(200), nullable=False),
            Column("at", Instant(), nullable=False),
            Column("task_id", _id(), nullable=False),
            Column("made_at", Instant(), nullable=False),
            PrimaryKeyConstraint("id", name=name("tick_pk")),
            UniqueConstraint("schedule", "at", name=name("tick_once")),
            Index(name("tick_by_time"), "made_at"),
            **in_innodb,
        )
        self.job = Table(
            name("job"),
            self.metadata,
            Column("id", _id(), nullable=False),
            Column("name", _word(200), nullable=False),
            Column("live_key", _word(401)),
            Column("job_key", _word(200)),
            Column("state", _word(23), nullable=False),
            Column("state_at", Instant(), nullable=False),
            Column("params", _body(), nullable=False),
            Column("options", _body(), nullable=False),
            Column("split_task", _id(), nullable=False),
            Column("source_cursor", _body()),
            Column("is_split", SmallInteger, nullable=False),
            Column("awaits_room", SmallInteger, nullable=False),
            Column("total", BigInteger),
            Column("split", BigInteger, nullable=False),
            Column("succeeded", BigInteger, nullable=False),
            Column("failed", BigInteger, nullable=False),
            Column("skipped", BigInteger, nullable=False),
            Column("cancelled", BigInteger, nullable=False),
            Column("retried", BigInteger, nullable=False),
            Column("results", BigInteger, nullable=False),
            Column("subtasks", BigInteger, nullable=False),
            Column("read_subtasks", BigInteger, nullable=False),
            Column("open_subtasks", BigInteger, nullable=False),
            Column("rate_max", Double),
            Column("slot_at", Instant()),
            Column("rate", Double),
            Column("rated_at", Instant()),
            Column("rated_done", BigInteger, nullable=False),
            Column("created_at", Instant(), nullable=False),
            Column("started_at", Instant()),
            Column("ended_at", Instant()),
            Column("paused_at", Instant()),
            Column("paused_s", Double, nullable=False),
            Column("who", _word(200)),
            Column("why", _word(200)),
            Column("error", _body()),
            Column("parent_id", _id()),
            PrimaryKeyConstraint("id", name=name("job_pk")),
            UniqueConstraint("live_key", name=name("job_live_key")),
            rule(
                "job_state",
                "state IN ('planning', 'running', 'pausing', 'paused', 'cancelling', 'cancelled', 'failing', 'failed', "
                "'succeeded', 'completed_with_failures')",
            ),
            rule("job_counts", "succeeded + failed + skipped + cancelled <= split AND open_subtasks >= 0"),
            Index(name("job_by_state"), "state"),
            Index(name("job_by_parent"), "parent_id"),
            **in_innodb,
        )
        self.subtask = Table(
            name("subtask"),
            self.metadata,
            Column("task_id", _id(), nullable=False),
            Column("job_id", _id(), nullable=False),
            Column("number", BigInteger, nullable=False),
            Column("size", BigInteger, nullable=False),
            Column("items_left", Integer, nullable=False),
            Column("succeeded", BigInteger, nullable=False),
            Column("failed", Integer, nullable=False),
            Column("skipped", Integer, nullable=False),
            Column("cancelled", Integer, nullable=False),
            Column("attempt", Integer, nullable=False),
            Column("step_cursor", _body()),
            Column("steps", BigInteger, nullable=False),
            Column("slot_at", Instant()),
            Column("ended_at", Instant()),
            PrimaryKeyConstraint("task_id", name=name("subtask_pk")),
            UniqueConstraint("job_id", "number", name=name("subtask_number")),
            rule("subtask_counts", "items_left + succeeded + failed + skipped + cancelled = size"),
            Index(name("subtask_open"), "job_id", "ended_at"),
            **in_innodb,
        )
        self.failed_item = Table(
            name("failed_item"),
            self.metadata,
            Column("id", _serial(), nullable=False, autoincrement=True),
            Column("job_id", _id(), nullable=False),
            Column("task_id", _id()),
            Column("item", _body(), nullable=False),
            Column("failures", Integer, nullable=False),
            Column("error", _body(), nullable=False),
            Column("fingerprint", _word(16), nullable=False),
            Column("at", Instant(), nullable=False),
            PrimaryKeyConstraint("id", name=name("failed_item_pk")),
            Index(name("failed_item_by_job"), "job_id", "fingerprint"),
            **in_innodb,
        )
        self.job_result = Table(
            name("job_result"),
            self.metadata,
            Column("id", _serial(), nullable=False, autoincrement=True),
            Column("job_id", _id(), nullable=False),
            Column("task_id", _id(), nullable=False),
            Column("item", _body(), nullable=False),
            Column("value", _body()),
            Column("note", _word(200)),
            Column("at", Instant(), nullable=False),
            PrimaryKeyConstraint("id", name=name("job_result_pk")),
            Index(name("job_result_by_job"), "job_id", "id"),
            **in_innodb,
        )
        self.endpoint = Table(
            name("endpoint"),
            self.metadata,
            Column("id", _word(64), nullable=False),
            Column("topic", _word(200), nullable=False),
            Column("url", _body(), nullable=False),
            Column("types", _body(), nullable=False),
            Column("sealed", _body(), nullable=False),
            Column("options", _body(), nullable=False),
            Column("state", _word(10), nullable=False),
            Column("state_at", Instant(), nullable=False),
            Column("who", _word(200)),
            Column("why", _word(200)),
            Column("failing_since", Instant()),
            Column("failures", Integer, nullable=False),
            Column("warned", SmallInteger, nullable=False),
            Column("created_at", Instant(), nullable=False),
            Column("changed_at", Instant(), nullable=False),
            PrimaryKeyConstraint("id", name=name("endpoint_pk")),
            rule("endpoint_state", "state IN ('enabled', 'disabled')"),
            Index(name("endpoint_by_topic"), "topic"),
            **in_innodb,
        )
        self.webhook = Table(
            name("webhook"),
            self.metadata,
            Column("id", _word(100), nullable=False),
            Column("type", _word(200), nullable=False),
            Column("topic", _word(200)),
            Column("body", _body()),
            Column("data_hash", _word(64), nullable=False),
            Column("order_key", _word(200)),
            Column("created_at", Instant(), nullable=False),
            PrimaryKeyConstraint("id", name=name("webhook_pk")),
            Index(name("webhook_by_time"), "created_at"),
            partial("webhook_with_body", "created_at", where="body IS NOT NULL").ddl_if(callable_=_is_not_mysql),
            **in_innodb,
        )
        self.delivery = Table(
            name("delivery"),
            self.metadata,
            Column("id", _id(), nullable=False),
            Column("webhook_id", _word(100), nullable=False),
            Column("endpoint_id", _word(64), nullable=False),
            Column("task_id", _id(), nullable=False),
            Column("state", _word(10), nullable=False),
            Column("cause", _word(10), nullable=False),
            Column("attempts", Integer, nullable=False),
            Column("status", Integer),
            Column("error_class", _word(20)),
            Column("created_at", Instant(), nullable=False),
            Column("attempted_at", Instant()),
            Column("next_at", Instant()),
            Column("ended_at", Instant()),
            PrimaryKeyConstraint("id", name=name("delivery_pk")),
            UniqueConstraint("webhook_id", "endpoint_id", name=name("delivery_once")),
            rule("delivery_state", "state IN ('pending', 'held', 'succeeded', 'exhausted', 'gone', 'cancelled')"),
            Index(name("delivery_by_endpoint"), "endpoint_id", "state", "id"),
            Index(name("delivery_by_state"), "state", "id"),
            Index(name("delivery_by_task"), "task_id"),
            **in_innodb,
        )
        self.delivery_attempt = Table(
            name("delivery_attempt"),
            self.metadata,
            Column("task_id", _id(), nullable=False),
            Column("attempt", Integer, nullable=False),
            Column("delivery_id", _id(), nullable=False),
            Column("number", Integer, nullable=False),
            Column("cause", _word(10), nullable=False),
            Column("url", _body(), nullable=False),
            Column("status", Integer),
            Column("error_class", _word(20)),
            Column("error", _body()),
            Column("duration_ms", Double, nullable=False),
            Column("answer", _body()),
            Column("is_cut", SmallInteger, nullable=False),
            Column("at", Instant(), nullable=False),
            Column("next_at", Instant()),
            PrimaryKeyConstraint("task_id", "attempt", name=name("delivery_attempt_pk")),
            Index(name("delivery_attempt_by_delivery"), "delivery_id"),
            **in_innodb,
        )
        self.meta = Table(
            name("meta"),
            self.metadata,
            Column("name", _word(100), nullable=False),
            Column("value", _body(), nullable=False),
            Column("at", Instant(), nullable=False),
            PrimaryKeyConstraint("name", name=name("meta_pk")),
            **in_innodb,
        )
