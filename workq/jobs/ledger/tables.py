"""The tables of jobs: the jobs, the subtasks that they count, and what came of their items."""

from __future__ import annotations

from workq.ledger.columns import (
    TableSpace,
    bigint,
    body,
    double,
    identity,
    instant,
    integer,
    numbered,
    optional,
    required,
    smallint,
    word,
)
from workq.ledger.engine.database import Database


class JobTables:
    """Jobs, their subtasks, and what came of their items."""

    def __init__(self, space: TableSpace) -> None:
        self.job = space.table(
            "job",
            "Jobs: many subtasks with one outcome. All counts but those of subtasks are of items.",
            required("id", identity()),
            required("name", word(200), "the handler of its subtasks"),
            optional("live_key", word(401), "of its name and key, until it has ended: no two jobs at once"),
            optional("job_key", word(200)),
            required("state", word(23), "see reference/states.md"),
            required("state_at", instant(), "since when"),
            required("params", body(), "what its source and its handler are called with"),
            required("options", body(), "of its subtasks, of its failures, and what follows its end, as JSON"),
            required("split_task", identity(), "the task that reads its source"),
            optional("source_cursor", body(), "where it goes on in its source, as JSON"),
            required("is_split", smallint(), "its source has been read to the end"),
            required("awaits_room", smallint(), "its splitter waits until fewer subtasks are open"),
            optional("total", bigint(), "NULL: not known yet"),
            required("split", bigint(), "items in its subtasks"),
            required("succeeded", bigint()),
            required("failed", bigint()),
            required("skipped", bigint()),
            required("cancelled", bigint()),
            required("retried", bigint(), "how often an item was tried again"),
            required("results", bigint(), "that its handler has told of items, kept or not"),
            required("subtasks", bigint(), "made so far"),
            required("read_subtasks", bigint(), "of those, made of what its splitter has read"),
            required("open_subtasks", bigint(), "made, and not ended"),
            optional("rate_max", double(), "items a second that may start; NULL: as fast as it can"),
            optional("slot_at", instant(), "when the next subtask may start"),
            optional("rate", double(), "items a second, smoothed over the last minute"),
            optional("rated_at", instant(), "when that was"),
            required("rated_done", bigint(), "and how many were done then"),
            required("created_at", instant()),
            optional("started_at", instant(), "its first subtask was recorded"),
            optional("ended_at", instant()),
            optional("paused_at", instant()),
            required("paused_s", double(), "how long it was paused in all, before"),
            optional("who", word(200), "who decided last about it"),
            optional("why", word(200)),
            optional("error", body(), "why it failed"),
            optional("parent_id", identity(), "the job that it is nested in"),
            space.unique("job_live_key", "live_key"),
            space.rule(
                "job_state",
                "state IN ('planning', 'running', 'pausing', 'paused', 'cancelling', 'cancelled', 'failing', 'failed', "
                "'succeeded', 'completed_with_failures')",
            ),
            space.rule("job_counts", "succeeded + failed + skipped + cancelled <= split AND open_subtasks >= 0"),
            space.index("job_by_state", "state"),
            space.index("job_by_parent", "parent_id"),
        )

        self.subtask = space.table(
            "subtask",
            "The subtasks of a job, beside their tasks: what is counted of each.",
            required("task_id", identity()),
            required("job_id", identity()),
            required("number", bigint(), "in the order in which they were made"),
            required(
                "size",
                bigint(),
                "items that it was made of; a partition: those of its steps, itself until it is done",
            ),
            required("items_left", integer(), "that are neither done nor given up"),
            required("succeeded", bigint()),
            required("failed", integer()),
            required("skipped", integer()),
            required("cancelled", integer()),
            required("attempt", integer(), "the last one that is counted"),
            optional(
                "step_cursor", body(), "a partition: the cursor behind its last step, as JSON; NULL: at its beginning"
            ),
            required("steps", bigint(), "a partition: so many are committed"),
            optional("slot_at", instant(), "it may start then: its job has a rate"),
            optional("ended_at", instant(), "it is counted as ended"),
            space.unique("subtask_number", "job_id", "number"),
            space.rule("subtask_counts", "items_left + succeeded + failed + skipped + cancelled = size"),
            space.index("subtask_open", "job_id", "ended_at"),
            key=("task_id",),
        )

        self.failed_item = space.table(
            "failed_item",
            "Items that have failed for good.",
            numbered(),
            required("job_id", identity()),
            optional("task_id", identity(), "the subtask that it was in"),
            required("item", body(), "as JSON; what JSON cannot carry: its text, as a JSON string"),
            required("failures", integer(), "how often it was tried"),
            required("error", body()),
            required("fingerprint", word(16), "alike for errors that are alike"),
            required("at", instant()),
            space.index("failed_item_by_job", "job_id", "fingerprint"),
        )

        self.job_result = space.table(
            "job_result",
            "Results of items, as far as their job keeps them.",
            numbered(),
            required("job_id", identity()),
            required("task_id", identity(), "the subtask that it was in"),
            required("item", body(), "as JSON; what JSON cannot carry: its text, as a JSON string"),
            optional("value", body(), "as JSON; NULL: it could not be kept"),
            optional("note", word(200), "why not"),
            required("at", instant()),
            space.index("job_result_by_job", "job_id", "id"),
        )


def job_tables(database: Database) -> JobTables:
    """The tables of this slice in one database, under its namespace."""
    return database.tables.part(JobTables)
