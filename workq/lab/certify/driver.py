"""The driver: producers that enqueue at a given rate whatever happens to the servers, and write down each call.

It keeps little work waiting (about two seconds of it), so that the time until a task is done tells about the fault and
not about a backlog. A producer that is held up by a fault does not make up for it afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final, assert_never

from workq.app import WorkQueue
from workq.errors import CommitUnknown, Unavailable
from workq.handlers.handler import Handler
from workq.lab.certify import witness
from workq.lab.certify.witness import Testimony
from workq.ledger import CancelAnswer
from workq.values.task import Enqueued

PRODUCERS: Final = 2
AHEAD_S: Final = 2.0
"""So much work may wait."""
_LONG_S: Final = (0.05, 0.6)
_PILE_MIN: Final = 50
_PILE_MAX: Final = 400
_PILE_S: Final = 2.0
"""How many tasks are piled up at once, at least and at most, and how long all workers are busy with them."""
_BUSY: Final = 0.4
"""Some tasks take longer, enough of them to keep this part of all threads busy: every fault finds some running."""


class TaskKind(StrEnum):
    """How tasks are enqueued, and what they do."""

    ONE = "one"
    MANY = "many"
    DELAYED = "delayed"
    FAILING = "failing"
    """Fails once or twice, then succeeds."""
    DOOMED = "doomed"
    """Always fails."""
    KEYED = "keyed"
    """The same call twice, under one key."""
    CANCELLED = "cancelled"
    """Delayed, and cancelled at once."""


class EnqueueAnswer(StrEnum):
    """What came of an enqueue."""

    NONE = "no answer"
    """The call has not returned."""
    ACKNOWLEDGED = "acknowledged"
    UNKNOWN = "unknown"
    """The commit may stand or not: CommitUnknown."""
    REFUSED = "refused"
    """An error that says that nothing was recorded."""


@dataclass(slots=True)
class JournalEntry:
    """One call. `numbers` are the tasks that it asked for; times are monotonic."""

    kind: TaskKind
    numbers: range
    called_at: float
    delay_s: float = 0.0
    answer: EnqueueAnswer = EnqueueAnswer.NONE
    answered_at: float = 0.0
    ids: tuple[str, ...] = ()
    """As answered; empty after a bulk, which answers with a count."""
    cancelled_at: float | None = None
    """When a cancel answered that the task is cancelled."""
    error: str = ""


@dataclass(slots=True)
class Journal:
    """Every call so far. For several threads.

    Each call is written before it is made, and completed with what came of it. A task is known by its number, which the
    driver chooses: so a call whose outcome nobody saw can still be found in the ledger. The same lines stand in a file,
    for a person who looks at a kept run.
    """

    file: Path
    entries: list[JournalEntry] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """Exceptions that no caller should ever see."""
    acknowledged: int = 0
    _next: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, kind: TaskKind, count: int, *, delay_s: float = 0.0) -> JournalEntry:
        """A call is about to be made, for so many new numbers."""
        with self._lock:
            entry = JournalEntry(kind, range(self._next, self._next + count), time.monotonic(), delay_s)
            self._next += count
            self.entries.append(entry)
            self._note("call", entry)
        return entry

    def again(self, entry: JournalEntry) -> JournalEntry:
        """The same call is about to be made once more."""
        with self._lock:
            repeated = JournalEntry(entry.kind, entry.numbers, time.monotonic(), entry.delay_s)
            self.entries.append(repeated)
            self._note("call", repeated)
        return repeated

    def end(self, entry: JournalEntry, answer: EnqueueAnswer, *, ids: Sequence[str] = (), error: str = "") -> None:
        """The call has returned."""
        with self._lock:
            entry.answer, entry.answered_at, entry.ids, entry.error = answer, time.monotonic(), tuple(ids), error
            if answer is EnqueueAnswer.ACKNOWLEDGED:
                self.acknowledged += len(entry.numbers)
            self._note(answer.value, entry)

    def cancelled(self, entry: JournalEntry) -> None:
        """A cancel has answered that the entry's task is cancelled."""
        with self._lock:
            entry.cancelled_at = time.monotonic()
            self._note("cancelled", entry)

    def _note(self, what: str, entry: JournalEntry) -> None:
        line = f"{time.monotonic():.6f} {what} {entry.kind} {entry.numbers.start}-{entry.numbers.stop - 1}"
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line} {' '.join(entry.error.split())[:300]}".rstrip() + "\n")


_KINDS: Final = {
    TaskKind.MANY: 50,
    TaskKind.ONE: 30,
    TaskKind.DELAYED: 8,
    TaskKind.FAILING: 6,
    TaskKind.DOOMED: 2,
    TaskKind.KEYED: 2,
    TaskKind.CANCELLED: 2,
}
"""How often each kind of call is made, relatively."""


