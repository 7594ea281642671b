-- workq, schema 7, for PostgreSQL 12 or newer: queues that are paused.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- It reads no table.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Queues that a person has paused: nothing of them is claimed until somebody resumes them, or until then.
CREATE TABLE workq_pause (
    queue                VARCHAR(100) NOT NULL,
    paused_at            TIMESTAMP WITH TIME ZONE NOT NULL,
    ends_at              TIMESTAMP WITH TIME ZONE,        -- NULL: when somebody resumes it
    who                  VARCHAR(200) NOT NULL,
    why                  VARCHAR(200) NOT NULL,
    CONSTRAINT workq_pause_pk PRIMARY KEY (queue)
);

-- Last: only now is schema 7 complete.
UPDATE workq_meta SET value = '7' WHERE name = 'schema_version';
