"""Reading: what one record of a broker asks for, by its headers. Pure.

workq-to         the destination; without it, that of the way in
workq-at         when it is due: epoch milliseconds, or RFC 3339 with its offset; the past means now, as nothing does
workq-id         names the message: the same id is recorded once
workq-order-key  as `order_key` of a message
workq-cancel     the id of a message that is not to be sent; the rest of the record means nothing then
content-type     of the body; the other headers are sent on as they are
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from workq.errors import ConfigError, PayloadError
from workq.messages.bodies import OWN, check_message_headers, check_message_key, stored_body
from workq.messages.intake.values import BrokerRecord, CancelOf, KnownIds, Step, Unreadable
from workq.messages.sender import due_of
from workq.messages.values import NewMessage, check_destination_name, check_message_id, check_message_order_key
from workq.values.codec import new_task_id
from workq.values.names import DELAY_MAX_S

_KNOWN: Final = frozenset({"workq-to", "workq-at", "workq-id", "workq-order-key", "workq-cancel"})
_EPOCH_MS: Final = re.compile(r"[0-9]{1,15}")
_CONTENT_TYPE: Final = re.compile(r"[!-~][ -~]{0,198}[!-~]")
_REASON_MAX: Final = 300


def read_record(record: BrokerRecord, *, to: str | None) -> Step | Unreadable:
    """A message to record, one to cancel, or what is wrong with the record. `to`: the destination without a header."""
    try:
        return _read(record, to)
    except (ConfigError, PayloadError) as error:
        return Unreadable(_reason(str(error)))
    except Exception as error:  # whatever somebody has sent
        return unrecordable(error)


def unrecordable(error: Exception) -> Unreadable:
    """What the recording of one record has raised is wrong with it. The first line: the next ones show values."""
    first = next(iter(str(error).splitlines()), "")
    return Unreadable(_reason(f"it cannot be recorded: {type(error).__name__}: {first}"))


def refuse_unknown(steps: list[Step | Unreadable], known: KnownIds) -> None:
    """What the ledger would refuse becomes unreadable, in its place."""
    of = dict(known.messages)
    for place, one in enumerate(steps):
        if isinstance(one, Unreadable | CancelOf):
            continue
        if one.destination not in known.destinations:
            steps[place] = Unreadable(f"no destination {one.destination!r}")
        elif of.setdefault(one.id, one.destination) != one.destination:
            steps[place] = Unreadable(f"message {one.id!r} was sent before, to {of[one.id]!r}")


def _reason(text: str) -> str:
    return " ".join(text.split())[:_REASON_MAX]


def _read(record: BrokerRecord, to: str | None) -> Step:
    if record.fault is not None:
        raise ConfigError(record.fault)
    headers = {name: _text(name, value) for name, value in record.headers.items()}
    own = {name.lower(): value for name, value in headers.items() if name.lower().startswith(OWN)}
    if unknown := sorted(own.keys() - _KNOWN):
        raise ConfigError(f"header {unknown[0][:60]!r} is not known; there are {', '.join(sorted(_KNOWN))}")
    if "workq-cancel" in own:
        return CancelOf(check_message_id(own["workq-cancel"]))
    if record.body is None:
        raise ConfigError("it has no body, and no header workq-cancel")
    destination = own.get("workq-to", to)
    if destination is None:
        raise ConfigError("the header workq-to is missing, and this way in has no destination of its own (--to)")
    others = {name: value for name, value in headers.items() if not name.lower().startswith(OWN)}
    said = next((others.pop(name) for name in list(others) if name.lower() == "content-type"), record.content_type)
    body, is_binary, usual_type = stored_body(_body(record.body))
    task_id = new_task_id()
    message_id = check_message_id(own["workq-id"]) if "workq-id" in own else record.own_id or task_id
    delay_s, at = _due(own.get("workq-at"), message_id)
    order_key = own.get("workq-order-key")
    return NewMessage(
        id=message_id,
        task_id=task_id,
        destination=check_destination_name(destination),
        body=body,
        is_binary=is_binary,
        content_type=usual_type if said is None else _content_type(said),
        key=None if not record.key else check_message_key(_text("key", record.key)),
        headers=check_message_headers(others),
        order_key=None if order_key is None else check_message_order_key(order_key),
        delay_s=delay_s,
        at=at,
    )


def _body(raw: bytes) -> Any:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{name[:100]!r} is no text in UTF-8") from None


def _content_type(text: str) -> str:
    if not _CONTENT_TYPE.fullmatch(text):
        raise ConfigError(f"content-type: need up to 200 printable characters, got {text!r:.60}")
    return text


def _due(text: str | None, message_id: str) -> tuple[float, datetime | None]:
    instant = _instant(text)
    try:
        return due_of(instant, None, None, message_id)
    except ConfigError:
        raise ConfigError(f"workq-at: {text!r:.60} is more than {DELAY_MAX_S / 86_400:.0f} days away") from None


def _instant(text: str | None) -> datetime | None:
    """An aware datetime; None: now."""
    if text is None:
        return None
    try:
        if _EPOCH_MS.fullmatch(text):
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"workq-at: need epoch milliseconds or RFC 3339, got {text!r:.60}") from None
    if found.tzinfo is None:
        raise ConfigError(f"workq-at: {text!r:.60} has no offset; write Z or one such as +02:00")
    return found
