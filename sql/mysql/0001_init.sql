-- workq, schema 1, for MySQL 8.0.16 or newer (older ones ignore CHECK) and MariaDB 10.6 or newer.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- Instants are in UTC, whatever the time zone of the server. Names and keys are compared byte by byte (utf8mb4_bin).
-- There are no partial indexes here: those of the task table contain the settled rows too, after what they look for.
-- DDL commits by itself, so every statement must be repeatable: a migration that broke off starts again from the top.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Facts about this ledger. The row 'schema_version' is written last by each migration.
CREATE TABLE IF NOT EXISTS workq_meta (
    name                 VARCHAR(100) NOT NULL,
    value                LONGTEXT NOT NULL,
    at                   DATETIME(6) NOT NULL,
    CONSTRAINT workq_meta_pk PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The record of every task, and the sole authority over it. Rows are changed only by conditional updates.
CREATE TABLE IF NOT EXISTS workq_task (
    id                   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- UUIDv7, made by the producer
    name                 VARCHAR(200) NOT NULL,               -- of the handler
    queue                VARCHAR(100) NOT NULL,
    state                VARCHAR(10) NOT NULL,                -- see the CHECK below; waiting: due later
    due_at               DATETIME(6) NOT NULL,                -- not to be claimed before
    attempt              INTEGER NOT NULL DEFAULT 0,          -- grows with each claim, never used twice
    token                VARCHAR(32),                         -- secret of the newest claim; with attempt: the fence
    worker               VARCHAR(120),                        -- the incarnation that claimed it last
    failures             INTEGER NOT NULL DEFAULT 0,          -- the handler raised, or timed out
    crashes              INTEGER NOT NULL DEFAULT 0,          -- its process died while running it
    failures_max         INTEGER NOT NULL,                    -- at this many failures it is dead
    crashes_max          INTEGER NOT NULL,                    -- at this many crashes it is dead
    live_key             VARCHAR(401),                        -- name/key while it is open; NULL frees the key
    task_key             VARCHAR(200),                        -- the producer's key, kept for people
    job_id               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,  -- the job of which it is a subtask
    created_at           DATETIME(6) NOT NULL,
    queued_at            DATETIME(6) NOT NULL,                -- when it last became ready or waiting
    published_at         DATETIME(6),                         -- its hint was confirmed; NULL: the sweep relays it
    relay_until          DATETIME(6),                         -- somebody is publishing its hint until then
    started_at           DATETIME(6),                         -- of the newest attempt
    settled_at           DATETIME(6),
    cancel_requested_at  DATETIME(6),                         -- asked for while it ran
    reason               VARCHAR(200),                        -- why it is dead or cancelled
    payload              LONGTEXT NOT NULL,                   -- the arguments, JSON
    result               LONGTEXT,                            -- what the handler returned, JSON
    error                LONGTEXT,                            -- of the newest failure
    CONSTRAINT workq_task_pk PRIMARY KEY (id),
    -- one open task for each name and key
    CONSTRAINT workq_task_live_key UNIQUE (live_key),
    CONSTRAINT workq_task_state CHECK (state IN ('ready', 'waiting', 'running', 'succeeded', 'dead', 'cancelled')),
    CONSTRAINT workq_task_running_has_a_fence CHECK (state <> 'running' OR (token IS NOT NULL AND worker IS NOT NULL)),
    CONSTRAINT workq_task_settled_has_a_time
        CHECK ((state IN ('succeeded', 'dead', 'cancelled')) = (settled_at IS NOT NULL)),
    CONSTRAINT workq_task_settled_frees_its_key CHECK (live_key IS NULL OR state IN ('ready', 'waiting', 'running')),
    CONSTRAINT workq_task_counts_are_not_negative CHECK (attempt >= 0 AND failures >= 0 AND crashes >= 0),
    -- what can be claimed, oldest due first; how many wait in each queue
    KEY workq_task_open (state, queue, due_at),
    -- the relay of the sweep: due and without a confirmed hint. Nearly always empty
    KEY workq_task_unpublished (published_at, state, due_at),
    -- what an incarnation runs, when it is reaped; orphans
    KEY workq_task_running (state, worker),
    -- retention: the oldest settled rows are deleted first
    KEY workq_task_settled (state, settled_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- One row for each incarnation: one life of one worker process.
CREATE TABLE IF NOT EXISTS workq_worker (
    id                   VARCHAR(120) NOT NULL,               -- host, boot, pid, start time, nonce: never reused
    state                VARCHAR(10) NOT NULL,                -- live, left (in order), reaped (found dead)
    host                 VARCHAR(100) NOT NULL,
    pid                  INTEGER NOT NULL,
    queues               LONGTEXT NOT NULL,                   -- JSON
    threads              INTEGER NOT NULL,
    started_at           DATETIME(6) NOT NULL,
    beat_at              DATETIME(6) NOT NULL,                -- renewed every few seconds
    suspected_at         DATETIME(6),                         -- since when its lease is missing; a second look decides
    ended_at             DATETIME(6),
    evidence             LONGTEXT,                            -- how its death was proved
    CONSTRAINT workq_worker_pk PRIMARY KEY (id),
    CONSTRAINT workq_worker_state CHECK (state IN ('live', 'left', 'reaped')),
    -- who is live; whose row is old enough to be deleted
    KEY workq_worker_by_state (state, beat_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- History, appended only: what is not the happy path, and what people did.
CREATE TABLE IF NOT EXISTS workq_event (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    at                   DATETIME(6) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,                -- failed, reaped, late_result, cancelled, revived, ...
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,  -- an event may outlive its task
    attempt              INTEGER,
    worker               VARCHAR(120),
    detail               LONGTEXT NOT NULL,                   -- JSON
    CONSTRAINT workq_event_pk PRIMARY KEY (id),
    -- one task's history
    KEY workq_event_by_task (task_id),
    -- retention; what happened lately
    KEY workq_event_by_time (at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The embedded broker: hints that wake workers up. Unused while RabbitMQ carries them.
CREATE TABLE IF NOT EXISTS workq_hint (
    id                   BIGINT NOT NULL AUTO_INCREMENT,      -- the order of a queue
    queue                VARCHAR(100) NOT NULL,
    due_at               DATETIME(6) NOT NULL,                -- not to be delivered before
    body                 LONGTEXT NOT NULL,                   -- the message: queue and task ids, JSON
    size                 SMALLINT NOT NULL,                   -- how many task ids
    consumer             VARCHAR(120),                        -- the incarnation that has it and has not acked
    delivered_at         DATETIME(6),
    deliveries           INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT workq_hint_pk PRIMARY KEY (id),
    -- the next hints of a queue
    KEY workq_hint_by_queue (queue, due_at, id),
    -- what a dead consumer had not acked
    KEY workq_hint_by_consumer (consumer)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The embedded in-flight store: who holds which task. Unused while Redis keeps it.
CREATE TABLE IF NOT EXISTS workq_hold (
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    queue                VARCHAR(100) NOT NULL,
    worker               VARCHAR(120) NOT NULL,               -- the incarnation that holds it
    attempt              INTEGER,                             -- NULL until it is claimed
    since                DATETIME(6) NOT NULL,
    CONSTRAINT workq_hold_pk PRIMARY KEY (task_id),
    -- what an incarnation holds
    KEY workq_hold_by_worker (worker),
    -- what is held of a queue
    KEY workq_hold_by_queue (queue)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The embedded in-flight store: until when each incarnation is trusted to be alive. Unused while Redis keeps it.
CREATE TABLE IF NOT EXISTS workq_lease (
    worker               VARCHAR(120) NOT NULL,
    expires_at           DATETIME(6) NOT NULL,
    reaped_at            DATETIME(6),  -- its incarnation was reaped: a later beat is refused
    CONSTRAINT workq_lease_pk PRIMARY KEY (worker)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Last: only now is schema 1 complete.
INSERT IGNORE INTO workq_meta (name, value, at) VALUES ('schema_version', '1', UTC_TIMESTAMP(6));
