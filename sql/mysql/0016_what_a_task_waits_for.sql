-- workq, schema 16, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: what a task waits for.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- Made from the tables in workq/ by `make migration`.
-- DDL commits by itself, so every statement must be repeatable: a migration that broke off starts again from the top.
-- `workq db migrate` takes a column or an index that is there already (errors 1060, 1061) for one that such a migration
-- has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- While it is not due for others: 'order', 'limit', 'job', 'endpoint'; NULL: it waits for its time.
ALTER TABLE workq_task ADD COLUMN waits_for VARCHAR(20);

-- Last: only now is schema 16 complete.
UPDATE workq_meta SET value = '16' WHERE name = 'schema_version';
