-- workq, schema 16, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: messages.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- Made from the tables in workq/ by `make migration`.
-- DDL commits by itself, so every statement must be repeatable: a migration that broke off starts again from the top.
-- `workq db migrate` takes a column or an index that is there already (errors 1060, 1061) for one that such a migration
-- has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Waits for it, too: 'order', 'limit', 'job', 'endpoint', 'destination'; NULL: its time alone.
ALTER TABLE workq_task ADD COLUMN waits_for VARCHAR(20);

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
    CONSTRAINT workq_message_pk PRIMARY KEY (id),
    KEY workq_message_by_destination (destination, created_at, id),
    KEY workq_message_by_task (task_id),
    KEY workq_message_by_time (created_at, id),
    KEY workq_message_removed (removed_at)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Ways in: topics and queues of others whose records become messages.
CREATE TABLE IF NOT EXISTS workq_intake (
    name                 VARCHAR(64) NOT NULL,
    kind                 VARCHAR(20) NOT NULL,      -- kafka, amqp
    options              LONGTEXT NOT NULL,         -- of its kind, as JSON, without secrets
    sealed               LONGTEXT,                  -- its URL, as JSON; encrypted, if there is a key
    destination          VARCHAR(64),               -- of records that name none
    recorded             BIGINT NOT NULL,           -- records that became messages
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

-- Last: only now is schema 16 complete.
UPDATE workq_meta SET value = '16' WHERE name = 'schema_version';
