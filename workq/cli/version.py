"""`workq version`."""

from __future__ import annotations

import platform

import click

from workq import __version__
from workq.cli.group import Command
from workq.cli.session import Session, pass_session
from workq.cli.show import answer, write


def text() -> str:
    """What `workq --version` prints."""
    return f"workq {__version__}"


@click.command(cls=Command, examples="workq version\nworkq version -o json")
@pass_session
def version(session: Session) -> None:
    """Print the version."""
    answer(session, {"workq": __version__, "python": platform.python_version()}, lambda: write(text()))
