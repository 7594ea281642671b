"""`workq help`: help about a command, and the table of exit codes."""

from __future__ import annotations

import click

from workq.cli import exits
from workq.cli.group import Command, CommandGroup, nearest
from workq.cli.show import write


@click.command("help", cls=Command, examples="workq help sweep\nworkq help task cancel\nworkq help exit-codes")
@click.argument("names", nargs=-1, metavar="[COMMAND... | exit-codes]")
@click.pass_context
def explain(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Help about a command, or about the exit codes."""
    if names == ("exit-codes",):
        write(f"Exit codes of every command:\n\n{exits.TABLE}")
        return
    context = ctx.find_root()
    for name in names:
        command = context.command
        found = command.get_command(context, name) if isinstance(command, CommandGroup) else None
        if found is None:
            known = command.list_commands(context) if isinstance(command, CommandGroup) else []
            raise click.UsageError(f"no such command {name!r}{nearest(name, [*known, 'exit-codes'])}", ctx)
        context = click.Context(found, info_name=name, parent=context)
    write(context.get_help())
