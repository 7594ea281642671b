-- workq, schema 19, for SQLite 3.35 or newer: signs of life.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- Made from the tables in workq/ by `make migration`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- The stores in which it gives signs of life; NULL: its lease alone tells.
ALTER TABLE workq_worker ADD COLUMN signs VARCHAR(200);

-- Last: only now is schema 19 complete.
UPDATE workq_meta SET value = '19' WHERE name = 'schema_version';
