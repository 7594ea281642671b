"""An in-flight store in two dictionaries, with the semantics of the scripts in workq/inflight.

An operator makes it forget everything (`wipe`), or everything since an older moment (`roll_back`). Its clock is that of
the world.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from workq.errors import LeaseLost
from workq.inflight import Beat, Entry, Hold, Lease

Where = tuple[str, str]
"""Queue and task id."""
Befall = Callable[[str], BaseException | None]


@dataclass
class State:
    """What the server knows."""

    began_at: float | None = None
    leases: dict[str, float] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    holds: dict[Where, tuple[str, int | None, float]] = field(default_factory=dict)


class Server:
    """The store that all clients share."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.state = State()

    def wipe(self) -> None:
        """Everything is gone."""
        self.state = State()

    def copy(self) -> State:
        """What a backup would have."""
        return copy.deepcopy(self.state)

    def roll_back(self, older: State) -> None:
        """It was restarted from something older."""
        self.state = copy.deepcopy(older)

    def is_live(self, worker: str) -> bool:
        """Whether a lease of this worker runs."""
        return self.state.leases.get(worker, float("-inf")) > self.now()


class SimInFlight:
    """The port, for one client. `befall` is asked before each call: it may raise, or answer what to raise after it."""

    def __init__(self, server: Server, befall: Befall = lambda _: None) -> None:
        self._server = server
        self._befall = befall

    def join(self, worker: str, *, lease_s: float) -> None:
        with self._call("join"):
            self._grant(worker, lease_s)

    def hold(self, entries: Sequence[Entry], *, by: str) -> set[str]:
        with self._call("hold"):
            if not self._server.is_live(by):
                raise LeaseLost(f"{by} has no live lease")
            self._begin()
            return self._take(entries, by, exact=False)[0]

    def beat(self, worker: str, *, lease_s: float, entries: Sequence[Entry]) -> Beat:
        with self._call("beat"):
            self._grant(worker, lease_s)
            return Beat(self._take(entries, worker, exact=True)[1])

    def extend(self, worker: str, *, lease_s: float) -> bool:
        with self._call("extend"):
            leases = self._server.state.leases
            if worker not in leases:
                return False
            leases[worker] = self._server.now() + lease_s
            return True

    def release(self, task_ids: Sequence[tuple[str, str]], *, by: str) -> int:
        with self._call("release"):
            holds = self._server.state.holds
            own = {(queue, task_id) for task_id, queue in task_ids if holds.get((queue, task_id), ("",))[0] == by}
            for where in sorted(own):
                del holds[where]
            return len(own)

    def leave(self, worker: str) -> None:
        with self._call("leave"):
            self._drop(worker)

    def leases(self) -> Mapping[str, Lease]:
        with self._call("leases"):
            self._begin()
            now = self._server.now()
            return {name: Lease(name, until - now) for name, until in self._server.state.leases.items()}

    def held_by(self, worker: str) -> list[Hold]:
        with self._call("held_by"):
            return self._found(lambda _, holder: holder == worker)

    def holds(self, queue: str, *, claimed: bool = True) -> list[Hold]:
        with self._call("holds"):
            return self._found(lambda where, _: where[0] == queue)

    def forget(self, worker: str) -> int:
        with self._call("forget"):
            self._begin()
            self._server.state.lost.add(worker)
            return self._drop(worker)

    def epoch_age_s(self) -> float:
        with self._call("epoch_age_s"):
            began_at = self._begin()
            return self._server.now() - began_at

    def check(self) -> str:
        return "Simulated 1.0"

    def close(self) -> None:
        """Nothing to close."""

    def _grant(self, worker: str, lease_s: float) -> None:
        if worker in self._server.state.lost:
            raise LeaseLost(f"{worker} was reaped")
        self._begin()
        self._server.state.leases[worker] = self._server.now() + lease_s

    def _begin(self) -> float:
        state = self._server.state
        if state.began_at is None:
            state.began_at = self._server.now()
        return state.began_at

    def _take(self, entries: Sequence[Entry], worker: str, *, exact: bool) -> tuple[set[str], int]:
        holds, mine, gained = self._server.state.holds, set(), 0
        for entry in entries:
            where = (entry.queue, entry.task_id)
            found = holds.get(where)
            if found is not None and found[0] != worker and self._server.is_live(found[0]):
                continue
            mine.add(entry.task_id)
            if found is not None and found[0] == worker:
                attempt = entry.attempt if exact or entry.attempt is not None else found[1]
                holds[where] = (worker, attempt, found[2])
            else:
                gained += 1
                holds[where] = (worker, entry.attempt, self._server.now())
        return mine, gained

    def _drop(self, worker: str) -> int:
        state = self._server.state
        state.leases.pop(worker, None)
        own = [where for where, hold in state.holds.items() if hold[0] == worker]
        for where in own:
            del state.holds[where]
        return len(own)

    def _found(self, which: Callable[[Where, str], bool]) -> list[Hold]:
        now = self._server.now()
        return [
            Hold(where[1], where[0], worker, attempt, max(0.0, now - since))
            for where, (worker, attempt, since) in self._server.state.holds.items()
            if which(where, worker)
        ]

    def _call(self, name: str) -> _Call:
        return _Call(self._befall(name))


class _Call:
    """One call: the answer may get lost after the effect, or the client die."""

    __slots__ = ("_after",)

    def __init__(self, after: BaseException | None) -> None:
        self._after = after

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._after is not None and kind is None:
            raise self._after
