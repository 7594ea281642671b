"""docs/reference/cli.md, made from the commands: `python -m tests.docs.reference > docs/reference/cli.md`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

import click

from workq.cli import exits
from workq.cli.group import Command, CommandGroup
from workq.cli.root import root
from workq.cli.session import Session

_HEAD = """\
# Command line

Made from the commands by `python -m tests.docs.reference > docs/reference/cli.md`; a test fails when it is stale.

Standard output carries the answer alone, a table or with `-o json` one JSON document; what is said to a person goes to
standard error. An error is one line, without a traceback unless `-v` asks for it. Shapes of JSON only grow; tables may
change.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, "## Global options\n\nBefore or after the command's name.\n", _options(_context(root, None), True)]
    parts += ["## Exit codes\n", _indented(exits.TABLE)]
    for path, context in commands():
        parts += [f"## {path}\n", *_about(context)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def commands() -> Iterator[tuple[str, click.Context]]:
    """Each command and group below `workq`, in the order of the help, with its path."""
    yield from _below(_context(root, None))


def _below(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    group = context.command
    assert isinstance(group, CommandGroup)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        own = click.Context(command, info_name=name, parent=context)
        yield own.command_path, own
        if isinstance(command, CommandGroup):
            yield from _below(own)


def _context(command: click.Command, parent: click.Context | None) -> click.Context:
    # with its settings: click keeps the help option that a command was first asked for, for the whole process
    return click.Context(command, info_name="workq", parent=parent, **command.context_settings)


def _about(context: click.Context) -> Iterator[str]:
    command = context.command
    assert isinstance(command, CommandGroup | Command), context.command_path
    yield re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.help or "")) + "\n"
    pieces = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield _indented(pieces)
    options = _options(context, False)
    if options:
        yield options
    if command.examples:
        yield "Examples:\n"
        yield _indented("\n".join(line.strip() for line in command.examples.strip().splitlines()))


def _options(context: click.Context, is_global: bool) -> str:
    rows = []
    for param in context.command.get_params(context):
        if not isinstance(param, click.Option) or "--help" in param.opts or "--version" in param.opts:
            continue
        record = param.get_help_record(context)
        if (param.name in Session.OPTIONS) is is_global and record is not None:
            name, text = (" ".join(one.split()).replace("|", "\\|") for one in record)
            rows.append(f"| `{name}` | {text} |")
    if not rows:
        return ""
    return "\n".join(["| Option | What it does |", "| --- | --- |", *rows, ""])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.strip("\n").splitlines()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
