"""Headers of a record of Kafka, which confluent-kafka reads for us: whatever is in them, a consumer goes on."""

from __future__ import annotations

from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Message

_HEADERS: Final = methodcaller("headers")
"""Called by C, the answer is checked. Python itself calls a method that it calls often without that, and goes on with
an answer that is none."""


def headers_of(message: Message) -> list[tuple[str, bytes | None]] | None:
    """Its headers; None: one has a name that is no UTF-8, so that none can be read.

    To be asked once: after such a name, confluent-kafka (2.16) would give out names that are no objects.
    """
    try:
        found: Any = _HEADERS(message)
    except (SystemError, ValueError):
        return None
    return found or []
