-- workq, schema 15, for PostgreSQL 12 or newer: webhooks.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Until then a limit is closed: nothing of it starts; afterwards one at a time, until somebody opens it. NULL: it is open.
ALTER TABLE workq_throttle ADD COLUMN closed_until TIMESTAMP WITH TIME ZONE;

-- Endpoints: where webhooks go.
CREATE TABLE workq_endpoint (
    id                   VARCHAR(64) NOT NULL,
    topic                VARCHAR(200) NOT NULL,           -- what is sent to a topic goes to all of its endpoints
    url                  TEXT NOT NULL,
    types                TEXT NOT NULL,                   -- of events that it wants, as JSON: invoice.paid, invoice.*, *
    sealed               TEXT NOT NULL,                   -- its secrets and its own headers, as JSON; encrypted, if there is a key
    options              TEXT NOT NULL,                   -- when it is tried again, its limits and deadlines, as JSON
    state                VARCHAR(10) NOT NULL,
    state_at             TIMESTAMP WITH TIME ZONE NOT NULL, -- since when
    who                  VARCHAR(200),                    -- who decided that
    why                  VARCHAR(200),
    failing_since        TIMESTAMP WITH TIME ZONE,        -- nothing has arrived there since then
    failures             INTEGER NOT NULL,                -- in a row
    warned               SMALLINT NOT NULL,               -- so many percent of what disables it were told
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    changed_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_endpoint_pk PRIMARY KEY (id),
    CONSTRAINT workq_endpoint_state CHECK (state IN ('enabled', 'disabled'))
);

CREATE INDEX workq_endpoint_by_topic ON workq_endpoint (topic);

-- Webhooks: what is sent, byte for byte.
CREATE TABLE workq_webhook (
    id                   VARCHAR(100) NOT NULL,           -- as receivers see it
    type                 VARCHAR(200) NOT NULL,           -- of the event
    topic                VARCHAR(200),                    -- NULL: it was sent to one endpoint
    body                 TEXT,                            -- NULL: kept no longer
    data_hash            VARCHAR(64) NOT NULL,            -- SHA-256 of what its body was made of
    order_key            VARCHAR(200),                    -- as it was sent; endpoints may keep the order of each
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
    task_id              UUID NOT NULL,                   -- the task that sends it, or did so last
    state                VARCHAR(10) NOT NULL,            -- see reference/states.md
    cause                VARCHAR(10) NOT NULL,            -- why that task was recorded
    attempts             INTEGER NOT NULL,                -- made so far
    status               INTEGER,                         -- of the last answer
    error_class          VARCHAR(20),                     -- of the last attempt; NULL: it has succeeded
    created_at           TIMESTAMP WITH TIME ZONE NOT NULL,
    attempted_at         TIMESTAMP WITH TIME ZONE,
    next_at              TIMESTAMP WITH TIME ZONE,        -- when it is tried again
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
    attempt              INTEGER NOT NULL,                -- of the task
    delivery_id          UUID NOT NULL,
    number               INTEGER NOT NULL,                -- of the delivery
    cause                VARCHAR(10) NOT NULL,
    url                  TEXT NOT NULL,                   -- where it went
    status               INTEGER,                         -- NULL: there was no answer
    error_class          VARCHAR(20),                     -- NULL: it has succeeded
    error                TEXT,
    duration_ms          DOUBLE PRECISION NOT NULL,
    answer               TEXT,                            -- the first 16 KiB
    is_cut               SMALLINT NOT NULL,               -- there was more
    at                   TIMESTAMP WITH TIME ZONE NOT NULL, -- when it had ended
    next_at              TIMESTAMP WITH TIME ZONE,        -- when it is tried again
    CONSTRAINT workq_delivery_attempt_pk PRIMARY KEY (task_id, attempt)
);

CREATE INDEX workq_delivery_attempt_by_delivery ON workq_delivery_attempt (delivery_id);

-- Last: only now is schema 15 complete.
UPDATE workq_meta SET value = '15' WHERE name = 'schema_version';
