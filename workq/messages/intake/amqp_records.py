"""Messages of a RabbitMQ queue as values. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from workq.messages.intake.values import BrokerRecord

_BROKERS_OWN: Final = frozenset(
    {"x-death", "x-delivery-count", "x-acquired-count", "x-stream-offset", "x-received-from", "CC", "BCC"}
)
_BROKERS_BEGIN: Final = ("x-first-death-", "x-last-death-", "x-shovelled")
"""What RabbitMQ, its federation and its shovels add, and the routing keys that it has obeyed already (CC).

Sent on, an `x-death` makes RabbitMQ drop a message.
"""


def record_of_amqp(properties: Any, body: bytes, *, where: str) -> BrokerRecord:
    """A message as it was read. The `message_id` is a header `workq-id`, where there is none, however that is written.

    A text that is no UTF-8 comes as bytes. Such a name of a header is shown, and is then refused as a name.
    """
    given = {_shown(name): _raw(value) for name, value in (properties.headers or {}).items()}
    headers = {name: value for name, value in given.items() if not _is_brokers(name)}
    names = {name.lower() for name in headers}
    if properties.message_id is not None and "workq-id" not in names:
        headers["workq-id"] = _raw(properties.message_id)
    if properties.content_encoding is not None and "content-encoding" not in names:
        headers["content-encoding"] = _raw(properties.content_encoding)
    content_type = properties.content_type
    if isinstance(content_type, bytes):
        if "content-type" not in names:
            headers["content-type"] = content_type
        content_type = None
    return BrokerRecord(body=body, headers=headers, key=None, own_id=None, where=where, content_type=content_type)


def _is_brokers(name: str) -> bool:
    return name in _BROKERS_OWN or name.startswith(_BROKERS_BEGIN)


def _raw(value: Any) -> bytes:
    """Text as it is, a time as RFC 3339, and everything else as JSON."""
    if isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else _plain(value)
    if not isinstance(text, str):
        text = json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


def _plain(value: Any) -> Any:
    """What JSON does not have, as text."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return _shown(value)
    return value if value is None or isinstance(value, bool | int | float | list | dict) else str(value)


def _shown(value: str | bytes) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
