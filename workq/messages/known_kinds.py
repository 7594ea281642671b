"""The kinds of destinations that there are, by their names. A kind is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from workq.errors import ConfigError
from workq.messages.kinds import Kind

KindOf = Callable[[str], Kind]

_REGISTRY: Final = "workq.messages.kinds.registry"


def kind_of(name: str) -> Kind:
    """The kind of this name.

    Raises:
        ConfigError: there is none. MissingExtra: its library is not installed.
    """
    try:
        known = import_module(_REGISTRY).KINDS
    except ModuleNotFoundError as error:
        if error.name != _REGISTRY:
            raise
        known = {}
    if name not in known:
        raise ConfigError(f"kind: need one of {', '.join(sorted(known))}, got {name!r:.100}")
    found = known[name]()
    if not isinstance(found, Kind):
        raise TypeError(f"{_REGISTRY}: {name} makes a {type(found).__name__}, which is no Kind")
    return found
