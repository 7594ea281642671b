-- workq, schema 2, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: the marker, suspects, and which machine a
-- process lives on.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable: `workq db migrate` takes a column that is there
-- already (error 1060) for one that a migration which broke off has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- 1: its worker ended, and nobody saw why; 2: a process died while it ran this task: it runs alone from now on. Either
-- pays for the next crash.
ALTER TABLE workq_task ADD COLUMN is_suspect SMALLINT NOT NULL DEFAULT 0;

-- Boot and process namespace: whoever lives in the same can see whether the process is alive.
ALTER TABLE workq_worker ADD COLUMN machine VARCHAR(60);
-- The pid of its supervisor, which knows best how it died; while that lives, nobody else judges from the pid alone.
ALTER TABLE workq_worker ADD COLUMN parent INTEGER;
-- Resident memory at the last beat, for the certificate of its death.
ALTER TABLE workq_worker ADD COLUMN memory_bytes BIGINT;

-- Messages that prove others lost, in each line of the broker: a queue, and one of its priority bands. See marker.py.
CREATE TABLE IF NOT EXISTS workq_marker (
    id                   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- what the message carries
    queue                VARCHAR(100) NOT NULL,
    band                 SMALLINT NOT NULL,
    sent_at              DATETIME(6) NOT NULL,            -- written before it is published
    returned_at          DATETIME(6),                     -- a worker has handed it back
    closed_at            DATETIME(6),                     -- what it proved lost has been sent again
    depth                INTEGER,                         -- hints in the line when it was sent
    lost                 INTEGER NOT NULL DEFAULT 0,      -- how many hints it proved lost
    CONSTRAINT workq_marker_pk PRIMARY KEY (id),
    -- the newest of a line
    KEY workq_marker_by_line (queue, band, sent_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Last: only now is schema 2 complete.
UPDATE workq_meta SET value = '2' WHERE name = 'schema_version';
