"""One simulated world: a clock, a scheduler, and the faults that it draws, all from one seed.

Everything runs on one thread. What real threads and processes would do at the same time are *strands*, each a function
that makes one step and says when to call it again. At every call of a store and at every failpoint the world may let
others run first (`meanwhile`): nested, so that the step which waits there goes on with its old state afterwards. That
is a slow call, or a process that was stopped past its lease and wakes. A crash is an exception that no code of
workq catches.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

from workq.config import BINARY, LEDGER, Times
from workq.values.task import Claim

DEPTH_MAX = 3
CLAIMS = frozenset({"claim", "claim_hinted", "admit_and_claim"})
WITHIN = frozenset({"worker.before_commit"})
"""Points inside of a transaction: the others see nothing of it, so nobody may act there meanwhile."""
"""How many steps may wait in the middle at once."""
LEVELS = "levels:1s,7s,40s,5m"
"""One world in five has these in place of the binary ladder: gaps shorter and longer than the times of its markers."""
OWNED_FROM = 401
"""The first seed whose queues may have parts. Those before it are the worlds in which most mutants are caught."""
EPOCH_S = 1_767_225_600.0
"""What a correct wall clock says at the beginning: 2026-01-01 00:00 UTC."""


THEMES: dict[str, dict[str, int]] = {
    "mixed": {
        "slow": 6,
        "pause": 2,
        "crash_before": 2,
        "crash_after": 2,
        "fail_before": 3,
        "fail_after": 3,
        "repeat": 2,
    }
    | {"down": 1},
    "pauses": {"slow": 2, "pause": 3},
    "crashes": {"slow": 2, "crash_before": 2, "crash_after": 2},
    "stores": {"fail_before": 2, "fail_after": 4, "repeat": 2, "down": 2, "slow": 2},
}
"""What may befall a call, and how often each in comparison. A few kinds at a time go deeper than all at once."""


class Crash(BaseException):
    """The process that is acting dies at this very moment."""


class Act(Enum):
    """What becomes of one call of a store."""

    OK = auto()
    FAIL_BEFORE = auto()
    FAIL_AFTER = auto()
    REPEAT = auto()
    """The connection broke although the effect stood; the client repeats the call by itself."""
    CRASH_BEFORE = auto()
    CRASH_AFTER = auto()


@dataclass(frozen=True)
class Plan:
    """What kind of world a seed is. `kind`: "healthy" (nothing fails), "losing" (the broker loses hints), "any"."""

    kind: str
    workers: int
    threads: int
    sweepers: int
    producers: int
    tasks: int
    phase_s: float
    rate: float
    """The chance that a call of a store, or a failpoint, is hit."""
    nemesis_s: float
    """About how often something befalls a whole store."""
    weights: tuple[tuple[str, int], ...]
    nemeses: tuple[str, ...]
    is_supervised: bool
    limit: int
    times: Times
    is_direct: bool = False
    """All three stores are one database, and workers claim straight from its hints."""
    every_s: float | None = None
    """A schedule ticks so often until the faults stop."""
    is_ordered: bool = False
    """Half of the tasks have one order key."""
    is_limited: bool = False
    """Half of the tasks share a limit: two of them at once."""
    ladder: str = BINARY
    is_gathered: bool = False
    """Of one handler, up to three tasks share a call, and wait for each other."""
    is_job: bool = False
    """In the place of single tasks, there is a job of many items."""
    is_owned: bool = False
    """Queues have parts, each of which one worker owns. Delayed hints are rows."""
    is_answered_late: bool = False
    """What a claim has granted comes to its worker after some beats, now and then."""

    @property
    def is_moved(self) -> bool:
        """Delayed hints are rows of the ledger, and a mover publishes them."""
        return self.ladder == LEDGER

    @staticmethod
    def of(seed: int, *, loses_hints: bool = True) -> Plan:
        """The world of a seed."""
        rng = Random(seed * 7919 + 1)
        kind = rng.choices(["healthy", "losing", "any"], [20, 20, 60])[0]
        is_direct = Random(seed * 104_729 + 3).random() < 0.3
        losing = ["purge", "wipe_broker"] if is_direct else ["purge", "purge_ladder", "delete_queue", "wipe_broker"]
        others = ["cut", "repeat_hint", "forge", "stop", "person", "clock", "part"]
        if loses_hints and not is_direct:
            others += ["redis_wipe", "redis_back", "broker_back"]
        if is_direct:
            others += ["unknown_claim"]
        theme = rng.choice(sorted(THEMES)) if kind == "any" else "healthy"
        match kind:
            case "healthy":
                weights, chosen, rate = {"slow": 1}, ["person", "stop"], 0.05
            case "losing":
                weights, chosen, rate = {"slow": 1}, [*losing, "person"] if loses_hints else ["person"], 0.05
            case _:
                weights = {name: weight for name, weight in THEMES[theme].items() if rng.random() < 0.8}
                chosen = [one for one in others + (losing if loses_hints else []) if rng.random() < 0.4]
                rate = rng.choice([0.01, 0.03, 0.08])
        if Random(seed * 15_485_863 + 5).random() < 0.2:
            chosen = [*chosen, "pause_queue", "pause_queue"]
        ticking = Random(seed * 32_452_843 + 7)
        is_marked = kind == "healthy" and rng.random() < 0.5  # many markers among hints that change hands slowly
        beat_s = rng.choice([2.0, 5.0])
        times = Times(
            beat_s=beat_s,
            lease_s=beat_s * rng.choice([3.0, 6.0]),
            worker_beat_s=beat_s * rng.choice([1.0, 2.0]),
            sweep_s=beat_s * (rng.choice([1.0, 2.0, 3.0]) if not is_marked else 0.5),
            marker_s=beat_s * (rng.choice([2.0, 6.0]) if not is_marked else 0.5),
            marker_grace_s=beat_s * (rng.choice([1.5, 6.0]) if not is_marked else 6.0),
        )
        is_job = Random(seed * 122_949_823 + 23).random() < 0.15
        is_owned = not is_direct and seed >= OWNED_FROM and Random(seed * 236_887_691 + 47).random() < 0.2
        if is_owned:
            chosen = [{"purge_ladder": "truncate", "broker_back": "expire_offsets"}.get(one, one) for one in chosen]
        older = Random(seed * 141_650_939 + 31)
        if kind == "any" and not is_direct and older.random() < 0.15:
            chosen = [*chosen, "unknown_claim"]
        if kind == "any" and loses_hints and not is_job and older.random() < 0.2:
            chosen = [*chosen, "ledger_back", "ledger_back"]
        return Plan(
            kind=kind,
            workers=rng.choice([1, 2, 2, 3]) if not is_marked else 3,
            threads=rng.choice([1, 2, 4] if kind == "any" else [1, 1, 2]),
            sweepers=rng.choice([1, 1, 1, 2]),
            producers=rng.choice([1, 2]),
            tasks=rng.choice([1, 2, 4, 8] if kind == "any" else [2, 6, 12]) if not is_marked else 12,
            phase_s=beat_s * rng.choice([3.0, 6.0, 12.0]),
            rate=rate if not is_marked else 0.2,
            nemesis_s=beat_s * rng.choice([0.5, 2.0, 8.0]),
            weights=tuple(weights.items()),
            nemeses=tuple(chosen),
            is_supervised=rng.random() < 0.4,
            limit=rng.choice([1, 3, 1000]),
            times=times,
            is_direct=is_direct,
            is_ordered=not is_job and Random(seed * 49_979_687 + 11).random() < 0.15,
            is_limited=not is_job and Random(seed * 67_867_967 + 13).random() < 0.15,
            ladder=LEDGER if is_owned else _ladder(seed, is_direct=is_direct),
            is_owned=is_owned,
            every_s=beat_s * ticking.choice([1.0, 3.0]) if ticking.random() < 0.15 and not is_job else None,
            is_gathered=not is_job and Random(seed * 104_395_301 + 19).random() < 0.2,
            is_job=is_job,
            is_answered_late=kind == "any" and older.random() < 0.2,
        )


def _ladder(seed: int, *, is_direct: bool) -> str:
    if Random(seed * 86_028_121 + 17).random() < 0.2:
        return LEVELS
    return LEDGER if not is_direct and Random(seed * 198_491_317 + 41).random() < 0.25 else BINARY


@dataclass(eq=False)
class Process:
    """A life of one process: whoever shares its fate. Its clocks are its own."""

    world: World
    name: str
    monotonic_s: float = 0.0
    wall_s: float = 0.0
    is_dead: bool = False
    is_stopping: bool = False
    """It was told to leave in order."""
    on_death: list[Callable[[], None]] = field(default_factory=list)

    def clock(self) -> float:
        """Its monotonic clock."""
        return self.world.now + self.monotonic_s

    def wall(self) -> float:
        """What its host believes the time to be."""
        return EPOCH_S + self.world.now + self.wall_s

    def die(self) -> None:
        """End without a word."""
        if not self.is_dead:
            self.is_dead = True
            for told in self.on_death:
                told()

    def strand(self, name: str, act: Callable[[], float | None]) -> Strand:
        """Something that this process does by itself. It sleeps until it is woken."""
        return Strand(self, name, act)


@dataclass(eq=False)
class Strand:
    """One line of execution: `act` makes one step and answers after how long the next is due; None: when woken."""

    process: Process
    name: str
    act: Callable[[], float | None]
    version: int = 0
    due_at: float | None = None

    def wake(self, in_s: float = 0.0) -> None:
        """Be called in so many seconds, or earlier if that was planned already."""
        self.process.world.plan_step(self, in_s)


class World:
    """The clock and the scheduler."""

    def __init__(self, seed: int, plan: Plan, *, is_traced: bool = False) -> None:
        self.seed = seed
        self.plan = plan
        self.rng = Random(seed)
        self.late = Random(seed * 160_481_183 + 37)
        self.now = 0.0
        self.is_faulty = True
        self.steps = 0
        self.faults: Counter[str] = Counter()
        self.acting: Strand | None = None
        self.op: tuple[str, tuple[object, ...], dict[str, object]] | None = None
        """The ledger's method that is being called."""
        self.on_claimed: Callable[[Sequence[Claim], Collection[str]], None] = lambda claims, in_doubt: None
        """Called with what a claim has answered, while `op` is that claim."""
        self.violations: list[str] = []
        self.after_step: list[Callable[[], None]] = []
        self.down_until: dict[tuple[str, str | None], float] = {}
        self.forced: list[str] = []
        """What befalls the next calls, before anything is drawn."""
        self.trace: list[str] | None = [] if is_traced else None
        self._kinds = [name for name, _ in plan.weights]
        self._weights = [weight for _, weight in plan.weights]
        self._heap: list[tuple[float, int, Strand, int]] = []
        self._serial = 0
        self._waiting: list[Strand | Process] = []
        self._ids = 0

    # -- names

    def new_id(self) -> str:
        """A task id: a UUIDv7 of the seed."""
        self._ids += 1
        ms = int((EPOCH_S + self.now) * 1000)
        head = f"{ms:012x}"
        return (
            f"{head[:8]}-{head[8:]}-7{self.seed & 0xFFF:03x}-8{self._ids & 0xFFF:03x}-{self.rng.getrandbits(48):012x}"
        )

    def token_hex(self, nbytes: int) -> str:
        """In place of `secrets`."""
        return f"{self.rng.getrandbits(nbytes * 8):0{nbytes * 2}x}"

    def note(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            who = "-" if self.acting is None else f"{self.acting.process.name}/{self.acting.name}"
            self.trace.append(f"{self.now:9.3f} {'  ' * len(self._waiting)}{who:24} {text}")

    def violated(self, invariant: str, text: str) -> None:
        """An invariant does not hold: the run ends after this step."""
        self.note(f"VIOLATED {invariant}: {text}")
        self.violations.append(f"{invariant}: {text} (at {self.now:.3f} s, step {self.steps})")

    # -- the scheduler

    def plan_step(self, strand: Strand, in_s: float) -> None:
        at = round(self.now + max(0.0, in_s), 3)
        if strand.due_at is not None and strand.due_at <= at:
            return
        strand.due_at = at
        strand.version += 1
        self._serial += 1
        heapq.heappush(self._heap, (at, self._serial, strand, strand.version))

    def run(self, until: float, *, done: Callable[[], bool] = lambda: False) -> None:
        """Let everybody act until a moment, until `done`, or until an invariant is violated."""
        deferred: list[Strand] = []
        while self._heap and self._heap[0][0] <= until and not self.violations:
            at, _, strand, version = heapq.heappop(self._heap)
            if strand.version != version or strand.process.is_dead:
                continue
            strand.due_at = None
            if strand in self._waiting or strand.process in self._waiting:
                deferred.append(strand)
                continue
            self.now = max(self.now, at)
            self._step(strand)
            if done():
                break
        if not self.violations and not done():
            self.now = max(self.now, until)
        for strand in deferred:
            if strand.due_at is None:
                self.plan_step(strand, 0.001)

    def _step(self, strand: Strand) -> None:
        before, self.acting = self.acting, strand
        op, self.op = self.op, None
        self.steps += 1
        again_s: float | None = None
        try:
            again_s = strand.act()
        except Crash:
            self.note("crashes")
            strand.process.die()
        finally:
            self.acting, self.op = before, op
        for check in self.after_step:
            check()
        if again_s is not None and not strand.process.is_dead:
            self.plan_step(strand, again_s * self.rng.uniform(0.9, 1.2))

    def meanwhile(self, seconds: float, *, is_whole_process: bool) -> None:
        """Whoever acts waits here, its whole process or this strand alone; the others go on."""
        strand = self.acting
        if strand is None or len(self._waiting) >= DEPTH_MAX:
            return
        op, self.op = self.op, None
        self._waiting.append(strand.process if is_whole_process else strand)
        try:
            self.run(round(self.now + seconds, 3))
        finally:
            self._waiting.pop()
            self.acting, self.op = strand, op
        if strand.process.is_dead:
            raise Crash

    # -- faults

    def befall(self, store: str, call: str, *, holds_lock: bool = False) -> Act:
        """Decide what becomes of a call, and let time pass before it if that is drawn. Crashes before it here."""
        strand = self.acting
        if strand is None:
            return Act.OK
        if strand.process.is_dead:
            raise Crash
        if self.down_until and self.now < max(
            self.down_until.get((store, None), 0.0), self.down_until.get((store, strand.process.name), 0.0)
        ):
            return Act.FAIL_BEFORE
        if not self.is_faulty:
            return Act.OK
        if self.forced:
            return self._hit(strand, self.forced.pop(0), store, call, holds_lock=holds_lock)
        # one call in the place of four; and what writes outcomes is where a repetition must change nothing
        rate = self.plan.rate * {"claim_hinted": 4, "settle": 3, "resume_job": 12, "split_job": 4}.get(call, 1)
        if self.rng.random() >= rate or not self._kinds:
            return Act.OK
        kind = self.rng.choices(self._kinds, self._weights)[0]
        return self._hit(strand, kind, store, call, holds_lock=holds_lock)

    def _hit(self, strand: Strand, kind: str, store: str, call: str, *, holds_lock: bool) -> Act:
        times = self.plan.times
        if kind in ("slow", "pause"):
            is_long = kind == "pause"
            seconds = times.lease_s * self.rng.uniform(0.3, 2.5) if is_long else self.rng.choice([0.01, 0.1, 0.6])
            if call == "hold" and not is_long:  # what was fetched is in nobody's books for so long
                seconds *= 4
            self.faults[kind] += 1
            self.note(f"{store}.{call}: {kind} {seconds:.2f} s")
            self.meanwhile(seconds, is_whole_process=is_long or holds_lock)
            return Act.OK
        if kind.startswith("crash") and not strand.process.on_death:
            return Act.OK  # not somebody who can die
        self.faults[kind] += 1
        self.note(f"{store}.{call}: {kind}")
        if kind == "down":
            whom = strand.process.name if self.rng.random() < 0.6 else None
            self.down_until[store, whom] = self.now + times.beat_s * self.rng.choice([0.2, 1.0, 5.0, 10.0])
            return Act.FAIL_BEFORE
        if kind == "crash_before":
            raise Crash
        if kind == "fail_after" and call in ("claim", "claim_hinted") and self.rng.random() < 0.5:
            strand.process.is_stopping = True  # it leaves before it can know what it was granted
        return Act[kind.upper()]

    def answer(self, call: str) -> None:
        """The answer of a store is on its way: that of a claim may take longer than two looks of its process."""
        if not (self.is_faulty and self.plan.is_answered_late and call in CLAIMS) or self.late.random() >= 0.15:
            return
        seconds = self.plan.times.worker_beat_s * self.late.uniform(0.3, 4.0)
        self.faults["late_answer"] += 1
        self.note(f"ledger.{call}: answered {seconds:.2f} s late")
        self.meanwhile(seconds, is_whole_process=False)

    def reach(self, point: str) -> None:
        """A failpoint was reached: a crash, a pause or a slow moment may happen there."""
        strand = self.acting
        if strand is None or not self.is_faulty:
            return
        if strand.process.is_dead:
            raise Crash
        if self.rng.random() >= self.plan.rate * (20 if point.startswith("split.") else 1):
            return
        names = [name for name in ("slow", "pause", "crash_before") if name in self._kinds]
        if point in WITHIN:
            names = [name for name in names if name == "crash_before"]
        if not names:
            return
        kind = self.rng.choice(names)
        if kind == "crash_before":
            if strand.process.on_death:
                self.faults["crash_at_failpoint"] += 1
                self.note(f"{point}: crash")
                raise Crash
            return
        self.faults[kind] += 1
        seconds = self.plan.times.lease_s * self.rng.uniform(0.3, 2.5) if kind == "pause" else 0.1
        self.note(f"{point}: {kind} {seconds:.2f} s")
        self.meanwhile(seconds, is_whole_process=True)

    def heal(self) -> None:
        """No more faults from here on."""
        self.is_faulty = False
        self.down_until.clear()
