-- workq, schema 9, for PostgreSQL 12 or newer: policies of recovery and of keys, kills.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- It adds columns without a default: no table is rewritten.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Of one that had started: NULL runs again, 'fail' counts as a failure, 'ask' is dead until a person revives it.
ALTER TABLE workq_task ADD COLUMN on_crash VARCHAR(5);

-- The same, for the tasks of a schedule.
ALTER TABLE workq_schedule ADD COLUMN on_crash VARCHAR(5);

-- Running attempts that a person wants ended by force, until their process has ended.
CREATE TABLE workq_kill (
    task_id              UUID NOT NULL,
    attempt              INTEGER NOT NULL,
    worker               VARCHAR(120) NOT NULL,
    asked_at             TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_kill_pk PRIMARY KEY (task_id, attempt)
);

-- Keys that their tasks hold for a time, settled or not.
CREATE TABLE workq_window (
    id                   VARCHAR(401) NOT NULL,           -- name and key, as live_key has them
    task_id              UUID NOT NULL,
    ends_at              TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT workq_window_pk PRIMARY KEY (id)
);

-- For retention.
CREATE INDEX workq_window_by_end ON workq_window (ends_at);

-- Last: only now is schema 9 complete.
UPDATE workq_meta SET value = '9' WHERE name = 'schema_version';
