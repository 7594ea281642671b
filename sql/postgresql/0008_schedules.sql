-- workq, schema 8, for PostgreSQL 12 or newer: schedules.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- It reads no table.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- What ticks: again and again, or once.
CREATE TABLE workq_schedule (
    name                 VARCHAR(200) NOT NULL,
    rule                 VARCHAR(5) NOT NULL,             -- cron, every or at
    text                 VARCHAR(150) NOT NULL,           -- cron text, seconds, or an instant
    zone                 VARCHAR(64) NOT NULL,            -- the time zone of cron text
    missed               VARCHAR(4) NOT NULL,             -- of missed ticks: skip, once or all
    task_name            VARCHAR(200) NOT NULL,
    queue                VARCHAR(100) NOT NULL,
    payload              TEXT NOT NULL,
    failures_max         INTEGER NOT NULL,
    crashes_max          INTEGER NOT NULL,
    expires_s            DOUBLE PRECISION,                -- of each task, after its tick; NULL: never
    changed_at           TIMESTAMP WITH TIME ZONE NOT NULL, -- when somebody last decided about it
    next_at              TIMESTAMP WITH TIME ZONE,        -- its next tick; NULL: there is none
    last_at              TIMESTAMP WITH TIME ZONE,        -- the last tick that became a task
    paused_at            TIMESTAMP WITH TIME ZONE,
    who                  VARCHAR(200),
    why                  VARCHAR(200),
    CONSTRAINT workq_schedule_pk PRIMARY KEY (name),
    CONSTRAINT workq_schedule_rule CHECK (rule IN ('cron', 'every', 'at')),
    CONSTRAINT workq_schedule_missed CHECK (missed IN ('skip', 'once', 'all'))
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

-- Last: only now is schema 8 complete.
UPDATE workq_meta SET value = '8' WHERE name = 'schema_version';
