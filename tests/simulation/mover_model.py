"""Every interleaving of one delayed task, its hint as a row or in a ladder of queues, movers that die, and a marker.

Two producers' settings are alive at the same time: whoever publishes chooses a row (the ladder `ledger`) or a queue of
the broker. Three ages: the task is not due; it is due; it is due for the marker's slack. What holds, in every state:

    early       no hint is in the broker before its task is committed
    dropped     while the broker was not purged, a task with a confirmed hint has a copy of it, in one place or another
    false       a marker proves a hint lost only where no copy is left
    stranded    without further faults there is a way on which the task ends

Left out, because the simulated worlds have it: holds, leases, claims that race. A delivery ends at once.
`without` names rules that are taken away, to see that each is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tests.simulation.interleavings import Explored, explored, one_fewer

RULES: Final = {
    "publish_first": "a row is deleted after its hint is confirmed",
    "confirm": "only what the broker has confirmed is deleted",
    "overdue": "no marker is sent while a row is overdue",
    "one_commit": "a row is visible when its task is, and not before",
    "reservation_ends": "what a dead mover has reserved is free again",
    "slack": "a marker speaks of what was due for the slack, and no less",
}
FAULTS: Final = ("crash", "unconfirmed", "purge", "retry")
SLACK: Final = 2
"""The age from which a marker speaks of a task."""


class State(Struct, frozen=True):
    """One task, and all that knows of it. `producer` and `mover` say what each does next."""

    task: str = "none"
    """none, open, ended."""
    age: int = 0
    producer: str = "idle"
    """idle, begun (a row is visible already), written (committed: to be published), sent (to be marked), gone."""
    is_published: bool = False
    """The ledger has noted a confirmed hint."""
    row: str = ""
    """Nothing, free, reserved."""
    old_row: str = ""
    """The same, of an attempt before: a copy that nobody needs, and that is due."""
    mover: str = "idle"
    """idle, took, confirmed, refused."""
    has_old: bool = False
    """What the mover took is the old row."""
    ladder: int = 0
    """Copies of the hint in the broker's delay queues."""
    queue: tuple[str, ...] = ()
    """The main queue in its order: `hint`, `marker`."""
    marker: str = ""
    """Nothing, noted (to be published), out, back."""
    is_overtaken: bool = False
    """The hint was confirmed, and due for the slack, when the marker was noted."""
    left: tuple[int, ...] = (0,) * len(FAULTS)
    broken: str = ""
    was_purged: bool = False

    @property
    def copies(self) -> int:
        return bool(self.row) + bool(self.old_row) + self.ladder + self.queue.count("hint")

    @property
    def taken(self) -> str:
        """The row that the mover took, as it stands: others may have it by now, or have deleted it."""
        return self.old_row if self.has_old else self.row

    def taken_is(self, row: str, mover: str) -> State:
        if self.has_old:
            return replace(self, mover=mover, old_row=row)
        return replace(self, mover=mover, row=row)

    def after(self, fault: str) -> State | None:
        """With one such fault less to come; None: there is none left."""
        left = one_fewer(self.left, FAULTS.index(fault))
        return None if left is None else replace(self, left=left)

    def queued(self, what: str) -> State:
        """It is in the main queue now. More copies than four tell nothing new."""
        if what == "hint" and self.task == "none":
            return replace(self, queue=(*self.queue, what), broken="early")
        return replace(self, queue=(*self.queue, what)) if self.queue.count(what) < 4 else self


Step = tuple[str, State]


def steps(s: State, without: frozenset[str]) -> Iterator[Step]:
    """All that can happen next, faults (`!`) included."""
    yield from _time(s)
    yield from _producer(s, without)
    yield from _mover(s, without)
    yield from _broker(s)
    yield from _sweep(s, without)


def _time(s: State) -> Iterator[Step]:
    # a queue of the broker is never later than the slack: only rows wait for a mover
    if s.task == "open" and s.age < SLACK and not (s.age and s.ladder):
        yield "time passes", replace(s, age=s.age + 1)


def _producer(s: State, without: frozenset[str]) -> Iterator[Step]:
    match s.producer:
        case "idle" if "one_commit" in without:
            yield "a row is written", replace(s, row="free", producer="begun")
        case "idle":
            yield "task and row are committed", replace(s, task="open", row="free", producer="sent")
        case "begun":
            yield "the task is committed", replace(s, task="open", producer="sent")
        case "written":  # a call of tasks that are not all delayed, a retry: the hint follows the commit
            yield from _published(s)
        case "sent":
            is_still_open = s.task == "open"
            yield "it is marked", replace(s, is_published=is_still_open, is_overtaken=False, producer="gone")
    if s.producer == "idle":
        yield "the task is committed alone", replace(s, task="open", producer="written")
    if s.producer in ("written", "sent") and (less := s.after("crash")):
        yield "! producer dies", replace(less, producer="gone")


