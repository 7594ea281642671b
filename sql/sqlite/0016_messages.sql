-- workq, schema 16, for SQLite 3.35 or newer: messages.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- Made from the tables in workq/ by `make migration`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Waits for it, too: 'order', 'limit', 'job', 'endpoint', 'destination'; NULL: its time alone.
ALTER TABLE workq_task ADD COLUMN waits_for VARCHAR(20);

-- Destinations: where messages go.
CREATE TABLE workq_destination (
    name                 VARCHAR(64) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,      -- amqp, kafka, stomp, redis, http, call
    options              TEXT NOT NULL,             -- of its kind, as JSON, without secrets
    sealed               TEXT,                      -- its URL, as JSON; encrypted, if there is a key
    policy               TEXT NOT NULL,             -- its limits, deadline and levels, as JSON
    state                VARCHAR(10) NOT NULL,
    state_at             VARCHAR(23) NOT NULL,      -- since when
    who                  VARCHAR(200),              -- who decided that
    why                  VARCHAR(200),
    failures             INTEGER NOT NULL,          -- in a row
    failing_since        VARCHAR(23),               -- nothing was confirmed since then
    fault                VARCHAR(20),               -- of the last failure: away, refused, no_target, late, asked
    error                TEXT,                      -- of the last failure, in one line
    rests_until          VARCHAR(23),               -- nothing is sent to it before
    created_at           VARCHAR(23) NOT NULL,
    changed_at           VARCHAR(23) NOT NULL,
    CONSTRAINT workq_destination_pk PRIMARY KEY (name),
    CONSTRAINT workq_destination_state CHECK (state IN ('enabled', 'disabled'))
);

-- Messages: what is sent at its time. The state of a message is that of its task.
CREATE TABLE workq_message (
    id                   VARCHAR(100) NOT NULL,     -- as the destination sees it: workq-id
    destination          VARCHAR(64) NOT NULL,
    task_id              VARCHAR(36) NOT NULL,      -- the task that sends it, or did so last
    sending              INTEGER NOT NULL,          -- 1, and one more for each restore
    body                 TEXT,                      -- NULL: kept no longer, as its task is not
    is_binary            SMALLINT NOT NULL,         -- the body is base64 of what is sent
    content_type         VARCHAR(200) NOT NULL,
    message_key          TEXT,                      -- Kafka's key
    headers              TEXT,                      -- of the sender, as JSON
    order_key            VARCHAR(200),
    due_at               VARCHAR(23) NOT NULL,      -- not to be sent before
    created_at           VARCHAR(23) NOT NULL,
    removed_at           VARCHAR(23),               -- when retention took its body
    CONSTRAINT workq_message_pk PRIMARY KEY (id)
);
CREATE INDEX workq_message_by_destination ON workq_message (destination, created_at, id);
CREATE INDEX workq_message_by_task ON workq_message (task_id);
CREATE INDEX workq_message_by_time ON workq_message (created_at, id);
CREATE INDEX workq_message_removed ON workq_message (removed_at) WHERE removed_at IS NOT NULL;

-- Ways in: topics and queues of others whose records become messages.
CREATE TABLE workq_intake (
    name                 VARCHAR(64) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,      -- kafka, amqp
    options              TEXT NOT NULL,             -- of its kind, as JSON, without secrets
    sealed               TEXT,                      -- its URL, as JSON; encrypted, if there is a key
    destination          VARCHAR(64),               -- of records that name none
    recorded             BIGINT NOT NULL,           -- records that became messages
    repeated             BIGINT NOT NULL,           -- records whose id was there
    cancelled            BIGINT NOT NULL,           -- records that asked to cancel a message
    quarantined          BIGINT NOT NULL,           -- records that could not be read
    quarantined_why      TEXT,                      -- what was wrong with the last of them
    quarantined_at       VARCHAR(23),
    error                TEXT,                      -- why nothing could be read, in one line
    failing_since        VARCHAR(23),               -- nothing could be read since then
    taken_at             VARCHAR(23),               -- when something was taken in last
    created_at           VARCHAR(23) NOT NULL,
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
    changed_at           VARCHAR(23) NOT NULL,
    CONSTRAINT workq_intake_offset_pk PRIMARY KEY (intake, topic, part)
);

-- Last: only now is schema 16 complete.
UPDATE workq_meta SET value = '16' WHERE name = 'schema_version';
