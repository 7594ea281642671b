"""The command line about itself: `workq help` (a command, the exit codes), `workq version`, `workq completion`."""

from __future__ import annotations

import platform

import click
from click.shell_completion import get_completion_class

from workq import __version__
from workq.cli import exits
from workq.cli.group import Command, CommandGroup, nearest
from workq.cli.session import Session, pass_session
from workq.cli.show import answer, write

_EXAMPLES = """
workq completion bash > ~/.local/share/bash-completion/completions/workq
workq completion zsh > "${fpath[1]}/_workq"
workq completion fish > ~/.config/fish/completions/workq.fish
"""


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


def version_text() -> str:
    """What `workq --version` prints."""
    return f"workq {__version__}"


@click.command(cls=Command, examples="workq version\nworkq version -o json")
@pass_session
def version(session: Session) -> None:
    """Print the version."""
    answer(session, {"workq": __version__, "python": platform.python_version()}, lambda: write(version_text()))


@click.command(cls=Command, examples=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click has no completion for {shell}", ctx)
    script = kind(ctx.find_root().command, {}, "workq", "_WORKQ_COMPLETE")
    # not source(): for bash it would run bash to ask its version
    write(script.source_template % script.source_vars(), is_raw=True)
