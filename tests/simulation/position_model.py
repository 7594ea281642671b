"""Every interleaving of one task, a topic of two partitions with an owner each, and a mark by positions.

A broker that proves by positions has no marker record. A mark notes `sent_at` in the ledger, then reads where each
partition ends; it has passed when each partition is committed, or removed, up to there, or up to where it ends now.
Then what was published before `sent_at`, is not held and not claimed, is proved lost and is sent again.

What holds, in every state:

    false       while no server has lost anything, a mark proves a hint lost only where no copy is left
    stranded    without further faults there is a way on which the task ends

Where a server has lost something (retention, truncation, a topic made again, expired offsets), a mark may prove a hint
lost that is still to come: it is sent again, and one of the two is worth nothing. There is one mark at a time, since
each has to prove by itself: what only a later one proves comes late.

Left out, because the simulated worlds have it: leases, claims that race, the grace.
`without` names rules that are taken away, to see that each is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from tests.simulation.interleavings import Explored, explored, one_fewer

RULES: Final = {
    "noted_first": "`sent_at` is noted before the ends are read",
    "every_partition": "a mark has passed when it has passed in every partition",
    "end_now": "a partition that ends before the mark now need not come to the mark",
    "low": "what is removed from a partition counts as if it were committed",
    "prefix": "only what is held is committed, and nothing behind what is not",
    "holds": "what is held is not lost",
    "stamp": "what is handed back is stamped anew before it is let go",
    "overdue": "no mark is noted while a row is overdue; to ask when it has passed is too late",
    "earliest": "who has no offset, or one out of range, begins at the beginning",
    "new_topic": "an owner begins at the beginning of a topic that was made again",
}
FAULTS: Final = ("crash", "rebalance", "busy", "retention", "truncation", "made_again", "expiry", "other")
"""`busy`: a process hands back what it holds. `other`: a hint of another task is published."""
NEVER: Final = -1
HINT, OTHER = "hint", "other"
LOG_MAX: Final = 3
"""A hint that is still to come in a log of this length is not written there again: that would tell nothing new."""


class Partition(NamedTuple):
    """One of a topic, and what its owner knows of it."""

    log: tuple[str, ...] = ()
    """What was ever written, by offset."""
    low: int = 0
    """What is below is removed."""
    committed: int = NEVER
    has_owner: bool = True
    position: int = 0
    """Of its owner: what it fetches next."""
    unheld: tuple[int, ...] = ()
    """Fetched by its owner, and not held."""
    has_acked: bool = False
    """There is something to commit."""
    is_new: bool = False
    """The topic was made again, and the owner does not know that."""
    marked: int = NEVER
    """Where it ended for the mark."""

    @property
    def end(self) -> int:
        return len(self.log)

    @property
    def is_to_come(self) -> bool:
        """Whether somebody will fetch a copy of the hint, or has it and does not hold it."""
        begins = self.position if self.has_owner and not self.is_new else self.committed
        if not self.low <= begins <= self.end:
            begins = self.low
        return bool(self.unheld) or HINT in self.log[begins:]

    def has_passed(self, without: frozenset[str]) -> bool:
        done = self.committed if self.committed <= self.end else NEVER  # behind the end: of what is not there any more
        there = done if "low" in without else max(done, self.low)
        wanted = self.marked if "end_now" in without else min(self.marked, self.end)
        return there >= wanted

    def written(self, what: str) -> Partition:
        if what == HINT and self.end >= LOG_MAX and self.is_to_come:
            return self
        return self._replace(log=(*self.log, what))

    def left(self) -> Partition:
        """Without its owner."""
        return self._replace(has_owner=False, position=0, unheld=(), has_acked=False, is_new=False)


class State(Struct, frozen=True):
    """One task, and all that knows of it."""

    partitions: tuple[Partition, ...] = (Partition(), Partition())
    task: str = "none"
    """none, open, ended."""
    is_due: bool = False
    publisher: str = "idle"
    """idle, written (the task is committed: to be published), sent (to be stamped), gone."""
    is_published: bool = False
    """The ledger has noted a confirmed hint."""
    is_older: bool = False
    """It was noted before `sent_at` of the mark, for a task that was due."""
    row: str = ""
    """Nothing, row, moved (published, and not deleted)."""
    hold: str = ""
    """Nothing, live, giving (a hint in its place is published), dead."""
    mark: str = ""
    """Nothing, noted, read, out, passed."""
    left: tuple[int, ...] = (0,) * len(FAULTS)
    has_lost: bool = False
    """A server has lost something."""
    broken: str = ""

    def after(self, fault: str) -> State | None:
        """With one such fault less to come; None: there is none left."""
        left = one_fewer(self.left, FAULTS.index(fault))
        return None if left is None else replace(self, left=left)

    def having(self, at: int, partition: Partition) -> State:
        """With this partition in the place of another. Their order means nothing."""
        others = self.partitions[:at] + self.partitions[at + 1 :]
        return replace(self, partitions=tuple(sorted((*others, partition))))

    def published(self, what: str) -> Iterator[State]:
        """It is in one of the partitions."""
        for at, one in enumerate(self.partitions):
            yield self.having(at, one.written(what))

    @property
    def has_copy(self) -> bool:
        return self.row != "" or self.hold != "" or any(one.is_to_come for one in self.partitions)


Step = tuple[str, State]


def steps(s: State, without: frozenset[str]) -> Iterator[Step]:
    """All that can happen next, faults (`!`) included."""
    yield from _publishers(s)
    for at, one in enumerate(s.partitions):
        yield from _owner(s, at, one, without)
        yield from _losses(s, at, one)
    if less := s.after("made_again"):
        again = (Partition(has_owner=one.has_owner, is_new=one.has_owner) for one in s.partitions)
        kept = (
            new._replace(position=one.position, unheld=one.unheld, has_acked=one.has_acked, marked=one.marked)
            for new, one in zip(again, s.partitions, strict=True)
        )
        yield "! topic is deleted and made again", replace(less, partitions=tuple(sorted(kept)), has_lost=True)
    yield from _holder(s, without)
    yield from _mark(s, without)


def _publishers(s: State) -> Iterator[Step]:
    match s.publisher:
        case "idle":
            yield "task is committed", replace(s, task="open", is_due=True, publisher="written")
            yield "task and row are committed", replace(s, task="open", row="row", is_published=True, publisher="gone")
        case "written":
            for then in s.published(HINT):
                yield "published", replace(then, publisher="sent")
        case "sent":
            yield "stamped", replace(s, is_published=True, is_older=False, publisher="gone")
        case "gone" if not s.is_published:
            yield "sweep relays", replace(s, publisher="written")
    if s.publisher in ("written", "sent") and (less := s.after("crash")):
        yield "! publisher dies", replace(less, publisher="gone")
    if less := s.after("other"):
        for then in less.published(OTHER):
            yield "! another hint is published", then
    if not s.is_due and s.task == "open":
        yield "task is due", replace(s, is_due=True)
    if s.row == "row" and s.is_due:
        for then in s.published(HINT):
            yield "mover publishes", replace(then, row="moved")
    if s.row == "moved":
        yield "mover deletes", replace(s, row="")
        if less := s.after("crash"):
            yield "! mover dies", replace(less, row="row")


def _owner(s: State, at: int, one: Partition, without: frozenset[str]) -> Iterator[Step]:
    beginning = one.end if "earliest" in without else one.low
    if not one.has_owner:
        begins = beginning if one.committed == NEVER else one.committed
        yield "partition has an owner", s.having(at, one._replace(has_owner=True, position=begins))
        return
    if one.is_new and "new_topic" not in without:
        yield "owner sees the new topic", s.having(at, one._replace(is_new=False, position=one.low, unheld=()))
    if not one.low <= one.position <= one.end:
        yield "out of range", s.having(at, one._replace(position=beginning, unheld=()))
    elif one.position < one.end:
        is_hint = one.log[one.position] == HINT
        unheld = (*one.unheld, one.position) if is_hint else one.unheld
        has_acked = one.has_acked or not is_hint or "prefix" in without
        fetched = one._replace(position=one.position + 1, unheld=unheld, has_acked=has_acked)
        yield "fetched", s.having(at, fetched)
    for offset in one.unheld:
        held = one._replace(unheld=tuple(o for o in one.unheld if o != offset), has_acked=True)
        # a live hold stands, and this copy is dropped; what a dead one has is taken over
        yield "held", replace(s.having(at, held), hold="live" if s.hold in ("", "dead") else s.hold)
    if one.has_acked:
        offset = one.position if "prefix" in without else min((*one.unheld, one.position))
        yield "committed", s.having(at, one._replace(committed=offset, has_acked=False))
    if less := s.after("crash"):
        yield "! owner dies", less.having(at, one.left())
        if s.hold in ("live", "giving"):
            yield "! owner dies with its hold", replace(less.having(at, one.left()), hold="dead")
    if less := s.after("rebalance"):
        yield "! partition goes to another", less.having(at, one.left())


def _losses(s: State, at: int, one: Partition) -> Iterator[Step]:
    if one.low < one.end and (less := s.after("retention")):
        for low in {one.low + 1, one.end}:
            yield "! records are removed", replace(less.having(at, one._replace(low=low)), has_lost=True)
    if one.low < one.end and (less := s.after("truncation")):
        yield "! partition is truncated", replace(less.having(at, one._replace(log=one.log[:-1])), has_lost=True)
    if not one.has_owner and one.committed != NEVER and (less := s.after("expiry")):
        yield "! offset expires", replace(less.having(at, one._replace(committed=NEVER)), has_lost=True)


def _holder(s: State, without: frozenset[str]) -> Iterator[Step]:
    match s.hold:
        case "live":
            if s.is_due:
                yield "task runs", replace(s, task="ended")
            if less := s.after("busy"):
                for then in less.published(HINT):
                    yield (
                        "! a hint in its place is published",
                        replace(then, hold="giving", is_older=s.is_older and "stamp" in without),
                    )
        case "giving":
            yield "let go", replace(s, hold="")
        case "dead":
            yield "reaped", replace(s, hold="", is_published=False, is_older=False)


def _mark(s: State, without: frozenset[str]) -> Iterator[Step]:
    is_overdue = s.row != "" and s.is_due and "overdue" not in without
    has_read = all(one.marked != NEVER for one in s.partitions)
    noted = replace(s, is_older=s.is_published and s.is_due)
    match s.mark:
        case "" if s.task == "open" and "noted_first" in without:
            yield "mark begins", replace(s, mark="read")
        case "" if s.task == "open" and not is_overdue:
            yield "mark is noted", replace(noted, mark="noted")
        case "read" if has_read and not is_overdue:
            yield "mark is noted late", replace(noted, mark="out")
        case "noted" if has_read:
            yield "mark is out", replace(s, mark="out")
        case "out" if not (s.row and s.is_due):  # where `overdue` is a rule, that is so anyway
            passed = [one.has_passed(without) for one in s.partitions]
            if any(passed) if "every_partition" in without else all(passed):
                yield "mark has passed", replace(s, mark="passed")
        case "passed":
            yield "judged", _judged(s, without)
    if s.mark in ("noted", "read"):
        for at, one in enumerate(s.partitions):
            if one.marked == NEVER:
                yield "an end is read", s.having(at, one._replace(marked=one.end))


def _judged(s: State, without: frozenset[str]) -> State:
    closed = replace(
        s, mark="", is_older=False, partitions=tuple(sorted(one._replace(marked=NEVER) for one in s.partitions))
    )
    is_held = s.hold != "" and "holds" not in without
    if is_held or not (s.is_published and s.is_older):
        return closed
    is_false = s.has_copy and not s.has_lost
    return replace(closed, is_published=False, publisher="gone", broken="false" if is_false else "")


def explore(faults: Mapping[str, int], *, without: frozenset[str] = frozenset()) -> Explored:
    """Reach every state, with at most so many `faults` of each kind on a way."""
    return explored(
        State(left=tuple(faults.get(name, 0) for name in FAULTS)),
        partial(steps, without=without),
        broken=lambda s: s.broken,
        has_ended=lambda s: s.task == "ended",
    )
