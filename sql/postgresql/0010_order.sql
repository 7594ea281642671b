-- workq, schema 10, for PostgreSQL 12 or newer: tasks in order.
--
-- Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql postgresql`.
-- It adds a column without a default: no table is rewritten.
-- A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own.

-- Tasks with the same one run one at a time, in the order of their commits; NULL: in no order.
ALTER TABLE workq_task ADD COLUMN order_key VARCHAR(200);

-- The order keys with open tasks: the last position that was given, and who stands first.
CREATE TABLE workq_sequence (
    id                   VARCHAR(200) NOT NULL,           -- the order key
    last                 BIGINT NOT NULL,
    head_position        BIGINT NOT NULL,
    head_task            UUID NOT NULL,
    CONSTRAINT workq_sequence_pk PRIMARY KEY (id)
);

-- The positions of their tasks.
CREATE TABLE workq_position (
    order_key            VARCHAR(200) NOT NULL,
    position             BIGINT NOT NULL,
    task_id              UUID NOT NULL,
    due_at               TIMESTAMP WITH TIME ZONE NOT NULL,
    after_death          VARCHAR(5) NOT NULL,             -- block or skip
    CONSTRAINT workq_position_pk PRIMARY KEY (order_key, position)
);

-- Last: only now is schema 10 complete.
UPDATE workq_meta SET value = '10' WHERE name = 'schema_version';
