-- workq, schema 19, for PostgreSQL 12 or newer.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- Made from the tables in workq/ by `make migration`.
-- The tables go into the first schema of the search_path. At run time workq needs SELECT, INSERT, UPDATE and DELETE on
-- them, and USAGE on their sequences; only a migration needs CREATE. The fillfactor leaves room on each page for the
-- next version of its rows: marked, claimed, settled.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- The record of every task, and the sole authority over it. Rows are changed only by conditional updates.
CREATE TABLE workq_task (
    id                   UUID NOT NULL,             -- UUIDv7, made by the producer
    name                 VARCHAR(200) NOT NULL,     -- of the handler
    queue                VARCHAR(100) NOT NULL,
    state                VARCHAR(10) NOT NULL,      -- see the CHECK below; waiting: due later
    due_at               TIMESTAMP WITH TIME ZONE NOT NULL,  -- not to be claimed before
    attempt              INTEGER DEFAULT 0 NOT NULL,  -- grows with each claim, never used twice
    token                VARCHAR(32),               -- secret of the newest claim; with attempt: the fence
    worker               VARCHAR(120),              -- the incarnation that claimed it last
    failures             INTEGER DEFAULT 0 NOT NULL,  -- the handler raised, or timed out
    crashes              INTEGER DEFAULT 0 NOT NULL,  -- its process died while running it
    failures_max         INTEGER NOT NULL,          -- at this many failures it is dead
    crashes_max          INTEGER NOT NULL,          -- at this many crashes it is dead
    live_key             VARCHAR(401),              -- name/key while it is open; NULL frees the key
    task_key             VARCHAR(200),              -- the producer's key, kept for people
    job_id               UUID,                      -- the job of which it is a subtask
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    queued_at            TIMESTAMP WITH TIME ZONE NOT NULL,  -- when it last became ready or waiting
    published_at         TIMESTAMP WITH TIME ZONE,  -- its hint was confirmed; NULL: the sweep relays it
    relay_until          TIMESTAMP WITH TIME ZONE,  -- a relay is publishing its hint until then
    started_at           TIMESTAMP WITH TIME ZONE,  -- of the newest attempt
    settled_at           TIMESTAMP WITH TIME ZONE,
    cancel_requested_at  TIMESTAMP WITH TIME ZONE,  -- asked for while it ran
    reason               VARCHAR(200),              -- why it is dead or cancelled
    payload              TEXT NOT NULL,             -- the arguments, JSON
    result               TEXT,                      -- what the handler returned, JSON
    error                TEXT,                      -- of the newest failure
    -- 1: its worker ended, nobody saw why; 2: its process died: it runs alone. Either pays for a crash
    is_suspect           SMALLINT DEFAULT 0 NOT NULL,
    expires_at           TIMESTAMP WITH TIME ZONE,  -- from then on it is not started any more; NULL: never
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
    CONSTRAINT workq_task_counts_are_not_negative CHECK (attempt >= 0 AND failures >= 0 AND crashes >= 0),
    CONSTRAINT workq_task_running_has_a_fence CHECK (state <> 'running' OR (token IS NOT NULL AND worker IS NOT NULL)),
    CONSTRAINT workq_task_settled_frees_its_key CHECK (live_key IS NULL OR state IN ('ready', 'waiting', 'running')),
    CONSTRAINT workq_task_settled_has_a_time CHECK ((state IN ('succeeded', 'dead', 'cancelled')) = (settled_at IS NOT NULL)),
    CONSTRAINT workq_task_state CHECK (state IN ('ready', 'waiting', 'running', 'succeeded', 'dead', 'cancelled'))
) WITH (fillfactor = 80);

-- The dead by group, and each group by age.
CREATE INDEX workq_task_dead ON workq_task (fingerprint, id) WHERE state = 'dead';

