"""`workq config`: the settings in force."""

from __future__ import annotations

import click

from workq.cli.group import Command
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, table
from workq.config import Settings


@click.command(cls=Command, examples="workq config\nworkq config --app shop.tasks:wq -o json")
@pass_session
def config(session: Session) -> None:
    """The settings in force, where each comes from; passwords are masked.

    Order: arguments in code, then the environment, then workq.toml or [tool.workq] of pyproject.toml, then the default.
    An application is imported only with --app; without it, settings in its code are not shown.
    """
    if session.app_path is None:
        settings = Settings.load()
        for warning in settings.warnings:
            session.warn(warning)
        session.note(
            f"settings in the code of an application are not shown; see: workq config --app {settings.app or 'M:A'}"
        )
    else:
        settings = session.settings()
    rows = settings.table()
    if session.url is not None:
        rows = [(name, value, "option --url" if name == "ledger" else origin) for name, value, origin in rows]
    answer(
        session,
        {"settings": [{"name": name, "value": value, "origin": origin} for name, value, origin in rows]},
        lambda: table(session, [Column("setting", is_whole=True), Column("value"), Column("from")], rows),
    )
