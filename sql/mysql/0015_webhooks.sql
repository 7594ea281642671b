-- workq, schema 15, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: webhooks.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable: `workq db migrate` takes a column that is there
-- already (error 1060) for one that a migration which broke off has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Until then a limit is closed: nothing of it starts; afterwards one at a time, until somebody opens it. NULL: it is open.
ALTER TABLE workq_throttle ADD COLUMN closed_until DATETIME(6);

-- Endpoints: where webhooks go.
CREATE TABLE IF NOT EXISTS workq_endpoint (
    id                   VARCHAR(64) NOT NULL,
    topic                VARCHAR(200) NOT NULL,           -- what is sent to a topic goes to all of its endpoints
    url                  LONGTEXT NOT NULL,
    types                LONGTEXT NOT NULL,               -- of events that it wants, as JSON: invoice.paid, invoice.*, *
    sealed               LONGTEXT NOT NULL,               -- its secrets and its own headers, as JSON; encrypted, if there is a key
    options              LONGTEXT NOT NULL,               -- when it is tried again, its limits and deadlines, as JSON
    state                VARCHAR(10) NOT NULL,
    state_at             DATETIME(6) NOT NULL,            -- since when
    who                  VARCHAR(200),                    -- who decided that
    why                  VARCHAR(200),
    failing_since        DATETIME(6),                     -- nothing has arrived there since then
    failures             INTEGER NOT NULL,                -- in a row
    warned               SMALLINT NOT NULL,               -- so many percent of what disables it were told
    created_at           DATETIME(6) NOT NULL,
    changed_at           DATETIME(6) NOT NULL,
    CONSTRAINT workq_endpoint_pk PRIMARY KEY (id),
    CONSTRAINT workq_endpoint_state CHECK (state IN ('enabled', 'disabled')),
    KEY workq_endpoint_by_topic (topic)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Webhooks: what is sent, byte for byte.
CREATE TABLE IF NOT EXISTS workq_webhook (
    id                   VARCHAR(100) NOT NULL,           -- as receivers see it
    type                 VARCHAR(200) NOT NULL,           -- of the event
    topic                VARCHAR(200),                    -- NULL: it was sent to one endpoint
    body                 LONGTEXT,                        -- NULL: kept no longer
    data_hash            VARCHAR(64) NOT NULL,            -- SHA-256 of what its body was made of
    order_key            VARCHAR(200),                    -- as it was sent; endpoints may keep the order of each
    created_at           DATETIME(6) NOT NULL,
    CONSTRAINT workq_webhook_pk PRIMARY KEY (id),
    KEY workq_webhook_by_time (created_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Deliveries: one webhook on its way to one endpoint.
CREATE TABLE IF NOT EXISTS workq_delivery (
    id                   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    webhook_id           VARCHAR(100) NOT NULL,
    endpoint_id          VARCHAR(64) NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the task that sends it, or did so last
    state                VARCHAR(10) NOT NULL,            -- see reference/states.md
    cause                VARCHAR(10) NOT NULL,            -- why that task was recorded
    attempts             INTEGER NOT NULL,                -- made so far
    status               INTEGER,                         -- of the last answer
    error_class          VARCHAR(20),                     -- of the last attempt; NULL: it has succeeded
    created_at           DATETIME(6) NOT NULL,
    attempted_at         DATETIME(6),
    next_at              DATETIME(6),                     -- when it is tried again
    ended_at             DATETIME(6),
    CONSTRAINT workq_delivery_pk PRIMARY KEY (id),
    CONSTRAINT workq_delivery_once UNIQUE (webhook_id, endpoint_id),
    CONSTRAINT workq_delivery_state CHECK (state IN ('pending', 'held', 'succeeded', 'exhausted', 'gone', 'cancelled')),
    KEY workq_delivery_by_endpoint (endpoint_id, state, id),
    KEY workq_delivery_by_state (state, id),
    KEY workq_delivery_by_task (task_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Each time that a webhook was sent, or could not be.
CREATE TABLE IF NOT EXISTS workq_delivery_attempt (
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt              INTEGER NOT NULL,                -- of the task
    delivery_id          CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    number               INTEGER NOT NULL,                -- of the delivery
    cause                VARCHAR(10) NOT NULL,
    url                  LONGTEXT NOT NULL,               -- where it went
    status               INTEGER,                         -- NULL: there was no answer
    error_class          VARCHAR(20),                     -- NULL: it has succeeded
    error                LONGTEXT,
    duration_ms          DOUBLE NOT NULL,
    answer               LONGTEXT,                        -- the first 16 KiB
    is_cut               SMALLINT NOT NULL,               -- there was more
    at                   DATETIME(6) NOT NULL,            -- when it had ended
    next_at              DATETIME(6),                     -- when it is tried again
    CONSTRAINT workq_delivery_attempt_pk PRIMARY KEY (task_id, attempt),
    KEY workq_delivery_attempt_by_delivery (delivery_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Last: only now is schema 15 complete.
UPDATE workq_meta SET value = '15' WHERE name = 'schema_version';
