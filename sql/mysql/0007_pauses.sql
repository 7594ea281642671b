-- workq, schema 7, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: queues that are paused.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Queues that a person has paused: nothing of them is claimed until somebody resumes them, or until then.
CREATE TABLE IF NOT EXISTS workq_pause (
    queue                VARCHAR(100) NOT NULL,
    paused_at            DATETIME(6) NOT NULL,
    ends_at              DATETIME(6),                     -- NULL: when somebody resumes it
    who                  VARCHAR(200) NOT NULL,
    why                  VARCHAR(200) NOT NULL,
    CONSTRAINT workq_pause_pk PRIMARY KEY (queue)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Last: only now is schema 7 complete.
UPDATE workq_meta SET value = '7' WHERE name = 'schema_version';
