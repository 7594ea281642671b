-- workq, schema 10, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: tasks in order.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable: `workq db migrate` takes a column that is there
-- already (error 1060) for one that a migration which broke off has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Tasks with the same one run one at a time, in the order of their commits; NULL: in no order.
ALTER TABLE workq_task ADD COLUMN order_key VARCHAR(200);

-- The order keys with open tasks: the last position that was given, and who stands first.
CREATE TABLE IF NOT EXISTS workq_sequence (
    id                   VARCHAR(200) NOT NULL,           -- the order key
    last                 BIGINT NOT NULL,
    head_position        BIGINT NOT NULL,
    head_task            CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    CONSTRAINT workq_sequence_pk PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The positions of their tasks.
CREATE TABLE IF NOT EXISTS workq_position (
    order_key            VARCHAR(200) NOT NULL,
    position             BIGINT NOT NULL,
    task_id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    due_at               DATETIME(6) NOT NULL,
    after_death          VARCHAR(5) NOT NULL,             -- block or skip
    CONSTRAINT workq_position_pk PRIMARY KEY (order_key, position)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Last: only now is schema 10 complete.
UPDATE workq_meta SET value = '10' WHERE name = 'schema_version';
