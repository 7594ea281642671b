"""Signs of life of this process: one in each store, and what it says of them in its row of the ledger.

A thread keeps the session in the ledger; the broker's client keeps its own connection. What a process says of its signs
is written with its heartbeat, and only once all are given: before that, and where a store gives none, its lease alone
tells of its end. It is taken back when a store takes no sign any more: a right is gone, or a pooler is in between now.

A store away: the sign ends, and is given again when it is back. Nothing else depends on it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from typing import Final

import msgspec

from workq.broker.signs import GivenSign
from workq.config import Settings, masked
from workq.errors import Unavailable
from workq.ledger.signs import NONE, SignSession
from workq.stores import Stores

log = logging.getLogger("workq.signs")

KEEP_EVERY_S: Final = 0.5
HEARD: Final = 0.5
"""The part of `absence_s` after which a server ends a connection of which it hears nothing."""


class SignsOfLife(msgspec.Struct, frozen=True):
    """What a worker says of its signs: in which stores, and after what silence it may be taken for gone."""

    stores: str
    """Who names the same stores in its settings has the same."""
    lease_s: float
    absence_s: float

    @staticmethod
    def of(settings: Settings) -> SignsOfLife:
        named = "\n".join("-" if one is None else masked(one) for one in (settings.broker, settings.inflight))
        times = settings.times
        return SignsOfLife(hashlib.sha256(named.encode()).hexdigest()[:16], times.lease_s, times.absence_s)

    @staticmethod
    def read(text: str) -> SignsOfLife | None:
        """None: a newer version has written it."""
        try:
            return msgspec.json.decode(text, type=SignsOfLife)
        except msgspec.MsgspecError:
            return None

    def written(self) -> str:
        return msgspec.json.encode(self).decode()


def can_tell(stores: Stores, settings: Settings) -> bool:
    """Whether each store, with these settings, tells who is gone: the in-flight store does by its leases."""
    has_broker = settings.broker is not None
    return (
        settings.times.is_absence_watched and stores.ledger.signs.are_given and has_broker == (stores.signs is not None)
    )


class SignGiver:
    """Gives the signs of one incarnation, until `close`."""

    def __init__(self, stores: Stores, settings: Settings, *, by: str) -> None:
        heard_s = settings.times.absence_s * HEARD
        self._text = SignsOfLife.of(settings).written()
        self._signs = stores.ledger.signs
        self._ledger: SignSession = self._signs.give(by, heard_s=heard_s)
        self._broker: GivenSign | None = None if stores.signs is None else stores.signs.give(by, heard_s=heard_s)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="workq-signs", daemon=True)
        self._thread.start()

    def told(self) -> str | None:
        """What the ledger may say of them: nothing new, until all are given; NONE where a store does not take one."""
        if not self._signs.are_given or (self._broker is not None and self._broker.refusal() is not None):
            return NONE
        is_given = self._ledger.lasts_s > 0.0 and (self._broker is None or self._broker.is_given())
        return self._text if is_given else None

    def wait(self, seconds: float) -> None:
        """Until all are given, or the time is up."""
        for _ in range(int(seconds / 0.05)):
            if self.told() is not None or self._closing.wait(0.05):
                return

    def close(self) -> None:
        """Take them back. Repeatable."""
        self._closing.set()
        self._thread.join(1.0)
        self._ledger.close()
        if self._broker is not None:
            self._broker.close()

    def _keep(self) -> None:
        is_away = is_refused = False
        while True:
            refusal = self._signs.refusal or (None if self._broker is None else self._broker.refusal())
            if refusal is not None and not is_refused:
                log.warning("signs.refused: %s", refusal)
            is_refused = refusal is not None
            try:
                self._ledger.keep()
                is_away = False
            except Unavailable as error:
                if not is_away:
                    log.warning("signs.waits: %s", error)
                is_away = True
            except Exception:  # a process without its sign goes on: its beat and its other connections tell of it
                log.exception("signs.failed")
            if self._closing.wait(KEEP_EVERY_S):
                return


def given_signs(stores: Stores, settings: Settings, *, by: str) -> SignGiver | None:
    """The signs of one incarnation, given from now on; None where a store gives none."""
    return SignGiver(stores, settings, by=by) if can_tell(stores, settings) else None
