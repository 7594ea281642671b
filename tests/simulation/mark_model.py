"""Every interleaving of one open task, those who send its hints and mark them, and who lets it come sooner or later.

A mark says that a hint is under way which comes no later than the task is due: no sweep sends another. What may make it
untrue is a mark that stands still, while somebody else moves the task. What holds, in every state:

    unhinted    a task that is marked has a hint that comes in time, unless the broker lost it
    stranded    without further faults there is a way on which the task is claimed

The task is due now or later, and so are hints. Whoever moves the task unmarks it, reserves it and sends its hint; so
does the sweep, with what is unmarked and not reserved. A hint that is a row is dropped by whoever moves its task.
Left out: holds and claims that race; what a worker does with a hint that comes early, which sends it again and needs no
mark for that. `without` names rules that are taken away, to see that each is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from tests.simulation.interleavings import Explored, explored, one_fewer

RULES: Final = {
    "reserved": "what has been reserved is not marked by whoever recorded it",
    "whose": "what has been reserved is not marked by whoever reserved it before",
    "reservation_ends": "what a dead sender has reserved is free for a sweep after a while",
}
FAULTS: Final = ("crash", "move")
"""`move`: somebody moves the task. No end of it is taken for granted, as of a fault."""
Due = Literal["now", "later"]
PRODUCER: Final = 0
SWEEPS: Final = (1, 2)
PERSON: Final = 3
NOBODY: Final = -1
NAMES: Final = ("the producer", "a sweep", "another sweep", "a person")
DUES: Final[tuple[Due, ...]] = ("now", "later")


class Sender(Struct, frozen=True):
    """Whoever sends a hint: the producer, a sweep, who has moved the task. `does` is what comes next."""

    does: str = "idle"
    """idle, sends, marks. A sweep that has ended, or died, is followed by the next one."""
    due: Due = "later"
    """When the task was due as this one read it."""


class State(Struct, frozen=True):
    """One task, and all that know of it."""

    is_open: bool = True
    due: Due = "later"
    is_marked: bool = False
    reserved_by: int = NOBODY
    """Who has reserved it last, and has not marked it."""
    is_over: bool = False
    """That reservation has ended: a sweep may reserve it."""
    senders: tuple[Sender, ...] = ()
    """The producer, two sweeps, and a person, who may move it again."""
    rows: frozenset[Due] = frozenset()
    """Hints that are rows of the ledger: they are dropped when the task is moved."""
    queued: frozenset[Due] = frozenset()
    """Hints in the broker."""
    left: tuple[int, ...] = (0,) * len(FAULTS)

    @property
    def is_hinted(self) -> bool:
        hints = self.rows | self.queued
        return "now" in hints or self.due in hints

    def after(self, fault: str) -> State | None:
        """With one such fault less to come; None: there is none left."""
        left = one_fewer(self.left, FAULTS.index(fault))
        return None if left is None else replace(self, left=left)

    def with_sender(self, at: int, sender: Sender) -> State:
        return replace(self, senders=(*self.senders[:at], sender, *self.senders[at + 1 :]))


Step = tuple[str, State]


def steps(s: State, without: frozenset[str]) -> Iterator[Step]:
    """All that can happen next, faults (`!`) included."""
    for at, sender in enumerate(s.senders):
        if sender.does != "idle":
            yield from _sender(s, at, sender, without)
            if less := s.after("crash"):
                yield f"! {NAMES[at]} dies", less.with_sender(at, Sender())
    for at in SWEEPS:
        if s.senders[at].does == "idle" and not s.is_marked and (s.reserved_by == NOBODY or s.is_over):
            yield f"{NAMES[at]} reserves", _reserved(s, at)
    if s.senders[PERSON].does == "idle" and (less := s.after("move")):
        for due in DUES:
            moved = replace(less, due=due, is_marked=False, rows=frozenset())
            yield f"! it is moved to {due}", _reserved(moved, PERSON)
    if s.reserved_by != NOBODY and not s.is_over and "reservation_ends" not in without:
        yield "reservation ends", replace(s, is_over=True)
    if s.is_hinted:
        yield "it is claimed", replace(s, is_open=False)


def _reserved(s: State, at: int) -> State:
    return replace(s, reserved_by=at, is_over=False).with_sender(at, Sender("sends", s.due))


def _sender(s: State, at: int, sender: Sender, without: frozenset[str]) -> Iterator[Step]:
    if sender.does == "sends":
        sent = s.with_sender(at, Sender("marks", sender.due))
        yield f"{NAMES[at]} sends to the broker", replace(sent, queued=s.queued | {sender.due})
        if sender.due == "later":
            yield f"{NAMES[at]} writes a row", replace(sent, rows=s.rows | {sender.due})
    else:
        done = s.with_sender(at, Sender())
        marked = replace(done, is_marked=True, reserved_by=NOBODY, is_over=False)
        yield f"{NAMES[at]} marks", marked if _may_mark(s, at, without) else done


def _may_mark(s: State, at: int, without: frozenset[str]) -> bool:
    if at == PRODUCER:
        return s.reserved_by == NOBODY or "reserved" in without
    return s.reserved_by == at or "whose" in without


def explore(faults: Mapping[str, int], *, without: frozenset[str] = frozenset()) -> Explored:
    """Reach every state, with at most so many `faults` of each kind on a way."""

    def broken(s: State) -> str:
        return "unhinted" if s.is_open and s.is_marked and not s.is_hinted else ""

    return explored(
        State(senders=(Sender("sends"), *[Sender()] * 3), left=tuple(faults.get(name, 0) for name in FAULTS)),
        partial(steps, without=without),
        broken=broken,
        has_ended=lambda s: not s.is_open,
    )
