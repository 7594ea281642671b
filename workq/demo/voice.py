"""How a demo speaks: a progress bar on a terminal, plain lines anywhere else, and nothing when it is to be quiet.

The story goes to standard error and the proof to standard output, as for every command. Characters that a stream cannot
encode are shown by their escapes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import click

from workq.values.plural import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_EVERY: Final = 0.2
"""Plain lines tell the progress this often."""
IDS_SHOWN: Final = 5
"""How many ids are listed."""


class Voice(Protocol):
    """How the person is spoken to. Used from one thread."""

    def say(self, *lines: str) -> None:
        """To the person."""
        ...

    def progress(self, done: int, total: int) -> None:
        """So much is done. Called many times a second."""
        ...


class Silence:
    """No story."""

    def say(self, *lines: str) -> None:
        """Nothing."""

    def progress(self, done: int, total: int) -> None:
        """Nothing."""


class Lines:
    """The story in lines."""

    def __init__(self, what: str) -> None:
        """`what`: what is counted, in the plural."""
        self._what = what
        self._told = 0.0

    def say(self, *lines: str) -> None:
        """To standard error."""
        for line in lines:
            _write(line, sys.stderr)

    def progress(self, done: int, total: int) -> None:
        """A line for every fifth."""
        part = done / total if total else 1.0
        if part >= self._told + _EVERY:
            self._told = part - part % _EVERY
            self.say(f"  {part:>5.0%}     {done:,} of {total:,} {self._what}")


class Bar:
    """The story on a terminal, above a progress bar."""

    def __init__(self, progress: Progress, what: str, styles: Mapping[str, str]) -> None:
        """`styles`: of lines, by the word that they begin with."""
        self._bar = progress
        self._what = what
        self._styles = styles
        self._task: TaskID | None = None

    def say(self, *lines: str) -> None:
        """Above the bar."""
        from rich.text import Text

        for line in lines:
            style = next((style for word, style in self._styles.items() if line.startswith(f"  {word}")), "")
            self._bar.console.print(Text(line, style=style))

    def progress(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._task is None:
            self._task = self._bar.add_task(self._what, total=total)
        self._bar.update(self._task, completed=done)


@contextmanager
def speaking(*, is_quiet: bool, is_colored: bool, what: str, styles: Mapping[str, str]) -> Iterator[Voice]:
    """The voice that suits the terminal. `what` and `styles`: see `Lines` and `Bar`."""
    if is_quiet or not sys.stderr.isatty():
        yield Silence() if is_quiet else Lines(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(" "),
        TaskProgressColumn(),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn(what),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, no_color=not is_colored, highlight=False)
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, what, styles)


def write_page(text: str) -> None:
    """Put text on standard output, whatever it can encode."""
    _write(text, sys.stdout)


def processes(number: int) -> str:
    """So many processes of the worker, in words."""
    return counted(number, "worker process", "worker processes")


def ids_of(ids: Iterable[str]) -> str:
    """How many there are, and the first of them."""
    found = list(ids)
    if not found:
        return "0"
    return f"{len(found):,}: {', '.join(found[:IDS_SHOWN])}{', ...' if len(found) > IDS_SHOWN else ''}"


def _write(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "ascii"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


class Cast(Protocol):
    """Who takes part: so many processes of the worker, of so many threads each."""

    @property
    def processes(self) -> int: ...

    @property
    def threads(self) -> int: ...


class WorkerStory:
    """What every demo says of its worker. `cast` is there once the story has begun."""

    cast: Cast

    def __init__(self, voice: Voice) -> None:
        self._voice = voice

    def starts_servers(self) -> None:
        """Some seconds pass now."""
        self._voice.say("  servers   starting private ones on free ports ...")

    def starts_worker(self, stores: str) -> None:
        """The cast is complete."""
        self._voice.say(
            f"  queue     {stores}",
            f"  worker    {processes(self.cast.processes)} with {counted(self.cast.threads, 'thread')} each",
            "",
        )

    def progress(self, done: int, total: int) -> None:
        """How far it is."""
        self._voice.progress(done, total)

    def counting(self) -> None:
        """Nothing to say: the proof follows at once."""
