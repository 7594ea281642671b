"""Carry: the handler of deliveries. One attempt each, and what that means for the delivery.

It runs in the event loop of a worker process, hundreds at a time. What it needs of the ledger is read for many at once:
for all that were claimed together, before they start; and who starts so late that this may have changed asks again, and
shares the question with whoever asks meanwhile. The URL, the secrets and the schedule are those of now.

An attempt is recorded with the settlement of its task. When the ledger does not answer, or the key to the secrets is
not here, or our own proxy is not reached, nothing was sent, and nothing has failed: it is tried again a little later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from workq.errors import Cancel, ConfigError, Snooze, Unavailable
from workq.handlers import context
from workq.outbound import backoff
from workq.outbound.post import TIMEOUTS, Answer, ErrorClass, Sender
from workq.outbound.signing import signed
from workq.outbound.target import TargetPolicy
from workq.outbound.vault import Vault
from workq.values.task import Claim, Dead, Delivered, Done, Failed, Sent
from workq.webhooks.values import Cause, EndpointState, OnGone, Parcel

log = logging.getLogger("workq.webhooks")

LATER_S: Final = 2.0
NO_KEY_S: Final = 60.0
NO_PROXY_S: Final = 30.0
CONFIRM_S: Final = 3600.0
"""After a 410 that is to be confirmed."""
DISABLED_S: Final = 60.0
"""The ledger parks what waits for a disabled endpoint; this is for what was claimed in that moment."""
AHEAD_S: Final = 0.2
"""What was read ahead is asked again after so long: the endpoint may have been changed or disabled since."""
_THROTTLED: Final = TIMEOUTS | {ErrorClass.THROTTLED}
Read = Callable[[Sequence[str]], dict[str, Parcel]]


class Reading:
    """Parcels for many coroutines of one event loop, in few questions to the ledger."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._wanted: dict[str, list[asyncio.Future[Parcel | None]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def get(self, delivery_id: str) -> Parcel | None:
        """One parcel. Raises what the ledger raises."""
        future: asyncio.Future[Parcel | None] = asyncio.get_running_loop().create_future()
        self._wanted.setdefault(delivery_id, []).append(future)
        if self._task is None:
            self._task = asyncio.create_task(self._ask())
        return await future

    async def _ask(self) -> None:
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, {}
                try:
                    found = await asyncio.to_thread(self._read, list(wanted))
                except Exception as error:
                    for future in _waiting(wanted):
                        future.set_exception(error)
                else:
                    for delivery_id, futures in wanted.items():
                        for future in futures:
                            if not future.done():
                                future.set_result(found.get(delivery_id))
        finally:
            self._task = None


def _waiting(wanted: dict[str, list[asyncio.Future[Parcel | None]]]) -> list[asyncio.Future[Parcel | None]]:
    return [future for futures in wanted.values() for future in futures if not future.done()]


class Ahead(msgspec.Struct, frozen=True):
    """A parcel that was read before its delivery starts, and when, by the monotonic clock."""

    parcel: Parcel
    at: float


def _id_of(call: Any) -> str | None:
    """Of which delivery a task is; None: of none that can be."""
    match call:
        case {"a": (str() as delivery_id,)}:
            return delivery_id
    return None


@dataclass(frozen=True, slots=True)
class _OfLoop:
    """What belongs to one event loop."""

    loop: asyncio.AbstractEventLoop
    reading: Reading
    sender: Sender


