-- workq, schema 2, for SQLite 3.35 or newer: the marker, suspects, and which machine a process lives on.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- 1: its worker ended, and nobody saw why; 2: a process died while it ran this task: it runs alone from now on. Either
-- pays for the next crash.
ALTER TABLE workq_task ADD COLUMN is_suspect SMALLINT DEFAULT 0 NOT NULL;

-- Boot and process namespace: whoever lives in the same can see whether the process is alive.
ALTER TABLE workq_worker ADD COLUMN machine VARCHAR(60);
-- The pid of its supervisor, which knows best how it died; while that lives, nobody else judges from the pid alone.
ALTER TABLE workq_worker ADD COLUMN parent INTEGER;
-- Resident memory at the last beat, for the certificate of its death.
ALTER TABLE workq_worker ADD COLUMN memory_bytes BIGINT;

-- Messages that prove others lost, in each line of the broker: a queue, and one of its priority bands. See marker.py.
CREATE TABLE workq_marker (
    id                   VARCHAR(36) NOT NULL,            -- what the message carries
    queue                VARCHAR(100) NOT NULL,
    band                 SMALLINT NOT NULL,
    sent_at              VARCHAR(23) NOT NULL,            -- written before it is published
    returned_at          VARCHAR(23),                     -- a worker has handed it back
    closed_at            VARCHAR(23),                     -- what it proved lost has been sent again
    depth                INTEGER,                         -- hints in the line when it was sent
    lost                 INTEGER DEFAULT 0 NOT NULL,      -- how many hints it proved lost
    CONSTRAINT workq_marker_pk PRIMARY KEY (id)
);

-- The newest of a line.
CREATE INDEX workq_marker_by_line ON workq_marker (queue, band, sent_at);

-- Last: only now is schema 2 complete.
UPDATE workq_meta SET value = '2' WHERE name = 'schema_version';