-- What the sweep cancels.
CREATE INDEX workq_task_expiring ON workq_task (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('ready', 'waiting');

-- One open task for each name and key.
CREATE UNIQUE INDEX workq_task_live_key ON workq_task (live_key) WHERE live_key IS NOT NULL;

-- What can be claimed, oldest due first; how many wait in each queue.
CREATE INDEX workq_task_open ON workq_task (state, queue, due_at) WHERE state IN ('ready', 'waiting');

-- What an incarnation runs, when it is reaped; orphans.
CREATE INDEX workq_task_running ON workq_task (state, worker) WHERE state = 'running';

-- Retention: the oldest settled rows are deleted first.
CREATE INDEX workq_task_settled ON workq_task (state, settled_at) WHERE state IN ('succeeded', 'dead', 'cancelled');

-- The relay of the sweep: due and without a confirmed hint. Nearly always empty.
CREATE INDEX workq_task_unpublished ON workq_task (state, due_at)
    WHERE published_at IS NULL AND state IN ('ready', 'waiting');

-- One row for each incarnation: one life of one worker process.
CREATE TABLE workq_worker (
    id                   VARCHAR(120) NOT NULL,     -- host, boot, pid, start time, nonce: never reused
    state                VARCHAR(10) NOT NULL,      -- live, left (in order), reaped (found dead)
    host                 VARCHAR(100) NOT NULL,
    pid                  INTEGER NOT NULL,
    queues               TEXT NOT NULL,             -- JSON
    threads              INTEGER NOT NULL,
    started_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    beat_at              TIMESTAMP WITH TIME ZONE NOT NULL,  -- renewed every few seconds
    suspected_at         TIMESTAMP WITH TIME ZONE,  -- since when its lease is missing; a second look decides
    ended_at             TIMESTAMP WITH TIME ZONE,
    evidence             TEXT,                      -- how its death was proved
    -- boot and process namespace: processes that share it see each other's pids
    machine              VARCHAR(60),
    -- the pid of its supervisor; while that process lives, it alone judges how this one died
    parent               INTEGER,
    -- resident memory at the last beat, for the certificate of its death
    memory_bytes         BIGINT,
    -- the stores in which it gives signs of life; NULL: its lease alone tells
    signs                VARCHAR(200),
    CONSTRAINT workq_worker_pk PRIMARY KEY (id),
    CONSTRAINT workq_worker_state CHECK (state IN ('live', 'left', 'reaped'))
);

-- Who is live; whose row is old enough to be deleted.
CREATE INDEX workq_worker_by_state ON workq_worker (state, beat_at);

-- History, appended only: what is not the happy path, and what people did.
CREATE TABLE workq_event (
    id                   BIGSERIAL NOT NULL,
    at                   TIMESTAMP WITH TIME ZONE NOT NULL,
    kind                 VARCHAR(20) NOT NULL,      -- failed, reaped, late_result, cancelled, revived, ...
    task_id              UUID,                      -- an event may outlive its task
    attempt              INTEGER,
    worker               VARCHAR(120),
    detail               TEXT NOT NULL,             -- JSON
    CONSTRAINT workq_event_pk PRIMARY KEY (id)
);

-- One task's history.
CREATE INDEX workq_event_by_task ON workq_event (task_id);

-- Retention; what happened lately.
CREATE INDEX workq_event_by_time ON workq_event (at);

-- The embedded broker: hints that wake workers up. With RabbitMQ: delayed hints, with one of its ladders.
CREATE TABLE workq_hint (
    id                   BIGSERIAL NOT NULL,        -- the order of a queue
    queue                VARCHAR(100) NOT NULL,
    due_at               TIMESTAMP WITH TIME ZONE NOT NULL,  -- not to be delivered before
    body                 TEXT NOT NULL,             -- the message: queue and task ids, JSON
    size                 SMALLINT NOT NULL,         -- how many task ids
    consumer             VARCHAR(120),              -- the incarnation that has it and has not acked
    delivered_at         TIMESTAMP WITH TIME ZONE,
    deliveries           INTEGER DEFAULT 0 NOT NULL,
    CONSTRAINT workq_hint_pk PRIMARY KEY (id)
);

-- What a dead consumer had not acked.
CREATE INDEX workq_hint_by_consumer ON workq_hint (consumer);

-- The next hints of a queue.
CREATE INDEX workq_hint_by_queue ON workq_hint (queue, due_at, id);

-- The embedded in-flight store: which incarnation holds which task. Unused while Redis keeps it.
CREATE TABLE workq_hold (
    task_id              UUID NOT NULL,
    queue                VARCHAR(100) NOT NULL,
    worker               VARCHAR(120) NOT NULL,     -- the incarnation that holds it
    attempt              INTEGER,                   -- NULL until it is claimed
    since                TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_hold_pk PRIMARY KEY (task_id)
);

-- What is held of a queue.
CREATE INDEX workq_hold_by_queue ON workq_hold (queue);

-- What an incarnation holds.
CREATE INDEX workq_hold_by_worker ON workq_hold (worker);

-- The embedded in-flight store: until when each incarnation counts as alive. Unused while Redis keeps it.
CREATE TABLE workq_lease (
    worker               VARCHAR(120) NOT NULL,
    expires_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    reaped_at            TIMESTAMP WITH TIME ZONE,  -- its incarnation was reaped: a later beat is refused
    CONSTRAINT workq_lease_pk PRIMARY KEY (worker)
);

-- Messages that prove others lost, in each line of the broker: a queue, and one of its bands of priority.
CREATE TABLE workq_marker (
    id                   UUID NOT NULL,             -- what the message carries
    queue                VARCHAR(100) NOT NULL,
    band                 SMALLINT NOT NULL,
    sent_at              TIMESTAMP WITH TIME ZONE NOT NULL,  -- written before it is published
    returned_at          TIMESTAMP WITH TIME ZONE,  -- a worker has handed it back
    closed_at            TIMESTAMP WITH TIME ZONE,  -- what it proved lost has been sent again
    depth                INTEGER,                   -- hints in the line when it was sent
    lost                 INTEGER DEFAULT 0 NOT NULL,  -- how many hints it proved lost
    -- no message: where the line ended after `sent_at`, as its broker says
    position             TEXT,
    CONSTRAINT workq_marker_pk PRIMARY KEY (id)
);

-- The newest of a line.
CREATE INDEX workq_marker_by_line ON workq_marker (queue, band, sent_at);

-- Queues that a person has paused: nothing of them is claimed until a person resumes them, or until then.
CREATE TABLE workq_pause (
    queue                VARCHAR(100) NOT NULL,
    paused_at            TIMESTAMP WITH TIME ZONE NOT NULL,
    ends_at              TIMESTAMP WITH TIME ZONE,  -- NULL: when somebody resumes it
    who                  VARCHAR(200) NOT NULL,
    why                  VARCHAR(200) NOT NULL,
    CONSTRAINT workq_pause_pk PRIMARY KEY (queue)
);

-- Bands that have been used: workers look there for tasks of high and low priority. Normal needs none.
CREATE TABLE workq_band (
    queue                VARCHAR(100) NOT NULL,     -- mail~high or mail~low, as in workq_task
    made_at              TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_band_pk PRIMARY KEY (queue)
);

-- Keys that their tasks hold for a time, settled or not.
CREATE TABLE workq_window (
    id                   VARCHAR(401) NOT NULL,     -- name and key, as live_key has them
    task_id              UUID NOT NULL,
    ends_at              TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_window_pk PRIMARY KEY (id)
);

-- For retention.
CREATE INDEX workq_window_by_end ON workq_window (ends_at);

-- Running attempts that a person wants ended by force, until their process has ended.
CREATE TABLE workq_kill (
    task_id              UUID NOT NULL,
    attempt              INTEGER NOT NULL,
    worker               VARCHAR(120) NOT NULL,
    asked_at             TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_kill_pk PRIMARY KEY (task_id, attempt)
);

-- Each tick that became a task, once.
CREATE TABLE workq_tick (
    id                   BIGSERIAL NOT NULL,
    schedule             VARCHAR(200) NOT NULL,
    at                   TIMESTAMP WITH TIME ZONE NOT NULL,
    task_id              UUID NOT NULL,
    made_at              TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_tick_pk PRIMARY KEY (id),
    CONSTRAINT workq_tick_once UNIQUE (schedule, at)
);

-- For retention.
CREATE INDEX workq_tick_by_time ON workq_tick (made_at);

-- Facts about this ledger. The row 'schema_version' is written last by each migration.
CREATE TABLE workq_meta (
    name                 VARCHAR(100) NOT NULL,
    value                TEXT NOT NULL,
    at                   TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_meta_pk PRIMARY KEY (name)
);

-- The order keys with open tasks: the last position that was given, and the task that stands first.
CREATE TABLE workq_sequence (
    id                   VARCHAR(200) NOT NULL,     -- the order key
    last                 BIGINT NOT NULL,
    head_position        BIGINT NOT NULL,
    head_task            UUID NOT NULL,
    CONSTRAINT workq_sequence_pk PRIMARY KEY (id)
);

-- The positions of the tasks of order keys.
CREATE TABLE workq_position (
    order_key            VARCHAR(200) NOT NULL,
    position             BIGINT NOT NULL,
    task_id              UUID NOT NULL,
    due_at               TIMESTAMP WITH TIME ZONE NOT NULL,
    after_death          VARCHAR(5) NOT NULL,       -- block or skip
    CONSTRAINT workq_position_pk PRIMARY KEY (order_key, position)
);

-- The limits that are in use: the last number in the line of each.
CREATE TABLE workq_throttle (
    id                   VARCHAR(200) NOT NULL,     -- the limit's key
    last                 BIGINT NOT NULL,
    changed_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    -- nothing of it starts until then, afterwards one at a time until it is opened; NULL: it is open
    closed_until         TIMESTAMP WITH TIME ZONE,
    CONSTRAINT workq_throttle_pk PRIMARY KEY (id)
);

-- Which task may run, in which attempt, claimed when; without an attempt: promised to it, and from when on.
CREATE TABLE workq_permit (
    id                   BIGSERIAL NOT NULL,
    limit_key            VARCHAR(200) NOT NULL,
    task_id              UUID NOT NULL,
    attempt              INTEGER,
    at                   TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_permit_pk PRIMARY KEY (id)
);
CREATE INDEX workq_permit_by_limit ON workq_permit (limit_key);

-- Tasks that wait for a permit, in this order.
CREATE TABLE workq_parked (
    limit_key            VARCHAR(200) NOT NULL,
    number               BIGINT NOT NULL,
    task_id              UUID NOT NULL,
    CONSTRAINT workq_parked_pk PRIMARY KEY (limit_key, number)
);

-- What ticks: again and again, or once.
CREATE TABLE workq_schedule (
    name                 VARCHAR(200) NOT NULL,
    rule                 VARCHAR(5) NOT NULL,       -- cron, every or at
    text                 VARCHAR(150) NOT NULL,     -- cron text, seconds, or an instant
    zone                 VARCHAR(64) NOT NULL,      -- the time zone of cron text
    missed               VARCHAR(4) NOT NULL,       -- of missed ticks: skip, once or all
    task_name            VARCHAR(200) NOT NULL,
    queue                VARCHAR(100) NOT NULL,
    payload              TEXT NOT NULL,
    failures_max         INTEGER NOT NULL,
    crashes_max          INTEGER NOT NULL,
    expires_s            DOUBLE PRECISION,          -- of each task, after its tick; NULL: never
    changed_at           TIMESTAMP WITH TIME ZONE NOT NULL,  -- when a person last decided about it
    next_at              TIMESTAMP WITH TIME ZONE,  -- its next tick; NULL: there is none
    last_at              TIMESTAMP WITH TIME ZONE,  -- the last tick that became a task
    paused_at            TIMESTAMP WITH TIME ZONE,
    who                  VARCHAR(200),
    why                  VARCHAR(200),
    on_crash             VARCHAR(5),                -- of its tasks, as task has it
    limit_key            VARCHAR(200),              -- the limit of its tasks, as task has it
    limit_most           INTEGER,
    limit_rate           VARCHAR(10),
    CONSTRAINT workq_schedule_pk PRIMARY KEY (name),
    CONSTRAINT workq_schedule_missed CHECK (missed IN ('skip', 'once', 'all')),
    CONSTRAINT workq_schedule_rule CHECK (rule IN ('cron', 'every', 'at'))
);

-- Jobs: many subtasks with one outcome. All counts but those of subtasks are of items.
CREATE TABLE workq_job (
    id                   UUID NOT NULL,
    name                 VARCHAR(200) NOT NULL,     -- the handler of its subtasks
    live_key             VARCHAR(401),              -- of its name and key, until it has ended: no two jobs at once
    job_key              VARCHAR(200),
    state                VARCHAR(23) NOT NULL,      -- see reference/states.md
    state_at             TIMESTAMP WITH TIME ZONE NOT NULL,  -- since when
    params               TEXT NOT NULL,             -- what its source and its handler are called with
    -- of its subtasks, of its failures, and what follows its end, as JSON
    options              TEXT NOT NULL,
    split_task           UUID NOT NULL,             -- the task that reads its source
    source_cursor        TEXT,                      -- where it goes on in its source, as JSON
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
    rate_max             DOUBLE PRECISION,          -- items a second that may start; NULL: as fast as it can
    slot_at              TIMESTAMP WITH TIME ZONE,  -- when the next subtask may start
    rate                 DOUBLE PRECISION,          -- items a second, smoothed over the last minute
    rated_at             TIMESTAMP WITH TIME ZONE,  -- when that was
    rated_done           BIGINT NOT NULL,           -- and how many were done then
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    started_at           TIMESTAMP WITH TIME ZONE,  -- its first subtask was recorded
    ended_at             TIMESTAMP WITH TIME ZONE,
    paused_at            TIMESTAMP WITH TIME ZONE,
    paused_s             DOUBLE PRECISION NOT NULL,  -- how long it was paused in all, before
    who                  VARCHAR(200),              -- who decided last about it
    why                  VARCHAR(200),
    error                TEXT,                      -- why it failed
    parent_id            UUID,                      -- the job that it is nested in
    CONSTRAINT workq_job_pk PRIMARY KEY (id),
    CONSTRAINT workq_job_live_key UNIQUE (live_key),
    CONSTRAINT workq_job_counts CHECK (succeeded + failed + skipped + cancelled <= split AND open_subtasks >= 0),
    CONSTRAINT workq_job_state CHECK (state IN ('planning', 'running', 'pausing', 'paused', 'cancelling', 'cancelled', 'failing', 'failed', 'succeeded', 'completed_with_failures'))
);
CREATE INDEX workq_job_by_parent ON workq_job (parent_id);
CREATE INDEX workq_job_by_state ON workq_job (state);

-- The subtasks of a job, beside their tasks: what is counted of each.
CREATE TABLE workq_subtask (
    task_id              UUID NOT NULL,
    job_id               UUID NOT NULL,
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
    step_cursor          TEXT,
    steps                BIGINT NOT NULL,           -- a partition: so many are committed
    slot_at              TIMESTAMP WITH TIME ZONE,  -- it may start then: its job has a rate
    ended_at             TIMESTAMP WITH TIME ZONE,  -- it is counted as ended
    CONSTRAINT workq_subtask_pk PRIMARY KEY (task_id),
    CONSTRAINT workq_subtask_number UNIQUE (job_id, number),
    CONSTRAINT workq_subtask_counts CHECK (items_left + succeeded + failed + skipped + cancelled = size)
);
CREATE INDEX workq_subtask_open ON workq_subtask (job_id, ended_at);

-- Items that have failed for good.
CREATE TABLE workq_failed_item (
    id                   BIGSERIAL NOT NULL,
    job_id               UUID NOT NULL,
    task_id              UUID,                      -- the subtask that it was in
    item                 TEXT NOT NULL,             -- as JSON; what JSON cannot carry: its text, as a JSON string
    failures             INTEGER NOT NULL,          -- how often it was tried
    error                TEXT NOT NULL,
    fingerprint          VARCHAR(16) NOT NULL,      -- alike for errors that are alike
    at                   TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_failed_item_pk PRIMARY KEY (id)
);
CREATE INDEX workq_failed_item_by_job ON workq_failed_item (job_id, fingerprint);

-- Results of items, as far as their job keeps them.
CREATE TABLE workq_job_result (
    id                   BIGSERIAL NOT NULL,
    job_id               UUID NOT NULL,
    task_id              UUID NOT NULL,             -- the subtask that it was in
    item                 TEXT NOT NULL,             -- as JSON; what JSON cannot carry: its text, as a JSON string
    value                TEXT,                      -- as JSON; NULL: it could not be kept
    note                 VARCHAR(200),              -- why not
    at                   TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_job_result_pk PRIMARY KEY (id)
);
CREATE INDEX workq_job_result_by_job ON workq_job_result (job_id, id);

-- Endpoints: where webhooks go.
CREATE TABLE workq_endpoint (
    id                   VARCHAR(64) NOT NULL,
    topic                VARCHAR(200) NOT NULL,     -- what is sent to a topic goes to all of its endpoints
    url                  TEXT NOT NULL,
    types                TEXT NOT NULL,             -- of events that it wants, as JSON: invoice.paid, invoice.*, *
    -- its secrets and its own headers, as JSON; encrypted, if there is a key
    sealed               TEXT NOT NULL,
    options              TEXT NOT NULL,             -- when it is tried again, its limits and deadlines, as JSON
    state                VARCHAR(10) NOT NULL,
    state_at             TIMESTAMP WITH TIME ZONE NOT NULL,  -- since when
    who                  VARCHAR(200),              -- who decided that
    why                  VARCHAR(200),
    failing_since        TIMESTAMP WITH TIME ZONE,  -- nothing has arrived there since then
    failures             INTEGER NOT NULL,          -- in a row
    warned               SMALLINT NOT NULL,         -- so many percent of what disables it were told
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    changed_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_endpoint_pk PRIMARY KEY (id),
    CONSTRAINT workq_endpoint_state CHECK (state IN ('enabled', 'disabled'))
);
CREATE INDEX workq_endpoint_by_topic ON workq_endpoint (topic);

-- Webhooks: what is sent, byte for byte.
CREATE TABLE workq_webhook (
    id                   VARCHAR(100) NOT NULL,     -- as receivers see it
    type                 VARCHAR(200) NOT NULL,     -- of the event
    topic                VARCHAR(200),              -- NULL: it was sent to one endpoint
    body                 TEXT,                      -- NULL: kept no longer
    data_hash            VARCHAR(64) NOT NULL,      -- SHA-256 of what its body was made of
    order_key            VARCHAR(200),              -- as it was sent; endpoints may keep the order of each
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_webhook_pk PRIMARY KEY (id)
);
CREATE INDEX workq_webhook_by_time ON workq_webhook (created_at);
CREATE INDEX workq_webhook_with_body ON workq_webhook (created_at) WHERE body IS NOT NULL;

-- Deliveries: one webhook on its way to one endpoint.
CREATE TABLE workq_delivery (
    id                   UUID NOT NULL,
    webhook_id           VARCHAR(100) NOT NULL,
    endpoint_id          VARCHAR(64) NOT NULL,
    task_id              UUID NOT NULL,             -- the task that sends it, or did so last
    state                VARCHAR(10) NOT NULL,      -- see reference/states.md
    cause                VARCHAR(10) NOT NULL,      -- why that task was recorded
    attempts             INTEGER NOT NULL,          -- made so far
    status               INTEGER,                   -- of the last answer
    error_class          VARCHAR(20),               -- of the last attempt; NULL: it has succeeded
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    attempted_at         TIMESTAMP WITH TIME ZONE,
    next_at              TIMESTAMP WITH TIME ZONE,  -- when it is tried again
    ended_at             TIMESTAMP WITH TIME ZONE,
    CONSTRAINT workq_delivery_pk PRIMARY KEY (id),
    CONSTRAINT workq_delivery_once UNIQUE (webhook_id, endpoint_id),
    CONSTRAINT workq_delivery_state CHECK (state IN ('pending', 'held', 'succeeded', 'exhausted', 'gone', 'cancelled'))
);
CREATE INDEX workq_delivery_by_endpoint ON workq_delivery (endpoint_id, state, id);
CREATE INDEX workq_delivery_by_state ON workq_delivery (state, id);
CREATE INDEX workq_delivery_by_task ON workq_delivery (task_id);

-- Each time that a webhook was sent, or could not be.
CREATE TABLE workq_delivery_attempt (
    task_id              UUID NOT NULL,
    attempt              INTEGER NOT NULL,          -- of the task
    delivery_id          UUID NOT NULL,
    number               INTEGER NOT NULL,          -- of the delivery
    cause                VARCHAR(10) NOT NULL,
    url                  TEXT NOT NULL,             -- where it went
    status               INTEGER,                   -- NULL: there was no answer
    error_class          VARCHAR(20),               -- NULL: it has succeeded
    error                TEXT,
    duration_ms          DOUBLE PRECISION NOT NULL,
    answer               TEXT,                      -- the first 16 KiB
    is_cut               SMALLINT NOT NULL,         -- there was more
    at                   TIMESTAMP WITH TIME ZONE NOT NULL,  -- when it had ended
    next_at              TIMESTAMP WITH TIME ZONE,  -- when it is tried again
    CONSTRAINT workq_delivery_attempt_pk PRIMARY KEY (task_id, attempt)
);
CREATE INDEX workq_delivery_attempt_by_delivery ON workq_delivery_attempt (delivery_id);

-- Destinations: where messages go.
CREATE TABLE workq_destination (
    name                 VARCHAR(64) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,      -- amqp, kafka, stomp, redis, http, call
    options              TEXT NOT NULL,             -- of its kind, as JSON, without secrets
    sealed               TEXT,                      -- its URL, as JSON; encrypted, if there is a key
    policy               TEXT NOT NULL,             -- its limits, deadline and levels, as JSON
    state                VARCHAR(10) NOT NULL,
    state_at             TIMESTAMP WITH TIME ZONE NOT NULL,  -- since when
    who                  VARCHAR(200),              -- who decided that
    why                  VARCHAR(200),
    failures             INTEGER NOT NULL,          -- in a row
    failing_since        TIMESTAMP WITH TIME ZONE,  -- nothing was confirmed since then
    fault                VARCHAR(20),               -- of the last failure: away, refused, no_target, late, asked
    error                TEXT,                      -- of the last failure, in one line
    rests_until          TIMESTAMP WITH TIME ZONE,  -- nothing is sent to it before
    probe                UUID,                      -- the task that tries it, while it fails
    probe_until          TIMESTAMP WITH TIME ZONE,  -- for so long no other one tries it
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    changed_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_destination_pk PRIMARY KEY (name),
    CONSTRAINT workq_destination_state CHECK (state IN ('enabled', 'disabled'))
);

-- Messages: what is sent at its time. The state of a message is that of its task.
CREATE TABLE workq_message (
    id                   VARCHAR(100) NOT NULL,     -- as the destination sees it: workq-id
    destination          VARCHAR(64) NOT NULL,
    task_id              UUID NOT NULL,             -- the task that sends it, or did so last
    sending              INTEGER NOT NULL,          -- 1, and one more for each restore
    body                 TEXT,                      -- NULL: kept no longer, as its task is not
    is_binary            SMALLINT NOT NULL,         -- the body is base64 of what is sent
    content_type         VARCHAR(200) NOT NULL,
    message_key          TEXT,                      -- Kafka's key
    headers              TEXT,                      -- of the sender, as JSON
    order_key            VARCHAR(200),
    due_at               TIMESTAMP WITH TIME ZONE NOT NULL,  -- not to be sent before
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    removed_at           TIMESTAMP WITH TIME ZONE,  -- when retention took its body
    ended                VARCHAR(10),               -- how its task had ended, which retention removed
    intake               VARCHAR(64),               -- the way in whose record it was
    CONSTRAINT workq_message_pk PRIMARY KEY (id)
);
CREATE INDEX workq_message_by_destination ON workq_message (destination, created_at, id);
CREATE INDEX workq_message_by_task ON workq_message (task_id);
CREATE INDEX workq_message_by_time ON workq_message (created_at, id);
CREATE INDEX workq_message_removed ON workq_message (removed_at) WHERE removed_at IS NOT NULL;

-- Messages that wait for their destination, in the order of their time.
CREATE TABLE workq_waiting_message (
    destination          VARCHAR(64) NOT NULL,
    due_at               TIMESTAMP WITH TIME ZONE NOT NULL,  -- of the message
    task_id              UUID NOT NULL,
    CONSTRAINT workq_waiting_message_pk PRIMARY KEY (destination, due_at, task_id)
);

-- Ways in: topics and queues of others whose records become messages.
CREATE TABLE workq_intake (
    name                 VARCHAR(64) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,      -- kafka, amqp
    options              TEXT NOT NULL,             -- of its kind, as JSON, without secrets
    sealed               TEXT,                      -- its URL, as JSON; encrypted, if there is a key
    destination          VARCHAR(64),               -- of records that name none
    recorded             BIGINT NOT NULL,           -- records that became messages
    kept                 BIGINT DEFAULT 0 NOT NULL,  -- messages of it that are there
    repeated             BIGINT NOT NULL,           -- records whose id was there
    cancelled            BIGINT NOT NULL,           -- records that asked to cancel a message
    quarantined          BIGINT NOT NULL,           -- records that could not be read
    quarantined_why      TEXT,                      -- what was wrong with the last of them
    quarantined_at       TIMESTAMP WITH TIME ZONE,
    error                TEXT,                      -- why nothing could be read, in one line
    failing_since        TIMESTAMP WITH TIME ZONE,  -- nothing could be read since then
    taken_at             TIMESTAMP WITH TIME ZONE,  -- when something was taken in last
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_intake_pk PRIMARY KEY (name)
);

-- How far each partition of a topic was taken in, and by which process: moved together with the records.
CREATE TABLE workq_intake_offset (
    intake               VARCHAR(64) NOT NULL,
    topic                VARCHAR(249) NOT NULL,
    part                 INTEGER NOT NULL,          -- the partition
    next_offset          BIGINT,                    -- of the next record; NULL: from the beginning
    topic_id             VARCHAR(40),               -- as Kafka tells it: a topic that was made anew begins anew
    owner                VARCHAR(120) NOT NULL,     -- the incarnation that took the partition last
    -- 1, and one more each time it is taken: an older owner moves nothing
    epoch                BIGINT NOT NULL,
    changed_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_intake_offset_pk PRIMARY KEY (intake, topic, part)
);

-- Last: only now is schema 19 complete.
INSERT INTO workq_meta (name, value, at) VALUES ('schema_version', '19', CURRENT_TIMESTAMP);
