"""What Kafka refuses to one consumer, whose user lacks a right: topics that it may not make or read, the group, and
records that it may not send on.

That ends nothing: the other topics go on, the tasks of these are found in the ledger, and after `AGAIN_S` Kafka is
asked once more. Some rights show only in use, so what was refused is told for `TOLD_S` after Kafka was asked again.
Any thread may use it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

from workq.broker import Delivery

AGAIN_S: Final = 30.0
TOLD_S: Final = 5.0
_UNSENT: Final = ""
"""In the place of a topic: records that could not be sent on."""


class RefusedTopics:
    """Which, and why, until Kafka is asked again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._why: Mapping[str, str] = {}
        self._unsent: list[Delivery] = []
        """They stay unacked."""
        self._again_at = 0.0
        self._before: str | None = None
        """What was refused until Kafka was asked again, and may be still."""
        self._told_until = 0.0

    def __contains__(self, topic: str) -> bool:
        return topic in self._why

    @property
    def trouble(self) -> str | None:
        """One of the reasons, for people; None: nothing is refused."""
        told = next(iter(self._why.values()), None)
        return self._before if told is None and time.monotonic() < self._told_until else told

    def is_due(self) -> bool:
        """Whether to ask again: something is refused, and it is time."""
        return bool(self._why) and time.monotonic() >= self._again_at

    def note(self, what: str, why: str) -> None:
        """This topic is refused, too, or the group."""
        with self._lock:
            self._note(what, why)

    def note_unsent(self, delivery: Delivery, why: str) -> None:
        """A record could not be sent on."""
        with self._lock:
            self._note(_UNSENT, why)
            self._unsent.append(delivery)

    def renew(self, why: Mapping[str, str]) -> list[Delivery]:
        """Kafka was asked again, and refuses these topics. Answers the records that may be tried once more."""
        with self._lock:
            now = time.monotonic()
            self._before, self._told_until = next(iter(self._why.values()), None), now + TOLD_S
            self._why, self._again_at = dict(why), now + AGAIN_S
            unsent, self._unsent = self._unsent, []
            return unsent

    def _note(self, what: str, why: str) -> None:
        if not self._why:
            self._again_at = time.monotonic() + AGAIN_S
        self._why = {**self._why, what: why}
