"""Follow a job until it ends: a bar on a terminal, a plain line every ten seconds elsewhere, or JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from workq.cli.session import Session
from workq.cli.show import is_plain, line
from workq.jobs.progress import left_s, told, told_s
from workq.jobs.values import JOB_ENDED, JobRow, JobState

LINE_EVERY_S: Final = 10.0


def follow(session: Session, looks: Iterator[JobRow], document: Callable[[JobRow], dict[str, Any]]) -> JobRow:
    """Tell of each look; answers the last."""
    if session.output == "json" or is_plain() or session.is_quiet:
        return _in_lines(session, looks, document)
    return _in_a_bar(looks)


def _in_lines(session: Session, looks: Iterator[JobRow], document: Callable[[JobRow], dict[str, Any]]) -> JobRow:
    told_at = float("-inf")
    last: tuple[JobState, int] | None = None
    found: JobRow | None = None
    for found in looks:
        now = time.monotonic()
        has_moved = (found.state, found.done) != last
        is_turn = last is None or found.state != last[0] or now - told_at >= LINE_EVERY_S
        if has_moved and (is_turn or found.state in JOB_ENDED):
            line(session, document(found), sentence(found))
            told_at, last = now, (found.state, found.done)
    if found is None:
        raise RuntimeError("nobody has looked")
    return found


def _in_a_bar(looks: Iterator[JobRow]) -> JobRow:
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}")) as progress:
        bar = progress.add_task("", total=None, said="")
        found: JobRow | None = None
        for found in looks:
            progress.update(bar, description=found.name, total=found.total, completed=found.done, said=sentence(found))
    if found is None:
        raise RuntimeError("nobody has looked")
    return found


def sentence(found: JobRow) -> str:
    """How far it is, in one line."""
    parts = [f"{found.state}: {told(done=found.done, total=found.total, is_split=found.is_split)}"]
    if found.options.is_partitioned and found.state not in JOB_ENDED:
        parts.append(f"{found.open_subtasks:,} of {found.subtasks:,} partitions open")
    if found.failed:
        parts.append(f"{found.failed:,} failed")
    if found.state is JobState.RUNNING and found.rate:
        parts.append(f"{found.rate:,.0f} items/s")
        left = left_s(total=found.total, done=found.done, rate=found.rate)
        if left is not None:
            parts.append(f"{told_s(left)} left")
    return ", ".join(parts)
