"""Sender: what an application sends messages with. Recorded in its own transaction, sent by its workers when due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from workq.errors import ConfigError, WorkqError
from workq.handlers.options import seconds_until
from workq.messages.bodies import check_message_headers, check_message_key, stored_body
from workq.messages.ledger.sql import MessageLedger
from workq.messages.levels import whole_ms
from workq.messages.values import (
    NewMessage,
    SentMessage,
    check_destination_name,
    check_message_id,
    check_message_order_key,
)
from workq.values.codec import new_task_id
from workq.values.names import DELAY_MAX_S, check_delay_s

if TYPE_CHECKING:
    from workq.app import WorkQueue

_FIELDS: Final = frozenset({"body", "at", "delay_s", "key", "order_key", "headers", "spread_s", "message_id"})


class MessageSender:
    """Sends the messages of an application. Its workers carry them: see `Messages`."""

    def __init__(self, app: WorkQueue) -> None:
        self._app = app

    def send(
        self,
        destination: str,
        body: Any,
        *,
        at: datetime | None = None,
        delay_s: float | None = None,
        key: str | None = None,
        order_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
        spread_s: float | None = None,
        message_id: str | None = None,
    ) -> SentMessage:
        """Send a message to a destination: now, in `delay_s` seconds, or `at` an instant; never before.

        Recorded when this returns, or with the caller's transaction; sent at least once, by the application's workers.

        Args:
            destination: the name of one that was added.
            body: text, bytes, or anything that is JSON; at most 256 KiB.
            at: an aware datetime; the past means now.
            key: what a destination may sort messages by, such as Kafka's key.
            order_key: up to 120 characters: what has the same one is sent to this destination one after the other, in
                the order in which it was recorded. A message whose time is later makes those behind it wait.
            headers: names and text.
            connection: the caller's SQLAlchemy connection or session: it is sent if that commits.
            spread_s: it is sent up to so many seconds later, each message by its id: for many that are due at once.
            message_id: the message's own, `workq-id`: who sends the same once more gets the message that stands. Made
                without one.

        Raises:
            ConfigError: an argument is wrong. PayloadError: the body is too large, or not JSON.
            NotFound: there is no such destination. KeyConflict: this id was sent before, to another destination.
            LedgerUnavailable: nothing was recorded, or as CommitUnknown perhaps.
        """
        one: dict[str, Any] = {"body": body, "at": at, "delay_s": delay_s, "key": key, "order_key": order_key}
        one |= {"headers": headers, "spread_s": spread_s, "message_id": message_id}
        return self.send_many(destination, [one], connection=connection)[0]

    def send_many(
        self, destination: str, messages: Iterable[Mapping[str, Any]], *, connection: Any = None
    ) -> list[SentMessage]:
        """Send messages to one destination, in one transaction: all, or none. Answers them in the same order.

        Args:
            messages: mappings of `body` and, if wanted, `at`, `delay_s`, `key`, `order_key`, `headers`, `spread_s`,
                `message_id`: see `send`.

        Raises:
            What `send` raises; the error's note says which of them was wrong, from 1 on.
        """
        check_destination_name(destination)
        new: list[NewMessage] = []
        for number, one in enumerate(messages, start=1):
            try:
                new.append(_new(destination, one))
            except WorkqError as error:
                error.add_note(f"message {number}")
                raise
        producer, ledger = self._app.producer, self._app.stores.ledger.part(MessageLedger)
        if connection is None:
            producer.check_outside("send in it, with connection=connection, or after it")
        return producer.record_by(
            lambda hints: ledger.recorded.record(new, connection=connection, hints=hints),
            connection=connection,
            delays_s=[one.delay_s for one in new],
        )


def _new(destination: str, given: object) -> NewMessage:
    if not isinstance(given, Mapping) or "body" not in given:  # of JSON lines, it may be anything
        raise ConfigError("a message is a mapping with a body")
    if unknown := sorted(map(str, given.keys() - _FIELDS)):
        raise ConfigError(f"message: {unknown[0][:60]!r} is not known; it may have {', '.join(sorted(_FIELDS))}")
    body, is_binary, content_type = stored_body(given["body"])
    task_id = new_task_id()
    message_id, key, order_key = given.get("message_id"), given.get("key"), given.get("order_key")
    chosen = task_id if message_id is None else check_message_id(message_id)
    delay_s, at = due_of(given.get("at"), given.get("delay_s"), given.get("spread_s"), chosen)
    return NewMessage(
        id=chosen,
        task_id=task_id,
        destination=destination,
        body=body,
        is_binary=is_binary,
        content_type=content_type,
        key=None if key is None else check_message_key(key),
        headers=check_message_headers(given.get("headers") or {}),
        order_key=None if order_key is None else check_message_order_key(order_key),
        delay_s=delay_s,
        at=at,
    )


def due_of(at: object, delay_s: object, spread_s: object, message_id: str) -> tuple[float, datetime | None]:
    """In how many seconds it is due, and at which instant exactly, if one is named; the past means now.

    Raises:
        ConfigError: it is no time, or too far away.
    """
    if at is not None and delay_s is not None:
        raise ConfigError("delay_s and at: give one of them")
    later_s = 0.0 if spread_s is None else check_delay_s(spread_s, "spread_s") * _share(message_id)
    if at is None:
        return min(DELAY_MAX_S, (0.0 if delay_s is None else check_delay_s(delay_s)) + later_s), None
    wait_s = seconds_until(at)  # by this host's clock, for the hint; the ledger decides by its own
    if not isinstance(at, datetime):
        return wait_s, None
    return min(DELAY_MAX_S, wait_s + later_s), whole_ms(at.astimezone(UTC) + timedelta(seconds=later_s))


def _share(message_id: str) -> float:
    """A share below 1 that each id has, always the same."""
    return int.from_bytes(sha256(message_id.encode()).digest()[:6]) / 2.0**48
