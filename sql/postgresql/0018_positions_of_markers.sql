-- workq, schema 18, for PostgreSQL 12 or newer: positions of markers.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- Made from the tables in workq/ by `make migration`.
-- It rewrites no table.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- No message: where the line ended after `sent_at`, as its broker says.
ALTER TABLE workq_marker ADD COLUMN position TEXT;

-- Last: only now is schema 18 complete.
UPDATE workq_meta SET value = '18' WHERE name = 'schema_version';
