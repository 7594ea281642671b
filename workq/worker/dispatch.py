"""Dispatch: from a claim to the pool. What may start is started; what may not goes back at no cost.

A suspect (a task that ran in a process that died) runs alone: while one waits or runs, nothing else is started or
fetched here, and it starts when all that ran before is settled. So the next death tells who it was. Webhooks are
beyond suspicion: of a hundred that were under way, each would wait for its turn alone, with all that waits behind them,
for as long as slow receivers take.

Tasks of a handler with `batch=` wait in `pool.linger` until they go together; a suspect of them is called alone. Nobody
waits for company that cannot come: when a suspect waits, those that have come go at once.

The lease decides whether anything may start at all: a process that was stopped while it claimed hands back what it got.
Used by one thread.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from workq.handlers.handler import Handler
from workq.handlers.registry import Registry
from workq.logs.seldom import Seldom
from workq.slices import BEYOND_SUSPICION
from workq.values.task import Claim, HandedBack, Outcome
from workq.worker.attempt import prepare
from workq.worker.batch import FillingBatch, Member
from workq.worker.holds import Holds
from workq.worker.lease import LeaseKeeper
from workq.worker.pool import Pool

SUSPECTS_TOGETHER_S = 5.0
"""Suspects wait here for each other as long as each takes no longer: handed back, they would go behind the backlog."""
SUSPECT_WAIT_MAX_S = 600.0
"""A suspect that could not start for this long is handed back: behind a handler that hangs, the others would starve."""


UNKNOWN_EVERY_S = 60.0
"""How often the log tells of tasks whose name this process does not know, for each name."""

log = logging.getLogger("workq.dispatch")


class Dispatcher:
    """What one incarnation has claimed and not yet given to its pool."""

    def __init__(
        self,
        *,
        queues: Sequence[str],
        registry: Registry,
        heart: LeaseKeeper,
        held: Holds,
        pool: Pool,
        rng: random.Random,
        seldom: Seldom,
        no_handler_wait_s: float,
        admit: Callable[[set[str]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = tuple(queues)
        self._registry = registry
        self._heart = heart
        self._held = held
        self._pool = pool
        self._linger = pool.linger
        self._rng = rng
        self._seldom = seldom
        self._no_handler_wait_s = no_handler_wait_s
        self._admit = admit
        self._clock = clock
        self._unknown = Seldom(log, every_s=UNKNOWN_EVERY_S)
        """Names that are not in our registry."""
        self._unknown_since: dict[str, str] = {}
        """When each of them was met here first, by this host's clock."""
        self._suspects: deque[tuple[Claim, float | None]] = deque()
        """Claimed, and waiting to run alone; until when each has to start."""
        self._waiting_since = 0.0
        """Since when the first of them has been waiting for its turn."""
        self._is_alone = False
        """A suspect runs, or is not settled yet."""
        self._ahead: dict[str, _Ahead] = {}
        """By the names of their tasks. Empty but within one call."""

    def flush_log(self) -> None:
        """Tell what was counted and not told yet."""
        self._unknown.flush()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits here."""
        return not self._suspects and not self._linger.count

    @property
    def is_reserved(self) -> bool:
        """Whether a suspect waits or runs, so that nothing else may start here."""
        return self._is_alone or bool(self._suspects)

    def give(self, claims: Sequence[Claim], hinted: Mapping[str, str], *, asked_at: float) -> None:
        """Give what the ledger granted to the pool; suspects wait until they can run alone.

        `hinted` tells the queue that the hint of each task named; `asked_at`, by our clock, is before the ledger
        decided: from then on counts within which time a slot of a limit has to be used.
        """
        slots = {claim.limit_key for claim in claims if claim.limit_key and claim.start_within_s is not None}
        self._held.claimed(claims)
        for claim in claims:
            start_by = None if claim.start_within_s is None else asked_at + claim.start_within_s
            if not self._is_ours(claim, hinted[claim.task_id]):
                self._pool.take(claim, None, None, HandedBack())
            elif claim.is_suspect and claim.name not in BEYOND_SUSPICION:
                if not self.is_reserved:
                    self._waiting_since = self._clock()
                self._suspects.append((claim, start_by))
            else:
                self._start(claim, start_by)
        self._start_ahead()
        if self._linger.is_used:
            self._linger.came(len(claims))
            self.start_together()
        if slots:  # those who are parked get the next ones now: nobody may settle for long
            self._admit(slots)

    def start_together(self) -> None:
        """Start those who have waited for each other for long enough, or are as many as it takes."""
        if self._linger.count:
            for group in self._linger.ready(is_all=self.is_reserved):
                self._pool.take_together(group)

    def wait_s(self, most_s: float) -> float:
        """For how long a round may wait before it is called again."""
        return min(most_s, self._linger.wait_s()) if self._linger.count else most_s

    def serve_suspects(self) -> bool:
        """Start a suspect if it is its turn, which comes when all that ran is settled; answers `is_reserved`."""
        if self.is_reserved and self._pool.is_idle:
            self._is_alone = False
            if self._suspects and self._heart.is_trusted:
                self._is_alone = True
                self._waiting_since = self._clock()  # they go one after the other, as long as each is quick
                self._start(*self._suspects.popleft(), is_alone=True)
                self._start_ahead()
        return self.is_reserved

    def relieve(self) -> None:
        """Hand back the suspects that have waited for too long: others may be free."""
        waited_s = self._clock() - self._waiting_since
        if waited_s > SUSPECTS_TOGETHER_S:
            self.hand_back(but=0 if self._is_alone or waited_s > SUSPECT_WAIT_MAX_S else 1)

    def hand_back(self, *, but: int = 0) -> None:
        """Suspects that have not started go back at no cost, apart from the first `but`."""
        while len(self._suspects) > but:
            self._pool.take(self._suspects.pop()[0], None, None, HandedBack())

    def leave(self) -> None:
        """This process leaves: what has not started goes back at no cost."""
        self.hand_back()
        for claim in self._linger.take_all():
            self._pool.take(claim, None, None, HandedBack())

    def _is_ours(self, claim: Claim, hinted: str) -> bool:
        """Whether its queue is one of ours.

        The hint named the queue `hinted`; the ledger knows better, and a task of a queue not ours goes there.
        """
        if claim.queue == hinted:
            return True
        self._seldom.warning("hint.of_another_queue", reason=hinted, queue=claim.queue, task=claim.task_id)
        self._held.release([(claim.task_id, hinted)])
        self._held.claimed([claim])
        return claim.queue in self._queues

    def _start(self, claim: Claim, start_by: float | None, *, is_alone: bool = False) -> None:
        """Start it, or let it wait for `_start_ahead` where its handler reads what it needs for many at once."""
        handler = self._registry.get(claim.name)
        alike = () if handler is not None else self._registry.alike(claim.name)
        arguments, ended = prepare(
            claim, handler, rng=self._rng, no_handler_wait_s=self._no_handler_wait_s, alike=alike
        )
        if handler is None:
            since = self._unknown_since.setdefault(claim.name, datetime.now(UTC).isoformat(timespec="seconds"))
            self._unknown.warning("task.no_handler", reason=claim.name, task=claim.task_id, since=since)
        if ended is None and handler is not None and handler.ahead is not None:
            waiting = self._ahead.setdefault(handler.name, _Ahead(handler, handler.ahead, []))
            waiting.tasks.append(_Prepared(claim, start_by, arguments, is_alone))
        else:
            self._enter(claim, start_by, handler, arguments, ended, is_alone)

    def _start_ahead(self) -> None:
        """Start those for whom their handler reads ahead, when it has."""
        while self._ahead:
            _, waiting = self._ahead.popitem()
            read = waiting.read([one.arguments for one in waiting.tasks])
            for one, arguments in zip(waiting.tasks, read, strict=True):
                self._enter(one.claim, one.start_by, waiting.handler, arguments, None, one.is_alone)

    def _enter(
        self,
        claim: Claim,
        start_by: float | None,
        handler: Handler[..., Any] | None,
        arguments: Any,
        ended: Outcome | None,
        is_alone: bool,
    ) -> None:
        """Into the pool, each until its moment; or among those that start together."""
        if ended is None and not self._heart.is_trusted:  # this process was stopped while it claimed: too late to start
            ended = HandedBack()
        if ended is None and handler is not None and handler.batch is not None:
            self._pool.pace.weigh(len(claim.payload))
            member = Member(claim, arguments["a"][0], start_by)
            if is_alone:
                self._pool.take_together(FillingBatch(handler, [member], self._clock()))
            else:
                self._linger.add(handler.batch, handler, member)
        else:
            self._pool.take(claim, handler, arguments, ended, start_by=start_by)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is to start when its handler has read ahead."""

    claim: Claim
    start_by: float | None
    arguments: Any
    is_alone: bool


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Who wait for one handler to read ahead for all of them."""

    handler: Handler[..., Any]
    read: Callable[[Sequence[Any]], Sequence[Any]]
    tasks: list[_Prepared]
