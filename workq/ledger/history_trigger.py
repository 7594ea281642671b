"""Flow: on demand, an event for each move of each task from state to state, written by the database itself.

By a trigger, and not by our statements: what somebody moves by hand is kept as well, no statement of ours is another
one with it, and without it nothing costs anything. With it each move costs the database a second row. The events are
`moved`: from which state, to which, which attempt, by which worker; retention removes them as all events.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from workq.ledger.engine.database import Database


def keep(database: Database, *, is_full: bool) -> bool:
    """Let every move be kept from now on, or none; False when it was so already.

    Raises:
        LedgerUnavailable: the database refused, or did not answer. On MySQL it needs the privilege TRIGGER.
    """
    if is_kept(database) == is_full:
        return False
    statements = (_MAKE if is_full else _DROP)[database.dialect]
    names = {"task": database.tables.task.name, "event": database.tables.event.name}
    names |= {"moved": f"{names['task']}_moved", "who": _WHO}

    def change(tx: Connection) -> None:
        for statement in statements:
            tx.execute(text(statement.format(**names)))

    database.run(change)
    return True


def is_kept(database: Database) -> bool:
    """Whether every move is kept."""
    name = f"{database.tables.task.name}_moved"
    query = text(_FIND[database.dialect]).bindparams(name=f"{name}_on_update", table_name=database.tables.task.name)
    return database.ask(lambda tx: tx.execute(query).first()) is not None


_FIND = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name = :name AND tbl_name = :table_name",
    "postgresql": "SELECT 1 FROM pg_trigger WHERE tgname = :name AND tgrelid = to_regclass(CAST(:table_name AS text))",
    "mysql": "SELECT 1 FROM information_schema.triggers "
    "WHERE trigger_schema = DATABASE() AND trigger_name = :name AND event_object_table = :table_name",
}
_WHO = "CASE WHEN 'running' IN (OLD.state, NEW.state) THEN COALESCE(NEW.worker, OLD.worker) END"
"""Only a worker moves what runs, or is taken from it. Others stand in no row of the task."""
_IN_SQLITE = (
    "INSERT INTO {event} (at, kind, task_id, attempt, worker, detail) VALUES (STRFTIME('%Y-%m-%d %H:%M:%f', 'now')"
)
_MAKE = {
    "sqlite": [
        "CREATE TRIGGER {moved}_on_insert AFTER INSERT ON {task} BEGIN "
        + _IN_SQLITE
        + """, 'moved', NEW.id, NEW.attempt, NULL, '{{"to":"' || NEW.state || '"}}'); END""",
        "CREATE TRIGGER {moved}_on_update AFTER UPDATE ON {task} "
        "WHEN OLD.state <> NEW.state OR OLD.attempt <> NEW.attempt BEGIN "
        + _IN_SQLITE
        + """, 'moved', NEW.id, NEW.attempt, {who},
        '{{"from":"' || OLD.state || '","to":"' || NEW.state || '"}}'); END""",
    ],
    "postgresql": [
        """CREATE OR REPLACE FUNCTION {moved}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO {event} (at, kind, task_id, attempt, worker, detail) VALUES
            (clock_timestamp(), 'moved', NEW.id, NEW.attempt, NULL, '{{"to":"' || NEW.state || '"}}');
        ELSE
            INSERT INTO {event} (at, kind, task_id, attempt, worker, detail) VALUES
            (clock_timestamp(), 'moved', NEW.id, NEW.attempt, {who},
            '{{"from":"' || OLD.state || '","to":"' || NEW.state || '"}}');
        END IF;
        RETURN NULL; END $$""",
        "CREATE TRIGGER {moved}_on_insert AFTER INSERT ON {task} FOR EACH ROW EXECUTE FUNCTION {moved}()",
        "CREATE TRIGGER {moved}_on_update AFTER UPDATE ON {task} FOR EACH ROW "
        "WHEN (OLD.state <> NEW.state OR OLD.attempt <> NEW.attempt) EXECUTE FUNCTION {moved}()",
    ],
    "mysql": [
        "DROP TRIGGER IF EXISTS {moved}_on_insert",
        "CREATE TRIGGER {moved}_on_insert AFTER INSERT ON {task} FOR EACH ROW "
        "INSERT INTO {event} (at, kind, task_id, attempt, worker, detail) VALUES "
        """(UTC_TIMESTAMP(6), 'moved', NEW.id, NEW.attempt, NULL, CONCAT('{{"to":"', NEW.state, '"}}'))""",
        "CREATE TRIGGER {moved}_on_update AFTER UPDATE ON {task} FOR EACH ROW "
        "INSERT INTO {event} (at, kind, task_id, attempt, worker, detail) "
        "SELECT UTC_TIMESTAMP(6), 'moved', NEW.id, NEW.attempt, {who}, "
        """CONCAT('{{"from":"', OLD.state, '","to":"', NEW.state, '"}}') FROM DUAL """
        "WHERE OLD.state <> NEW.state OR OLD.attempt <> NEW.attempt",
    ],
}
_DROP = {
    "sqlite": ["DROP TRIGGER IF EXISTS {moved}_on_insert", "DROP TRIGGER IF EXISTS {moved}_on_update"],
    "postgresql": [
        "DROP TRIGGER IF EXISTS {moved}_on_insert ON {task}",
        "DROP TRIGGER IF EXISTS {moved}_on_update ON {task}",
        "DROP FUNCTION IF EXISTS {moved}()",
    ],
    "mysql": ["DROP TRIGGER IF EXISTS {moved}_on_insert", "DROP TRIGGER IF EXISTS {moved}_on_update"],
}
"""By dialect. On MySQL each commits by itself: the one that is looked for is made last."""
