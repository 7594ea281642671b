"""Settle: outcomes are gathered for a few milliseconds and written in bulk, then their holds are released.

Settling is a plain call, never a hook. While the ledger is away the outcomes are kept and written when it is back;
their leases go on meanwhile. The ledger decides first, and only the winner of a failure publishes the retry's hint:
after the release, so that whoever gets the hint finds nobody holding the task. A result that comes late changes
nothing and is recorded as `late_result`. An outcome that the ledger refuses (text that it cannot store) is written
again without its text.

A release that failed is made up for by the next settlement or beat. If this thread dies, `on_death` ends the process:
nothing that it runs would ever be settled.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

from workq.errors import Unavailable
from workq.failpoints import reach
from workq.ledger import Settled, Unpublished
from workq.relay import Relay
from workq.stores import Stores
from workq.task import Cancelled, Dead, Done, HandedBack, Outcome, Retry, Settlement, State

log = logging.getLogger("workq.settle")

BATCH = 200
LINGER_S = 0.003
"""How long a settlement may wait for others while more attempts are running."""
UNRELEASED_MAX = 10_000


class Settler:
    """The thread that writes outcomes. `on_settled` is told of each, won or late, just before its hold is released."""

    def __init__(
        self,
        stores: Stores,
        relay: Relay,
        *,
        by: str,
        is_busy: Callable[[], bool],
        on_settled: Callable[[Sequence[Settlement]], None],
        on_death: Callable[[], None],
    ) -> None:
        self._stores = stores
        self._relay = relay
        self._by = by
        self._is_busy = is_busy
        self._on_settled = on_settled
        self._on_death = on_death
        self._changed = threading.Condition()
        self._waiting: deque[Settlement] = deque()
        self._unreleased: list[tuple[str, str]] = []
        self.releasing = threading.Lock()
        """Nothing is released while somebody has this."""
        self._in_hand = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._live, name="workq-settle", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, settlement: Settlement) -> None:
        """Settle this soon."""
        with self._changed:
            self._waiting.append(settlement)
            self._changed.notify_all()

    @property
    def unsettled(self) -> int:
        """How many outcomes are not written yet."""
        return len(self._waiting) + self._in_hand

    def close(self, *, timeout_s: float) -> bool:
        """Write what is left and end; False when the time is up before."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def release(self, holds: Sequence[tuple[str, str]] = ()) -> None:
        """Drop holds, (task id, queue), and those that could not be dropped before. For any thread."""
        with self.releasing:
            self._unreleased.extend(holds)
            if not self._unreleased:
                return
            try:
                self._stores.inflight.release(self._unreleased, by=self._by)
            except Unavailable as error:
                log.warning("settle.unreleased: %s", error)
                del self._unreleased[:-UNRELEASED_MAX]  # leaving, or being reaped, drops the others
            else:
                self._unreleased.clear()

    def _live(self) -> None:
        try:
            self._run()
        except BaseException:
            log.critical("settle.died", exc_info=True)
            self._on_death()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    return
            if len(self._waiting) < BATCH and self._is_busy() and not self._is_closing:
                time.sleep(LINGER_S)
            with self._changed:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._in_hand = len(batch)
            self._settle(batch)
            self._in_hand = 0

    def _settle(self, batch: list[Settlement]) -> None:
        reach("settle.before_write")
        settled = self._write(batch)
        hints = []
        for one, result in zip(batch, settled, strict=True):
            if result.state is None:
                log.warning("task.fenced", extra={"task": one.claim.task_id, "attempt": one.claim.attempt})
            elif result.state in (State.WAITING, State.READY):
                hints.append(Unpublished(one.claim.task_id, one.claim.queue, one.claim.attempt, result.delay_s))
        self._on_settled(batch)
        reach("settle.before_release")
        self.release([(one.claim.task_id, one.claim.queue) for one in batch])
        reach("settle.before_retry_hint")
        if hints:
            self._relay.offer(hints)

    def _write(self, batch: list[Settlement]) -> list[Settled]:
        """Write until it stands. A batch that the ledger refuses is split, so that one row harms no other."""
        pause_s = 0.1
        while True:
            try:
                return self._stores.ledger.settle(batch)
            except Unavailable as error:
                log.warning("settle.waits: %s", error)
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2.0, pause_s * 2)
            except Exception:  # a row that the database refuses must not stop the others
                log.exception("settle.refused", extra={"tasks": [one.claim.task_id for one in batch[:10]]})
                if len(batch) > 1:
                    half = len(batch) // 2
                    return self._write(batch[:half]) + self._write(batch[half:])
                plain = _plain(batch[0].outcome)
                if plain == batch[0].outcome:
                    raise  # not the text then: this process ends, and its claims with it
                batch = [Settlement(batch[0].claim, plain)]


def _plain(outcome: Outcome) -> Outcome:
    """The same outcome without anything that a handler wrote."""
    refused = "the ledger refused the text of this outcome; the worker's log has it"
    match outcome:
        case Done():
            return Done(None, f"result_error: {refused}")
        case Retry(delay_s=delay_s):
            return Retry(delay_s, refused)
        case Dead(failed=failed):
            return Dead("failed", refused, failed=failed)
        case Cancelled():
            return Cancelled("cancelled by its handler")
        case HandedBack():
            return outcome
        case _:
            assert_never(outcome)
