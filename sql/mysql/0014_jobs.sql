-- workq, schema 14, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: jobs.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Jobs: many subtasks with one outcome. All counts but those of subtasks are of items.
CREATE TABLE IF NOT EXISTS workq_job (
    id                   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name                 VARCHAR(200) NOT NULL,           -- the handler of its subtasks
    live_key             VARCHAR(401),                    -- of its name and key, until it has ended: no two jobs at once
    job_key              VARCHAR(200),
    state                VARCHAR(23) NOT NULL,            -- see reference/states.md
    state_at             DATETIME(6) NOT NULL,            -- since when
    params               LONGTEXT NOT NULL,               -- what its source and its handler are called with
    options              LONGTEXT NOT NULL,               -- of its subtasks, of its failures, and what follows its end, as JSON
    split_task           CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the task that reads its source
    source_cursor        LONGTEXT,                        -- where it goes on in its source, as JSON
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
    rate_max             DOUBLE,                          -- items a second that may start; NULL: as fast as it can
    slot_at              DATETIME(6),                     -- when the next subtask may start
    rate                 DOUBLE,                          -- items a second, smoothed over the last minute
    rated_at             DATETIME(6),                     -- when that was
    rated_done           BIGINT NOT NULL,                 -- and how many were done then
    created_at           DATETIME(6) NOT NULL,
    started_at           DATETIME(6),                     -- its first subtask was recorded
    ended_at             DATETIME(6),
    paused_at            DATETIME(6),
    paused_s             DOUBLE NOT NULL,                 -- how long it was paused in all, before
    who                  VARCHAR(200),                    -- who decided last about it
    why                  VARCHAR(200),
    error                LONGTEXT,                        -- why it failed
    parent_id            CHAR(36) CHARACTER SET ascii COLLATE ascii_bin, -- the job that it is nested in
    CONSTRAINT workq_job_pk PRIMARY KEY (id),
    CONSTRAINT workq_job_live_key UNIQUE (live_key),
    CONSTRAINT workq_job_state CHECK (state IN ('planning', 'running', 'pausing', 'paused', 'cancelling', 'cancelled', 'failing', 'failed', 'succeeded', 'completed_with_failures')),
    CONSTRAINT workq_job_counts CHECK (succeeded + failed + skipped + cancelled <= split AND open_subtasks >= 0),
    KEY workq_job_by_state (state),
    KEY workq_job_by_parent (parent_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The subtasks of a job, beside their tasks: what is counted of each.
CREATE TABLE IF NOT EXISTS workq_subtask (
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    job_id               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    number               BIGINT NOT NULL,                 -- in the order in which they were made
    size                 BIGINT NOT NULL,                 -- items that it was made of; a partition: those of its steps, and itself until it is done
    items_left           INTEGER NOT NULL,                -- that are neither done nor given up
    succeeded            BIGINT NOT NULL,
    failed               INTEGER NOT NULL,
    skipped              INTEGER NOT NULL,
    cancelled            INTEGER NOT NULL,
    attempt              INTEGER NOT NULL,                -- the last one that is counted
    step_cursor          LONGTEXT,                        -- a partition: the cursor behind its last step, as JSON; NULL: at its beginning
    steps                BIGINT NOT NULL,                 -- a partition: so many are committed
    slot_at              DATETIME(6),                     -- it may start then: its job has a rate
    ended_at             DATETIME(6),                     -- it is counted as ended
    CONSTRAINT workq_subtask_pk PRIMARY KEY (task_id),
    CONSTRAINT workq_subtask_number UNIQUE (job_id, number),
    CONSTRAINT workq_subtask_counts CHECK (items_left + succeeded + failed + skipped + cancelled = size),
    KEY workq_subtask_open (job_id, ended_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Items that have failed for good.
CREATE TABLE IF NOT EXISTS workq_failed_item (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    job_id               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin, -- the subtask that it was in
    item                 LONGTEXT NOT NULL,               -- as JSON; what JSON cannot carry: its text, as a JSON string
    failures             INTEGER NOT NULL,                -- how often it was tried
    error                LONGTEXT NOT NULL,
    fingerprint          VARCHAR(16) NOT NULL,            -- alike for errors that are alike
    at                   DATETIME(6) NOT NULL,
    CONSTRAINT workq_failed_item_pk PRIMARY KEY (id),
    KEY workq_failed_item_by_job (job_id, fingerprint)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Results of items, as far as their job keeps them.
CREATE TABLE IF NOT EXISTS workq_job_result (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    job_id               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the subtask that it was in
    item                 LONGTEXT NOT NULL,               -- as JSON; what JSON cannot carry: its text, as a JSON string
    value                LONGTEXT,                        -- as JSON; NULL: it could not be kept
    note                 VARCHAR(200),                    -- why not
    at                   DATETIME(6) NOT NULL,
    CONSTRAINT workq_job_result_pk PRIMARY KEY (id),
    KEY workq_job_result_by_job (job_id, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Last: only now is schema 14 complete.
UPDATE workq_meta SET value = '14' WHERE name = 'schema_version';
