"""Every interleaving of one worker process, three stores, and a watch that ends the claims of who is gone from all.

The process has a sign of life in the ledger and in the broker, which the server removes when it has heard nothing for
one or two ticks, and it beats in the in-flight store at every second tick. The watch is in another process. It looks
at any time, and ends the claims of the process early, before its lease has ended, when a series of looks found it
absent.

What holds, in every state:

    false       no process is ended early that could reach a store for the last `GONE` ticks, and was running
    seen        no process is ended early while the ledger has its sign
    late        a process whose host died is ended within `BOUND` ticks, if the watch looks at each (`is_prompt`)
    stranded    without further faults there is a way on which it is ended, or leaves

Left out, because the simulated worlds have it: what the process runs, and the fence that refuses it afterwards. So is
the brake for the case in which most of the fleet looks absent: it makes early ends rarer, and no rule here needs it.
`without` names rules that are taken away, to see that each is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tests.simulation.interleavings import Explored, explored, one_fewer

T = TypeVar("T")
RULES: Final = {
    "ledger": "its sign is gone from the ledger",
    "broker": "its sign is gone from the broker",
    "inflight": "it has not beaten in the in-flight store",
    "long": "for longer than a beat takes",
    "given": "a store in which it never gave a sign says nothing",
    "wiped": "a lease that is missing says nothing",
    "clock": "who sees that the clock of the in-flight store was set forward begins anew",
    "twice": "it is absent at two looks, further apart than a process takes to sign again",
    "series": "a watch that has not looked for a tick, or has missed a store, begins anew",
    "witness": "the watch itself has been connected to every store for longer than all take to come back",
    "retry": "a beat that failed is tried again at once",
    "apart": "a beat in the in-flight store does not wait for the ledger",
    "soon": "who is not ended soon after the look that decided is looked at again",
    "statement": "the statement that ends its claims looks for its sign in the ledger",
}
FAULTS: Final = ("host", "killed", "stopped", "cut", "ended", "restart", "wipe", "missed", "unsigned", "jump")
"""`ended`: a server ends one connection, or a beat on it fails. `missed`: the watch loses one. `unsigned`: the process
never gave a sign in the broker. `jump`: the clock by which leases are judged is set forward."""
LEDGER, BROKER, INFLIGHT = range(3)
STORES: Final = ("ledger", "broker", "in-flight store")
BEAT: Final = 2
GONE: Final = 4
"""For so long there was no beat."""
APART: Final = 2
"""Between the first look and the one that decides."""
HEARD: Final = (1, 2)
"""After a silence of so many ticks a server may remove a sign, and must."""
BACK: Final = 3
"""For so long a process may take to sign again, after a store was away or cut off."""
KNOWS: Final = 4
"""For so long a watch has to be connected before it can tell anything."""
BOUND: Final = 5
NEVER: Final = -1


class State(Struct, frozen=True):
    """One process, what the stores know of it, and what the watch does."""

    life: str = "runs"
    """runs, stopped (its kernel still answers), dead, left, ended (early), reaped (its lease has ended)."""
    dead_for: int = NEVER
    link: tuple[bool, ...] = (True, True, True)
    reach: tuple[int, ...] = (GONE, GONE, GONE)
    """For so long it could reach a store, or if it is stopped, has kept its connection."""
    sign: tuple[bool, ...] = (True, True)
    """In the ledger and in the broker."""
    gives: tuple[bool, ...] = (True, True)
    silent: tuple[int, ...] = (0, 0)
    """For so long the server has heard nothing."""
    back: tuple[int, ...] = (0, 0)
    """So many ticks may pass before it signs again."""
    beat: int = 0
    """Ticks since its last beat."""
    due: int = BEAT
    """Ticks until its next."""
    has_lease: bool = True
    known: int = KNOWS
    """For so long the watch has been connected to all of them."""
    first: int = NEVER
    """Ticks since the look that began the series."""
    looked: int = 0
    """Ticks since the last look."""
    is_decided: bool = False
    left: tuple[int, ...] = (0,) * len(FAULTS)
    broken: str = ""

    def after(self, fault: str) -> State | None:
        """With one such fault less to come; None: there is none left."""
        left = one_fewer(self.left, FAULTS.index(fault))
        return None if left is None else replace(self, left=left)

    def hears(self, store: int) -> bool:
        """Whether packets of it arrive there: the kernel of a stopped process answers the ledger, and no heartbeat."""
        is_up = self.life == "runs" or (self.life == "stopped" and store == LEDGER)
        return is_up and self.link[store]


def put(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


Step = tuple[str, State]


def steps(s: State, without: frozenset[str], is_prompt: bool) -> Iterator[Step]:
    """All that can happen next, faults (`!`) included."""
    yield from _process(s)
    yield from _watch(s, without)
    yield from _faults(s, without)
    for store in (LEDGER, BROKER):
        if s.sign[store] and s.silent[store] >= HEARD[0]:
            yield f"{STORES[store]} removes its sign", replace(s, sign=put(s.sign, store, False))
    for store in range(3):
        if not s.link[store]:
            back = put(s.back, store, BACK) if store != INFLIGHT and not s.sign[store] else s.back
            yield f"way to the {STORES[store]} is back", replace(s, link=put(s.link, store, True), back=back)
    if s.life == "stopped":
        yield "wakes", replace(s, life="runs", back=(BACK, BACK))
    if s.life == "dead" and s.beat >= GONE:
        yield "its lease ends", replace(s, life="reaped")
    if not (_is_owing(s, without) or (is_prompt and (s.looked or s.is_decided))):
        yield "tick", _ticked(s, without)


def _is_owing(s: State, without: frozenset[str]) -> bool:
    """Whether something has to happen before time goes on."""
    if any(s.sign[store] and s.silent[store] >= HEARD[1] for store in (LEDGER, BROKER)):
        return True
    if s.life != "runs":
        return False
    if any(s.gives[one] and s.link[one] and not s.sign[one] and not s.back[one] for one in (LEDGER, BROKER)):
        return True
    waits = "apart" in without and not s.link[LEDGER]
    return s.link[INFLIGHT] and s.due == 0 and not waits


def _ticked(s: State, without: frozenset[str]) -> State:
    hears = [s.hears(store) for store in range(3)]
    keeps = hears if s.life == "runs" else [hears[LEDGER] and s.sign[LEDGER], False, False]
    return replace(
        s,
        dead_for=s.dead_for if s.dead_for == NEVER else min(s.dead_for + 1, BOUND + 1),
        reach=tuple(min(one + 1, GONE) if keeps[store] else 0 for store, one in enumerate(s.reach)),
        silent=tuple(0 if hears[store] or not s.sign[store] else s.silent[store] + 1 for store in (LEDGER, BROKER)),
        back=tuple(max(0, one - 1) for one in s.back),
        beat=min(s.beat + 1, GONE),
        due=max(0, s.due - 1),
        known=min(s.known + 1, KNOWS),
        first=s.first if s.first == NEVER else min(s.first + 1, APART),
        looked=min(s.looked + 1, 2),
        is_decided=s.is_decided and "soon" in without,
        broken="late" if s.dead_for >= BOUND and s.life == "dead" else "",
    )


def _process(s: State) -> Iterator[Step]:
    if s.life != "runs":
        return
    for store in (LEDGER, BROKER):
        if s.gives[store] and s.link[store] and not s.sign[store]:
            silent = put(s.silent, store, 0)
            yield f"signs in the {STORES[store]}", replace(s, sign=put(s.sign, store, True), silent=silent)
    if s.link[INFLIGHT] and s.due == 0:
        yield "beats", replace(s, beat=0, due=BEAT, has_lease=True)
    if all(s.link):
        yield "leaves", replace(s, life="left")


def _watch(s: State, without: frozenset[str]) -> Iterator[Step]:
    if s.is_decided:
        if s.sign[LEDGER] and "statement" not in without:
            yield "ledger refuses", replace(s, is_decided=False, first=NEVER)
        else:
            yield "ended early", _ended(s)
        return
    is_gone = not any(sign and rule not in without for sign, rule in zip(s.sign, ("ledger", "broker"), strict=True))
    is_told = all(s.gives) or "given" in without
    is_known = s.known >= KNOWS or "witness" in without
    first = s.first
    if s.looked > 1 and "series" not in without:
        first = NEVER
    if not (is_gone and is_told and is_known):
        yield "looks", replace(s, first=NEVER, looked=0)
        return
    first = 0 if first == NEVER else first
    if s.has_lease or "wiped" in without:
        for_s = s.beat if s.has_lease else GONE
        is_silent = for_s >= (BEAT if "long" in without else GONE) or "inflight" in without
    else:
        is_silent = False
    is_over = first >= APART or "twice" in without
    yield "looks, and it is absent", replace(s, first=first, looked=0, is_decided=is_silent and is_over)


def _ended(s: State) -> State:
    is_false = any(one >= GONE for one in s.reach)
    return replace(s, life="ended", broken="false" if is_false else "seen" if s.sign[LEDGER] else "")


def _faults(s: State, without: frozenset[str]) -> Iterator[Step]:
    if s.life == "runs":
        if less := s.after("host"):
            yield "! its host dies", replace(less, life="dead", dead_for=0, reach=(0, 0, 0))
        if less := s.after("killed"):
            yield "! it is killed", replace(less, life="dead", sign=(False, False), reach=(0, 0, 0))
        if less := s.after("stopped"):
            yield "! it is stopped", replace(less, life="stopped", reach=(s.reach[LEDGER], 0, 0))
        if all(s.gives) and (less := s.after("unsigned")):
            yield "! it gives no sign in the broker", replace(less, gives=(True, False), sign=(s.sign[LEDGER], False))
    for store in range(3):
        if s.link[store] and (less := s.after("cut")):
            cut = replace(less, link=put(s.link, store, False), reach=put(s.reach, store, 0))
            yield f"! way to the {STORES[store]} is cut", cut
        if less := s.after("restart"):
            again = replace(less, known=0)
            if store != INFLIGHT:
                again = replace(again, sign=put(s.sign, store, False), back=put(s.back, store, BACK))
            yield f"! {STORES[store]} restarts", again
    if less := s.after("missed"):
        yield "! watch loses a store", replace(less, known=0, first=s.first if "series" in without else NEVER)
    for store in (LEDGER, BROKER):
        if s.sign[store] and (less := s.after("ended")):
            yield f"! {STORES[store]} ends a connection", replace(less, sign=put(s.sign, store, False))
    if s.life == "runs" and s.due == 0 and s.link[INFLIGHT] and (less := s.after("ended")):
        yield "! a beat fails", replace(less, due=BEAT if "retry" in without else 0)
    if less := s.after("jump"):
        yield (
            "! clock of the in-flight store jumps",
            replace(
                less,
                beat=GONE,
                known=s.known if "clock" in without else 0,
                first=s.first if "clock" in without else NEVER,
            ),
        )
    if s.has_lease and (less := s.after("wipe")):
        yield "! in-flight store is wiped", replace(less, has_lease=False)


def explore(
    faults: Mapping[str, int],
    *,
    without: frozenset[str] = frozenset(),
    is_prompt: bool = False,
    cut: Collection[int] = (),
    until: str | None = None,
) -> Explored:
    """Reach every state, with at most so many `faults` of each kind on a way; or no further than `until` is wrong.

    `cut`: the stores to which the way is cut at the beginning.
    """
    return explored(
        State(
            left=tuple(faults.get(name, 0) for name in FAULTS),
            link=tuple(store not in cut for store in range(3)),
            reach=tuple(0 if store in cut else GONE for store in range(3)),
        ),
        partial(steps, without=without, is_prompt=is_prompt),
        broken=lambda s: s.broken if is_prompt or s.broken != "late" else "",
        has_ended=lambda s: s.life in ("left", "ended", "reaped"),
        until=until,
    )