def _published(s: State) -> Iterator[Step]:
    """By whoever has to publish: into a row, into the ladder, or, when it is due, straight into its queue."""
    sent = replace(s, producer="sent")
    if s.age == 0:
        if not s.row:
            yield "published as a row", replace(sent, row="free")
        if s.ladder < 2:
            yield "published to the ladder", replace(sent, ladder=s.ladder + 1)
    else:
        yield "published", sent.queued("hint")


def _mover(s: State, without: frozenset[str]) -> Iterator[Step]:
    match s.mover:
        case "idle":
            if s.row == "free" and (s.age or s.task == "none"):
                yield "mover takes", replace(s, row="reserved", mover="took", has_old=False)
            if s.old_row == "free":
                yield "mover takes the old row", replace(s, old_row="reserved", mover="took", has_old=True)
        case "took" if "publish_first" in without and s.taken:
            yield "mover deletes", s.taken_is("", "took")
        case "took":
            yield "mover publishes", replace(s, mover="confirmed").queued("hint")
            if less := s.after("unconfirmed"):
                yield "! broker takes nothing", replace(less, mover="refused")
                yield "! broker does not answer", replace(less, mover="refused").queued("hint")
        case "refused" if "confirm" in without:
            yield "mover deletes", s.taken_is("", "idle")
        case "refused":
            yield "mover gives back", s.taken_is("free" if s.taken else "", "idle")
        case "confirmed":
            yield "mover deletes", s.taken_is("", "idle")
    if s.mover != "idle" and (less := s.after("crash")):
        yield "! mover dies", replace(less, mover="idle")
    if "reserved" in (s.row, s.old_row) and "reservation_ends" not in without:  # the next mover publishes it once more
        yield "reservation ends", replace(s, mover="idle", row=_freed(s.row), old_row=_freed(s.old_row))


def _freed(row: str) -> str:
    return "free" if row == "reserved" else row


def _broker(s: State) -> Iterator[Step]:
    if s.ladder and s.age:
        yield "ladder lets go", replace(s, ladder=s.ladder - 1).queued("hint")
    if s.queue:
        first, rest = s.queue[0], s.queue[1:]
        if first == "marker":
            yield "marker comes back", replace(s, queue=rest, marker="back" if s.marker == "out" else s.marker)
        elif s.task == "open" and s.age:
            yield "task runs", replace(s, queue=rest, task="ended")
            if less := s.after("retry"):
                yield "task is tried again later", _again(replace(less, queue=rest))
        elif s.task == "open":
            for what, then in _published(replace(s, queue=rest)):
                yield f"hint is early: {what}", replace(then, producer=s.producer, is_overtaken=False)
        else:
            yield "hint is dropped", replace(s, queue=rest)
    if (s.queue or s.ladder) and (less := s.after("purge")):
        yield "! broker forgets all", replace(less, queue=(), ladder=0, was_purged=True)


def _again(s: State) -> State:
    """The attempt has failed, and the next one has not been published: what it had as a row is an old one now."""
    has_old = s.has_old or s.mover != "idle"
    return replace(
        s,
        age=0,
        producer="written",
        is_published=False,
        is_overtaken=False,
        row="",
        old_row=s.row or s.old_row,
        has_old=has_old,
    )


def _sweep(s: State, without: frozenset[str]) -> Iterator[Step]:
    if s.task == "open" and not s.is_published and s.producer == "gone":
        for what, then in _published(s):
            yield f"sweep: {what}", replace(then, is_published=True, is_overtaken=False, producer="gone")
    is_seen = s.task == "open" and s.is_published and s.age >= (1 if "slack" in without else SLACK)
    is_overdue = s.old_row != "" or (s.row != "" and s.age >= SLACK)
    if is_seen and not s.marker and (not is_overdue or "overdue" in without):
        yield "marker is noted", replace(s, marker="noted", is_overtaken=True)
    if s.marker == "noted":
        yield "marker is published", replace(s, marker="out", queue=(*s.queue, "marker"))
    if s.marker == "out" and "marker" not in s.queue:
        yield "marker is given up", replace(s, marker="", is_overtaken=False)
    if s.marker == "back":
        if s.task == "open" and s.is_overtaken:
            broken = "false" if s.copies else ""
            yield "hint is proved lost", replace(s, marker="", is_overtaken=False, is_published=False, broken=broken)
        else:
            yield "marker is closed", replace(s, marker="", is_overtaken=False)


def explore(faults: Mapping[str, int], *, without: frozenset[str] = frozenset()) -> Explored:
    """Reach every state, with at most so many `faults` of each kind on a way."""

    def broken(s: State) -> str:
        is_dropped = s.task == "open" and s.is_published and not s.copies and not s.was_purged
        return s.broken or ("dropped" if is_dropped else "")

    return explored(
        State(left=tuple(faults.get(name, 0) for name in FAULTS)),
        partial(steps, without=without),
        broken=broken,
        has_ended=lambda s: s.task == "ended",
    )
