-- workq, schema 4, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: tasks that expire.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- DDL commits by itself, so every statement must be repeatable: `workq db migrate` takes a column that is there
-- already (error 1060) for one that a migration which broke off has added. Its index comes in the same statement.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- From then on it is not started any more; NULL: never. The index finds what the sweep cancels.
ALTER TABLE workq_task ADD COLUMN expires_at DATETIME(6), ADD KEY workq_task_expiring (expires_at);

-- Last: only now is schema 4 complete.
UPDATE workq_meta SET value = '4' WHERE name = 'schema_version';
