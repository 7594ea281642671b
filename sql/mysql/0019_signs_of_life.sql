-- workq, schema 19, for MySQL 8.0.16 or newer and MariaDB 10.6 or newer: signs of life.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql mysql`.
-- Made from the tables in workq/ by `make migration`.
-- DDL commits by itself, so every statement must be repeatable: a migration that broke off starts again from the top.
-- `workq db migrate` takes a column or an index that is there already (errors 1060, 1061) for one that such a migration
-- has added.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- The stores in which it gives signs of life; NULL: its lease alone tells.
ALTER TABLE workq_worker ADD COLUMN signs VARCHAR(200);

-- Last: only now is schema 19 complete.
UPDATE workq_meta SET value = '19' WHERE name = 'schema_version';
