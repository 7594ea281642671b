-- workq, schema 5, for PostgreSQL 12 or newer: a look for unpublished tasks may begin at an instant.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- It reads the whole task table once, and nobody else can write to it meanwhile: some seconds for a million rows.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Its first column was always NULL: the planner takes that for granted, and then cannot begin in the middle.
DROP INDEX workq_task_unpublished;
CREATE INDEX workq_task_unpublished ON workq_task (state, due_at)
    WHERE published_at IS NULL AND state IN ('ready', 'waiting');

-- Last: only now is schema 5 complete.
UPDATE workq_meta SET value = '5' WHERE name = 'schema_version';
