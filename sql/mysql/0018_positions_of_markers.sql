-- workq, schema 18, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: positions of markers.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- Made from the tables in workq/ by `make migration`.
-- DDL commits by itself, so every statement must be repeatable: a migration that broke off starts again from the top.
-- `workq db migrate` takes a column or an index that is there already (errors 1060, 1061) for one that such a migration
-- has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- No message: where the line ended after `sent_at`, as its broker says.
ALTER TABLE workq_marker ADD COLUMN position LONGTEXT;

-- Last: only now is schema 18 complete.
UPDATE workq_meta SET value = '18' WHERE name = 'schema_version';
