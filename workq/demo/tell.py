"""How the reindex demo tells its story, and the proof at the end."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from workq.demo.index import NEW, UNREADABLE
from workq.demo.play import (
    KILL_AT,
    PAUSE_AT,
    PAUSE_S,
    RATE,
    Failures,
    Report,
    Scene,
    SubtaskRecovery,
    Throttled,
)
from workq.demo.stage import Killed
from workq.demo.voice import WorkerStory, processes
from workq.values.plural import counted

WHAT: Final = "documents"
STYLES: Final = {"SIGKILL": "bold red", "failed": "bold red", "back": "bold green", "mended": "bold green"}
_SHOWN: Final = 20
"""How many numbers of missing documents are listed."""


class Story(WorkerStory):
    """What happens, for a person."""

    def begins(self, scene: Scene) -> None:
        """What this is, in three lines, and who takes part."""
        kill = f"At {KILL_AT:.0%} one of them is killed with SIGKILL, at" if scene.kill else "At"
        self._voice.say(
            f"This builds a new version of a full-text index: {scene.documents:,} {scene.what}, by a job in subtasks "
            f"of {scene.chunk}, run by {processes(scene.processes)}.",
            f"{kill} {PAUSE_AT:.0%} the job is paused, and throttled; {UNREADABLE} documents cannot be read until they "
            "are mended.",
            "At the end the index itself is counted, not the queue.",
            "",
            f"  index     {scene.index}",
        )
        self.cast = scene

    def killed(self, killed: Killed) -> None:
        """The event of the evening."""
        self._voice.say(
            f"  SIGKILL   process {killed.pid}, which had {len(killed.attempts):,} of the subtasks in its hands"
        )

    def recovered(self, recovery: SubtaskRecovery) -> None:
        """The subtasks of the dead are done."""
        if recovery.seconds is None:
            self._voice.say(
                "  back      its subtasks had all been settled in that very moment: nothing was left to recover"
            )
        else:
            self._voice.say(
                f"  back      of the dead process's subtasks {recovery.subtasks:,} run again by others, "
                f"{recovery.had_ended:,} had ended: all done {recovery.seconds:.2f} s after the kill"
            )

    def paused(self, done: int) -> None:
        """Nothing moved."""
        self._voice.say(f"  paused    at {done:,} documents, for {PAUSE_S:g} s in which nothing was done; it goes on")

    def throttled(self, throttled: Throttled) -> None:
        """What a user would do by `workq job throttle`."""
        self._voice.say(
            f"  throttled to {RATE:,.0f} documents a second: {throttled.documents:,} in {throttled.seconds:.1f} s; "
            "now it goes on as fast as it can"
        )

    def failed(self, failures: Failures) -> None:
        """What a user would be told by `workq job failures`."""
        self._voice.say(
            f"  failed    {counted(failures.count, 'document')}: {failures.error} (for example {failures.sample}); "
            f"searches still go to {failures.alias}"
        )

    def mended(self, documents: int) -> None:
        """What a user would do by `workq job retry --failed`."""
        self._voice.say(
            f"  mended    {counted(documents, 'document')} run again, and nothing else; then, as all are there, "
            f"searches go to {NEW}"
        )


def page(report: Report) -> str:
    """The proof, and the answer to a search, for a person."""
    found, recovery = report.count, report.recovery
    lines = [
        "",
        "Counted in the index:",
        f"  documents {found.found:,} of {found.expected:,}",
        f"  lost      {_numbers(found.lost)}",
        f"  twice     {_numbers(found.twice)}",
    ]
    if found.foreign:
        lines.append(f"  foreign   {_numbers(found.foreign)}")
    if recovery is not None and recovery.seconds is not None:
        lines.append(f"  recovered {recovery.subtasks:,} of the killed process's subtasks, in {recovery.seconds:.2f} s")
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
    elif not found.is_complete:
        lines.append("FAILED: the index is not complete.")
    elif report.trouble is None:
        lines.append("FAILED: it did not go as it should.")
    return "\n".join(lines)


def document(report: Report) -> dict[str, Any]:
    """The report as one JSON object; lists of documents are cut short, their counts are not."""
    found, killed, recovery, failures = report.count, report.killed, report.recovery, report.failures
    throttled = report.throttled
    return {
        "is_proved": report.is_proved,
        "corpus": report.scene.what,
        "index": report.scene.index,
        "stores": report.stores,
        "documents": {
            "expected": found.expected,
            "found": found.found,
            "lost": len(found.lost),
            "twice": len(found.twice),
            "foreign": len(found.foreign),
            "lost_first": list(found.lost[:_SHOWN]),
            "twice_first": list(found.twice[:_SHOWN]),
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
        "recovered": None if recovery is None else asdict(recovery),
        "seconds": round(report.seconds, 3),
        "documents_per_s": round(report.documents_per_s),
        "trouble": report.trouble,
        "search": {
            "words": report.question,
            "hits": [{"title": hit.title, "text": hit.text, "score": round(hit.score, 3)} for hit in report.hits],
        },
    }


def _numbers(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return "0"
    listed = ", ".join(map(str, numbers[:_SHOWN]))
    return f"{len(numbers):,}: {listed}{', ...' if len(numbers) > _SHOWN else ''}"
