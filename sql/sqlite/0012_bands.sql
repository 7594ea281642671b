-- workq, schema 12, for SQLite 3.35 or newer: bands of priority.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Bands that have been used: workers look there for tasks of high and low priority. Those of normal priority need none.
CREATE TABLE workq_band (
    queue                VARCHAR(100) NOT NULL,           -- mail~high or mail~low, as in workq_task
    made_at              VARCHAR(23) NOT NULL,
    CONSTRAINT workq_band_pk PRIMARY KEY (queue)
);

-- Last: only now is schema 12 complete.
UPDATE workq_meta SET value = '12' WHERE name = 'schema_version';
