"""Groups and commands: loaded when they are used, with examples in their help, and suggestions for typing errors.

The global options may stand before or after the command's name; each command accepts them, and its help lists them in
one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from workq.cli.exits import leave_when_told, let_in
from workq.cli.session import Session, global_options
from workq.config import masked

_GLOBAL_LINE = "--app  --url  -o/--output  -q/--quiet  -v/--verbose  --no-color (see: workq --help)"


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    own = [
        record
        for param in command.get_params(ctx)
        if isinstance(param, click.Option)
        and (param.name not in Session.OPTIONS or ctx.parent is None)
        and (record := param.get_help_record(ctx)) is not None
    ]
    if own:
        with formatter.section("Options"):
            formatter.write_dl(own)
    if ctx.parent is not None:
        with formatter.section("Global options"):
            is_ours = any("--url" in param.opts for param in command.params if param.name == "url")
            formatter.write_text(_GLOBAL_LINE if is_ours else _GLOBAL_LINE.replace("--url", "--ledger"))


def _write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    if examples:
        formatter.write_paragraph()
        formatter.write("Examples:\n")
        for line in examples.strip().splitlines():
            formatter.write(f"  {line.strip()}\n")


class Command(click.Command):
    """A command with examples, which accepts the global options.

    `runs_on`: by what it is given, whether it runs until it is told to leave; SIGTERM is that from its beginning.
    """

    def __init__(
        self,
        *args: Any,
        examples: str = "",
        runs_on: Callable[[Mapping[str, Any]], bool] = lambda _: False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.runs_on = runs_on
        own = {word for param in self.params for word in param.opts}
        for option in global_options():
            option.opts = [word for word in option.opts if word not in own]  # `--url` of a destination is its own
            self.params.append(option)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it. How SIGTERM ends it is known now."""
        if self.runs_on(ctx.params):
            leave_when_told()
        else:
            let_in()
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options, then the names of the global ones."""
        _write_options(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples."""
        _write_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)


class Lazy(NamedTuple):
    """Where a command is, as `module:attribute`, and its line in the help, so that the help need not import it."""

    target: str
    summary: str


class CommandGroup(click.Group):
    """A group of commands. Those in `lazy` are imported when they are called."""

    command_class = Command

    def __init__(self, *args: Any, examples: str = "", lazy: Mapping[str, Lazy] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.lazy = dict(lazy or {})
        self.params.extend(global_options())

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """All names, in the order in which they were written."""
        return [*self.commands, *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command that a name stands for."""
        lazy = self.lazy.get(cmd_name)
        if lazy is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = lazy.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{lazy.target} is {type(command).__name__}, not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; an unknown one is answered with its nearest."""
        name = args[0]
        if name not in self.list_commands(ctx):
            if name.startswith("-"):
                return super().resolve_command(ctx, args)
            raise click.UsageError(f"no such command {masked(name)!r}{nearest(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line for each command, without importing any."""
        rows = [
            (name, self.lazy[name].summary if name in self.lazy else self.commands[name].get_short_help_str(limit=100))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options, then commands."""
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, then the epilog."""
        _write_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names of commands without importing them; a dash asks for options."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        rows = [(name, self.lazy[name].summary if name in self.lazy else None) for name in self.list_commands(ctx)]
        return [CompletionItem(name, help=summary) for name, summary in rows if name.startswith(incomplete)]


def nearest(name: str, known: Sequence[str]) -> str:
    """`; did you mean X?`, or nothing."""
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
