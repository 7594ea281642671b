"""The kinds of ways in that there are. A kind's module, and its library, is imported when the kind is made."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from workq.errors import ConfigError, MissingExtra
from workq.messages.intake import IntakeKind

_HOMES: Final = {"amqp": ("AmqpIntake", "rabbitmq"), "kafka": ("KafkaIntake", "kafka")}
"""Its class, and the extra that has its library."""


def intake_kind_of(name: str) -> IntakeKind:
    """The kind of this name.

    Raises:
        ConfigError: there is none. MissingExtra: its library is not installed.
    """
    if name not in _HOMES:
        raise ConfigError(f"kind: need one of {', '.join(sorted(_HOMES))}, got {name!r:.100}")
    home, extra = _HOMES[name]
    try:
        made: IntakeKind = getattr(import_module(f"workq.messages.intake.{name}"), home)()
    except ModuleNotFoundError as error:
        text = f"an intake of the kind {name} needs a client library: install the extra [{extra}]"
        raise MissingExtra(text) from error
    return made
