"""Where settings come from: the environment, a settings file, and files that hold one secret.

The first value of a name stands, with its origin. Of what a file says only names and types are checked here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from workq.config.times import Times
from workq.config.urls import has_password
from workq.config.values import is_number, kind_of, one_line
from workq.errors import ConfigError

FILE_MAX_BYTES: Final = 1024 * 1024
"""A settings file may not be larger."""
SECRET_MAX_BYTES: Final = 64 * 1024
"""Nor a file that holds one URL, or one secret."""


class Found:
    """Values with their origins; the first one stands."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.warnings: list[str] = []
        self.secret_files: list[Path] = []
        """Files that hold a secret, or a URL with a password."""

    def add(self, name: str, value: Any, origin: str) -> None:
        if name not in self.values:
            self.values[name] = value
            self.origins[name] = origin


# -- the environment

_VARIABLES: Final = {
    "ledger": "WORKQ_LEDGER_URL",
    "broker": "WORKQ_BROKER_URL",
    "inflight": "WORKQ_INFLIGHT_URL",
    "app": "WORKQ_APP",
    "namespace": "WORKQ_NAMESPACE",
    "queue_type": "WORKQ_QUEUE_TYPE",
    "ladder": "WORKQ_LADDER",
    "webhook_allow": "WORKQ_WEBHOOK_ALLOW",
    "webhook_ports": "WORKQ_WEBHOOK_PORTS",
    "webhook_schemes": "WORKQ_WEBHOOK_SCHEMES",
    "webhook_proxy": "WORKQ_WEBHOOK_PROXY",
    "message_allow": "WORKQ_MESSAGE_ALLOW",
    "secret_key": "WORKQ_SECRET_KEY",
    "log_format": "WORKQ_LOG_FORMAT",
}
_NUMBER_VARIABLES: Final = {
    "retention_s": "WORKQ_RETENTION_S",
    "dead_retention_s": "WORKQ_DEAD_RETENTION_S",
    "webhook_body_retention_s": "WORKQ_WEBHOOK_BODY_RETENTION_S",
    "webhook_retention_s": "WORKQ_WEBHOOK_RETENTION_S",
}
RETENTIONS: Final = tuple(_NUMBER_VARIABLES)
URLS: Final = frozenset({"ledger", "broker", "inflight", "webhook_proxy"})
SECRETS: Final = frozenset({"secret_key"})
_IN_FILES: Final = URLS | SECRETS
OF_SETTINGS: Final = frozenset(
    {*_VARIABLES.values(), *_NUMBER_VARIABLES.values(), *(f"{_VARIABLES[name]}_FILE" for name in _IN_FILES)}
)
"""Every variable that is read for a setting."""


class Environment:
    """The WORKQ_ variables, as people write them: quotes and blanks around a value are taken off, with a warning."""

    def __init__(self, environ: Mapping[str, str], warnings: list[str]) -> None:
        self._environ = environ
        self._warnings = warnings

    def settings(self, found: Found, folder: Path | None) -> None:
        """Add what the variables say, and what is in the files that `*_FILE` variables name."""
        for name, variable in _VARIABLES.items():
            value = self.value(variable)
            path = self.value(f"{variable}_FILE") if name in _IN_FILES else None
            if value is not None and path is not None:
                raise ConfigError(f"{variable} and {variable}_FILE are both set; unset one of them")
            if name in found.values:  # an argument stands; what it replaces is not read
                continue
            if path is not None:
                found.add(name, self._secret(f"{variable}_FILE", path, folder), f"environment {variable}_FILE")
                found.secret_files.append(Path(path) if folder is None else folder / path)
            elif value is not None:
                found.add(name, value, f"environment {variable}")
        for name, variable in _NUMBER_VARIABLES.items():
            value = self.value(variable)
            if value is not None and name not in found.values:
                found.add(name, _seconds(value, variable), f"environment {variable}")

    def value(self, variable: str) -> str | None:
        """What the variable says, or None if it is missing, empty or blank."""
        raw = self._environ.get(variable)
        if raw is None:
            return None
        value = self._unquoted(raw.strip(), variable)
        if value and raw != raw.strip():
            self._warnings.append(f"{variable}: whitespace around the value was removed")
        return value or None

    def _unquoted(self, value: str, variable: str) -> str:
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1].strip()
            if value:
                self._warnings.append(f"{variable}: quotes around the value were removed")
        return value

    def _secret(self, variable: str, path: str, folder: Path | None) -> str:
        body = _read(Path(path) if folder is None else folder / path, variable, SECRET_MAX_BYTES)
        if body is None:
            raise ConfigError(f"{variable}: the file {one_line(path)} does not exist")
        value = self._unquoted(_decoded(body, variable).strip(), variable)  # editors end a file with a newline
        if not value:
            raise ConfigError(f"{variable}: the file {one_line(path)} is empty")
        return value


