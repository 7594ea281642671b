-- workq, schema 9, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: policies of recovery and of keys, kills.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable: `workq db migrate` takes a column that is there
-- already (error 1060) for one that a migration which broke off has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Of one that had started: NULL runs again, 'fail' counts as a failure, 'ask' is dead until a person revives it.
ALTER TABLE workq_task ADD COLUMN on_crash VARCHAR(5);

-- The same, for the tasks of a schedule.
ALTER TABLE workq_schedule ADD COLUMN on_crash VARCHAR(5);

-- Running attempts that a person wants ended by force, until their process has ended.
CREATE TABLE IF NOT EXISTS workq_kill (
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt              INTEGER NOT NULL,
    worker               VARCHAR(120) NOT NULL,
    asked_at             DATETIME(6) NOT NULL,
    CONSTRAINT workq_kill_pk PRIMARY KEY (task_id, attempt)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Keys that their tasks hold for a time, settled or not.
CREATE TABLE IF NOT EXISTS workq_window (
    id                   VARCHAR(401) NOT NULL,           -- name and key, as live_key has them
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ends_at              DATETIME(6) NOT NULL,
    CONSTRAINT workq_window_pk PRIMARY KEY (id),
    -- for retention
    KEY workq_window_by_end (ends_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Last: only now is schema 9 complete.
UPDATE workq_meta SET value = '9' WHERE name = 'schema_version';
