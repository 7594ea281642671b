"""The kinds of destinations that there are. A kind's module, and its library, is imported when the kind is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Final

from workq.messages.kinds import Kind


def _made(module: str, name: str) -> Kind:
    """Raises MissingExtra: the kind's library is not installed."""
    made: Kind = getattr(import_module(f"workq.messages.kinds.{module}"), name)()
    return made


KINDS: Final[Mapping[str, Callable[[], Kind]]] = {
    module: partial(_made, module, name)
    for module, name in (
        ("amqp", "Amqp"),
        ("kafka", "Kafka"),
        ("stomp", "Stomp"),
        ("redis", "RedisKind"),
        ("http", "Http"),
        ("call", "CallKind"),
    )
}
"""By their names, as `--kind` and the ledger have them."""
