-- workq, schema 19, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- Made from the tables in workq/ by `make migration`.
-- Older versions of MySQL ignore CHECK. Instants are in UTC, whatever the time zone of the server. Names and keys are
-- compared byte by byte (utf8mb4_bin). There are no partial indexes here: those of the task table contain the settled
-- rows too, after what they look for.
-- DDL commits by itself, so every statement must be repeatable: a migration that broke off starts again from the top.
-- `workq db migrate` takes a column or an index that is there already (errors 1060, 1061) for one that such a migration
-- has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- The record of every task, and the sole authority over it. Rows are changed only by conditional updates.
CREATE TABLE IF NOT EXISTS workq_task (
    id                   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- UUIDv7, made by the producer
    name                 VARCHAR(200) NOT NULL,     -- of the handler
    queue                VARCHAR(100) NOT NULL,
    state                VARCHAR(10) NOT NULL,      -- see the CHECK below; waiting: due later
    due_at               DATETIME(6) NOT NULL,      -- not to be claimed before
    attempt              INTEGER NOT NULL DEFAULT 0,  -- grows with each claim, never used twice
    token                VARCHAR(32),               -- secret of the newest claim; with attempt: the fence
    worker               VARCHAR(120),              -- the incarnation that claimed it last
    failures             INTEGER NOT NULL DEFAULT 0,  -- the handler raised, or timed out
    crashes              INTEGER NOT NULL DEFAULT 0,  -- its process died while running it
    failures_max         INTEGER NOT NULL,          -- at this many failures it is dead
    crashes_max          INTEGER NOT NULL,          -- at this many crashes it is dead
    live_key             VARCHAR(401),              -- name/key while it is open; NULL frees the key
    task_key             VARCHAR(200),              -- the producer's key, kept for people
    job_id               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,  -- the job of which it is a subtask
    created_at           DATETIME(6) NOT NULL,
    queued_at            DATETIME(6) NOT NULL,      -- when it last became ready or waiting
    published_at         DATETIME(6),               -- its hint was confirmed; NULL: the sweep relays it
    relay_until          DATETIME(6),               -- a relay is publishing its hint until then
    started_at           DATETIME(6),               -- of the newest attempt
    settled_at           DATETIME(6),
    cancel_requested_at  DATETIME(6),               -- asked for while it ran
    reason               VARCHAR(200),              -- why it is dead or cancelled
    payload              LONGTEXT NOT NULL,         -- the arguments, JSON
    result               LONGTEXT,                  -- what the handler returned, JSON
    error                LONGTEXT,                  -- of the newest failure
    -- 1: its worker ended, nobody saw why; 2: its process died: it runs alone. Either pays for a crash
    is_suspect           SMALLINT NOT NULL DEFAULT 0,
    expires_at           DATETIME(6),               -- from then on it is not started any more; NULL: never
    fingerprint          VARCHAR(16),               -- what it died of: dead tasks that have it in common are a group
    -- its process died: NULL runs it again, 'fail' counts a failure, 'ask' leaves it to a person
    on_crash             VARCHAR(5),
    -- tasks that share it run one at a time, in the order of their commits
    order_key            VARCHAR(200),
    limit_key            VARCHAR(200),              -- its limit, with all tasks of the same key; NULL: no limit
    limit_most           INTEGER,                   -- at most so many of them at once
    limit_rate           VARCHAR(10),               -- so many starts in a time
    -- once it is dead: 'skip' lets the next task of its order key run, NULL blocks the line
    after_death          VARCHAR(5),
    -- waits for it, too: 'order', 'limit', 'job', 'endpoint', 'destination'; NULL: its time alone
    waits_for            VARCHAR(20),
    CONSTRAINT workq_task_pk PRIMARY KEY (id),
    CONSTRAINT workq_task_live_key UNIQUE (live_key),  -- one open task for each name and key
    CONSTRAINT workq_task_counts_are_not_negative CHECK (attempt >= 0 AND failures >= 0 AND crashes >= 0),
    CONSTRAINT workq_task_running_has_a_fence CHECK (state <> 'running' OR (token IS NOT NULL AND worker IS NOT NULL)),
    CONSTRAINT workq_task_settled_frees_its_key CHECK (live_key IS NULL OR state IN ('ready', 'waiting', 'running')),
    CONSTRAINT workq_task_settled_has_a_time CHECK ((state IN ('succeeded', 'dead', 'cancelled')) = (settled_at IS NOT NULL)),
    CONSTRAINT workq_task_state CHECK (state IN ('ready', 'waiting', 'running', 'succeeded', 'dead', 'cancelled')),
    KEY workq_task_expiring (expires_at),           -- what the sweep cancels
    -- what can be claimed, oldest due first; how many wait in each queue
    KEY workq_task_open (state, queue, due_at),
    KEY workq_task_running (state, worker),         -- what an incarnation runs, when it is reaped; orphans
    KEY workq_task_settled (state, settled_at),     -- retention: the oldest settled rows are deleted first
    -- the relay of the sweep: due and without a confirmed hint. Nearly always empty
    KEY workq_task_unpublished (published_at, state, due_at)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- One row for each incarnation: one life of one worker process.
CREATE TABLE IF NOT EXISTS workq_worker (
    id                   VARCHAR(120) NOT NULL,     -- host, boot, pid, start time, nonce: never reused
    state                VARCHAR(10) NOT NULL,      -- live, left (in order), reaped (found dead)
    host                 VARCHAR(100) NOT NULL,
    pid                  INTEGER NOT NULL,
    queues               LONGTEXT NOT NULL,         -- JSON
    threads              INTEGER NOT NULL,
    started_at           DATETIME(6) NOT NULL,
    beat_at              DATETIME(6) NOT NULL,      -- renewed every few seconds
    suspected_at         DATETIME(6),               -- since when its lease is missing; a second look decides
    ended_at             DATETIME(6),
    evidence             LONGTEXT,                  -- how its death was proved
    -- boot and process namespace: processes that share it see each other's pids
    machine              VARCHAR(60),
    -- the pid of its supervisor; while that process lives, it alone judges how this one died
    parent               INTEGER,
    -- resident memory at the last beat, for the certificate of its death
    memory_bytes         BIGINT,
    -- the stores in which it gives signs of life; NULL: its lease alone tells
    signs                VARCHAR(200),
    CONSTRAINT workq_worker_pk PRIMARY KEY (id),
    CONSTRAINT workq_worker_state CHECK (state IN ('live', 'left', 'reaped')),
    KEY workq_worker_by_state (state, beat_at)      -- who is live; whose row is old enough to be deleted
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- History, appended only: what is not the happy path, and what people did.
CREATE TABLE IF NOT EXISTS workq_event (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    at                   DATETIME(6) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,      -- failed, reaped, late_result, cancelled, revived, ...
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,  -- an event may outlive its task
    attempt              INTEGER,
    worker               VARCHAR(120),
    detail               LONGTEXT NOT NULL,         -- JSON
    CONSTRAINT workq_event_pk PRIMARY KEY (id),
    KEY workq_event_by_task (task_id),              -- one task's history
    KEY workq_event_by_time (at)                    -- retention; what happened lately
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- The embedded broker: hints that wake workers up. With RabbitMQ: delayed hints, with one of its ladders.
CREATE TABLE IF NOT EXISTS workq_hint (
    id                   BIGINT NOT NULL AUTO_INCREMENT,  -- the order of a queue
    queue                VARCHAR(100) NOT NULL,
    due_at               DATETIME(6) NOT NULL,      -- not to be delivered before
    body                 LONGTEXT NOT NULL,         -- the message: queue and task ids, JSON
    size                 SMALLINT NOT NULL,         -- how many task ids
    consumer             VARCHAR(120),              -- the incarnation that has it and has not acked
    delivered_at         DATETIME(6),
    deliveries           INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT workq_hint_pk PRIMARY KEY (id),
    KEY workq_hint_by_consumer (consumer),          -- what a dead consumer had not acked
    KEY workq_hint_by_queue (queue, due_at, id)     -- the next hints of a queue
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- The embedded in-flight store: which incarnation holds which task. Unused while Redis keeps it.
CREATE TABLE IF NOT EXISTS workq_hold (
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    queue                VARCHAR(100) NOT NULL,
    worker               VARCHAR(120) NOT NULL,     -- the incarnation that holds it
    attempt              INTEGER,                   -- NULL until it is claimed
    since                DATETIME(6) NOT NULL,
    CONSTRAINT workq_hold_pk PRIMARY KEY (task_id),
    KEY workq_hold_by_queue (queue),                -- what is held of a queue
    KEY workq_hold_by_worker (worker)               -- what an incarnation holds
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- The embedded in-flight store: until when each incarnation counts as alive. Unused while Redis keeps it.
CREATE TABLE IF NOT EXISTS workq_lease (
    worker               VARCHAR(120) NOT NULL,
    expires_at           DATETIME(6) NOT NULL,
    reaped_at            DATETIME(6),               -- its incarnation was reaped: a later beat is refused
    CONSTRAINT workq_lease_pk PRIMARY KEY (worker)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Messages that prove others lost, in each line of the broker: a queue, and one of its bands of priority.
CREATE TABLE IF NOT EXISTS workq_marker (
    id                   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- what the message carries
    queue                VARCHAR(100) NOT NULL,
    band                 SMALLINT NOT NULL,
    sent_at              DATETIME(6) NOT NULL,      -- written before it is published
    returned_at          DATETIME(6),               -- a worker has handed it back
    closed_at            DATETIME(6),               -- what it proved lost has been sent again
    depth                INTEGER,                   -- hints in the line when it was sent
    lost                 INTEGER NOT NULL DEFAULT 0,  -- how many hints it proved lost
    -- no message: where the line ended after `sent_at`, as its broker says
    position             LONGTEXT,
    CONSTRAINT workq_marker_pk PRIMARY KEY (id),
    KEY workq_marker_by_line (queue, band, sent_at)  -- the newest of a line
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Queues that a person has paused: nothing of them is claimed until a person resumes them, or until then.
CREATE TABLE IF NOT EXISTS workq_pause (
    queue                VARCHAR(100) NOT NULL,
    paused_at            DATETIME(6) NOT NULL,
    ends_at              DATETIME(6),               -- NULL: when somebody resumes it
    who                  VARCHAR(200) NOT NULL,
    why                  VARCHAR(200) NOT NULL,
    CONSTRAINT workq_pause_pk PRIMARY KEY (queue)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Bands that have been used: workers look there for tasks of high and low priority. Normal needs none.
CREATE TABLE IF NOT EXISTS workq_band (
    queue                VARCHAR(100) NOT NULL,     -- mail~high or mail~low, as in workq_task
    made_at              DATETIME(6) NOT NULL,
    CONSTRAINT workq_band_pk PRIMARY KEY (queue)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Keys that their tasks hold for a time, settled or not.
CREATE TABLE IF NOT EXISTS workq_window (
    id                   VARCHAR(401) NOT NULL,     -- name and key, as live_key has them
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ends_at              DATETIME(6) NOT NULL,
    CONSTRAINT workq_window_pk PRIMARY KEY (id),
    KEY workq_window_by_end (ends_at)               -- for retention
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Running attempts that a person wants ended by force, until their process has ended.
CREATE TABLE IF NOT EXISTS workq_kill (
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt              INTEGER NOT NULL,
    worker               VARCHAR(120) NOT NULL,
    asked_at             DATETIME(6) NOT NULL,
    CONSTRAINT workq_kill_pk PRIMARY KEY (task_id, attempt)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Each tick that became a task, once.
CREATE TABLE IF NOT EXISTS workq_tick (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    schedule             VARCHAR(200) NOT NULL,
    at                   DATETIME(6) NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    made_at              DATETIME(6) NOT NULL,
    CONSTRAINT workq_tick_pk PRIMARY KEY (id),
    CONSTRAINT workq_tick_once UNIQUE (schedule, at),
    KEY workq_tick_by_time (made_at)                -- for retention
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Facts about this ledger. The row 'schema_version' is written last by each migration.
CREATE TABLE IF NOT EXISTS workq_meta (
    name                 VARCHAR(100) NOT NULL,
    value                LONGTEXT NOT NULL,
    at                   DATETIME(6) NOT NULL,
    CONSTRAINT workq_meta_pk PRIMARY KEY (name)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- The order keys with open tasks: the last position that was given, and the task that stands first.
CREATE TABLE IF NOT EXISTS workq_sequence (
    id                   VARCHAR(200) NOT NULL,     -- the order key
    last                 BIGINT NOT NULL,
    head_position        BIGINT NOT NULL,
    head_task            CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    CONSTRAINT workq_sequence_pk PRIMARY KEY (id)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- The positions of the tasks of order keys.
CREATE TABLE IF NOT EXISTS workq_position (
    order_key            VARCHAR(200) NOT NULL,
    position             BIGINT NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    due_at               DATETIME(6) NOT NULL,
    after_death          VARCHAR(5) NOT NULL,       -- block or skip
    CONSTRAINT workq_position_pk PRIMARY KEY (order_key, position)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- The limits that are in use: the last number in the line of each.
CREATE TABLE IF NOT EXISTS workq_throttle (
    id                   VARCHAR(200) NOT NULL,     -- the limit's key
    last                 BIGINT NOT NULL,
    changed_at           DATETIME(6) NOT NULL,
    -- nothing of it starts until then, afterwards one at a time until it is opened; NULL: it is open
    closed_until         DATETIME(6),
    CONSTRAINT workq_throttle_pk PRIMARY KEY (id)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Which task may run, in which attempt, claimed when; without an attempt: promised to it, and from when on.
CREATE TABLE IF NOT EXISTS workq_permit (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    limit_key            VARCHAR(200) NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt              INTEGER,
    at                   DATETIME(6) NOT NULL,
    CONSTRAINT workq_permit_pk PRIMARY KEY (id),
    KEY workq_permit_by_limit (limit_key)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Tasks that wait for a permit, in this order.
CREATE TABLE IF NOT EXISTS workq_parked (
    limit_key            VARCHAR(200) NOT NULL,
    number               BIGINT NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    CONSTRAINT workq_parked_pk PRIMARY KEY (limit_key, number)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- What ticks: again and again, or once.
CREATE TABLE IF NOT EXISTS workq_schedule (
    name                 VARCHAR(200) NOT NULL,
    rule                 VARCHAR(5) NOT NULL,       -- cron, every or at
    text                 VARCHAR(150) NOT NULL,     -- cron text, seconds, or an instant
    zone                 VARCHAR(64) NOT NULL,      -- the time zone of cron text
    missed               VARCHAR(4) NOT NULL,       -- of missed ticks: skip, once or all
    task_name            VARCHAR(200) NOT NULL,
    queue                VARCHAR(100) NOT NULL,
    payload              LONGTEXT NOT NULL,
    failures_max         INTEGER NOT NULL,
    crashes_max          INTEGER NOT NULL,
    expires_s            DOUBLE,                    -- of each task, after its tick; NULL: never
    changed_at           DATETIME(6) NOT NULL,      -- when a person last decided about it
    next_at              DATETIME(6),               -- its next tick; NULL: there is none
    last_at              DATETIME(6),               -- the last tick that became a task
    paused_at            DATETIME(6),
    who                  VARCHAR(200),
    why                  VARCHAR(200),
    on_crash             VARCHAR(5),                -- of its tasks, as task has it
    limit_key            VARCHAR(200),              -- the limit of its tasks, as task has it
    limit_most           INTEGER,
    limit_rate           VARCHAR(10),
    CONSTRAINT workq_schedule_pk PRIMARY KEY (name),
    CONSTRAINT workq_schedule_missed CHECK (missed IN ('skip', 'once', 'all')),
    CONSTRAINT workq_schedule_rule CHECK (rule IN ('cron', 'every', 'at'))
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Jobs: many subtasks with one outcome. All counts but those of subtasks are of items.
CREATE TABLE IF NOT EXISTS workq_job (
    id                   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name                 VARCHAR(200) NOT NULL,     -- the handler of its subtasks
    live_key             VARCHAR(401),              -- of its name and key, until it has ended: no two jobs at once
    job_key              VARCHAR(200),
    state                VARCHAR(23) NOT NULL,      -- see reference/states.md
    state_at             DATETIME(6) NOT NULL,      -- since when
    params               LONGTEXT NOT NULL,         -- what its source and its handler are called with
    -- of its subtasks, of its failures, and what follows its end, as JSON
    options              LONGTEXT NOT NULL,
    split_task           CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- the task that reads its source
    source_cursor        LONGTEXT,                  -- where it goes on in its source, as JSON
    is_split             SMALLINT NOT NULL,         -- its source has been read to the end
    awaits_room          SMALLINT NOT NULL,         -- its splitter waits until fewer subtasks are open
    total                BIGINT,                    -- NULL: not known yet
    split                BIGINT NOT NULL,           -- items in its subtasks
    succeeded            BIGINT NOT NULL,
    failed               BIGINT NOT NULL,
    skipped              BIGINT NOT NULL,
    cancelled            BIGINT NOT NULL,
    retried              BIGINT NOT NULL,           -- how often an item was tried again
    results              BIGINT NOT NULL,           -- that its handler has told of items, kept or not
    subtasks             BIGINT NOT NULL,           -- made so far
    read_subtasks        BIGINT NOT NULL,           -- of those, made of what its splitter has read
    open_subtasks        BIGINT NOT NULL,           -- made, and not ended
    rate_max             DOUBLE,                    -- items a second that may start; NULL: as fast as it can
    slot_at              DATETIME(6),               -- when the next subtask may start
    rate                 DOUBLE,                    -- items a second, smoothed over the last minute
    rated_at             DATETIME(6),               -- when that was
    rated_done           BIGINT NOT NULL,           -- and how many were done then
    created_at           DATETIME(6) NOT NULL,
    started_at           DATETIME(6),               -- its first subtask was recorded
    ended_at             DATETIME(6),
    paused_at            DATETIME(6),
    paused_s             DOUBLE NOT NULL,           -- how long it was paused in all, before
    who                  VARCHAR(200),              -- who decided last about it
    why                  VARCHAR(200),
    error                LONGTEXT,                  -- why it failed
    parent_id            CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,  -- the job that it is nested in
    CONSTRAINT workq_job_pk PRIMARY KEY (id),
    CONSTRAINT workq_job_live_key UNIQUE (live_key),
    CONSTRAINT workq_job_counts CHECK (succeeded + failed + skipped + cancelled <= split AND open_subtasks >= 0),
    CONSTRAINT workq_job_state CHECK (state IN ('planning', 'running', 'pausing', 'paused', 'cancelling', 'cancelled', 'failing', 'failed', 'succeeded', 'completed_with_failures')),
    KEY workq_job_by_parent (parent_id),
    KEY workq_job_by_state (state)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- The subtasks of a job, beside their tasks: what is counted of each.
CREATE TABLE IF NOT EXISTS workq_subtask (
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    job_id               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    number               BIGINT NOT NULL,           -- in the order in which they were made
    -- items that it was made of; a partition: those of its steps, itself until it is done
    size                 BIGINT NOT NULL,
    items_left           INTEGER NOT NULL,          -- that are neither done nor given up
    succeeded            BIGINT NOT NULL,
    failed               INTEGER NOT NULL,
    skipped              INTEGER NOT NULL,
    cancelled            INTEGER NOT NULL,
    attempt              INTEGER NOT NULL,          -- the last one that is counted
    -- a partition: the cursor behind its last step, as JSON; NULL: at its beginning
    step_cursor          LONGTEXT,
    steps                BIGINT NOT NULL,           -- a partition: so many are committed
    slot_at              DATETIME(6),               -- it may start then: its job has a rate
    ended_at             DATETIME(6),               -- it is counted as ended
    CONSTRAINT workq_subtask_pk PRIMARY KEY (task_id),
    CONSTRAINT workq_subtask_number UNIQUE (job_id, number),
    CONSTRAINT workq_subtask_counts CHECK (items_left + succeeded + failed + skipped + cancelled = size),
    KEY workq_subtask_open (job_id, ended_at)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Items that have failed for good.
CREATE TABLE IF NOT EXISTS workq_failed_item (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    job_id               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,  -- the subtask that it was in
    item                 LONGTEXT NOT NULL,         -- as JSON; what JSON cannot carry: its text, as a JSON string
    failures             INTEGER NOT NULL,          -- how often it was tried
    error                LONGTEXT NOT NULL,
    fingerprint          VARCHAR(16) NOT NULL,      -- alike for errors that are alike
    at                   DATETIME(6) NOT NULL,
    CONSTRAINT workq_failed_item_pk PRIMARY KEY (id),
    KEY workq_failed_item_by_job (job_id, fingerprint)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Results of items, as far as their job keeps them.
CREATE TABLE IF NOT EXISTS workq_job_result (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    job_id               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- the subtask that it was in
    item                 LONGTEXT NOT NULL,         -- as JSON; what JSON cannot carry: its text, as a JSON string
    value                LONGTEXT,                  -- as JSON; NULL: it could not be kept
    note                 VARCHAR(200),              -- why not
    at                   DATETIME(6) NOT NULL,
    CONSTRAINT workq_job_result_pk PRIMARY KEY (id),
    KEY workq_job_result_by_job (job_id, id)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Endpoints: where webhooks go.
CREATE TABLE IF NOT EXISTS workq_endpoint (
    id                   VARCHAR(64) NOT NULL,
    topic                VARCHAR(200) NOT NULL,     -- what is sent to a topic goes to all of its endpoints
    url                  LONGTEXT NOT NULL,
    types                LONGTEXT NOT NULL,         -- of events that it wants, as JSON: invoice.paid, invoice.*, *
    -- its secrets and its own headers, as JSON; encrypted, if there is a key
    sealed               LONGTEXT NOT NULL,
    options              LONGTEXT NOT NULL,         -- when it is tried again, its limits and deadlines, as JSON
    state                VARCHAR(10) NOT NULL,
    state_at             DATETIME(6) NOT NULL,      -- since when
    who                  VARCHAR(200),              -- who decided that
    why                  VARCHAR(200),
    failing_since        DATETIME(6),               -- nothing has arrived there since then
    failures             INTEGER NOT NULL,          -- in a row
    warned               SMALLINT NOT NULL,         -- so many percent of what disables it were told
    created_at           DATETIME(6) NOT NULL,
    changed_at           DATETIME(6) NOT NULL,
    CONSTRAINT workq_endpoint_pk PRIMARY KEY (id),
    CONSTRAINT workq_endpoint_state CHECK (state IN ('enabled', 'disabled')),
    KEY workq_endpoint_by_topic (topic)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Webhooks: what is sent, byte for byte.
CREATE TABLE IF NOT EXISTS workq_webhook (
    id                   VARCHAR(100) NOT NULL,     -- as receivers see it
    type                 VARCHAR(200) NOT NULL,     -- of the event
    topic                VARCHAR(200),              -- NULL: it was sent to one endpoint
    body                 LONGTEXT,                  -- NULL: kept no longer
    data_hash            VARCHAR(64) NOT NULL,      -- SHA-256 of what its body was made of
    order_key            VARCHAR(200),              -- as it was sent; endpoints may keep the order of each
    created_at           DATETIME(6) NOT NULL,
    CONSTRAINT workq_webhook_pk PRIMARY KEY (id),
    KEY workq_webhook_by_time (created_at)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Deliveries: one webhook on its way to one endpoint.
CREATE TABLE IF NOT EXISTS workq_delivery (
    id                   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    webhook_id           VARCHAR(100) NOT NULL,
    endpoint_id          VARCHAR(64) NOT NULL,
    -- the task that sends it, or did so last
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    state                VARCHAR(10) NOT NULL,      -- see reference/states.md
    cause                VARCHAR(10) NOT NULL,      -- why that task was recorded
    attempts             INTEGER NOT NULL,          -- made so far
    status               INTEGER,                   -- of the last answer
    error_class          VARCHAR(20),               -- of the last attempt; NULL: it has succeeded
    created_at           DATETIME(6) NOT NULL,
    attempted_at         DATETIME(6),
    next_at              DATETIME(6),               -- when it is tried again
    ended_at             DATETIME(6),
    CONSTRAINT workq_delivery_pk PRIMARY KEY (id),
    CONSTRAINT workq_delivery_once UNIQUE (webhook_id, endpoint_id),
    CONSTRAINT workq_delivery_state CHECK (state IN ('pending', 'held', 'succeeded', 'exhausted', 'gone', 'cancelled')),
    KEY workq_delivery_by_endpoint (endpoint_id, state, id),
    KEY workq_delivery_by_state (state, id),
    KEY workq_delivery_by_task (task_id)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Each time that a webhook was sent, or could not be.
CREATE TABLE IF NOT EXISTS workq_delivery_attempt (
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt              INTEGER NOT NULL,          -- of the task
    delivery_id          CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    number               INTEGER NOT NULL,          -- of the delivery
    cause                VARCHAR(10) NOT NULL,
    url                  LONGTEXT NOT NULL,         -- where it went
    status               INTEGER,                   -- NULL: there was no answer
    error_class          VARCHAR(20),               -- NULL: it has succeeded
    error                LONGTEXT,
    duration_ms          DOUBLE NOT NULL,
    answer               LONGTEXT,                  -- the first 16 KiB
    is_cut               SMALLINT NOT NULL,         -- there was more
    at                   DATETIME(6) NOT NULL,      -- when it had ended
    next_at              DATETIME(6),               -- when it is tried again
    CONSTRAINT workq_delivery_attempt_pk PRIMARY KEY (task_id, attempt),
    KEY workq_delivery_attempt_by_delivery (delivery_id)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Destinations: where messages go.
CREATE TABLE IF NOT EXISTS workq_destination (
    name                 VARCHAR(64) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,      -- amqp, kafka, stomp, redis, http, call
    options              LONGTEXT NOT NULL,         -- of its kind, as JSON, without secrets
    sealed               LONGTEXT,                  -- its URL, as JSON; encrypted, if there is a key
    policy               LONGTEXT NOT NULL,         -- its limits, deadline and levels, as JSON
    state                VARCHAR(10) NOT NULL,
    state_at             DATETIME(6) NOT NULL,      -- since when
    who                  VARCHAR(200),              -- who decided that
    why                  VARCHAR(200),
    failures             INTEGER NOT NULL,          -- in a row
    failing_since        DATETIME(6),               -- nothing was confirmed since then
    fault                VARCHAR(20),               -- of the last failure: away, refused, no_target, late, asked
    error                LONGTEXT,                  -- of the last failure, in one line
    rests_until          DATETIME(6),               -- nothing is sent to it before
    probe                CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,  -- the task that tries it, while it fails
    probe_until          DATETIME(6),               -- for so long no other one tries it
    created_at           DATETIME(6) NOT NULL,
    changed_at           DATETIME(6) NOT NULL,
    CONSTRAINT workq_destination_pk PRIMARY KEY (name),
    CONSTRAINT workq_destination_state CHECK (state IN ('enabled', 'disabled'))
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Messages: what is sent at its time. The state of a message is that of its task.
CREATE TABLE IF NOT EXISTS workq_message (
    id                   VARCHAR(100) NOT NULL,     -- as the destination sees it: workq-id
    destination          VARCHAR(64) NOT NULL,
    -- the task that sends it, or did so last
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sending              INTEGER NOT NULL,          -- 1, and one more for each restore
    body                 LONGTEXT,                  -- NULL: kept no longer, as its task is not
    is_binary            SMALLINT NOT NULL,         -- the body is base64 of what is sent
    content_type         VARCHAR(200) NOT NULL,
    message_key          LONGTEXT,                  -- Kafka's key
    headers              LONGTEXT,                  -- of the sender, as JSON
    order_key            VARCHAR(200),
    due_at               DATETIME(6) NOT NULL,      -- not to be sent before
    created_at           DATETIME(6) NOT NULL,
    removed_at           DATETIME(6),               -- when retention took its body
    ended                VARCHAR(10),               -- how its task had ended, which retention removed
    intake               VARCHAR(64),               -- the way in whose record it was
    CONSTRAINT workq_message_pk PRIMARY KEY (id),
    KEY workq_message_by_destination (destination, created_at, id),
    KEY workq_message_by_task (task_id),
    KEY workq_message_by_time (created_at, id),
    KEY workq_message_removed (removed_at)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Messages that wait for their destination, in the order of their time.
CREATE TABLE IF NOT EXISTS workq_waiting_message (
    destination          VARCHAR(64) NOT NULL,
    due_at               DATETIME(6) NOT NULL,      -- of the message
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    CONSTRAINT workq_waiting_message_pk PRIMARY KEY (destination, due_at, task_id)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Ways in: topics and queues of others whose records become messages.
CREATE TABLE IF NOT EXISTS workq_intake (
    name                 VARCHAR(64) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,      -- kafka, amqp
    options              LONGTEXT NOT NULL,         -- of its kind, as JSON, without secrets
    sealed               LONGTEXT,                  -- its URL, as JSON; encrypted, if there is a key
    destination          VARCHAR(64),               -- of records that name none
    recorded             BIGINT NOT NULL,           -- records that became messages
    kept                 BIGINT NOT NULL DEFAULT 0,  -- messages of it that are there
    repeated             BIGINT NOT NULL,           -- records whose id was there
    cancelled            BIGINT NOT NULL,           -- records that asked to cancel a message
    quarantined          BIGINT NOT NULL,           -- records that could not be read
    quarantined_why      LONGTEXT,                  -- what was wrong with the last of them
    quarantined_at       DATETIME(6),
    error                LONGTEXT,                  -- why nothing could be read, in one line
    failing_since        DATETIME(6),               -- nothing could be read since then
    taken_at             DATETIME(6),               -- when something was taken in last
    created_at           DATETIME(6) NOT NULL,
    CONSTRAINT workq_intake_pk PRIMARY KEY (name)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- How far each partition of a topic was taken in, and by which process: moved together with the records.
CREATE TABLE IF NOT EXISTS workq_intake_offset (
    intake               VARCHAR(64) NOT NULL,
    topic                VARCHAR(249) NOT NULL,
    part                 INTEGER NOT NULL,          -- the partition
    next_offset          BIGINT,                    -- of the next record; NULL: from the beginning
    topic_id             VARCHAR(40),               -- as Kafka tells it: a topic that was made anew begins anew
    owner                VARCHAR(120) NOT NULL,     -- the incarnation that took the partition last
    -- 1, and one more each time it is taken: an older owner moves nothing
    epoch                BIGINT NOT NULL,
    changed_at           DATETIME(6) NOT NULL,
    CONSTRAINT workq_intake_offset_pk PRIMARY KEY (intake, topic, part)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Last: only now is schema 19 complete.
INSERT IGNORE INTO workq_meta (name, value, at) VALUES ('schema_version', '19', UTC_TIMESTAMP(6));
