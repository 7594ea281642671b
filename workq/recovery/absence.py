"""Absence: who is gone from every store is ended before its lease has ended. A watch, in each supervisor.

A dead host says nothing, and its leases run on. But its connections end: each server soon hears nothing more, and takes
away the signs of life that were bound to them (workq/worker/signs.py). So a worker is ended early when it is gone for
`absence_s`: when it has not beaten in the ledger and in the in-flight store for so long, and a series of looks found no
session of it in the ledger, and no sign in the broker. A worker that has kept a way to one store is never ended early.

The rules, each needed (tests/simulation/absence_model.py):

- every store has to tell; where one cannot (SQLite, MySQL, a pooler, Kafka), or their names differ, nothing is done;
- no sign is a suspicion: two looks at least, further apart than a process needs to sign again, and none left out;
- the watch itself has been connected for three beats, and for as long as others may take to come back: who has just
  come back from where all came back knows nothing. So it asks every store at every look;
- a lease that is missing, or a young in-flight store, says nothing; nor does one whose clock was set forward;
- what was decided is done at once or not at all, by one conditional statement, which looks for a session once more.

More than half of the fleet absent at once: then nothing is done here, and leases tell. What a crash leaves at each
step, the next pass of the sweep finishes, as after any reap. A process that is cut off from every store may run on
beside the next attempt, as after the end of its lease: it claims nothing, and what it settles is refused.

A store away: the series ends, and the watch begins anew when it has been connected for long enough.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from workq.config import Settings
from workq.errors import Unavailable
from workq.inflight import Lease
from workq.ledger import Absence, AbsentWorker, Evidence
from workq.recovery.deaths import is_most, remains_of
from workq.recovery.reap import end_worker
from workq.recovery.store_clock import StoreClock
from workq.recovery.swept import Swept, as_far_as_possible
from workq.stores import Stores
from workq.values.certificate import ProofOfEnd
from workq.worker.signs import HEARD, SignsOfLife, can_tell

log = logging.getLogger("workq.sweep")

LOOKS: Final = 8
"""So many looks are made in `absence_s`."""
APART: Final = 0.2
"""The look that decides comes so much of `absence_s` after the first."""
LEFT_OUT: Final = 3
"""A series in which so many looks were left out begins anew."""
BACK_S: Final = 15.0
"""A store that was away is given so many seconds at least until every process has come back to it."""
ASK_S: Final = 2.0


class AbsenceWatch:
    """Looks for workers that are gone from every store. Used by one thread."""

    def __init__(self, stores: Stores, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stores = stores
        self._settings = settings
        self._times = settings.times
        self._clock = clock
        heard_s = self._times.absence_s * HEARD
        self._ledger = stores.ledger.signs.watch(heard_s=heard_s, clock=clock)
        self._broker = None if stores.signs is None else stores.signs.reader(heard_s=heard_s)
        self._stores_named = SignsOfLife.of(settings).stores
        self._inflight_clock = StoreClock()
        backs_s = [stores.ledger.signs.back_s, BACK_S] + ([] if self._broker is None else [self._broker.back_s])
        self._knows_s = max(self._times.fills_s, *backs_s)
        self._missed_at = clock()
        """When a store did not answer, the clock of the in-flight store has jumped, or the watch began."""
        self._first: dict[str, float] = {}
        """Since when each worker is absent, in a series of looks."""
        self._looked_at = clock()
        self._is_braked = self._is_waiting = False

    @property
    def every_s(self) -> float:
        """How often `end_absent` is to be called."""
        return self._times.absence_s / LOOKS

    def end_absent(self) -> Swept:
        """One look at all workers. Ends those that are absent for long enough.

        Raises:
            Unavailable: a store did not answer; the series has ended.
        """
        now = self._clock()
        if now - self._looked_at > LEFT_OUT * self.every_s:
            self._first.clear()
        self._looked_at = now
        done = Swept()
        try:
            absent = self._absent()
            leases = self._stores.inflight.leases() if absent else {}
            decided = self._decided(absent if self._is_inflight_steady() else [], leases, now)
        except Unavailable as error:
            self._first.clear()
            self._missed_at = self._clock()
            if not self._is_waiting:
                log.warning("watch.waits: %s", error)
            self._is_waiting = True
            raise
        self._is_waiting = False
        for one, absence_s in decided:
            self._end(one, absence_s, done)
        return done

    def close(self) -> None:
        """End its connections. Repeatable."""
        self._ledger.close()
        if self._broker is not None:
            self._broker.close()

    def _absent(self) -> list[tuple[AbsentWorker, SignsOfLife]]:
        """Who gives signs in the stores that this watch knows, and gives none in the ledger and in the broker."""
        silent = self._ledger.absent(silent_s=self._times.absence_s / 2)
        told = [(one, signs) for one in silent if (signs := SignsOfLife.read(one.signs)) is not None]
        told = [(one, signs) for one, signs in told if signs.stores == self._stores_named]
        if told and self._broker is not None:
            gone = self._broker.absent([one.id for one, _ in told], deadline_s=ASK_S)
            told = [(one, signs) for one, signs in told if one.id in gone]
        return told if self._knows() else []

    def _knows(self) -> bool:
        """Whether the watch has been connected to every store for long enough to tell."""
        lasts = [self._ledger.lasts_s, self._clock() - self._missed_at]
        if self._broker is not None:
            lasts.append(self._broker.lasts_s)
        return self._stores.ledger.signs.are_given and min(lasts) >= self._knows_s

    def _is_inflight_steady(self) -> bool:
        """Whether its leases can be judged. Asked after them: then what befell the store before is seen."""
        age_s, has_jumped = self._inflight_clock.look(self._stores.inflight.epoch_age_s)
        if has_jumped:
            self._missed_at = self._clock()
        return not has_jumped and age_s >= self._times.fills_s

    def _decided(
        self, absent: Sequence[tuple[AbsentWorker, SignsOfLife]], leases: Mapping[str, Lease], now: float
    ) -> list[tuple[AbsentWorker, float]]:
        """Who has been absent in a series of looks, and has no beat. With the seconds that this takes for each."""
        self._first = {one.id: self._first.get(one.id, now) for one, _ in absent}
        if not absent or self._is_most([one.id for one, _ in absent]):
            return []
        decided = []
        for one, signs in absent:
            absence_s = max(signs.absence_s, self._times.absence_s)
            lease = leases.get(one.id)
            is_silent = lease is not None and signs.lease_s - lease.left_s >= absence_s
            if is_silent and now - self._first[one.id] >= APART * self._times.absence_s:
                decided.append((one, absence_s))
        return decided

    def _is_most(self, absent: Sequence[str]) -> bool:
        """Whether more than half of the fleet, and more than one, is absent at once: then the watch may see badly."""
        was_braked = self._is_braked
        self._is_braked = is_most(len(absent), fleet=len(self._stores.ledger.questions.workers()))
        if self._is_braked and not was_braked:
            log.error("watch.brake", extra={"absent": len(absent)})
        return self._is_braked

    def _end(self, one: AbsentWorker, absence_s: float, done: Swept) -> None:
        row = next(iter(self._stores.ledger.questions.workers(prefix=one.id)), None)
        if row is None:  # another watch has ended it
            return
        text = f"none of its connections is in any store, and it has not beaten for {row.beat_age_s:.0f} s"
        left = remains_of(row, Evidence(text, kind=ProofOfEnd.ABSENCE))
        with as_far_as_possible(done):
            end_worker(
                self._stores,
                self._settings,
                one.id,
                left.evidence,
                done,
                absence=Absence(absence_s, one.looked_at),
                point="watch.before_reap",
            )


def watch_of(stores: Stores, settings: Settings) -> AbsenceWatch | None:
    """None where a store cannot tell, or it is switched off."""
    return AbsenceWatch(stores, settings) if can_tell(stores, settings) else None
