-- workq, schema 6, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: dead tasks in groups.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable: `workq db migrate` takes a column that is there
-- already (error 1060) for one that a migration which broke off has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- What dead tasks died of; those that have it in common form a group. NULL: it died before this version, or lives. No
-- index of its own: here each row that was ever recorded would have a place in it. The dead are found by their state.
ALTER TABLE workq_task ADD COLUMN fingerprint VARCHAR(16);

-- Last: only now is schema 6 complete.
UPDATE workq_meta SET value = '6' WHERE name = 'schema_version';
