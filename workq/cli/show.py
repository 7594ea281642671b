"""The one way to print: a JSON document, or a table that fits the terminal.

JSON is ASCII, one document (or a line for each, where a command runs on), with times in RFC 3339 and UTC, durations in
seconds and ids as text. Tables are for people and may change. Where the terminal is too narrow for a table, each row
becomes a few `name: value` lines. Colors and characters beyond ASCII go only to a terminal that takes them. Control
characters in data are escaped: what a handler wrote into an error must not move anybody's cursor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import click

from workq.cli.session import Session
from workq.errors import WorkqError
from workq.logs.forms import escaped

_FOLD_AT: Final = 12
"""A column of text may be folded down to this width before a table becomes lines."""
_UNLIMITED: Final = 10_000
_NUMBER: Final = re.compile(r"[+-]?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?")
_STYLES: Final = {
    "dead": "red",
    "reaped": "red",
    "error": "red",
    "unreachable": "red",
    "warning": "yellow",
    "running": "cyan",
    "succeeded": "green",
    "ok": "green",
    "live": "green",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title; numbers stand at the right; what is `whole` is never folded (ids)."""

    title: str
    is_number: bool = False
    is_whole: bool = False


def answer(session: Session, document: Any, table: Callable[[], None]) -> None:
    """Print the answer of a command in the form that was asked for."""
    if session.output == "json":
        write(json.dumps(in_json(document)))
    else:
        table()


def line(session: Session, document: Any, text: str) -> None:
    """One line of several, for commands that run on or work through a list."""
    write(json.dumps(in_json(document)) if session.output == "json" else clean(text))


def in_json(value: Any) -> Any:
    """Values as JSON has them."""
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): in_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(one) for one in value]
    return value


def instant(at: datetime) -> str:
    """RFC 3339, in UTC, with milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Unwritten(WorkqError):
    """The answer could not be written."""


def write(text: str, *, is_raw: bool = False) -> None:
    """Put lines on standard output; control characters in them are escaped, unless they are `raw`.

    A reader that has gone away (`| head`) has seen enough: leave in silence.

    Raises:
        Unwritten: it cannot be written, as on a full disk. What the command has done stands.
    """
    if sys.stdout is None:  # closed by whoever started us (`>&-`): nobody wants to read it
        return
    if not is_raw:
        text = "\n".join(map(escaped, text.split("\n")))
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries once more as it ends
        if isinstance(error, BrokenPipeError):
            raise click.exceptions.Exit(0) from None
        raise Unwritten(
            f"standard output cannot be written ({error.strerror}): make room, and ask again; what was done stands"
        ) from None


def is_plain() -> bool:
    """Whether to keep to ASCII without colors: no terminal, or one that says no better."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return True
    ctype = os.environ.get("LC_CTYPE", "")
    if ctype.startswith("C."):  # Python itself writes C.UTF-8 there when the locale is C (PEP 538)
        ctype = ""
    locale = os.environ.get("LC_ALL") or ctype or os.environ.get("LANG") or "C"
    return "utf" not in locale.lower()


def clean(text: str, *, is_ascii: bool | None = None) -> str:
    """One line without control characters; in ASCII where that is all there is."""
    text = escaped(text)
    if is_plain() if is_ascii is None else is_ascii:
        return text.encode("ascii", "backslashreplace").decode()
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def text_of(value: Any) -> str:
    """One value in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, dict | list | tuple):
        return json.dumps(in_json(value), ensure_ascii=False)
    return str(value)


def cell(value: object) -> object:
    """A value in CSV. A spreadsheet takes text that begins with = + - or @ for a formula; an apostrophe prevents that.

    Numbers stay numbers.
    """
    if not isinstance(value, str):
        return value
    is_formula = value.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(value)
    return escaped(f"'{value}" if is_formula else value)


def width() -> int:
    """Of the terminal, or COLUMNS; without either there is no limit."""
    return max(10, shutil.get_terminal_size((_UNLIMITED, 24)).columns)


def table(session: Session, columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, empty: str = "none") -> None:
    """Print rows under titles; `empty` is said to the person when there are none."""
    cells = [[clean(text_of(value)) for value in row] for row in rows]
    if not cells:
        session.note(empty)
        return
    full = [max(len(column.title), *(len(row[at]) for row in cells)) for at, column in enumerate(columns)]
    least = [
        size if column.is_number or column.is_whole else min(size, max(_FOLD_AT, len(column.title)))
        for column, size in zip(columns, full, strict=True)
    ]
    if sum(least) + 2 * (len(columns) - 1) > width():
        titles = [column.title for column in columns]
        write("\n\n".join(_lines(list(zip(titles, row, strict=True))) for row in cells))
        return
    _rich_table(session, columns, cells)


def record(pairs: Sequence[tuple[str, Any]]) -> None:
    """Print one thing as `name: value` lines."""
    write(_lines([(name, clean(text_of(value))) for name, value in pairs]))


def _lines(pairs: Sequence[tuple[str, str]]) -> str:
    indent = max(len(name) for name, _ in pairs) + 2
    if indent * 2 > width():
        return "\n".join(f"{name}: {value}" for name, value in pairs)
    return "\n".join(f"{name + ':':<{indent}}{value}" for name, value in pairs)


def _rich_table(session: Session, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    from io import StringIO

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_colored = session.is_colored and not is_plain()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold" if is_colored else "")
    for column in columns:
        grid.add_column(
            Text(column.title),
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number or column.is_whole,
            overflow="fold",
        )
    for row in cells:
        grid.add_row(*(Text(cell, style=_STYLES.get(cell, "") if is_colored else "") for cell in row))
    page = StringIO()
    console = Console(
        file=page,
        width=width(),
        force_terminal=is_colored,
        no_color=not is_colored,
        color_system="standard" if is_colored else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(grid)
    # the cells are clean; what is left are colors
    write("\n".join(one.rstrip() for one in page.getvalue().rstrip("\n").split("\n")), is_raw=is_colored)
