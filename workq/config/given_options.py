"""GivenOptions: those of one destination, or of a URL, taken one by one, checked, and nothing left over. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from workq.errors import ConfigError

TEXT_MAX: Final = 255
PATH_MAX: Final = 4096
_MISSING: Final = object()


class GivenOptions:
    """What is left to take. `stored`: what was taken, as it is kept; defaults are in it."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._left = dict(given)
        self.stored: dict[str, Any] = {}

    def take(self, name: str, *, why: str) -> Any:
        """A value that has to be there; it is not stored.

        Raises:
            ConfigError: it is missing.
        """
        value = self._left.pop(name, None)
        if value is None:
            raise ConfigError(f"{name}: is missing; {why}")
        return value

    def text(
        self, name: str, *, why: str, default: Any = _MISSING, most: int = TEXT_MAX, may_be_empty: bool = False
    ) -> Any:
        """A text in one line. Without a default it has to be there.

        Raises:
            ConfigError: it is missing, too long, or no text.
        """
        value = self._left.pop(name, None)
        if value is None:
            if default is _MISSING:
                raise ConfigError(f"{name}: is missing; {why}")
            value = default
        elif not isinstance(value, str) or not value.isprintable():
            raise ConfigError(f"{name}: need text in one line, got {value!r:.60}; {why}")
        elif not value and not may_be_empty:
            raise ConfigError(f"{name}: is empty; {why}")
        elif len(value.encode()) > most:
            raise ConfigError(f"{name}: has {len(value.encode())} bytes, at most {most} are allowed")
        self.stored[name] = value
        return value

    def choice(self, name: str, choices: tuple[str, ...], *, default: str | None) -> Any:
        """One of some words.

        Raises:
            ConfigError: it is another one.
        """
        value = self._left.pop(name, None)
        if value is None:
            value = default
        elif value not in choices:
            raise ConfigError(f"{name}: need one of {', '.join(choices)}, not {value!r:.60}")
        self.stored[name] = value
        return value

    def number(self, name: str, *, default: int, least: int, most: int) -> int:
        """A whole number, also one that is written as text.

        Raises:
            ConfigError: it is none, or out of its bounds.
        """
        value = self._left.pop(name, None)
        if value is None:
            value = default
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise ConfigError(f"{name}: need a whole number from {least} to {most}, not {value!r:.60}")
        self.stored[name] = value
        return value

    def file(self, name: str, *, why: str) -> str | None:
        """The absolute path of a file, or None. Whether it is there is seen when it is used.

        Raises:
            ConfigError: it is no such path.
        """
        path: str | None = self.text(name, why=why, default=None, most=PATH_MAX)
        if path is not None and not PurePosixPath(path).is_absolute():
            raise ConfigError(
                f"{name}: need an absolute path, as workers run in folders of their own, not {path!r:.100}"
            )
        return path

    def mapping(self, name: str, *, why: str) -> dict[str, Any]:
        """Names with values, or none.

        Raises:
            ConfigError: it is something else.
        """
        value = self._left.pop(name, None)
        if value is None:
            value = {}
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ConfigError(f"{name}: need names with values, got {value!r:.60}; {why}")
        self.stored[name] = dict(value)
        return dict(value)

    def done(self, *, kind: str) -> dict[str, Any]:
        """What is stored: what was given, and defaults; not what is absent.

        Raises:
            ConfigError: an option is left that nobody has taken.
        """
        if self._left:
            raise ConfigError(f"{min(self._left)}: is no option of the kind {kind}; there are {', '.join(self.stored)}")
        return {name: value for name, value in self.stored.items() if value not in (None, {})}


def check_files(options: GivenOptions, *, is_tls: bool) -> None:
    """Take the options of TLS.

    Raises:
        ConfigError: one is not right, or there is no TLS.
    """
    why = "the absolute path of a PEM file"
    files = [options.file(name, why=why) for name in ("ca_file", "cert_file", "key_file")]
    if any(files) and not is_tls:
        raise ConfigError("ca_file, cert_file, key_file: they are for TLS, and the scheme of the URL means none")
    if files[2] is not None and files[1] is None:
        raise ConfigError("key_file: is the key of cert_file, which is missing")