class Carrier:
    """Sends deliveries in one process. Each event loop has its own connections."""

    def __init__(
        self,
        read: Read,
        *,
        vault: Vault,
        policy: TargetPolicy,
        throttled_min_s: float = backoff.THROTTLED_MIN_S,
        rng: Random | None = None,
        make: Callable[[TargetPolicy], Sender] = Sender,
    ) -> None:
        """`read`: the ledger's `parcels`. `throttled_min_s`: see `backoff.wait_s`. `make`: for tests."""
        self._read = read
        self._vault = vault
        self._policy = policy
        self._throttled_min_s = throttled_min_s
        self._rng = rng or Random()
        self._make = make
        self._here = threading.local()

    def ahead(self, calls: Sequence[Any]) -> list[Any]:
        """Read what these are about to send: their arguments, with what was found. Called by the thread that claims."""
        ids, at = [_id_of(call) for call in calls], time.monotonic()
        try:
            found = self._read(list(filter(None, ids)))
        except Exception as error:  # whatever it is, each of them meets it again, and says what it means
            log.debug("webhook.not_read_ahead: %s", error)
            return list(calls)
        return [
            {"a": call["a"], "k": {"ahead": Ahead(found[one], at)}} if one in found else call
            for one, call in zip(ids, calls, strict=True)
        ]

    async def carry(self, delivery_id: str, *, ahead: Ahead | None = None) -> Delivered:
        """Send a delivery once, for the task that runs. `ahead`: what was read for it."""
        mine = self._mine()
        claim = context.running()
        parcel: Parcel | None
        if isinstance(ahead, Ahead) and time.monotonic() - ahead.at < AHEAD_S:
            parcel = ahead.parcel
        else:
            try:
                parcel = await mine.reading.get(delivery_id)
            except Unavailable as error:
                raise Snooze(LATER_S, "the ledger did not answer") from error
        if parcel is None or parcel.body is None:
            raise Cancel("its endpoint was removed, or what was to be sent is kept no longer")
        if parcel.task_id != claim.task_id:
            raise Cancel("another task sends this delivery")
        max_age_s = parcel.options.max_age_s
        if max_age_s is not None and parcel.age_s > max_age_s and parcel.cause == Cause.SCHEDULED:
            raise Cancel(f"it was sent {parcel.age_s:.0f} s ago, and its endpoint's max_age_s is {max_age_s:g}")
        if parcel.state == EndpointState.DISABLED:
            raise Snooze(DISABLED_S, "its endpoint is disabled")
        try:
            content = self._vault.open(parcel.sealed)
        except ConfigError as error:
            log.warning("webhook.no_key: %s", error)
            raise Snooze(NO_KEY_S, str(error)) from error
        options, body, now = parcel.options, parcel.body.encode(), datetime.now(UTC)
        headers = content.headers | signed(
            content.signing(now), message_id=parcel.webhook_id, body=body, at=now, alias=options.header_alias
        )
        answer = await mine.sender.post(parcel.url, body, headers, connect_s=options.connect_s, total_s=options.total_s)
        if answer.is_proxy_away:
            log.warning("webhook.no_proxy: %s", answer.error)
            raise Snooze(NO_PROXY_S, answer.error)
        return self.delivered(claim, parcel, answer)

    def delivered(self, claim: Claim, parcel: Parcel, answer: Answer) -> Delivered:
        """What an answer means."""
        kind = answer.error_class
        sent = Sent(
            delivery_id=parcel.delivery_id,
            endpoint_id=parcel.endpoint_id,
            number=parcel.attempts + 1,
            cause=parcel.cause,
            url=parcel.url,
            status=answer.status,
            error_class=None if kind is None else kind.value,
            error=answer.error or None,
            duration_ms=round(answer.ms, 3),
            answer=answer.body.decode("utf-8", "replace"),
            is_cut=answer.is_cut,
            is_gone=kind is ErrorClass.GONE,
        )
        if kind is None:
            return Delivered(sent, Done())
        text = f"{kind}: {answer.error}"
        asked_s = backoff.retry_after_s(answer.retry_after, now=datetime.now(UTC))
        if kind is ErrorClass.GONE:
            if parcel.options.on_410 is OnGone.CONFIRM and parcel.last_class != ErrorClass.GONE:
                return Delivered(replace(sent, is_gone=False), Failed(max(CONFIRM_S, asked_s or 0.0), text))
            return Delivered(sent, Dead("the receiver wants no more: 410 Gone", text))
        wait_s = backoff.wait_s(
            claim.failures + 1,
            steps_s=parcel.options.steps_s or backoff.STEPS_S,
            retry_after_s=asked_s,
            is_throttled=kind in _THROTTLED,
            throttled_min_s=self._throttled_min_s,
            rng=self._rng,
        )
        if wait_s is None:
            return Delivered(sent, Dead(f"exhausted: {kind}", text))
        if kind is ErrorClass.THROTTLED:
            sent = replace(sent, rest_s=wait_s)
        return Delivered(sent, Failed(wait_s, text))

    def _mine(self) -> _OfLoop:
        """What belongs to the event loop that runs in this thread: asking which one that is takes a system call."""
        found: _OfLoop | None = getattr(self._here, "found", None)
        if found is None or not found.loop.is_running():
            loop = asyncio.get_running_loop()
            found = self._here.found = _OfLoop(loop, Reading(self._read), self._make(self._policy))
        return found

    async def close(self) -> None:
        """Close the connections of this event loop. Repeatable."""
        found: _OfLoop | None = self._here.__dict__.pop("found", None)
        if found is not None:
            await found.sender.close()
