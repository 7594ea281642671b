"""How the webhooks demo tells its story, and the proof at the end: what has arrived where, and who waited for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from workq.demo.stage import Freed, Killed
from workq.demo.voice import IDS_SHOWN, WorkerStory, ids_of, processes
from workq.demo.webhooks.play import AT_ONCE, KILL_AT, Returned, WebhookReport, WebhookScene
from workq.demo.webhooks.proof import ReceiverTally
from workq.demo.webhooks.roles import LEAVING, SLOW, STEADY, THROTTLED_MIN_S
from workq.outbound.backoff import THROTTLED_MIN_S as BY_DEFAULT_S
from workq.values.plural import counted

WHAT: Final = "events have arrived"
STYLES: Final = {"SIGKILL": "bold red", "410": "bold red", "freed": "bold green", "released": "bold green"}


class WebhookStory(WorkerStory):
    """What happens, for a person."""

    def begins(self, scene: WebhookScene) -> None:
        """What this is, in some lines, and who takes part."""
        kill = f" At {KILL_AT:.0%} one of them is killed with SIGKILL." if scene.kill else ""
        self._voice.say(
            f"This sends {scene.events:,} events to five receivers, {AT_ONCE} in a transaction with the application's "
            f"own rows; one is rolled back.",
            f"They are delivered by {processes(scene.processes)}.{kill}",
            f"After 429 a receiver is left alone for {THROTTLED_MIN_S:g} s at least, to save time: by default it is "
            f"{BY_DEFAULT_S:g} s.",
            "At the end the receivers are asked what has arrived, not the queue.",
            "",
            *(f"  {one.name:<9} gets {one.event_type + ',':<15} {one.about}" for one in scene.roles.values()),
        )
        self.cast = scene

    def rolled_back(self, events: int) -> None:
        """Something went wrong in the application."""
        self._voice.say(f"  rollback  of a transaction with {counted(events, 'event')}: none of them may arrive")

    def sent(self, events: int) -> None:
        """The application has done its part."""
        self._voice.say(f"  sent      all of {events:,}")

    def killed(self, killed: Killed) -> None:
        """The event of the evening."""
        had = counted(len(killed.attempts), "delivery", "deliveries")
        self._voice.say(f"  SIGKILL   process {killed.pid}, which had {had} in its hands")

    def freed(self, freed: Freed) -> None:
        """Nobody waits for the dead."""
        self._voice.say(f"  freed     {freed.seconds:.2f} s after the kill others may send them")

    def left(self, why: str) -> None:
        """What an operator would be told."""
        self._voice.say(f"  410       {LEAVING} is disabled: {why}; what waits for it is held")

    def returned(self, returned: Returned) -> None:
        """What a user would do by `workq webhook endpoint enable`, `release` and `workq webhook recover`."""
        self._voice.say(
            f"  released  {LEAVING} is back, and enabled: {returned.released:,} that were held are sent, and "
            f"{returned.recovered:,} that it had refused are sent again"
        )


def page(report: WebhookReport) -> str:
    """The proof, and who waited for whom, for a person."""
    tallies = report.tallies
    lines = ["", "Counted at the receivers, from sent to arrived:", _HEAD, *(_row(one) for one in tallies), ""]
    lines += [
        f"  arrived   {sum(one.arrived for one in tallies):,} of {sum(one.sent for one in tallies):,}, "
        "each verified by its signature and its id",
        f"  lost      {ids_of(one for each in tallies for one in each.lost)}",
        f"  foreign   {ids_of(one for each in tallies for one in each.foreign)}"
        f" (of {counted(report.rolled_back, 'event')} rolled back, too)",
        f"  unsigned  {sum(one.unsigned for one in tallies):,}",
        _twice(report),
    ]
    lines += _wrong(tallies)
    lines += [
        f"  ledger    {sum(one.sent - len(one.unfinished) for one in tallies):,} deliveries succeeded, "
        f"{sum(one.attempts for one in tallies):,} of {sum(one.requests for one in tallies):,} requests are recorded",
        f"  time      {report.seconds:.1f} s",
        "",
        _who_waited(report),
        "",
    ]
    if report.trouble is not None:
        lines.append(f"Not finished: {report.trouble}")
    if report.is_proved:
        lines.append("Proved: every event that should have arrived did, and nothing else.")
        lines.append("Your own: docs/how-to/send-webhooks.md; workq webhook endpoint add, delivery ls, recover.")
    elif not all(one.is_right for one in tallies):
        lines.append("FAILED: what has arrived is not what was sent.")
    elif report.trouble is None:
        lines.append("FAILED: it did not go as it should.")
    return "\n".join(lines)


def document(report: WebhookReport) -> dict[str, Any]:
    """The report as one JSON object; lists of ids are cut short, their counts are not."""
    killed, freed, returned = report.killed, report.freed, report.returned
    return {
        "is_proved": report.is_proved,
        "stores": report.stores,
        "receivers": [_as_json(one) for one in report.tallies],
        "rolled_back": report.rolled_back,
        "killed": None if killed is None else {"pid": killed.pid, "deliveries": len(killed.attempts)},
        "freed": None if freed is None else asdict(freed),
        "returned": None if returned is None else asdict(returned),
        "is_unhindered": report.is_unhindered,
        "seconds": round(report.seconds, 3),
        "trouble": report.trouble,
    }


# -- parts

_HEAD: Final = "            events  requests  retries        half within  99 % within    longest  all after"


def _row(one: ReceiverTally) -> str:
    waits = ["-"] * 3 if one.waits is None else [_s(one.waits.half_s), _s(one.waits.p99_s), _s(one.waits.most_s)]
    retries = ", ".join(f"{count:,} after {status}" for status, count in one.refused.items()) or "0"
    return (
        f"  {one.name:<9} {one.sent:>6,}  {one.requests:>8,}  {retries:<13}  {waits[0]:>11}  {waits[1]:>11}  "
        f"{waits[2]:>9}  {_s(one.span_s):>9}"
    )


def _s(value: float) -> str:
    return f"{value:.2f} s"


def _twice(report: WebhookReport) -> str:
    twice = sum(len(one.twice) for one in report.tallies)
    unexcused = [one for each in report.tallies for one in each.unexcused]
    if unexcused:
        return f"  twice     {twice:,}, of which nobody knows why {ids_of(unexcused)}"
    if not twice:
        return "  twice     0"
    return f"  twice     {twice:,}, with the same webhook-id: the killed process had them in its hands"


def _wrong(tallies: Iterable[ReceiverTally]) -> list[str]:
    """What is told only when it is there."""
    return [
        f"  {word:<9} {what} {one.name}: {ids_of(ids)}"
        for one in tallies
        for word, what, ids in (
            ("early", "sent again earlier than it was asked for, to", one.early),
            ("open", "not succeeded, as the ledger says, at", one.unfinished),
            ("unknown", "not as many requests came as the ledger knows of, to", one.unrecorded),
        )
        if ids
    ]


def _who_waited(report: WebhookReport) -> str:
    found = {one.name: one for one in report.tallies}
    steady, slow = found[STEADY], found[SLOW]
    if steady.waits is None:
        return f"Nothing has arrived at {STEADY}."
    undisturbed = " but for what the killed process had in hand" if report.killed is not None else ""
    verdict = "waited for nobody" if report.is_unhindered else "WAITED FOR THE OTHERS"
    return (
        f"{STEADY} {verdict}: {_s(steady.waits.most_undisturbed_s)} at most{undisturbed}, "
        f"while {SLOW} needed {_s(slow.span_s)} for its own."
    )


def _as_json(one: ReceiverTally) -> dict[str, Any]:
    lists = ("lost", "foreign", "twice", "unexcused", "early", "unfinished", "unrecorded")
    counts = {name: len(getattr(one, name)) for name in lists}
    first = {f"{name}_first": list(getattr(one, name)[:IDS_SHOWN]) for name in ("lost", "foreign", "twice")}
    waits = one.waits
    return {
        "name": one.name,
        "event_type": one.event_type,
        "sent": one.sent,
        "arrived": one.arrived,
        **counts,
        **first,
        "unsigned": one.unsigned,
        "requests": one.requests,
        "refused": {str(status): count for status, count in one.refused.items()},
        "attempts": one.attempts,
        "waits": None if waits is None else {name: round(value, 3) for name, value in asdict(waits).items()},
        "span_s": round(one.span_s, 3),
    }
