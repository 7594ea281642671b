-- workq, schema 1, for SQLite 3.35 or newer.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- Instants are text in UTC, 'YYYY-MM-DD HH:MM:SS.mmm': they sort as they read.
-- Times are the clock of this machine, read by SQLite in the statement that uses them.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Facts about this ledger. The row 'schema_version' is written last by each migration.
CREATE TABLE workq_meta (
    name                 VARCHAR(100) NOT NULL,
    value                TEXT NOT NULL,
    at                   VARCHAR(23) NOT NULL,
    CONSTRAINT workq_meta_pk PRIMARY KEY (name)
);

-- The record of every task, and the sole authority over it. Rows are changed only by conditional updates.
CREATE TABLE workq_task (
    id                   VARCHAR(36) NOT NULL,                -- UUIDv7, made by the producer
    name                 VARCHAR(200) NOT NULL,               -- of the handler
    queue                VARCHAR(100) NOT NULL,
    state                VARCHAR(10) NOT NULL,                -- see the CHECK below; waiting: due later
    due_at               VARCHAR(23) NOT NULL,                -- not to be claimed before
    attempt              INTEGER DEFAULT 0 NOT NULL,          -- grows with each claim, never used twice
    token                VARCHAR(32),                         -- secret of the newest claim; with attempt: the fence
    worker               VARCHAR(120),                        -- the incarnation that claimed it last
    failures             INTEGER DEFAULT 0 NOT NULL,          -- the handler raised, or timed out
    crashes              INTEGER DEFAULT 0 NOT NULL,          -- its process died while running it
    failures_max         INTEGER NOT NULL,                    -- at this many failures it is dead
    crashes_max          INTEGER NOT NULL,                    -- at this many crashes it is dead
    live_key             VARCHAR(401),                        -- name/key while it is open; NULL frees the key
    task_key             VARCHAR(200),                        -- the producer's key, kept for people
    job_id               VARCHAR(36),                         -- the job of which it is a subtask
    created_at           VARCHAR(23) NOT NULL,
    queued_at            VARCHAR(23) NOT NULL,                -- when it last became ready or waiting
    published_at         VARCHAR(23),                         -- its hint was confirmed; NULL: the sweep relays it
    relay_until          VARCHAR(23),                         -- somebody is publishing its hint until then
    started_at           VARCHAR(23),                         -- of the newest attempt
    settled_at           VARCHAR(23),
    cancel_requested_at  VARCHAR(23),                         -- asked for while it ran
    reason               VARCHAR(200),                        -- why it is dead or cancelled
    payload              TEXT NOT NULL,                       -- the arguments, JSON
    result               TEXT,                                -- what the handler returned, JSON
    error                TEXT,                                -- of the newest failure
    CONSTRAINT workq_task_pk PRIMARY KEY (id),
    -- one open task for each name and key
    CONSTRAINT workq_task_live_key UNIQUE (live_key),
    CONSTRAINT workq_task_state CHECK (state IN ('ready', 'waiting', 'running', 'succeeded', 'dead', 'cancelled')),
    CONSTRAINT workq_task_running_has_a_fence CHECK (state <> 'running' OR (token IS NOT NULL AND worker IS NOT NULL)),
    CONSTRAINT workq_task_settled_has_a_time
        CHECK ((state IN ('succeeded', 'dead', 'cancelled')) = (settled_at IS NOT NULL)),
    CONSTRAINT workq_task_settled_frees_its_key CHECK (live_key IS NULL OR state IN ('ready', 'waiting', 'running')),
    CONSTRAINT workq_task_counts_are_not_negative CHECK (attempt >= 0 AND failures >= 0 AND crashes >= 0)
);

-- What can be claimed, oldest due first; how many wait in each queue.
CREATE INDEX workq_task_open ON workq_task (state, queue, due_at)
    WHERE state IN ('ready', 'waiting');

-- The relay of the sweep: due and without a confirmed hint. Nearly always empty.
CREATE INDEX workq_task_unpublished ON workq_task (published_at, state, due_at)
    WHERE published_at IS NULL AND state IN ('ready', 'waiting');

-- What an incarnation runs, when it is reaped; orphans.
CREATE INDEX workq_task_running ON workq_task (state, worker)
    WHERE state = 'running';

