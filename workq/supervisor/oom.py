"""Out of memory: whether a SIGKILL came from the kernel. It leaves no message to the parent, but it counts.

Two counters: of the control group (v2 `memory.events.local`, v1 `memory.oom_control`) and of the machine
(`/proc/vmstat`). The kernel counts a kill in the victim's own group before it sends the signal, so a supervisor that
buries a child of its own group finds it there. Neither counter says who was killed: each kill that was counted is
blamed on one dead child at most, and one that no child died of is another's, and forgotten after two looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workq.values.certificate import OutOfMemory

_UNLIMITED: Final = 1 << 60
_BEFORE_ITS_SUPERVISOR: Final = 200
"""Thousandths of the memory that may be used: so much larger a worker process looks to the kernel than it is."""
_SCORE_MAX: Final = 1000


def offer_as_victim(pid: int, proc: Path = Path("/proc")) -> None:
    """Let the kernel choose this process, which runs user code, before its supervisor, which tells how it died.

    Seen in a small control group: the second victim, a few milliseconds after the first, whose memory was not free yet.
    The supervisor offers it as soon as it is there: it has little memory while it starts, and looked the smaller one.
    """
    score = proc / str(pid) / "oom_score_adj"
    with suppress(OSError, ValueError):
        score.write_text(str(min(_SCORE_MAX, int(score.read_text()) + _BEFORE_ITS_SUPERVISOR)))


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The files of one memory control group: `(file, key)` of its count of kills, and the file of its limit."""

    kills: tuple[Path, str]
    limit: Path

    @staticmethod
    def of_this_process(proc: Path = Path("/proc/self")) -> MemoryGroup | None:
        """The group that this process and its children live in; None where there is none, or it cannot be read."""
        try:
            memberships = (proc / "cgroup").read_text().splitlines()
            mounts = [line.split(" ") for line in (proc / "mountinfo").read_text().splitlines()]
        except OSError:
            return None
        for folder in _folders(memberships, mounts):
            for file in ("memory.events.local", "memory.events", "memory.oom_control"):
                group = MemoryGroup((folder / file, "oom_kill"), folder / _limit_beside(file))
                if _count(*group.kills) is not None:
                    return group
        return None


class Kills:
    """The kernel's counters, as one supervisor watches them. Used by one thread."""

    def __init__(self, group: MemoryGroup | None, *, vmstat: Path = Path("/proc/vmstat")) -> None:
        self._group = group
        self._vmstat = vmstat
        self._before = self._last = self._read()

    def look(self) -> None:
        """Once in a while, when no child has just died: what was counted before the last look is another's."""
        self._before, self._last = self._last, self._read()

    def blame(self) -> OutOfMemory:
        """A child has died of a SIGKILL that nobody here sent: what was counted lately, blamed on it."""
        group, machine = (_more(now, then) for now, then in zip(self._read(), self._before, strict=True))
        blamed = (int(bool(group)), int(bool(machine)))
        self._before = tuple(_plus(count, one) for count, one in zip(self._before, blamed, strict=True))
        # the last look may have counted this kill already; more than what was counted would hide the next one
        self._last = tuple(_larger(looked, known) for looked, known in zip(self._last, self._before, strict=True))
        return OutOfMemory(group, machine, self._limit_bytes())

    def _read(self) -> tuple[int | None, ...]:
        group = None if self._group is None else _count(*self._group.kills)
        return group, _count(self._vmstat, "oom_kill")

    def _limit_bytes(self) -> int | None:
        if self._group is None:
            return None
        with suppress(OSError, ValueError):
            limit = int(self._group.limit.read_text())  # v2 says "max" when there is none
            return limit if limit < _UNLIMITED else None
        return None


def _folders(memberships: Sequence[str], mounts: Sequence[Sequence[str]]) -> list[Path]:
    """Where the memory groups of a process are mounted. A container may see its own group as the root of the mount."""
    found = []
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        for mount in mounts:
            root, point = mount[3], mount[4]
            kind = mount[mount.index("-") + 1]
            options = mount[-1].split(",")
            is_ours = kind == "cgroup2" if not controllers else kind == "cgroup" and "memory" in options
            if is_ours and (not controllers or "memory" in controllers.split(",")):
                inner = path.removeprefix(root) if root != "/" else path
                found.append(Path(point) / inner.lstrip("/"))
    return found


def _limit_beside(file: str) -> str:
    return "memory.limit_in_bytes" if file == "memory.oom_control" else "memory.max"


def _count(file: Path, key: str) -> int | None:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return None


def _more(now: int | None, then: int | None) -> int | None:
    return None if now is None or then is None else max(0, now - then)


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _plus(count: int | None, one: int) -> int | None:
    return None if count is None else count + one
