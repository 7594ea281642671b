"""The ledger's tables, for SQLAlchemy: the one place in which each is written. The files of `sql/` are made from them.

`task` is the record and the sole authority; `worker` has one row per incarnation; `event` is appended only; `marker`
has the messages that prove others lost; `pause` the queues that a person has paused, `band` the bands of priority that
are in use, `kill` the attempts that a person wants ended by force; `window` the keys that are held for a time; `tick`
each tick that became a task; `meta` the version of the schema; `hint`, `hold` and `lease` are the broker and the
in-flight store of the embedded queue. A slice has its own, in its folder; `workq.slices.every_table` has them all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

from workq.ledger.columns import (
    TableSpace,
    bigint,
    body,
    identity,
    instant,
    integer,
    numbered,
    optional,
    required,
    smallint,
    word,
)

SCHEMA_VERSION: Final = 19

T = TypeVar("T")


class CoreTables:
    """The tables that every task passes through."""

    def __init__(self, space: TableSpace) -> None:
        unhinted = "published_at IS NULL AND state IN ('ready', 'waiting')"
        relayed = "the relay of the sweep: due and without a confirmed hint. Nearly always empty"
        self.task = space.table(
            "task",
            "The record of every task, and the sole authority over it. Rows are changed only by conditional updates.",
            required("id", identity(), "UUIDv7, made by the producer"),
            required("name", word(200), "of the handler"),
            required("queue", word(100)),
            required("state", word(10), "see the CHECK below; waiting: due later"),
            required("due_at", instant(), "not to be claimed before"),
            required("attempt", integer(), "grows with each claim, never used twice", default=0),
            optional("token", word(32), "secret of the newest claim; with attempt: the fence"),
            optional("worker", word(120), "the incarnation that claimed it last"),
            required("failures", integer(), "the handler raised, or timed out", default=0),
            required("crashes", integer(), "its process died while running it", default=0),
            required("failures_max", integer(), "at this many failures it is dead"),
            required("crashes_max", integer(), "at this many crashes it is dead"),
            optional("live_key", word(401), "name/key while it is open; NULL frees the key"),
            optional("task_key", word(200), "the producer's key, kept for people"),
            optional("job_id", identity(), "the job of which it is a subtask"),
            required("created_at", instant()),
            required("queued_at", instant(), "when it last became ready or waiting"),
            optional("published_at", instant(), "its hint was confirmed; NULL: the sweep relays it"),
            optional("relay_until", instant(), "a relay is publishing its hint until then"),
            optional("started_at", instant(), "of the newest attempt"),
            optional("settled_at", instant()),
            optional("cancel_requested_at", instant(), "asked for while it ran"),
            optional("reason", word(200), "why it is dead or cancelled"),
            required("payload", body(), "the arguments, JSON"),
            optional("result", body(), "what the handler returned, JSON"),
            optional("error", body(), "of the newest failure"),
            required(
                "is_suspect",
                smallint(),
                "1: its worker ended, nobody saw why; 2: its process died: it runs alone. Either pays for a crash",
                default=0,
            ),
            optional("expires_at", instant(), "from then on it is not started any more; NULL: never"),
            optional("fingerprint", word(16), "what it died of: dead tasks that have it in common are a group"),
            optional(
                "on_crash",
                word(5),
                "its process died: NULL runs it again, 'fail' counts a failure, 'ask' leaves it to a person",
            ),
            optional("order_key", word(200), "tasks that share it run one at a time, in the order of their commits"),
            optional("limit_key", word(200), "its limit, with all tasks of the same key; NULL: no limit"),
            optional("limit_most", integer(), "at most so many of them at once"),
            optional("limit_rate", word(10), "so many starts in a time"),
            optional(
                "after_death",
                word(5),
                "once it is dead: 'skip' lets the next task of its order key run, NULL blocks the line",
            ),
            optional(
                "waits_for",
                word(20),
                "waits for it, too: 'order', 'limit', 'job', 'endpoint', 'destination'; NULL: its time alone",
                since=16,
            ),
            space.unique(
                "task_live_key", "live_key", doc="one open task for each name and key", on=("sqlite", "mysql")
            ),
            # the other rows, nearly all, need no place in it; MySQL knows no such index, SQLite drops no constraint
            space.index(
                "task_live_key",
                "live_key",
                is_unique=True,
                where="live_key IS NOT NULL",
                doc="one open task for each name and key",
                on=("postgresql",),
            ),
            space.rule("task_state", "state IN ('ready', 'waiting', 'running', 'succeeded', 'dead', 'cancelled')"),
            space.rule("task_running_has_a_fence", "state <> 'running' OR (token IS NOT NULL AND worker IS NOT NULL)"),
            space.rule(
                "task_settled_has_a_time", "(state IN ('succeeded', 'dead', 'cancelled')) = (settled_at IS NOT NULL)"
            ),
            space.rule("task_settled_frees_its_key", "live_key IS NULL OR state IN ('ready', 'waiting', 'running')"),
            space.rule("task_counts_are_not_negative", "attempt >= 0 AND failures >= 0 AND crashes >= 0"),
            space.index(
                "task_open",
                "state",
                "queue",
                "due_at",
                where="state IN ('ready', 'waiting')",
                doc="what can be claimed, oldest due first; how many wait in each queue",
            ),
            # PostgreSQL takes the NULL for granted, as the condition says it, and cannot begin behind it
            space.index("task_unpublished", "state", "due_at", where=unhinted, doc=relayed, on=("postgresql",)),
            space.index(
                "task_unpublished",
                "published_at",
                "state",
                "due_at",
                where=unhinted,
                doc=relayed,
                on=("sqlite", "mysql"),
            ),
            space.index(
                "task_expiring",
                "expires_at",
                where="expires_at IS NOT NULL AND state IN ('ready', 'waiting')",
                doc="what the sweep cancels",
            ),
            space.index(
                "task_running",
                "state",
                "worker",
                where="state = 'running'",
                doc="what an incarnation runs, when it is reaped; orphans",
            ),
            # MySQL has no partial index: each row that was ever recorded would have a place in it
            space.index(
                "task_dead",
                "fingerprint",
                "id",
                where="state = 'dead'",
                doc="the dead by group, and each group by age",
                on=("sqlite", "postgresql"),
            ),
            space.index(
                "task_settled",
                "state",
                "settled_at",
                where="state IN ('succeeded', 'dead', 'cancelled')",
                doc="retention: the oldest settled rows are deleted first",
            ),
            postgresql_with={"fillfactor": 80},
        )

        self.worker = space.table(
            "worker",
            "One row for each incarnation: one life of one worker process.",
            required("id", word(120), "host, boot, pid, start time, nonce: never reused"),
            required("state", word(10), "live, left (in order), reaped (found dead)"),
            required("host", word(100)),
            required("pid", integer()),
            required("queues", body(), "JSON"),
            required("threads", integer()),
            required("started_at", instant()),
            required("beat_at", instant(), "renewed every few seconds"),
            optional("suspected_at", instant(), "since when its lease is missing; a second look decides"),
            optional("ended_at", instant()),
            optional("evidence", body(), "how its death was proved"),
            optional("machine", word(60), "boot and process namespace: processes that share it see each other's pids"),
            optional(
                "parent",
                integer(),
                "the pid of its supervisor; while that process lives, it alone judges how this one died",
            ),
            optional("memory_bytes", bigint(), "resident memory at the last beat, for the certificate of its death"),
            optional(
                "signs", word(200), "the stores in which it gives signs of life; NULL: its lease alone tells", since=19
            ),
            space.rule("worker_state", "state IN ('live', 'left', 'reaped')"),
            space.index(
                "worker_by_state", "state", "beat_at", doc="who is live; whose row is old enough to be deleted"
            ),
        )

        self.event = space.table(
            "event",
            "History, appended only: what is not the happy path, and what people did.",
            numbered(),
            required("at", instant()),
            required("kind", word(20), "failed, reaped, late_result, cancelled, revived, ..."),
            optional("task_id", identity(), "an event may outlive its task"),
            optional("attempt", integer()),
            optional("worker", word(120)),
            required("detail", body(), "JSON"),
            space.index("event_by_task", "task_id", doc="one task's history"),
            space.index("event_by_time", "at", doc="retention; what happened lately"),
        )

        self.hint = space.table(
            "hint",
            "The embedded broker: hints that wake workers up. With RabbitMQ: delayed hints, with one of its ladders.",
            numbered("the order of a queue"),
            required("queue", word(100)),
            required("due_at", instant(), "not to be delivered before"),
            required("body", body(), "the message: queue and task ids, JSON"),
            required("size", smallint(), "how many task ids"),
            optional("consumer", word(120), "the incarnation that has it and has not acked"),
            optional("delivered_at", instant()),
            required("deliveries", integer(), default=0),
            space.index("hint_by_queue", "queue", "due_at", "id", doc="the next hints of a queue"),
            space.index("hint_by_consumer", "consumer", doc="what a dead consumer had not acked"),
        )

        self.hold = space.table(
            "hold",
            "The embedded in-flight store: which incarnation holds which task. Unused while Redis keeps it.",
            required("task_id", identity()),
            required("queue", word(100)),
            required("worker", word(120), "the incarnation that holds it"),
            optional("attempt", integer(), "NULL until it is claimed"),
            required("since", instant()),
            space.index("hold_by_worker", "worker", doc="what an incarnation holds"),
            space.index("hold_by_queue", "queue", doc="what is held of a queue"),
            key=("task_id",),
        )

        self.lease = space.table(
            "lease",
            "The embedded in-flight store: until when each incarnation counts as alive. Unused while Redis keeps it.",
            required("worker", word(120)),
            required("expires_at", instant()),
            optional("reaped_at", instant(), "its incarnation was reaped: a later beat is refused"),
            key=("worker",),
        )

        self.marker = space.table(
            "marker",
            "Messages that prove others lost, in each line of the broker: a queue, and one of its bands of priority.",
            required("id", identity(), "what the message carries"),
            required("queue", word(100)),
            required("band", smallint()),
            required("sent_at", instant(), "written before it is published"),
            optional("returned_at", instant(), "a worker has handed it back"),
            optional("closed_at", instant(), "what it proved lost has been sent again"),
            optional("depth", integer(), "hints in the line when it was sent"),
            required("lost", integer(), "how many hints it proved lost", default=0),
            optional(
                "position", body(), "no message: where the line ended after `sent_at`, as its broker says", since=18
            ),
            space.index("marker_by_line", "queue", "band", "sent_at", doc="the newest of a line"),
        )

        self.pause = space.table(
            "pause",
            "Queues that a person has paused: nothing of them is claimed until a person resumes them, or until then.",
            required("queue", word(100)),
            required("paused_at", instant()),
            optional("ends_at", instant(), "NULL: when somebody resumes it"),
            required("who", word(200)),
            required("why", word(200)),
            key=("queue",),
        )

        self.band = space.table(
            "band",
            "Bands that have been used: workers look there for tasks of high and low priority. Normal needs none.",
            required("queue", word(100), "mail~high or mail~low, as in workq_task"),
            required("made_at", instant()),
            key=("queue",),
        )

        self.window = space.table(
            "window",
            "Keys that their tasks hold for a time, settled or not.",
            required("id", word(401), "name and key, as live_key has them"),
            required("task_id", identity()),
            required("ends_at", instant()),
            space.index("window_by_end", "ends_at", doc="for retention"),
        )

        self.kill = space.table(
            "kill",
            "Running attempts that a person wants ended by force, until their process has ended.",
            required("task_id", identity()),
            required("attempt", integer()),
            required("worker", word(120)),
            required("asked_at", instant()),
            key=(
                "task_id",
                "attempt",
            ),
        )

        self.tick = space.table(
            "tick",
            "Each tick that became a task, once.",
            numbered(),
            required("schedule", word(200)),
            required("at", instant()),
            required("task_id", identity()),
            required("made_at", instant()),
            space.unique("tick_once", "schedule", "at"),
            space.index("tick_by_time", "made_at", doc="for retention"),
        )

        self.meta = space.table(
            "meta",
            "Facts about this ledger. The row 'schema_version' is written last by each migration.",
            required("name", word(100)),
            required("value", body()),
            required("at", instant()),
            key=("name",),
        )


class Tables(CoreTables):
    """The tables of one namespace, in a database of this dialect: those of the core, and on demand those of a slice."""

    def __init__(self, namespace: str, dialect: str) -> None:
        super().__init__(TableSpace(namespace, dialect))
        self.namespace = namespace
        self.dialect = dialect
        self._parts: dict[object, Any] = {}

    def part(self, kind: Callable[[TableSpace], T]) -> T:
        """The tables of a slice, made when they are first asked for: see `workq.jobs.ledger.tables.job_tables`.

        A process that needs no job does not make the tables of jobs.
        """
        found = self._parts.get(kind)
        if found is None:  # of two that ask at once, the first makes it: no lock, which a fork could find held
            found = self._parts.setdefault(kind, kind(TableSpace(self.namespace, self.dialect)))
        return cast(T, found)


@lru_cache(maxsize=8)
def shared_tables(namespace: str, dialect: str) -> Tables:
    """The tables of one namespace, for all who open such a database in this process: once made, they never change.

    To make them is half of what it takes to open a ledger.
    """
    return Tables(namespace, dialect)
