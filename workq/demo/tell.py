"""How the demo tells its story: a progress bar on a terminal, plain lines anywhere else, and the proof at the end.

The story goes to standard error and the proof to standard output, as for every command. Characters that a stream cannot
encode are shown by their escapes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from workq.demo.play import (
    KILL_AT,
    PAUSE_AT,
    PAUSE_S,
    RATE,
    Failures,
    Killed,
    Narrator,
    Recovery,
    Report,
    Scene,
    Throttled,
)
from workq.demo.versions import NEW, UNREADABLE

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_EVERY: Final = 0.2
"""Plain lines tell the progress this often."""
_STYLES: Final = {"SIGKILL": "bold red", "failed": "bold red", "back": "bold green", "mended": "bold green"}
_SHOWN: Final = 20
"""How many numbers of missing documents are listed."""


class Plain:
    """The story in lines."""

    def begins(self, scene: Scene) -> None:
        """What this is, in three lines, and who takes part."""
        kill = f"At {KILL_AT:.0%} one of them is killed with SIGKILL, at" if scene.kill else "At"
        self.say(
            f"This builds a new version of a full-text index: {scene.documents:,} {scene.what}, by a job in subtasks "
            f"of {scene.chunk}, run by {_processes(scene.processes)}.",
            f"{kill} {PAUSE_AT:.0%} the job is paused, and throttled; {UNREADABLE} documents cannot be read until they "
            "are mended.",
            "At the end the index itself is counted, not the queue.",
            "",
            f"  index     {scene.index}",
        )
        self._scene = scene
        self._told = 0.0

    def starts_servers(self) -> None:
        """Some seconds pass now."""
        self.say("  servers   starting private ones on free ports ...")

    def starts_worker(self, stores: str) -> None:
        """The cast is complete."""
        scene = self._scene
        self.say(
            f"  queue     {stores}",
            f"  worker    {_processes(scene.processes)} with {_counted(scene.threads, 'thread')} each",
            "",
        )

    def progress(self, done: int, total: int) -> None:
        """A line for every fifth."""
        part = done / total if total else 1.0
        if part >= self._told + _EVERY:
            self._told = part - part % _EVERY
            self.say(f"  {part:>5.0%}     {done:,} of {total:,} documents")

    def killed(self, killed: Killed) -> None:
        """The event of the evening."""
        self.say(
            f"  SIGKILL   process {killed.pid}, which had {_counted(len(killed.attempts), 'subtask')} in its hands"
        )

    def recovered(self, recovery: Recovery) -> None:
        """The subtasks of the dead are done."""
        if recovery.seconds is None:
            self.say("  back      its subtasks had all been settled in that very moment: nothing was left to recover")
        else:
            self.say(
                f"  back      {_counted(recovery.subtasks, 'subtask')} of the dead process run again by others: "
                f"all done {recovery.seconds:.2f} s after the kill"
            )

    def paused(self, done: int) -> None:
        """Nothing moved."""
        self.say(f"  paused    at {done:,} documents, for {PAUSE_S:g} s in which nothing was done; it goes on")

    def throttled(self, throttled: Throttled) -> None:
        """What a user would do by `workq job throttle`."""
        self.say(
            f"  throttled to {RATE:,.0f} documents a second: {throttled.documents:,} in {throttled.seconds:.1f} s; "
            "now it goes on as fast as it can"
        )

    def failed(self, failures: Failures) -> None:
        """What a user would be told by `workq job failures`."""
        self.say(
            f"  failed    {_counted(failures.count, 'document')}: {failures.error} (for example {failures.sample}); "
            f"searches still go to {failures.alias}"
        )

    def mended(self, documents: int) -> None:
        """What a user would do by `workq job retry --failed`."""
        self.say(
            f"  mended    {_counted(documents, 'document')} run again, and nothing else; then, as all are there, "
            f"searches go to {NEW}"
        )

    def counting(self) -> None:
        """Nothing to say: the proof follows at once."""

    def say(self, *lines: str) -> None:
        """To the person."""
        for line in lines:
            _write(line, sys.stderr)


class Quiet(Plain):
    """No story."""

    def say(self, *lines: str) -> None:
        """Nothing."""


class Bar(Plain):
    """The story on a terminal, above a progress bar."""

    def __init__(self, progress: Progress) -> None:
        self._bar = progress
        self._task: TaskID | None = None

    def progress(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._task is None:
            self._task = self._bar.add_task("documents", total=total)
        self._bar.update(self._task, completed=done)

    def say(self, *lines: str) -> None:
        """Above the bar."""
        from rich.text import Text

        for line in lines:
            style = next((style for word, style in _STYLES.items() if line.startswith(f"  {word}")), "")
            self._bar.console.print(Text(line, style=style))


@contextmanager
def narrator(*, is_quiet: bool, is_colored: bool) -> Iterator[Narrator]:
    """The one that suits the terminal."""
    if is_quiet or not sys.stderr.isatty():
        yield Quiet() if is_quiet else Plain()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(" "),
        TaskProgressColumn(),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("documents"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, no_color=not is_colored, highlight=False)
    with Progress(*columns, console=console) as progress:
        yield Bar(progress)


def page(report: Report) -> str:
    """The proof, and the answer to a search, for a person."""
    counted, recovery = report.count, report.recovery
    lines = [
        "",
        "Counted in the index:",
        f"  documents {counted.found:,} of {counted.expected:,}",
        f"  lost      {_numbers(counted.lost)}",
        f"  twice     {_numbers(counted.twice)}",
    ]
    if counted.foreign:
        lines.append(f"  foreign   {_numbers(counted.foreign)}")
    if recovery is not None and recovery.seconds is not None:
        again = _counted(recovery.subtasks, "subtask")
        lines.append(f"  recovered {again} of the killed process, in {recovery.seconds:.2f} s")
    elif report.killed is None and report.scene.kill:
        lines.append("  recovered nothing: all was done before a process could be killed")
    lines += [
        f"  searched  {report.alias}",
        f"  time      {report.seconds:.1f} s, {report.documents_per_s:,.0f} documents a second",
        "",
        f'Search for "{report.question}":',
        *(f"  {hit.title}  {hit.text}" for hit in report.hits),
        *(["  nothing was found"] if not report.hits else []),
        "",
    ]
    if report.trouble is not None:
        lines.append(f"Not finished: {report.trouble}")
    if report.is_proved:
        lines.append("Proved: nothing is missing, and nothing is there twice.")
        lines.append("Your own: workq job run, watch, failures, retry (docs/how-to/jobs.md).")
    elif not counted.is_complete:
        lines.append("FAILED: the index is not complete.")
    elif report.trouble is None:
        lines.append("FAILED: it did not go as it should.")
    return "\n".join(lines)


def document(report: Report) -> dict[str, Any]:
    """The report as one JSON object; lists of documents are cut short, their counts are not."""
    counted, killed, recovery, failures = report.count, report.killed, report.recovery, report.failures
    throttled = report.throttled
    return {
        "is_proved": report.is_proved,
        "corpus": report.scene.what,
        "index": report.scene.index,
        "stores": report.stores,
        "documents": {
            "expected": counted.expected,
            "found": counted.found,
            "lost": len(counted.lost),
            "twice": len(counted.twice),
            "foreign": len(counted.foreign),
            "lost_first": list(counted.lost[:_SHOWN]),
            "twice_first": list(counted.twice[:_SHOWN]),
        },
        "subtasks": {
            "total": report.subtasks,
            "run_again": report.run_again,
        },
        "throttled": None if throttled is None else {"documents": throttled.documents, "seconds": throttled.seconds},
        "failed": None if failures is None else {"documents": failures.count, "error": failures.error},
        "mended": report.mended,
        "searched": {"before": None if failures is None else failures.alias, "after": report.alias},
        "killed": None if killed is None else {"pid": killed.pid, "subtasks": len(killed.attempts)},
        "recovered": None if recovery is None else {"subtasks": recovery.subtasks, "seconds": recovery.seconds},
        "seconds": round(report.seconds, 3),
        "documents_per_s": round(report.documents_per_s),
        "trouble": report.trouble,
        "search": {
            "words": report.question,
            "hits": [{"title": hit.title, "text": hit.text, "score": round(hit.score, 3)} for hit in report.hits],
        },
    }


def write_page(text: str) -> None:
    """Put text on standard output, whatever it can encode."""
    _write(text, sys.stdout)


def _write(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "ascii"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def _numbers(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return "0"
    listed = ", ".join(map(str, numbers[:_SHOWN]))
    return f"{len(numbers):,}: {listed}{', ...' if len(numbers) > _SHOWN else ''}"


def _processes(number: int) -> str:
    return "1 worker process" if number == 1 else f"{number} worker processes"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