class Driver:
    """Enqueues in threads of its own from `start` until `stop`."""

    def __init__(
        self, app: WorkQueue, journal: Journal, testimony: Testimony, *, rate: float, threads: int, seed: int
    ) -> None:
        """`threads`: how many tasks can run at once."""
        self._app = app
        self._journal = journal
        self._testimony = testimony
        self._rate = rate
        self._threads_max = threads
        self._long = min(0.5, _BUSY * threads / (rate * sum(_LONG_S) / 2.0))
        self._work: Handler[..., object] = app.task(
            name=witness.work.name,
            queue=witness.QUEUE,
            failures_max=witness.work.defaults.failures_max,
            crashes_max=witness.work.defaults.crashes_max,
        )(witness.work.function)
        self._doomed: Handler[..., object] = app.task(
            name=witness.doomed.name,
            queue=witness.QUEUE,
            failures_max=witness.doomed.defaults.failures_max,
            crashes_max=witness.doomed.defaults.crashes_max,
        )(witness.doomed.function)
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._produce, args=(Random(f"{seed} producer {n}"),), name=f"certify-{n}", daemon=True
            )
            for n in range(PRODUCERS)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout_s: float) -> bool:
        """Make no new call, and wait for those under way; False when one has not returned in time."""
        self._stopped.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def pile_up(self) -> None:
        """Enqueue in one call what keeps all workers busy for a while."""
        entry = self._journal.begin(TaskKind.MANY, max(_PILE_MIN, min(_PILE_MAX, int(_PILE_S * self._testimony.pace))))
        seconds = _PILE_S / len(entry.numbers) * self._threads_max
        self._many(entry, [{"number": number, "seconds": seconds} for number in entry.numbers])

    def _ahead(self) -> float:
        """How many tasks may wait: some seconds of the rate, or of what this machine can do if that is less."""
        return AHEAD_S * max(4.0 * self._threads_max, min(self._rate, self._testimony.pace))

    def _produce(self, rng: Random) -> None:
        next_at = time.monotonic()
        while not self._stopped.is_set():
            if self._journal.acknowledged - len(self._testimony.finished) > self._ahead():
                self._stopped.wait(0.05)
                next_at = time.monotonic()
                continue
            count = self._call(rng)
            next_at = max(next_at, time.monotonic() - 0.5) + count * PRODUCERS / self._rate
            self._stopped.wait(max(0.0, next_at - time.monotonic()))

    def _call(self, rng: Random) -> int:
        """One call of a kind that chance chooses; answers how many tasks it was for."""
        kind = rng.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
        match kind:
            case TaskKind.ONE:
                entry = self._journal.begin(kind, 1)
                self._one(entry, lambda number: self._work.enqueue(number, self._seconds(rng)))
            case TaskKind.MANY:
                entry = self._journal.begin(kind, rng.randint(10, max(11, min(500, int(self._rate / 4)))))
                self._many(entry, [{"number": number, "seconds": self._seconds(rng)} for number in entry.numbers])
            case TaskKind.DELAYED:
                delay_s = round(rng.uniform(0.2, 4.0), 1)
                entry = self._journal.begin(kind, 1, delay_s=delay_s)
                self._one(entry, lambda number: self._work.options(delay_s=delay_s).enqueue(number, self._seconds(rng)))
            case TaskKind.FAILING:
                failures = rng.randint(1, 2)
                entry = self._journal.begin(kind, 1)
                self._one(entry, lambda number: self._work.enqueue(number, self._seconds(rng), failures))
            case TaskKind.DOOMED:
                entry = self._journal.begin(kind, 1)
                self._one(entry, self._doomed.enqueue)
            case TaskKind.KEYED:
                entry = self._journal.begin(kind, 1)
                keyed = self._work.options(key=f"number-{entry.numbers.start}")
                self._one(entry, keyed.enqueue)
                self._one(self._journal.again(entry), keyed.enqueue)
            case TaskKind.CANCELLED:
                entry = self._journal.begin(kind, 1, delay_s=2.0)
                self._one(entry, self._work.options(delay_s=2.0).enqueue)
                if entry.answer is EnqueueAnswer.ACKNOWLEDGED:
                    self._cancel(entry)
            case _:
                assert_never(kind)
        return len(entry.numbers)

    def _one(self, entry: JournalEntry, enqueue: Callable[[int], Enqueued]) -> None:
        self._ask(entry, lambda: (enqueue(entry.numbers.start).id,))

    def _many(self, entry: JournalEntry, calls: list[dict[str, object]]) -> None:
        def enqueue() -> tuple[str, ...]:
            self._work.enqueue_many(calls)  # one transaction: no more than produce.CHUNK
            return ()

        self._ask(entry, enqueue)

    def _ask(self, entry: JournalEntry, call: Callable[[], tuple[str, ...]]) -> None:
        try:
            ids = call()
        except CommitUnknown as error:
            self._journal.end(entry, EnqueueAnswer.UNKNOWN, error=str(error))
        except Unavailable as error:
            self._journal.end(entry, EnqueueAnswer.REFUSED, error=str(error))
        except Exception as error:  # nobody should ever see it: the auditor reports it
            self._journal.trouble.append(f"enqueue ({entry.kind}) raised {type(error).__name__}: {error}")
            self._journal.end(entry, EnqueueAnswer.UNKNOWN, error=f"{type(error).__name__}: {error}")
        else:
            self._journal.end(entry, EnqueueAnswer.ACKNOWLEDGED, ids=ids)

    def _cancel(self, entry: JournalEntry) -> None:
        try:
            answer = self._app.cancel(entry.ids[0], why="certify")
        except Unavailable:
            return
        except Exception as error:  # nobody should ever see it: the auditor reports it
            self._journal.trouble.append(f"cancel raised {type(error).__name__}: {error}")
            return
        if answer is CancelAnswer.CANCELLED:
            self._journal.cancelled(entry)

    def _seconds(self, rng: Random) -> float:
        """Most tasks take next to nothing."""
        if rng.random() < self._long:
            return round(rng.uniform(*_LONG_S), 3)
        return round(rng.uniform(0.0, 0.005), 4)
