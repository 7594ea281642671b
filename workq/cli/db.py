"""`workq db`: the ledger's schema, and how much is kept in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import click

from workq.cli import exits
from workq.cli.exits import ended_by_signals
from workq.cli.group import CommandGroup
from workq.cli.inputs import Duration, dry_run_option, why_option
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table, write
from workq.config import masked
from workq.ledger import history_trigger
from workq.ledger.columns import DIALECTS
from workq.ledger.engine import migrate as schema
from workq.ledger.engine.database import Database
from workq.ledger.history import History, who_and_why
from workq.ledger.schema import SCHEMA_VERSION
from workq.recovery.retention import prunable_rows, retention_of
from workq.recovery.retention import prune as remove_old
from workq.values.incarnation import this_person


@click.group(cls=CommandGroup, examples="workq db migrate\nworkq db status\nworkq db prune --dry-run")
def db() -> None:
    """The ledger's schema, and what is kept. A SQLite file gets it by itself; a server from `workq db migrate`."""


@db.command(examples="workq db migrate\nworkq db migrate --url postgresql://user@host/shop")
@pass_session
def migrate(session: Session) -> None:
    """Bring the ledger's schema to the newest version. Several at once wait for each other."""
    session.may_make(session.settings())
    with closing(session.queue().database()) as database:
        applied = schema.migrate(database)
        document = {"applied": applied, "version": SCHEMA_VERSION, "ledger": masked(session.settings().ledger)}
        text = f"applied {', '.join(applied)}" if applied else "nothing to apply"
        answer(session, document, lambda: write(f"{text}; the schema is at version {SCHEMA_VERSION}"))


@db.command(examples="workq db status\nworkq db status -o json")
@pass_session
def status(session: Session) -> int:
    """Which version the ledger has, and what is missing; exit 3 when it is not the one that this code needs."""
    url = session.settings().ledger
    with _database(session) as database:
        found = schema.status(database)
    document = {"version": found.version, "latest": found.latest, "pending": found.pending, "ledger": masked(url)}
    answer(
        session,
        document,
        lambda: record(
            [
                ("ledger", masked(url)),
                ("version", found.version or "none"),
                ("latest", found.latest),
                ("pending", ", ".join(found.pending) or "-"),
            ]
        ),
    )
    return exits.DONE if found.version == found.latest else exits.FINDINGS


@db.command(examples="workq db sql\nworkq db sql mysql > workq.sql\nworkq db sql postgresql --from 14")
@click.argument("dialect", required=False, type=click.Choice([*DIALECTS, "postgres", "mariadb"]))
@click.option(
    "--from",
    "after",
    type=click.IntRange(min=1),
    metavar="VERSION",
    help="only what brings a ledger of this version to the newest",
)
@pass_session
def sql(session: Session, dialect: str | None, after: int | None) -> None:
    """Print the SQL of the whole schema, for a DBA to read and apply."""
    settings = session.settings()
    chosen = dialect or {"postgres": "postgresql", "mariadb": "mysql"}.get(
        scheme := settings.ledger.partition("://")[0].partition("+")[0], scheme
    )
    text = schema.statements(chosen, settings.namespace, after=after or 0)
    answer(session, {"dialect": chosen, "sql": text}, lambda: write(text))


@db.command(examples="workq db history\nworkq db history full")
@click.argument("kept", required=False, type=click.Choice(["full", "brief"]))
@why_option("chosen by an operator", "stored in the history")
@pass_session
def history(session: Session, kept: str | None, why: str) -> None:
    """How much of a task's life is kept: what is not the happy path (brief), or each move from state to state (full).

    The database writes it by a trigger, for all producers and workers, from now on. Each move costs it a second row.
    """
    with _database(session) as database:
        schema.require_current(database)
        changed = kept is not None and history_trigger.keep(database, is_full=kept == "full")
        if changed:
            by = {"what": f"db history {kept}", **who_and_why(this_person(), why)}
            History(database).note("manual", detail=by)
        found = "full" if history_trigger.is_kept(database) else "brief"
    answer(session, {"history": found, "changed": changed}, lambda: write(found))


@db.command(
    examples="workq db prune --dry-run\nworkq db prune\nworkq db prune --older-than 1d -o json",
)
@click.option(
    "--older-than",
    "older_than_s",
    type=Duration(),
    metavar="7d",
    help="what ended so long ago, whatever the settings say",
)
@why_option("pruned by an operator", "stored in the history")
@dry_run_option("only count; exit 3 when there is anything")
@pass_session
def prune(session: Session, older_than_s: float | None, why: str, dry_run: bool) -> int:
    """Remove what is kept no longer, as sweeps do little by little: tasks, events, jobs, webhooks, messages.

    By the settings retention_s, dead_retention_s, webhook_body_retention_s and webhook_retention_s. With --older-than,
    dead tasks and jobs with failures still keep their time: to give dead tasks up, see workq dead discard. What is open
    stays. Interrupted, the same command goes on.
    """
    ledger = session.stores().ledger
    retention = retention_of(session.settings(), older_than_s=older_than_s)
    if dry_run:
        rows = prunable_rows(ledger, retention)
        _tell_pruned(session, rows, title="would be removed", dry_run=True)
        return exits.FINDINGS if any(rows.values()) else exits.DONE
    removed: Counter[str] = Counter()
    is_whole = False
    with ended_by_signals() as ending:
        try:
            remove_old(ledger, retention, removed=removed, held_back=ending.held_back)
            is_whole = True
        finally:
            with ending.held_back():
                if any(removed.values()):
                    by = {"what": "db prune", **who_and_why(this_person(), why)}
                    which = {"older_than_s": older_than_s, "is_whole": is_whole}
                    ledger.history.note("manual", detail={**by, "which": which, **removed})
                if not is_whole:
                    so_far = ", ".join(f"{count} {name}" for name, count in removed.items() if count) or "nothing"
                    session.warn(f"removed so far: {so_far}; the same command goes on with the others")
    _tell_pruned(session, removed, title="removed", dry_run=False)
    return exits.DONE


def _tell_pruned(session: Session, rows: Mapping[str, int], *, title: str, dry_run: bool) -> None:
    found = [(name, count) for name, count in rows.items() if count]
    answer(
        session,
        {"dry_run": dry_run, "rows": dict(rows)},
        lambda: table(
            session,
            [Column("table"), Column(title, is_number=True)],
            found,
            empty="nothing is beyond its retention",
        ),
    )


@contextmanager
def _database(session: Session) -> Iterator[Database]:
    """For what reads or changes the ledger that is there: nothing is made."""
    session.say_default(session.settings())
    with session.naming_origin(), closing(session.queue().database(makes=False)) as database:
        yield database
