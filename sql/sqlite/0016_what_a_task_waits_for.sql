-- workq, schema 16, for SQLite 3.35 or newer: what a task waits for.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- Made from the tables in workq/ by `make migration`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- While it is not due for others: 'order', 'limit', 'job', 'endpoint'; NULL: it waits for its time.
ALTER TABLE workq_task ADD COLUMN waits_for VARCHAR(20);

-- Last: only now is schema 16 complete.
UPDATE workq_meta SET value = '16' WHERE name = 'schema_version';
