"""One database: from a hint to a claim in one transaction, where broker, in-flight store and ledger are one database.

There is no custody to move in between: a hint is there, or its task is claimed under this incarnation's name, and that
is all that the in-flight store has to tell (see inflight/embedded.py). Of the protocol's steps, fetch, hold, ack and
claim are one; settle and release are one. Claims are taken as far as the pool starts them within a moment, and no
hint is fetched that cannot be claimed: so there is nothing to hand back but claims that wait for a thread.

What goes wrong: the database away: nothing is claimed. Its commit lost: the ledger looks whether it stands, and if that
stays unknown, the next claim hands back what may have been granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from workq.broker import Hint
from workq.broker.embedded.claiming_consumer import DirectConsumer, Taken
from workq.ledger import Look
from workq.values.failpoints import reach
from workq.values.task import Claim
from workq.worker.fetch.intake import FETCH_WAIT_S, FULL_WAIT_S, Intake, Parts
from workq.worker.fetch.refused import Judged


class OneDatabase(Intake):
    """What one incarnation has claimed and not yet started."""

    def __init__(self, parts: Parts, consumer: DirectConsumer) -> None:
        super().__init__(parts, consumer)
        self._claimer = consumer
        self._judged: Judged | None = None
        """Of the hints that were not granted in the transaction that was made last."""

    @property
    def is_empty(self) -> bool:
        return self._dispatch.is_empty and self._arrivals.is_empty and not self._handover.count

    def round(self) -> float:
        self._dispatch.start_together()
        self._start_handed()
        self._arrivals.return_markers()
        room = 0 if self._dispatch.serve_suspects() else self._pool.startable()
        if room <= 0 or not self._heart.is_trusted:
            self._relieve()
            return FULL_WAIT_S
        reach("worker.before_claim")
        self._judged = None
        self._fetch_what_is_open()
        with self._held.claiming():
            taken = self._claimer.claim(self._judge, ids_max=room, wait_s=self._dispatch.wait_s(FETCH_WAIT_S))
            if taken is not None:
                self._take(taken)
        if self._claimer.trouble is not None:
            self._seldom.warning("worker.nothing_arrives", reason=self._claimer.trouble)
        return 0.0

    def give_back(self) -> bool:
        self._leave_handed()
        self._dispatch.leave()
        return True

    def _receive(self, claims: Sequence[Claim]) -> None:
        """A claim is the hold."""

    def _take(self, taken: Taken) -> None:
        self._dispatch.give(taken.claims, taken.hinted, asked_at=taken.asked_at)
        self._arrivals.sort(taken.others)
        if self._judged is not None:
            if self._judged.is_paused:
                self._pauses.seen()
            self._missed.tell(self._judged, queue=next(iter(taken.hinted.values())))

    def _judge(self, missed: Iterable[tuple[str, str, int]], looks: Mapping[str, Look]) -> list[Hint]:
        self._judged = self._missed.judge(missed, looks)
        return self._judged.again

    def _relieve(self) -> None:
        """No room: what is claimed and would wait for long goes back, others may be free."""
        if self._dispatch.is_reserved:
            self._dispatch.relieve()
        self._pool.relieve()
