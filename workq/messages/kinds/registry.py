"""The kinds of destinations that there are. A kind's module, and its library, is imported when the kind is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Final

from workq.errors import ConfigError
from workq.messages.kinds import Kind

KindOf = Callable[[str], Kind]


def _made(module: str, name: str) -> Kind:
    """Raises MissingExtra: the kind's library is not installed."""
    made: Kind = getattr(import_module(f"workq.messages.kinds.{module}"), name)()
    return made


KINDS: Final[Mapping[str, Callable[[], Kind]]] = {
    module: partial(_made, module, name)
    for module, name in (
        ("amqp", "AmqpKind"),
        ("kafka", "KafkaKind"),
        ("stomp", "StompKind"),
        ("redis", "RedisKind"),
        ("http", "HttpKind"),
        ("call", "CallKind"),
    )
}
"""By their names, as `--kind` and the ledger have them."""


def kind_of(name: str) -> Kind:
    """The kind of this name.

    Raises:
        ConfigError: there is none. MissingExtra: its library is not installed.
    """
    if name not in KINDS:
        raise ConfigError(f"kind: need one of {', '.join(sorted(KINDS))}, got {name!r:.100}")
    return KINDS[name]()
