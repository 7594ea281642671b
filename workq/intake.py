"""The program of an intake process, which its supervisor starts: `python -m workq.intake`.

One process takes in from one or more ways in, each on a thread of its own. It has a lease and a row among the workers,
as a consumer process has, and runs no task. What keeps it from recording twice is no lease but the epoch of each
partition (messages/ledger/taken_records.py): a process that stands still and goes on later is refused there.

What goes wrong: a broker or the ledger away: it is noted at the way in, and tried again. The lease lost (reaped): it
leaves with status 75, and the supervisor starts another. An error that nobody expects is logged with its traceback,
noted at its way in, and tried again, as it may be of its data: the other ways in of the process go on.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from workq.values.begin import begin

if __name__ == "__main__":
    begin()

from workq.app import WorkQueue
from workq.application import load_app
from workq.errors import ConfigError, NotFound, Unavailable
from workq.messages.intake.taker import IntakeTaker
from workq.messages.intake.values import LINE, IntakeRow, Position
from workq.messages.intakes import MessageIntakes
from workq.messages.kinds.reach import ReachFailed
from workq.messages.ledger.sql import MessageLedger
from workq.values.certificate import EXIT_BROKEN, EXIT_LEASE_LOST
from workq.values.incarnation import Incarnation
from workq.worker.holds import held_for
from workq.worker.lease import LeaseKeeper
from workq.worker.process import live

if TYPE_CHECKING:
    from workq.worker.crash_board import CrashBoard

log = logging.getLogger("workq.intake")

ROUND_S: Final = 0.3
"""For so long a round waits for records: no longer a signal waits for it."""
PAUSE_MIN_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0
LOOK_EVERY_S: Final = 0.2


class IntakeProcess:
    """One life of one intake process."""

    def __init__(
        self,
        app: WorkQueue,
        *,
        queues: Sequence[str],
        threads: int,
        is_drain: bool,
        board: CrashBoard,
        stop: threading.Event,
    ) -> None:
        """`queues`: `intake:NAME` for each way in. The other keywords are those of `Worker`."""
        self.app = app
        self.names = [one.removeprefix(LINE) for one in queues]
        self.me = Incarnation.of_this_process()
        self.stop = stop
        self._lines = tuple(queues)
        self._threads = threads
        self._is_drain = is_drain
        self._board = board
        self._stores = app.existing
        self._times = app.settings.times
        self._ledger = self._stores.ledger.part(MessageLedger)
        self._intakes = MessageIntakes(app)
        self._rng = random.Random()
        self._is_broken = False
        self._heart = LeaseKeeper(
            self._stores,
            held_for(self._stores, by=self.me.id),
            me=self.me,
            times=self._times,
            offer=app.producer.relay.offer,
            on_reached=board.reached,
        )

    def run(self) -> int:
        """Take in until told to stop. Answers the exit status."""
        if not self._join():
            return 0
        self._board.introduce(self.me.id)
        log.info("intake.started", extra={"worker": self.me.id, "intakes": self.names})
        serving = [threading.Thread(target=self._serve, args=(one,), name=f"workq-intake-{one}") for one in self.names]
        for one in serving:
            one.start()
        beat_at = time.monotonic() + self._times.beat_s
        while not self._is_over():
            now = time.monotonic()
            self._board.runs(now)
            if now >= beat_at:
                beat_at = now + self._times.beat_s
                self._heart.beat()
            self.stop.wait(LOOK_EVERY_S)
        self.stop.set()
        for one in serving:
            one.join(self._times.grace_s)
        self.app.producer.relay.flush(timeout_s=5.0)
        return self._leave(is_done=not any(one.is_alive() for one in serving))

    def _is_over(self) -> bool:
        return self.stop.is_set() or self._heart.lost.is_set() or self._is_broken

    def _leave(self, *, is_done: bool) -> int:
        if self._heart.lost.is_set():
            return EXIT_LEASE_LOST
        if self._is_broken or not is_done:
            return EXIT_BROKEN
        with contextlib.suppress(Unavailable):
            self._heart.leave()
            self._board.leave()
        log.info("intake.left", extra={"worker": self.me.id})
        return 0

    def _join(self) -> bool:
        pause_s = 0.2
        while not self.stop.is_set():
            try:
                self._heart.join(queues=self._lines, threads=self._threads)
                return True
            except Unavailable as error:
                log.warning("intake.waits: %s", error)
                self.stop.wait(pause_s * self._rng.uniform(0.5, 1.0))
                pause_s = min(PAUSE_MAX_S, pause_s * 2)
        return False

    def _serve(self, name: str) -> None:
        try:
            while not self._is_over():
                try:
                    self._take_in(self._ledger.intakes.required(name))
                except Exception as error:
                    self._wait(name, error, PAUSE_MAX_S)
        except BaseException:
            log.exception("intake.broken", extra={"intake": name})
            self._is_broken = True

    def _wait(self, name: str, error: Exception, pause_s: float) -> None:
        """Note what has failed, and wait; also for what nobody expects, which the log tells in full."""
        said = str(error)
        if isinstance(error, Unavailable | ReachFailed | ConfigError | NotFound):
            log.warning("intake.waits: %s", said, extra={"intake": name})
        else:
            log.error("intake.broken", exc_info=error, extra={"intake": name})
            said = f"{type(error).__name__}: {next(iter(said.splitlines()), '')}; the log says more"
        with contextlib.suppress(Unavailable):
            self._ledger.intakes.failed(name, said)
        self.stop.wait(pause_s * self._rng.uniform(0.5, 1.0))

    def _take_in(self, row: IntakeRow) -> None:
        """Until told to stop, or the way in is not as it was."""

        def take(topic: str, part: int, topic_id: str | None) -> Position:
            return self._ledger.taken.take_partition(row.name, topic, part, owner=self.me.id, topic_id=topic_id)

        link = self._intakes.open(row, take=take)
        taker = IntakeTaker(row, link, ledger=self._ledger, producer=self.app.producer, owner=self.me.id)
        is_noted, pause_s = row.failing_since is not None, PAUSE_MIN_S
        try:
            while not self._is_over():
                try:
                    taker.round(timeout_s=ROUND_S)
                    if is_noted:
                        self._ledger.intakes.well(row.name)
                except (ConfigError, NotFound):
                    raise
                except Exception as error:
                    self._wait(row.name, error, pause_s)
                    is_noted, pause_s = True, min(PAUSE_MAX_S, 2.0 * pause_s)
                else:
                    is_noted, pause_s = False, PAUSE_MIN_S
        finally:
            link.close()


def _application(path: str) -> WorkQueue:
    """The one that is named, or the settings of this place: no handler is needed to take in."""
    return load_app(path) if path else WorkQueue()


if __name__ == "__main__":
    live(_application, IntakeProcess)
