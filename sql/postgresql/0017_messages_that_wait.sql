-- workq, schema 17, for PostgreSQL 12 or newer: messages that wait.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- Made from the tables in workq/ by `make migration`.
-- It rewrites no table.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- The task that tries it, while it fails.
ALTER TABLE workq_destination ADD COLUMN probe UUID;

-- For so long no other one tries it.
ALTER TABLE workq_destination ADD COLUMN probe_until TIMESTAMP WITH TIME ZONE;

-- How its task had ended, which retention removed.
ALTER TABLE workq_message ADD COLUMN ended VARCHAR(10);

-- The way in whose record it was.
ALTER TABLE workq_message ADD COLUMN intake VARCHAR(64);

-- Messages that wait for their destination, in the order of their time.
CREATE TABLE workq_waiting_message (
    destination          VARCHAR(64) NOT NULL,
    due_at               TIMESTAMP WITH TIME ZONE NOT NULL,  -- of the message
    task_id              UUID NOT NULL,
    CONSTRAINT workq_waiting_message_pk PRIMARY KEY (destination, due_at, task_id)
);

-- Messages of it that are there.
ALTER TABLE workq_intake ADD COLUMN kept BIGINT DEFAULT 0 NOT NULL;

-- Last: only now is schema 17 complete.
UPDATE workq_meta SET value = '17' WHERE name = 'schema_version';
