-- workq, schema 3, for PostgreSQL 12 or newer: only tasks with a key are in the index of keys.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- It reads the whole task table once, and nobody else can write to it meanwhile: some seconds for a million rows.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Every version of every row without a key had its place there: an eighth of what a claim or a settlement costs.
ALTER TABLE workq_task DROP CONSTRAINT workq_task_live_key;

-- One open task for each name and key.
CREATE UNIQUE INDEX workq_task_live_key ON workq_task (live_key)
    WHERE live_key IS NOT NULL;

-- Last: only now is schema 3 complete.
UPDATE workq_meta SET value = '3' WHERE name = 'schema_version';