def _seconds(text: str, variable: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{variable}: need seconds, such as 604800, got {one_line(text)[:60]!r}") from None


# -- files

_STRINGS: Final = tuple(_VARIABLES)
_NUMBERS: Final = ("payload_max_bytes", *RETENTIONS)


def read_files(found: Found, folder: Path | None, named: str | os.PathLike[str] | None) -> None:
    """Add what one settings file says: the `named` one, which must exist, or the first that is in the folder."""
    here = Path() if folder is None else folder
    if named is not None:
        path = here / named
        document = _toml(path, one_line(str(named)))
        if document is None:
            raise ConfigError(f"{one_line(str(named))}: this settings file does not exist")
        if path.name == "pyproject.toml":
            _add_tool_table(found, document, one_line(str(named)), path)
        else:
            _add_table(found, document, one_line(str(named)), path)
        return
    document = _toml(here / "workq.toml", "workq.toml")
    if document is not None:
        _add_table(found, document, "workq.toml", here / "workq.toml")
        return
    document = _toml(here / "pyproject.toml", "pyproject.toml")
    if document is not None:
        _add_tool_table(found, document, "pyproject.toml", here / "pyproject.toml")


def _add_tool_table(found: Found, document: dict[str, Any], file: str, path: Path) -> None:
    tools = document.get("tool", {})
    table = tools.get("workq", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: tool.workq must be a table, not {kind_of(table)}")
    _add_table(found, table, f"{file} [tool.workq]", path)


def _add_table(found: Found, table: dict[str, Any], origin: str, path: Path) -> None:
    if any(key in SECRETS or (key in URLS and has_password(str(value))) for key, value in table.items()):
        found.secret_files.append(path)
    for key, value in table.items():
        if key == "times":
            if not isinstance(value, dict):
                raise ConfigError(f"{origin}: times must be a table, not {kind_of(value)}")
            for name, seconds in value.items():
                if name not in (known := [one.name for one in fields(Times)]):
                    raise ConfigError(f"{origin}: unknown key times.{one_line(name)}{_nearest(name, known)}")
                if not is_number(seconds):
                    raise ConfigError(f"{origin}: times.{name} must be a number of seconds, not {kind_of(seconds)}")
                found.add(f"times.{name}", seconds, origin)
        elif key in _STRINGS:
            if not isinstance(value, str):
                raise ConfigError(f"{origin}: {key} must be text, not {kind_of(value)}")
            found.add(key, value, origin)
        elif key in _NUMBERS:
            if not is_number(value):
                raise ConfigError(f"{origin}: {key} must be a number, not {kind_of(value)}")
            found.add(key, value, origin)
        else:
            raise ConfigError(f"{origin}: unknown key {one_line(key)}{_nearest(key, [*_STRINGS, *_NUMBERS, 'times'])}")


def _toml(path: Path, file: str) -> dict[str, Any] | None:
    """The document, or None if there is no such file."""
    body = _read(path, file, FILE_MAX_BYTES)
    if body is None:
        return None
    import tomllib

    text = _decoded(body, file)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError names line and column; others are numbers beyond Python's limits
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None


def _read(path: Path, what: str, max_bytes: int) -> bytes | None:
    """The content of a file, or None if it does not exist."""
    try:
        with path.open("rb") as file:
            body = file.read(max_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        raise ConfigError(f"{what}: {one_line(str(path))} is a folder, not a file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise ConfigError(f"{what}: cannot read {one_line(str(path))}: {reason}") from None
    if len(body) > max_bytes:
        raise ConfigError(f"{what}: {one_line(str(path))} is larger than {max_bytes} bytes")
    return body


def _decoded(body: bytes, what: str) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what}: not UTF-8 (byte {error.start})") from None


def _nearest(name: str, known: list[str]) -> str:
    import difflib

    nearest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else f"; known keys: {', '.join(known)}"


def temporary_folder() -> Path:
    """The folder of temporary files: TMPDIR, or what Python takes without it.

    Raises:
        ConfigError: this user may write to none.
    """
    import tempfile  # by few processes: it imports a dozen modules

    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ConfigError(
            f"no folder takes temporary files ({error.strerror}); set TMPDIR to one that this user may write to"
        ) from None