-- Retention: the oldest settled rows are deleted first.
CREATE INDEX workq_task_settled ON workq_task (state, settled_at)
    WHERE state IN ('succeeded', 'dead', 'cancelled');

-- One row for each incarnation: one life of one worker process.
CREATE TABLE workq_worker (
    id                   VARCHAR(120) NOT NULL,               -- host, boot, pid, start time, nonce: never reused
    state                VARCHAR(10) NOT NULL,                -- live, left (in order), reaped (found dead)
    host                 VARCHAR(100) NOT NULL,
    pid                  INTEGER NOT NULL,
    queues               TEXT NOT NULL,                       -- JSON
    threads              INTEGER NOT NULL,
    started_at           VARCHAR(23) NOT NULL,
    beat_at              VARCHAR(23) NOT NULL,                -- renewed every few seconds
    suspected_at         VARCHAR(23),                         -- since when its lease is missing; a second look decides
    ended_at             VARCHAR(23),
    evidence             TEXT,                                -- how its death was proved
    CONSTRAINT workq_worker_pk PRIMARY KEY (id),
    CONSTRAINT workq_worker_state CHECK (state IN ('live', 'left', 'reaped'))
);

-- Who is live; whose row is old enough to be deleted.
CREATE INDEX workq_worker_by_state ON workq_worker (state, beat_at);

-- History, appended only: what is not the happy path, and what people did.
CREATE TABLE workq_event (
    id                   INTEGER NOT NULL,
    at                   VARCHAR(23) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,                -- failed, reaped, late_result, cancelled, revived, ...
    task_id              VARCHAR(36),                         -- an event may outlive its task
    attempt              INTEGER,
    worker               VARCHAR(120),
    detail               TEXT NOT NULL,                       -- JSON
    CONSTRAINT workq_event_pk PRIMARY KEY (id)
);

-- One task's history.
CREATE INDEX workq_event_by_task ON workq_event (task_id);

-- Retention; what happened lately.
CREATE INDEX workq_event_by_time ON workq_event (at);

-- The embedded broker: hints that wake workers up. Unused while RabbitMQ carries them.
CREATE TABLE workq_hint (
    id                   INTEGER NOT NULL,                    -- the order of a queue
    queue                VARCHAR(100) NOT NULL,
    due_at               VARCHAR(23) NOT NULL,                -- not to be delivered before
    body                 TEXT NOT NULL,                       -- the message: queue and task ids, JSON
    size                 SMALLINT NOT NULL,                   -- how many task ids
    consumer             VARCHAR(120),                        -- the incarnation that has it and has not acked
    delivered_at         VARCHAR(23),
    deliveries           INTEGER DEFAULT 0 NOT NULL,
    CONSTRAINT workq_hint_pk PRIMARY KEY (id)
);

-- The next hints of a queue.
CREATE INDEX workq_hint_by_queue ON workq_hint (queue, due_at, id);

-- What a dead consumer had not acked.
CREATE INDEX workq_hint_by_consumer ON workq_hint (consumer);

-- The embedded in-flight store: who holds which task. Unused while Redis keeps it.
CREATE TABLE workq_hold (
    task_id              VARCHAR(36) NOT NULL,
    queue                VARCHAR(100) NOT NULL,
    worker               VARCHAR(120) NOT NULL,               -- the incarnation that holds it
    attempt              INTEGER,                             -- NULL until it is claimed
    since                VARCHAR(23) NOT NULL,
    CONSTRAINT workq_hold_pk PRIMARY KEY (task_id)
);

-- What an incarnation holds.
CREATE INDEX workq_hold_by_worker ON workq_hold (worker);

-- What is held of a queue.
CREATE INDEX workq_hold_by_queue ON workq_hold (queue);

-- The embedded in-flight store: until when each incarnation is trusted to be alive. Unused while Redis keeps it.
CREATE TABLE workq_lease (
    worker               VARCHAR(120) NOT NULL,
    expires_at           VARCHAR(23) NOT NULL,
    reaped_at            VARCHAR(23),                         -- its incarnation was reaped: a later beat is refused
    CONSTRAINT workq_lease_pk PRIMARY KEY (worker)
);

-- Last: only now is schema 1 complete.
INSERT INTO workq_meta (name, value, at) VALUES ('schema_version', '1', strftime('%Y-%m-%d %H:%M:%f', 'now'));
