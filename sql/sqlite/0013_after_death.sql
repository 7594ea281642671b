-- workq, schema 13, for SQLite 3.35 or newer: what follows a death in an order, for good.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- When it is dead, the next one of its order key goes on ('skip'), also after a person has sent it back; NULL: it blocks.
ALTER TABLE workq_task ADD COLUMN after_death VARCHAR(5);

-- Those that stand in line said so where they stand.
UPDATE workq_task SET after_death = 'skip'
    WHERE id IN (SELECT task_id FROM workq_position WHERE after_death = 'skip');

-- Last: only now is schema 13 complete.
UPDATE workq_meta SET value = '13' WHERE name = 'schema_version';
