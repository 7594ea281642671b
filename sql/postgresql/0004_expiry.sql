-- workq, schema 4, for PostgreSQL 12 or newer: tasks that expire.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- It adds a column without a default, and an index of none of the rows that there are: no table is rewritten.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- From then on it is not started any more; NULL: never.
ALTER TABLE workq_task ADD COLUMN expires_at TIMESTAMP WITH TIME ZONE;

-- What the sweep cancels.
CREATE INDEX workq_task_expiring ON workq_task (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('ready', 'waiting');

-- Last: only now is schema 4 complete.
UPDATE workq_meta SET value = '4' WHERE name = 'schema_version';
