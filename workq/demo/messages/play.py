"""The run of the demo: messages are recorded, due one after the other, and then the destinations are asked what came.

They are recorded before the first one is due. A real worker sends them. Just before they are due, some are cancelled
and some are moved to later. Then one of the worker's processes is killed with SIGKILL, while the receiver of HTTP
withholds its answers, so that the process has sent what the ledger does not know to have arrived; and that receiver
goes away, until it is back.

Everything is private to one run (demo/stage.py). Who decides: the mailboxes, at the end (proof.py). The ledger's counts
only feed the progress and say when to stop waiting.

What happens on each failure: nothing moves for two minutes, or the worker leaves by itself: the run stops there and
counts what has arrived, and the report says what was seen last. Whatever ends the run, Ctrl-C included: the worker, its
processes, the servers, the listener and the folder are gone when `play` has returned or raised.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from workq.demo.messages.mailboxes import HttpBox, Mailbox, open_mailboxes
from workq.demo.messages.plan import AWAY_PART, COUNT, KILL_AT, WITHIN_S, PlannedMessage, planned
from workq.demo.messages.proof import ExpectedMessage, Fate, MailboxTally, tally
from workq.demo.stage import (
    STALL_S,
    GaveUp,
    Killed,
    WorkerNarrator,
    WorkWatch,
    folder_for,
    freed_after_s,
    kill_one,
    private_servers,
    working,
    write_settings,
)
from workq.errors import Refused, Unavailable
from workq.lab.fleet import only_workq_variables
from workq.ledger import CancelAnswer
from workq.ledger.engine.migrate import migrate
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import QUEUE, TASK_NAME, WhichMessages
from workq.values.task import State, Task

if TYPE_CHECKING:
    from workq.app import WorkQueue
    from workq.messenger import Messages

PAGE: Final = 2_000
"""Messages that are recorded one after the other, in one transaction for each destination."""
_RECORDED_PER_S: Final = 2_500.0
_HEAD_START_S: Final = 1.0
"""Before the first one is due, beside what the recording should take."""
_ASK_EVERY_S: Final = 0.5
_SEED: Final = 30
_APP: Final = "workq.demo.messages.application:wq"
_OPEN: Final = frozenset({State.WAITING, State.READY, State.RUNNING})
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MessageWishes:
    """What was asked for. `kinds` empty: all that can be had. `keep` is a folder that stays."""

    count: int = COUNT
    within_s: float = WITHIN_S
    kinds: tuple[str, ...] = ()
    servers: bool = False
    processes: int = 2
    threads: int = 8
    keep: Path | None = None
    kill: bool = True
    stall_s: float = STALL_S


@dataclass(frozen=True, slots=True)
class MessageScene:
    """What is about to happen, and where."""

    count: int
    within_s: float
    processes: int
    threads: int
    kill: bool
    folder: Path


@dataclass(slots=True)
class Decided:
    """What was decided at the last moment: so many were cancelled, moved, or on their way already."""

    cancelled: int = 0
    moved: int = 0
    too_late_to_cancel: int = 0
    too_late_to_move: int = 0


@dataclass(frozen=True, slots=True)
class Away:
    """A destination was away for so long, and refused so many requests."""

    seconds: float
    refused: int


@dataclass(frozen=True, slots=True)
class MessageReport:
    """The outcome. `seconds`: from the first one due until all had ended. `left_out`: kinds, and why."""

    scene: MessageScene
    stores: str
    tallies: tuple[MailboxTally, ...]
    left_out: Mapping[str, str]
    decided: Decided
    killed: Killed | None
    freed_s: float | None
    away: Away | None
    recorded_s: float
    seconds: float
    states: Mapping[str, int]
    """How many messages the ledger knows in each state."""
    trouble: str | None
    """Why the run was given up; None when it went as it should."""

    @property
    def unended(self) -> int:
        """Messages that the ledger calls neither sent nor cancelled."""
        return sum(count for state, count in self.states.items() if state not in (State.SUCCEEDED, State.CANCELLED))

    @property
    def is_proved(self) -> bool:
        """Whether everything has arrived that had to, at its time, and nothing else."""
        return self.trouble is None and all(one.is_right for one in self.tallies) and not self.unended


class MessageNarrator(WorkerNarrator, Protocol):
    """Who tells the user what happens. Called from one thread."""

    def begins(self, scene: MessageScene) -> None:
        """What is about to happen. Nothing runs yet."""
        ...

    def mailboxes(self, boxes: Mapping[str, str], left_out: Mapping[str, str]) -> None:
        """Where the messages go, and what had to be left out, and why."""
        ...

    def recorded(self, count: int, seconds: float) -> None:
        """All of them are recorded."""
        ...

    def decided(self, decided: Decided) -> None:
        """All that are cancelled or moved, are."""
        ...

    def freed(self, seconds: float) -> None:
        """What the killed process had in hand is nobody's any more, or somebody else's."""
        ...

    def left(self) -> None:
        """A destination is away."""
        ...

    def returned(self, away: Away) -> None:
        """It is back."""
        ...


def play(wishes: MessageWishes, narrator: MessageNarrator) -> MessageReport:
    """Run the demo from start to end; nothing is left behind but what `wishes.keep` names.

    Once in the life of a process: the application reads its settings when it is imported.

    Raises:
        ConfigError: the folder to keep is not empty, or what was asked for is not installed.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for(wishes.keep))
        scene = MessageScene(
            wishes.count, wishes.within_s, wishes.processes, wishes.threads, kill=wishes.kill, folder=folder
        )
        narrator.begins(scene)
        stores, urls = "SQLite: ledger, hints and leases in one file", {"ledger": f"sqlite:///{folder / 'workq.db'}"}
        if wishes.servers or not wishes.kinds or {"amqp", "kafka"}.intersection(wishes.kinds):
            narrator.starts_servers()
        if wishes.servers:
            stores, urls = stack.enter_context(private_servers())
        boxes, left_out = stack.enter_context(open_mailboxes(wishes.kinds, folder, broker_url=urls.get("broker")))
        narrator.mailboxes({kind: box.about for kind, box in boxes.items()}, left_out)
        settings = write_settings(folder, urls | {"message_allow": "loopback"})
        stack.enter_context(only_workq_variables({"WORKQ_CONFIG": str(settings)}))
        from workq.demo.messages import application  # not before: it reads its settings now

        wq, messages = stack.enter_context(application.wq), application.messages
        with closing(wq.database()) as database:
            migrate(database)
        for kind, box in boxes.items():
            messages.destinations.add(kind, kind=kind, **box.options)
        narrator.starts_worker(stores)
        trouble = None
        with working(folder, app=_APP, queues=QUEUE, processes=wishes.processes, threads=wishes.threads) as worker:
            watch = WorkWatch(worker, folder, wishes.count, "messages have ended", wishes.stall_s)
            run = _MessageRun(wq, messages, boxes, watch, scene, narrator)
            try:
                run.go()
            except GaveUp as error:
                trouble = str(error)
        narrator.counting()
        return MessageReport(
            scene=scene,
            stores=stores,
            tallies=tuple(tally(kind, run.expected[kind], box.arrivals()) for kind, box in boxes.items()),
            left_out=left_out,
            decided=run.decided,
            killed=run.killed,
            freed_s=run.freed_s,
            away=run.away,
            recorded_s=run.recorded_s,
            seconds=run.seconds,
            states=run.states,
            trouble=trouble,
        )


