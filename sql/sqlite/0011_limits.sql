-- workq, schema 11, for SQLite 3.35 or newer: limits.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- With all tasks of the same key: at most so many at once, and so many starts in a time. NULL: no limit.
ALTER TABLE workq_task ADD COLUMN limit_key VARCHAR(200);
ALTER TABLE workq_task ADD COLUMN limit_most INTEGER;
ALTER TABLE workq_task ADD COLUMN limit_rate VARCHAR(10);
ALTER TABLE workq_schedule ADD COLUMN limit_key VARCHAR(200);
ALTER TABLE workq_schedule ADD COLUMN limit_most INTEGER;
ALTER TABLE workq_schedule ADD COLUMN limit_rate VARCHAR(10);

-- The limits that are in use: the last number in the line of each.
CREATE TABLE workq_throttle (
    id                   VARCHAR(200) NOT NULL,           -- the limit's key
    last                 BIGINT NOT NULL,
    changed_at           VARCHAR(23) NOT NULL,
    CONSTRAINT workq_throttle_pk PRIMARY KEY (id)
);

-- Who may run, in which attempt, claimed when; without an attempt: to whom it is promised, and from when on.
CREATE TABLE workq_permit (
    id                   INTEGER NOT NULL,
    limit_key            VARCHAR(200) NOT NULL,
    task_id              VARCHAR(36) NOT NULL,
    attempt              INTEGER,
    at                   VARCHAR(23) NOT NULL,
    CONSTRAINT workq_permit_pk PRIMARY KEY (id)
);

CREATE INDEX workq_permit_by_limit ON workq_permit (limit_key);

-- Who waits for a permit, in this order.
CREATE TABLE workq_parked (
    limit_key            VARCHAR(200) NOT NULL,
    number               BIGINT NOT NULL,
    task_id              VARCHAR(36) NOT NULL,
    CONSTRAINT workq_parked_pk PRIMARY KEY (limit_key, number)
);

-- Last: only now is schema 11 complete.
UPDATE workq_meta SET value = '11' WHERE name = 'schema_version';
