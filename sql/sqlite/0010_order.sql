-- workq, schema 10, for SQLite 3.35 or newer: tasks in order.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql sqlite`.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Tasks with the same one run one at a time, in the order of their commits; NULL: in no order.
ALTER TABLE workq_task ADD COLUMN order_key VARCHAR(200);

-- The order keys with open tasks: the last position that was given, and who stands first.
CREATE TABLE workq_sequence (
    id                   VARCHAR(200) NOT NULL,           -- the order key
    last                 BIGINT NOT NULL,
    head_position        BIGINT NOT NULL,
    head_task            VARCHAR(36) NOT NULL,
    CONSTRAINT workq_sequence_pk PRIMARY KEY (id)
);

-- The positions of their tasks.
CREATE TABLE workq_position (
    order_key            VARCHAR(200) NOT NULL,
    position             BIGINT NOT NULL,
    task_id              VARCHAR(36) NOT NULL,
    due_at               VARCHAR(23) NOT NULL,
    after_death          VARCHAR(5) NOT NULL,             -- block or skip
    CONSTRAINT workq_position_pk PRIMARY KEY (order_key, position)
);

-- Last: only now is schema 10 complete.
UPDATE workq_meta SET value = '10' WHERE name = 'schema_version';
