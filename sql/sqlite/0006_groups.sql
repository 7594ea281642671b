-- workq, schema 6, for SQLite 3.35 or newer: dead tasks in groups.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- What dead tasks died of; those that have it in common form a group. NULL: it died before this version, or lives.
ALTER TABLE workq_task ADD COLUMN fingerprint VARCHAR(16);

-- The dead by group, and each group by age.
CREATE INDEX workq_task_dead ON workq_task (fingerprint, id)
    WHERE state = 'dead';

-- Last: only now is schema 6 complete.
UPDATE workq_meta SET value = '6' WHERE name = 'schema_version';
