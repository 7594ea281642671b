-- workq, schema 17, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: messages that wait.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- Made from the tables in workq/ by `make migration`.
-- DDL commits by itself, so every statement must be repeatable: a migration that broke off starts again from the top.
-- `workq db migrate` takes a column or an index that is there already (errors 1060, 1061) for one that such a migration
-- has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- The task that tries it, while it fails.
ALTER TABLE workq_destination ADD COLUMN probe CHAR(36) CHARACTER SET ascii COLLATE ascii_bin;

-- For so long no other one tries it.
ALTER TABLE workq_destination ADD COLUMN probe_until DATETIME(6);

-- How its task had ended, which retention removed.
ALTER TABLE workq_message ADD COLUMN ended VARCHAR(10);

-- The way in whose record it was.
ALTER TABLE workq_message ADD COLUMN intake VARCHAR(64);

-- Messages that wait for their destination, in the order of their time.
CREATE TABLE IF NOT EXISTS workq_waiting_message (
    destination          VARCHAR(64) NOT NULL,
    due_at               DATETIME(6) NOT NULL,      -- of the message
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    CONSTRAINT workq_waiting_message_pk PRIMARY KEY (destination, due_at, task_id)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

-- Messages of it that are there.
ALTER TABLE workq_intake ADD COLUMN kept BIGINT NOT NULL DEFAULT 0;

-- Last: only now is schema 17 complete.
UPDATE workq_meta SET value = '17' WHERE name = 'schema_version';