@dataclass(slots=True)
class _MessageRun:
    """What is done, and what was seen of it."""

    _wq: WorkQueue
    _messages: Messages
    _boxes: Mapping[str, Mailbox]
    _watch: WorkWatch
    _scene: MessageScene
    _narrator: MessageNarrator
    expected: defaultdict[str, dict[str, ExpectedMessage]] = field(default_factory=lambda: defaultdict(dict))
    """What has to come of each message, by its destination and its id."""
    decided: Decided = field(default_factory=Decided)
    killed: Killed | None = None
    freed_s: float | None = None
    away: Away | None = None
    recorded_s: float = 0.0
    seconds: float = 0.0
    states: Mapping[str, int] = field(default_factory=dict)
    _begins_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _asked_at: float = 0.0

    def go(self) -> None:
        """All of it, in order.

        Raises:
            GaveUp: the worker is no help.
        """
        scene, questions = self._scene, self._wq.stores.ledger.questions
        plan = list(planned(scene.count, scene.within_s, list(self._boxes), rng=Random(_SEED)))
        self._watch.until(lambda: len(questions.workers()) >= scene.processes)
        self._record(plan)
        self._decide(plan)
        self._watch.until(lambda: self._look() and self._is_time(KILL_AT * scene.within_s))
        self._kill_and_leave()
        self._watch.until(lambda: self._look() and self._is_over())
        self.seconds = (datetime.now(UTC) - self._begins_at).total_seconds()

    # -- what the application does

    def _record(self, plan: Sequence[PlannedMessage]) -> None:
        """Record all of them, each page in a transaction for each destination."""
        began = time.monotonic()
        lead = timedelta(seconds=_HEAD_START_S + len(plan) / _RECORDED_PER_S)
        self._begins_at = (datetime.now(UTC) + lead).replace(microsecond=0)
        for first in range(0, len(plan), PAGE):
            for kind in self._boxes:
                page = [one for one in plan[first : first + PAGE] if one.box == kind]
                for one in page:
                    self._expect(one, one.due_after_s)
                new = [{"body": one.body, "message_id": one.id, "at": self._moment(one.due_after_s)} for one in page]
                self._answered(partial(self._messages.send_many, kind, new))
        self.recorded_s = time.monotonic() - began
        self._watch.moved()
        self._narrator.recorded(len(plan), self.recorded_s)

    def _decide(self, plan: Sequence[PlannedMessage]) -> None:
        """Cancel and move, each message just before it is due."""
        for one in sorted(plan, key=lambda one: one.decide_after_s or 0.0):
            if one.decide_after_s is None:
                continue
            while not self._is_time(one.decide_after_s):
                self._watch.check()
                self._look()
                time.sleep(0.01)
            if one.moved_to_s is None:
                self._cancel(one)
            else:
                self._move(one, one.moved_to_s)
        self._narrator.decided(self.decided)

    def _cancel(self, one: PlannedMessage) -> None:
        answer = self._answered(lambda: self._messages.cancel(one.id, why="the demo cancels it"))
        match answer:
            case CancelAnswer.CANCELLED | CancelAnswer.ALREADY_CANCELLED:
                self.decided.cancelled += 1
                self._expect(one, one.due_after_s, Fate.CANCELLED)
            case CancelAnswer.REQUESTED:
                self.decided.too_late_to_cancel += 1
                self._expect(one, one.due_after_s, Fate.TOO_LATE)
            case _:
                self.decided.too_late_to_cancel += 1

    def _move(self, one: PlannedMessage, to_s: float) -> None:
        try:
            self._answered(lambda: self._messages.reschedule(one.id, at=self._moment(to_s), why="the demo moves it"))
        except Refused:
            self.decided.too_late_to_move += 1
        else:
            self.decided.moved += 1
            self._expect(one, to_s)

    def _answered(self, ask: Callable[[], T]) -> T:
        """What the ledger answers; it is asked until it does. What is asked for may be asked for twice."""
        while True:
            try:
                return ask()
            except Unavailable as error:
                self._watch.check(f"the ledger does not answer: {error}")
                time.sleep(0.05)

    def _expect(self, one: PlannedMessage, due_s: float, fate: Fate = Fate.SENT) -> None:
        self.expected[one.box][one.id] = ExpectedMessage(one.body, self._moment(due_s).timestamp(), fate)

    def _moment(self, after_s: float) -> datetime:
        return self._begins_at + timedelta(milliseconds=round(after_s * 1000))

    def _is_time(self, after_s: float) -> bool:
        return datetime.now(UTC) >= self._begins_at + timedelta(seconds=after_s)

    # -- what goes wrong

    def _kill_and_leave(self) -> None:
        http = self._boxes.get("http")
        box = http if isinstance(http, HttpBox) else None
        if self._scene.kill:
            if box is not None:
                box.is_holding = True
            try:
                self._watch.until(lambda: self._look() and (self._kill() or self._is_ended()))
            finally:
                if box is not None:
                    box.is_away, box.is_holding = True, False
        if box is not None:
            self._stay_away(box)

    def _kill(self) -> bool:
        self.killed = kill_one(self._wq, self._watch.worker, self._watch.folder, counts=_is_message)
        if self.killed is None:
            return False
        self._narrator.killed(self.killed)
        return True

    def _stay_away(self, box: HttpBox) -> None:
        """For a while, and until somebody has come in vain, if anybody is still to come."""
        began, seconds = time.monotonic(), AWAY_PART * self._scene.within_s
        box.is_away = True
        self._narrator.left()

        def is_long_enough() -> bool:
            return time.monotonic() - began >= seconds and (box.refused > 0 or self._is_ended())

        try:
            self._watch.until(lambda: self._look() and is_long_enough())
        finally:
            box.is_away = False
        self.away = Away(time.monotonic() - began, box.refused)
        self._watch.moved()
        self._narrator.returned(self.away)

    # -- what is seen of it

    def _look(self) -> bool:
        """Ask the ledger, now and then, how far it is. Answers True, so that a condition can follow it."""
        if time.monotonic() - self._asked_at < _ASK_EVERY_S:
            return True
        self.states = self._wq.stores.ledger.part(MessageLedger).letters.counts(WhichMessages())
        self._watch.saw(sum(count for state, count in self.states.items() if state not in _OPEN))
        self._narrator.progress(self._watch.done, self._watch.total)
        if self.killed is not None and self.freed_s is None:
            self.freed_s = freed_after_s(self._wq, self.killed)
            if self.freed_s is not None:
                self._narrator.freed(self.freed_s)
        self._asked_at = time.monotonic()
        return True

    def _is_ended(self) -> bool:
        return self._watch.done >= self._watch.total

    def _is_over(self) -> bool:
        return self._is_ended() and (self.killed is None or self.freed_s is not None)


def _is_message(task: Task) -> bool:
    return task.name == TASK_NAME
