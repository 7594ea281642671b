-- workq, schema 5, for SQLite 3.35 or newer: nothing new.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- Version 5 changes an index of PostgreSQL; the versions of all databases count together.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Last: only now is schema 5 complete.
UPDATE workq_meta SET value = '5' WHERE name = 'schema_version';
