-- workq, schema 8, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: schedules.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- What ticks: again and again, or once.
CREATE TABLE IF NOT EXISTS workq_schedule (
    name                 VARCHAR(200) NOT NULL,
    rule                 VARCHAR(5) NOT NULL,             -- cron, every or at
    text                 VARCHAR(150) NOT NULL,           -- cron text, seconds, or an instant
    zone                 VARCHAR(64) NOT NULL,            -- the time zone of cron text
    missed               VARCHAR(4) NOT NULL,             -- of missed ticks: skip, once or all
    task_name            VARCHAR(200) NOT NULL,
    queue                VARCHAR(100) NOT NULL,
    payload              LONGTEXT NOT NULL,
    failures_max         INTEGER NOT NULL,
    crashes_max          INTEGER NOT NULL,
    expires_s            DOUBLE,                          -- of each task, after its tick; NULL: never
    changed_at           DATETIME(6) NOT NULL,            -- when somebody last decided about it
    next_at              DATETIME(6),                     -- its next tick; NULL: there is none
    last_at              DATETIME(6),                     -- the last tick that became a task
    paused_at            DATETIME(6),
    who                  VARCHAR(200),
    why                  VARCHAR(200),
    CONSTRAINT workq_schedule_pk PRIMARY KEY (name),
    CONSTRAINT workq_schedule_rule CHECK (rule IN ('cron', 'every', 'at')),
    CONSTRAINT workq_schedule_missed CHECK (missed IN ('skip', 'once', 'all'))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Each tick that became a task, once.
CREATE TABLE IF NOT EXISTS workq_tick (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    schedule             VARCHAR(200) NOT NULL,
    at                   DATETIME(6) NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    made_at              DATETIME(6) NOT NULL,
    CONSTRAINT workq_tick_pk PRIMARY KEY (id),
    CONSTRAINT workq_tick_once UNIQUE (schedule, at),
    -- for retention
    KEY workq_tick_by_time (made_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Last: only now is schema 8 complete.
UPDATE workq_meta SET value = '8' WHERE name = 'schema_version';
