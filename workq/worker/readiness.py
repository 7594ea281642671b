"""The start of a worker: what its supervisor tells each process, and how both wait for the ledger and the in-flight
store, until each answers. Nobody waits for the broker: without it due tasks are found in the ledger.

It ends only for what waiting does not mend, as `Unavailable.patience_s` says: a wrong password, a database or vhost
that is not there, another protocol; and a name that nobody could resolve for a minute. What is no `Unavailable` (the
schema, a setting) passes at once.

The supervisor imports this, too, so nothing that runs tasks is imported here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from workq.errors import Unavailable
from workq.logs import Form

if TYPE_CHECKING:
    from workq.app import WorkQueue
    from workq.broker import Broker

log = logging.getLogger("workq.worker")

PAUSE_MIN_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0
LOOK_EVERY_S: Final = 0.1
DRAIN_WAIT_S: Final = 60.0
"""How long a worker that only drains waits."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """What the supervisor tells a consumer process, as JSON on its standard input."""

    app: str
    queues: list[str]
    threads: int
    is_drain: bool
    board: str
    stacks: str
    log_level: int = logging.INFO
    log_format: Form = "text"


def wait_until_ready(
    ask: Callable[[], object],
    *,
    pause: Callable[[float], bool],
    limit_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Ask until there is an answer; False when told to stop meanwhile.

    Args:
        ask: the servers; raises Unavailable when one is away.
        pause: waits for so many seconds; True when told to stop.
        limit_s: so long at most.

    Raises:
        Unavailable: what a server said last; waiting does not mend it, or did not within `limit_s`.
        SchemaMismatch, ConfigError: a store answers, and does not fit.
    """
    began = clock()
    hopeless_since = math.inf
    pause_s = PAUSE_MIN_S
    while True:
        try:
            ask()
            return True
        except Unavailable as error:
            now = clock()
            hopeless_since = math.inf if error.patience_s == math.inf else min(hopeless_since, now)
            left_s = min(limit_s - (now - began), error.patience_s - max(0.0, now - hopeless_since))
            if left_s <= 0.0:
                raise
            log.warning("worker.waits: %s", error)
        if pause(min(pause_s, left_s)):
            return False
        pause_s = min(PAUSE_MAX_S, 2.0 * pause_s)


class BrokerAtStart:
    """Asks a broker, and waits for its answer only where waiting might not help: a name that nobody knows, a login."""

    def __init__(self) -> None:
        self._is_told = False

    def check(self, broker: Broker) -> None:
        """Raises Unavailable: it answers that it will not serve, or its host is not known."""
        try:
            broker.check()
        except Unavailable as error:
            if error.patience_s != math.inf:
                raise
            if not self._is_told:
                self._is_told = True
                log.warning("worker.without_broker: %s", error)


def wait_for_all(app: WorkQueue, *, is_told: Callable[[], bool], is_drain: bool) -> bool:
    """Wait until the stores answer, but for a broker that may come back; False once `is_told`: to stop.

    Raises:
        Unavailable: waiting does not mend it; or, with `is_drain`, it took longer than a minute.
        SchemaMismatch, ConfigError: a store answers, and does not fit.
    """

    broker = BrokerAtStart()

    def ask() -> None:
        stores = app.stores
        stores.ledger.questions.clock()
        broker.check(stores.broker)
        stores.inflight.check()

    def pause(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not is_told() and (left_s := until - time.monotonic()) > 0.0:
            time.sleep(min(left_s, LOOK_EVERY_S))
        return is_told()

    return wait_until_ready(ask, pause=pause, limit_s=DRAIN_WAIT_S if is_drain else math.inf)
