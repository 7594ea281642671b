"""Scheduled messages of Artemis: STOMP with the header AMQ_SCHEDULED_TIME, persistent, each confirmed by a RECEIPT.

Sent by workq's own kind of destination, without its ledger and its workers, and read by stomp.py.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import stomp

from benchmarks.contestants import mailbox, task
from workq.config.addresses import Allowed
from workq.messages.kinds import Confirmed, DestinationAddress, DestinationLink, Posting
from workq.messages.kinds.stomp import StompKind

TIMEOUT_S: Final = 30.0
PAGE: Final = 100
"""Messages whose receipts are awaited together, where there are many: as many as one call of workq's carrier sends."""


class _Reader(stomp.ConnectionListener):  # type: ignore[misc]
    def on_message(self, frame: Any) -> None:
        said = frame.body
        mailbox.take(said if isinstance(said, bytes) else said.encode())


class Artemis(task.Contestant):
    def __init__(self) -> None:
        self._link: DestinationLink | None = None

    def one(self, index: int) -> None:
        self._send([index], None)

    def many_at(self, indices: Sequence[int], at: float) -> None:
        for start in range(0, len(indices), PAGE):
            self._send(indices[start : start + PAGE], at)

    def flush(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def worker(self, number: int) -> None:
        assert number == 0
        read()

    def _send(self, indices: Sequence[int], at: float | None) -> None:
        headers = {} if at is None else {"AMQ_SCHEDULED_TIME": str(math.ceil(1000 * at))}
        run = time.time_ns()
        postings = [
            Posting(f"{run}-{place}", 1, mailbox.body(index), "text/plain", None, headers)
            for place, index in enumerate(indices)
        ]
        if self._link is None:
            self._link = _opened()
        answers = self._link.send(postings, timeout_s=TIMEOUT_S)
        if unsent := [one for one in answers if not isinstance(one, Confirmed)]:
            raise RuntimeError(f"Artemis did not confirm {len(unsent)} messages: {unsent[0]}")


def _opened() -> DestinationLink:
    url = task.setting("ARTEMIS_URL")
    kind = StompKind()
    options = kind.check({"url": url, "address": task.setting("ADDRESS")})
    return kind.open(DestinationAddress("artemis", options, url), allowed=Allowed.of("loopback"))


def read() -> NoReturn:
    """Take what arrives, until the driver ends this process."""
    place = urlsplit(task.setting("ARTEMIS_URL"))
    connection = stomp.Connection12([(place.hostname, place.port)], auto_decode=False)
    connection.set_listener("", _Reader())
    connection.connect(place.username, place.password, wait=True)
    connection.subscribe(task.setting("ADDRESS"), id="1", headers={"subscription-type": "ANYCAST"})
    threading.Event().wait()
    raise SystemExit("nobody ends this wait")


contestant = Artemis()
