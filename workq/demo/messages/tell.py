"""How the messages demo tells its story, and the proof at the end: what has arrived where, and how late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from workq.demo.messages.play import Away, Decided, MessageReport, MessageScene
from workq.demo.messages.proof import MailboxTally
from workq.demo.stage import Killed
from workq.demo.voice import IDS_SHOWN, WorkerStory, ids_of, processes
from workq.values.plural import counted

WHAT: Final = "messages have ended"
STYLES: Final = {"SIGKILL": "bold red", "away": "bold red", "freed": "bold green", "back": "bold green"}


class MessageStory(WorkerStory):
    """What happens, for a person."""

    def begins(self, scene: MessageScene) -> None:
        """What this is, in some lines."""
        kill = " one of them is killed with SIGKILL," if scene.kill else ""
        self._voice.say(
            f"This sends {scene.count:,} messages that are due within {scene.within_s:g} s, by "
            f"{processes(scene.processes)}.",
            f"Some are cancelled and some moved at the last moment;{kill} and http, where it takes part, is away "
            "for a while.",
            "At the end the destinations are asked what has arrived and when, not the queue.",
            "",
        )
        self.cast = scene

    def mailboxes(self, boxes: Mapping[str, str], left_out: Mapping[str, str]) -> None:
        """Where they go."""
        self._voice.say(
            *(f"  {kind:<9} {about}" for kind, about in boxes.items()),
            *(f"  {kind:<9} left out: {why}" for kind, why in left_out.items()),
        )

    def recorded(self, count: int, seconds: float) -> None:
        """The application has done its part."""
        self._voice.say(f"  recorded  all of {count:,} in {seconds:.1f} s, each with its time")

    def decided(self, decided: Decided) -> None:
        """What a user would do by `workq message cancel` and `reschedule`."""
        late = decided.too_late_to_cancel + decided.too_late_to_move
        self._voice.say(
            f"  decided   {decided.cancelled:,} cancelled and {decided.moved:,} moved just before their time; "
            f"{late:,} were on their way, or there"
        )

    def killed(self, killed: Killed) -> None:
        """The event of the evening."""
        had = counted(len(killed.attempts), "message")
        self._voice.say(f"  SIGKILL   process {killed.pid}, which had {had} in its hands")

    def freed(self, seconds: float) -> None:
        """Nobody waits for the dead."""
        self._voice.say(f"  freed     {seconds:.2f} s after the kill others may send them")

    def left(self) -> None:
        """What an operator would be told."""
        self._voice.say("  away      http answers 503: its messages wait, and those to others go on")

    def returned(self, away: Away) -> None:
        """It takes messages again."""
        self._voice.say(
            f"  back      http is back after {away.seconds:.1f} s, in which it refused "
            f"{counted(away.refused, 'request')}"
        )


def page(report: MessageReport) -> str:
    """The proof, and how late they were, for a person."""
    tallies, decided = report.tallies, report.decided
    lines = ["", "Counted at the destinations, from due to arrived:", _HEAD, *map(_row, tallies), ""]
    lines += [
        f"  arrived   {sum(one.arrived for one in tallies):,} of {sum(one.sent for one in tallies):,}",
        f"  missing   {ids_of(one for each in tallies for one in each.missing)}",
        f"  early     {ids_of(one for each in tallies for one in each.early)}",
        f"  foreign   {ids_of(one for each in tallies for one in each.foreign)}",
        f"  cancelled {decided.cancelled:,}, of which arrived "
        f"{ids_of(one for each in tallies for one in each.uncancelled)}",
        f"  moved     {decided.moved:,}",
        f"  too late  {decided.too_late_to_cancel:,} to cancel, {decided.too_late_to_move:,} to move: on their way, "
        "or there",
        f"  copies    {sum(one.copies for one in tallies):,}, each with its own id",
        f"  time      {report.seconds:.1f} s to the end of the last one, of messages due within "
        f"{report.scene.within_s:g} s",
        "",
    ]
    if report.unended:
        lines.append(f"  ledger    {counted(report.unended, 'message')} neither sent nor cancelled")
    if report.scene.kill and report.killed is None:
        lines.append("  nobody was killed: no process was caught at work")
    if report.trouble is not None:
        lines.append(f"Not finished: {report.trouble}")
    if report.is_proved:
        lines.append("Proved: each message arrived, none before its time, none that was cancelled; copies have its id.")
        lines.append("Your own: docs/how-to/messages.md; workq message destination add, send, ls, cancel.")
    elif report.trouble is None:
        lines.append("FAILED: what has arrived is not what was sent.")
    return "\n".join(lines)


def document(report: MessageReport) -> dict[str, Any]:
    """The report as one JSON object; lists of ids are cut short, their counts are not."""
    killed, away = report.killed, report.away
    return {
        "is_proved": report.is_proved,
        "stores": report.stores,
        "destinations": [_as_json(one) for one in report.tallies],
        "left_out": dict(report.left_out),
        "decided": asdict(report.decided),
        "killed": None if killed is None else {"pid": killed.pid, "messages": len(killed.attempts)},
        "freed_s": report.freed_s,
        "away": None if away is None else asdict(away),
        "recorded_s": round(report.recorded_s, 3),
        "seconds": round(report.seconds, 3),
        "states": dict(report.states),
        "trouble": report.trouble,
    }


# -- parts

_HEAD: Final = "               sent   arrived  copies  half within  99 % within    longest"


def _row(one: MailboxTally) -> str:
    late = one.lateness
    waits = ["-"] * 3 if late is None else [f"{each:.3f} s" for each in (late.half_s, late.p99_s, late.most_s)]
    return (
        f"  {one.name:<9} {one.sent:>7,}  {one.arrived:>8,}  {one.copies:>6,}  {waits[0]:>11}  {waits[1]:>11}  "
        f"{waits[2]:>9}"
    )


def _as_json(one: MailboxTally) -> dict[str, Any]:
    lists = ("missing", "early", "foreign", "uncancelled")
    late = one.lateness
    return {
        "name": one.name,
        "sent": one.sent,
        "arrived": one.arrived,
        "copies": one.copies,
        "too_late": one.too_late,
        **{name: len(getattr(one, name)) for name in lists},
        **{f"{name}_first": list(getattr(one, name)[:IDS_SHOWN]) for name in lists},
        "lateness": None if late is None else {name: round(value, 4) for name, value in asdict(late).items()},
    }
