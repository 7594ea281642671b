"""Headers of a record of Kafka, which confluent-kafka reads for us: whatever is in them, a consumer goes on."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message


def headers_of(message: Message) -> list[tuple[str, bytes | None]] | None:
    """Its headers; None: one has a name that is no UTF-8, so that none can be read.

    To be asked once: after such a name, confluent-kafka (2.16) would give out names that are no objects.
    """
    try:
        found: Any = message.headers()
    except (SystemError, ValueError):
        return None
    return found or []
