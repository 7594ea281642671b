"""`workq completion`: the script that a shell needs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from workq.cli.group import Command
from workq.cli.show import write

_EXAMPLES = """
workq completion bash > ~/.local/share/bash-completion/completions/workq
workq completion zsh > "${fpath[1]}/_workq"
workq completion fish > ~/.config/fish/completions/workq.fish
"""


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
