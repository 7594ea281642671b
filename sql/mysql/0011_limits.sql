-- workq, schema 11, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: limits.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable: `workq db migrate` takes a column that is there
-- already (error 1060) for one that a migration which broke off has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- With all tasks of the same key: at most so many at once, and so many starts in a time. NULL: no limit.
ALTER TABLE workq_task ADD COLUMN limit_key VARCHAR(200);
ALTER TABLE workq_task ADD COLUMN limit_most INTEGER;
ALTER TABLE workq_task ADD COLUMN limit_rate VARCHAR(10);
ALTER TABLE workq_schedule ADD COLUMN limit_key VARCHAR(200);
ALTER TABLE workq_schedule ADD COLUMN limit_most INTEGER;
ALTER TABLE workq_schedule ADD COLUMN limit_rate VARCHAR(10);

-- The limits that are in use: the last number in the line of each.
CREATE TABLE IF NOT EXISTS workq_throttle (
    id                   VARCHAR(200) NOT NULL,           -- the limit's key
    last                 BIGINT NOT NULL,
    changed_at           DATETIME(6) NOT NULL,
    CONSTRAINT workq_throttle_pk PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Who may run, in which attempt, claimed when; without an attempt: to whom it is promised, and from when on.
CREATE TABLE IF NOT EXISTS workq_permit (
    id                   BIGINT NOT NULL AUTO_INCREMENT,
    limit_key            VARCHAR(200) NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt              INTEGER,
    at                   DATETIME(6) NOT NULL,
    CONSTRAINT workq_permit_pk PRIMARY KEY (id),
    KEY workq_permit_by_limit (limit_key)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Who waits for a permit, in this order.
CREATE TABLE IF NOT EXISTS workq_parked (
    limit_key            VARCHAR(200) NOT NULL,
    number               BIGINT NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    CONSTRAINT workq_parked_pk PRIMARY KEY (limit_key, number)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Last: only now is schema 11 complete.
UPDATE workq_meta SET value = '11' WHERE name = 'schema_version';
