"""`workq db`: the ledger's schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from workq.cli import exits
from workq.cli.group import Group
from workq.cli.session import Session, check_folder, pass_session, sqlite_file
from workq.cli.show import answer, record, write
from workq.config import masked
from workq.ledger import flow
from workq.ledger import migrate as schema
from workq.ledger.database import Database
from workq.ledger.tables import SCHEMA_VERSION


@click.group(cls=Group, examples="workq db migrate\nworkq db status\nworkq db sql postgresql > workq.sql")
def db() -> None:
    """The ledger's schema. A SQLite file gets it by itself; a server gets it from `workq db migrate`."""


@db.command(examples="workq db migrate\nworkq db migrate --url postgresql://user@host/shop")
@pass_session
def migrate(session: Session) -> None:
    """Bring the ledger's schema to the newest version. Several at once wait for each other."""
    with _database(session) as database:
        applied = schema.migrate(database)
        document = {"applied": applied, "version": SCHEMA_VERSION, "ledger": masked(session.settings().ledger)}
        text = f"applied {', '.join(applied)}" if applied else "nothing to apply"
        answer(session, document, lambda: write(f"{text}; the schema is at version {SCHEMA_VERSION}"))


@db.command(examples="workq db status\nworkq db status -o json")
@pass_session
def status(session: Session) -> int:
    """Which version the ledger has, and what is missing; exit 3 when it is not the one that this code needs."""
    url = session.settings().ledger
    file = sqlite_file(url)
    if file is not None and not file.exists():  # looking must not create it
        session.say_default(session.settings())
        found = schema.Status(0, SCHEMA_VERSION, ())
    else:
        with _database(session) as database:
            found = schema.status(database)
    document = {"version": found.version, "latest": found.latest, "pending": found.pending, "ledger": masked(url)}
    answer(
        session,
        document,
        lambda: record(
            [
                ("ledger", masked(url)),
                ("version", found.version or ("none: there is no such file yet" if found.pending == () else "none")),
                ("latest", found.latest),
                ("pending", ", ".join(found.pending) or "-"),
            ]
        ),
    )
    return exits.DONE if found.version == found.latest else exits.FINDINGS


@db.command(examples="workq db sql\nworkq db sql mysql > workq.sql")
@click.argument("dialect", required=False, type=click.Choice([*schema.DIALECTS, "postgres", "mariadb"]))
@pass_session
def sql(session: Session, dialect: str | None) -> None:
    """Print the SQL of the whole schema, for a DBA to read and apply."""
    settings = session.settings()
    chosen = dialect or {"postgres": "postgresql", "mariadb": "mysql"}.get(
        scheme := settings.ledger.partition("://")[0].partition("+")[0], scheme
    )
    text = schema.statements(chosen, settings.namespace)
    answer(session, {"dialect": chosen, "sql": text}, lambda: write(text))


@db.command(examples="workq db history\nworkq db history full")
@click.argument("kept", required=False, type=click.Choice(["full", "brief"]))
@pass_session
def history(session: Session, kept: str | None) -> None:
    """How much of a task's life is kept: what is not the happy path (brief), or each move from state to state (full).

    The database writes it by a trigger, for all producers and workers, from now on. Each move costs it a second row.
    """
    with _database(session) as database:
        changed = kept is not None and flow.keep(database, is_full=kept == "full")
        found = "full" if flow.is_kept(database) else "brief"
    answer(session, {"history": found, "changed": changed}, lambda: write(found))


@contextmanager
def _database(session: Session) -> Iterator[Database]:
    settings = session.settings()
    session.say_default(settings)
    check_folder(settings.ledger)
    database = session.queue().database()
    try:
        yield database
    finally:
        database.close()
