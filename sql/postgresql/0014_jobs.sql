-- workq, schema 14, for PostgreSQL 12 or newer: jobs.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- It reads no table.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Jobs: many subtasks with one outcome. All counts but those of subtasks are of items.
CREATE TABLE workq_job (
    id                   UUID NOT NULL,
    name                 VARCHAR(200) NOT NULL,           -- the handler of its subtasks
    live_key             VARCHAR(401),                    -- of its name and key, until it has ended: no two jobs at once
    job_key              VARCHAR(200),
    state                VARCHAR(23) NOT NULL,            -- see reference/states.md
    state_at             TIMESTAMP WITH TIME ZONE NOT NULL, -- since when
    params               TEXT NOT NULL,                   -- what its source and its handler are called with
    options              TEXT NOT NULL,                   -- of its subtasks, of its failures, and what follows its end, as JSON
    split_task           UUID NOT NULL,                   -- the task that reads its source
    source_cursor        TEXT,                            -- where it goes on in its source, as JSON
    is_split             SMALLINT NOT NULL,               -- its source has been read to the end
    awaits_room          SMALLINT NOT NULL,               -- its splitter waits until fewer subtasks are open
    total                BIGINT,                          -- NULL: nobody knows yet
    split                BIGINT NOT NULL,                 -- items in its subtasks
    succeeded            BIGINT NOT NULL,
    failed               BIGINT NOT NULL,
    skipped              BIGINT NOT NULL,
    cancelled            BIGINT NOT NULL,
    retried              BIGINT NOT NULL,                 -- how often an item was tried again
    results              BIGINT NOT NULL,                 -- that its handler has told of items, kept or not
    subtasks             BIGINT NOT NULL,                 -- made so far
    read_subtasks        BIGINT NOT NULL,                 -- of those, made of what its splitter has read
    open_subtasks        BIGINT NOT NULL,                 -- made, and not ended
    rate_max             DOUBLE PRECISION,                -- items a second that may start; NULL: as fast as it can
    slot_at              TIMESTAMP WITH TIME ZONE,        -- when the next subtask may start
    rate                 DOUBLE PRECISION,                -- items a second, smoothed over the last minute
    rated_at             TIMESTAMP WITH TIME ZONE,        -- when that was
    rated_done           BIGINT NOT NULL,                 -- and how many were done then
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    started_at           TIMESTAMP WITH TIME ZONE,        -- its first subtask was recorded
    ended_at             TIMESTAMP WITH TIME ZONE,
    paused_at            TIMESTAMP WITH TIME ZONE,
    paused_s             DOUBLE PRECISION NOT NULL,       -- how long it was paused in all, before
    who                  VARCHAR(200),                    -- who decided last about it
    why                  VARCHAR(200),
    error                TEXT,                            -- why it failed
    parent_id            UUID,                            -- the job that it is nested in
    CONSTRAINT workq_job_pk PRIMARY KEY (id),
    CONSTRAINT workq_job_live_key UNIQUE (live_key),
    CONSTRAINT workq_job_state CHECK (state IN ('planning', 'running', 'pausing', 'paused', 'cancelling', 'cancelled', 'failing', 'failed', 'succeeded', 'completed_with_failures')),
    CONSTRAINT workq_job_counts CHECK (succeeded + failed + skipped + cancelled <= split AND open_subtasks >= 0)
);

CREATE INDEX workq_job_by_state ON workq_job (state);

CREATE INDEX workq_job_by_parent ON workq_job (parent_id);

-- The subtasks of a job, beside their tasks: what is counted of each.
CREATE TABLE workq_subtask (
    task_id              UUID NOT NULL,
    job_id               UUID NOT NULL,
    number               BIGINT NOT NULL,                 -- in the order in which they were made
    size                 BIGINT NOT NULL,                 -- items that it was made of; a partition: those of its steps, and itself until it is done
    items_left           INTEGER NOT NULL,                -- that are neither done nor given up
    succeeded            BIGINT NOT NULL,
    failed               INTEGER NOT NULL,
    skipped              INTEGER NOT NULL,
    cancelled            INTEGER NOT NULL,
    attempt              INTEGER NOT NULL,                -- the last one that is counted
    step_cursor          TEXT,                            -- a partition: the cursor behind its last step, as JSON; NULL: at its beginning
    steps                BIGINT NOT NULL,                 -- a partition: so many are committed
    slot_at              TIMESTAMP WITH TIME ZONE,        -- it may start then: its job has a rate
    ended_at             TIMESTAMP WITH TIME ZONE,        -- it is counted as ended
    CONSTRAINT workq_subtask_pk PRIMARY KEY (task_id),
    CONSTRAINT workq_subtask_number UNIQUE (job_id, number),
    CONSTRAINT workq_subtask_counts CHECK (items_left + succeeded + failed + skipped + cancelled = size)
);

CREATE INDEX workq_subtask_open ON workq_subtask (job_id, ended_at);

-- Items that have failed for good.
CREATE TABLE workq_failed_item (
    id                   BIGSERIAL NOT NULL,
    job_id               UUID NOT NULL,
    task_id              UUID,                            -- the subtask that it was in
    item                 TEXT NOT NULL,                   -- as JSON; what JSON cannot carry: its text, as a JSON string
    failures             INTEGER NOT NULL,                -- how often it was tried
    error                TEXT NOT NULL,
    fingerprint          VARCHAR(16) NOT NULL,            -- alike for errors that are alike
    at                   TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_failed_item_pk PRIMARY KEY (id)
);

CREATE INDEX workq_failed_item_by_job ON workq_failed_item (job_id, fingerprint);

-- Results of items, as far as their job keeps them.
CREATE TABLE workq_job_result (
    id                   BIGSERIAL NOT NULL,
    job_id               UUID NOT NULL,
    task_id              UUID NOT NULL,                   -- the subtask that it was in
    item                 TEXT NOT NULL,                   -- as JSON; what JSON cannot carry: its text, as a JSON string
    value                TEXT,                            -- as JSON; NULL: it could not be kept
    note                 VARCHAR(200),                    -- why not
    at                   TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_job_result_pk PRIMARY KEY (id)
);

CREATE INDEX workq_job_result_by_job ON workq_job_result (job_id, id);

-- Last: only now is schema 14 complete.
UPDATE workq_meta SET value = '14' WHERE name = 'schema_version';
