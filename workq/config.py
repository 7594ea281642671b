"""Settings: where the three stores are, whose tables and queues these are, and every time that workq keeps.

Each value comes from the first place that has it: an argument, the environment, `workq.toml` or `[tool.workq]` of
`pyproject.toml` in the working folder, a default. `origins` remembers which, for errors and for `workq config`. With
neither a broker nor an in-flight URL the ledger serves as all three: the embedded queue.

Everything is checked here, before anything is contacted. What is wrong is a ConfigError that names the place and the
right form; a password never appears in it, in a `repr`, nor in `table()`. An empty environment variable counts as
missing; an empty argument, key or secret file is an error: nobody should work on the default ledger because a secret
was empty.

This module is imported by every command: nothing but the standard library, and of that as little as possible.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from workq.errors import ConfigError
from workq.names import check_namespace

__all__ = ["QueueType", "Settings", "Times", "check_broker_url", "check_inflight_url", "check_ledger_url", "masked"]

QueueType = Literal["quorum", "classic"]

DEFAULT_LEDGER: Final = "sqlite:///workq.db"
PAYLOAD_DEFAULT_BYTES: Final = 256 * 1024
PAYLOAD_LIMIT_BYTES: Final = 16 * 1024 * 1024
FILE_MAX_BYTES: Final = 1024 * 1024
"""A settings file may not be larger."""
SECRET_MAX_BYTES: Final = 64 * 1024
"""Nor a file that holds one URL."""
_TIME_MAX_S: Final = 7 * 86400.0
_RETENTION_MAX_S: Final = 100 * 365 * 86400.0


# ------------------------------------------------------------------------------------------------------------- times


@dataclass(frozen=True, slots=True)
class Times:
    """Every time that workq keeps, in seconds. The bounds that the README promises follow from these.

    Raises:
        ConfigError: one is not a positive finite number, or two contradict each other; the message states the rule.
    """

    beat_s: float = 5.0
    """How often a worker renews its lease."""
    lease_s: float = 30.0
    """How long a worker is trusted after its last beat. More than two beats."""
    worker_beat_s: float = 10.0
    """How often a worker renews its row in the ledger."""
    sweep_s: float = 5.0
    """How often losses are looked for. At most a lease."""
    unpublished_grace_s: float = 2.0
    """How long a task may be without a confirmed hint before the sweep relays it."""
    marker_s: float = 30.0
    """How often a marker is sent through a queue whose tasks wait, to prove that none of their hints is lost."""
    marker_grace_s: float = 30.0
    """How long after a marker came back a task may still be on its way between its hint and its hold."""
    amqp_heartbeat_s: float = 20.0
    """After which silence a RabbitMQ connection is dead. Whole seconds."""
    confirm_s: float = 10.0
    """How long RabbitMQ may take to confirm a hint."""
    redis_socket_s: float = 2.0
    """How long Redis may take to answer."""
    statement_s: float = 10.0
    """How long one SQL statement may take."""
    grace_s: float = 30.0
    """How long a drain may take after SIGTERM. 0: do not wait."""
    hard_limit_grace_s: float = 5.0
    """How long after its time limit a handler is killed. 0: at once."""

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_time(one.name, getattr(self, one.name))
        if self.lease_s <= 2 * self.beat_s:
            raise ConfigError(
                f"times.lease_s: must be more than 2 * beat_s, so that one lost beat does not end a lease; "
                f"lease_s is {self.lease_s:g} and beat_s is {self.beat_s:g}"
            )
        if self.sweep_s > self.lease_s:
            raise ConfigError(
                f"times.sweep_s: must not be more than lease_s, or the dead are found late; "
                f"sweep_s is {self.sweep_s:g} and lease_s is {self.lease_s:g}"
            )

    def divided_by(self, n: float) -> Times:
        """The same proportions, `n` times faster: the profile of the tests.

        The AMQP heartbeat stays a whole number of at least 2 seconds. The deadlines of servers keep a floor (confirm
        2 s, Redis 1 s, SQL 5 s), or a busy machine would look like a broken one. No floor raises what was lower.

        Raises:
            ConfigError: `n` is not a positive finite number.
        """
        if not _is_number(n) or not 0.0 < n < math.inf:
            raise ConfigError(f"times: can be divided by a positive number only, not {n!r}")
        faster = {one.name: getattr(self, one.name) / n for one in fields(self)}
        for name, floor_s in _FLOORS_S.items():
            faster[name] = max(faster[name], min(floor_s, getattr(self, name)))
        faster["amqp_heartbeat_s"] = float(math.ceil(faster["amqp_heartbeat_s"]))
        return Times(**faster)


_FLOORS_S: Final = {"amqp_heartbeat_s": 2.0, "confirm_s": 2.0, "redis_socket_s": 1.0, "statement_s": 5.0}
_MAY_BE_ZERO: Final = frozenset({"grace_s", "hard_limit_grace_s"})


def _check_time(name: str, value: object) -> None:
    if not _is_number(value):
        raise ConfigError(f"times.{name}: must be a number of seconds, not {_kind(value)}")
    seconds = _float(value)
    if name == "amqp_heartbeat_s":
        if not 1.0 <= seconds <= 65535.0 or seconds != math.floor(seconds):
            raise ConfigError(
                f"times.{name}: must be whole seconds from 1 to 65535 (0 would switch it off), not {seconds:g}"
            )
    elif name in _MAY_BE_ZERO:
        if not 0.0 <= seconds <= _TIME_MAX_S:
            raise ConfigError(f"times.{name}: must be from 0 to {_TIME_MAX_S:.0f} seconds, not {seconds:g}")
    elif not 0.0 < seconds <= _TIME_MAX_S:
        raise ConfigError(f"times.{name}: must be more than 0 and at most {_TIME_MAX_S:.0f} seconds, not {seconds:g}")


# ---------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """The settings of one application. Checked when made, so that an instance is always valid.

    URLs contain passwords: print `table()` or the `repr`, which mask them.

    Attributes:
        ledger: the URL of the SQL database.
        broker: of RabbitMQ; None: the ledger carries the hints.
        inflight: of Redis; None: the ledger keeps holds and leases.
        app: `module:attribute` of the WorkQueue that the commands use.
        namespace: prefix of every table, queue and key.
        queue_type: of the queues in RabbitMQ.
        payload_max_bytes: the largest payload, measured on the encoded JSON.
        retention_s: how long succeeded and cancelled tasks are kept.
        dead_retention_s: how long dead ones are.
        origins: where each value came from, by name: "argument", "environment WORKQ_LEDGER_URL", "workq.toml",
            "pyproject.toml [tool.workq]" or "default".
        warnings: what was accepted but should be put right; for stderr, or a log.
    """

    ledger: str = DEFAULT_LEDGER
    broker: str | None = None
    inflight: str | None = None
    app: str | None = None
    namespace: str = "workq"
    queue_type: QueueType = "quorum"
    times: Times = field(default_factory=Times)
    payload_max_bytes: int = PAYLOAD_DEFAULT_BYTES
    retention_s: float = 7 * 86400.0
    dead_retention_s: float = 90 * 86400.0
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is None and name in ("broker", "inflight", "app"):
                continue
            try:
                check(value)
            except ConfigError as error:
                origin = self.origins.get(name, "argument")
                raise ConfigError(f"{name} ({origin}): {error}") from None

    def __repr__(self) -> str:
        return "Settings(" + ", ".join(f"{name}={value}" for name, value, _ in self.table()) + ")"

    def table(self) -> list[tuple[str, str, str]]:
        """Every setting as (name, value with passwords masked, origin), in the order in which they are documented."""
        rows = []
        for name in _CHECKS:
            value = getattr(self, name)
            shown = "-" if value is None else masked(value) if name in _URLS else str(value)
            rows.append((name, shown, self.origins.get(name, "default")))
        for one in fields(Times):
            name = f"times.{one.name}"
            rows.append((name, f"{getattr(self.times, one.name):g}", self.origins.get(name, "default")))
        return rows

    @staticmethod
    def load(
        *,
        ledger: str | None = None,
        broker: str | None = None,
        inflight: str | None = None,
        app: str | None = None,
        namespace: str | None = None,
        queue_type: str | None = None,
        times: Times | None = None,
        payload_max_bytes: int | None = None,
        retention_s: float | None = None,
        dead_retention_s: float | None = None,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> Settings:
        """The settings in force here. Reads at most one settings file and the files that `*_FILE` variables name.

        Arguments that are None count as not given. `environ` defaults to the process's environment, `folder` to the
        working folder. `file` (or WORKQ_CONFIG) names a settings file, which must exist then; otherwise `workq.toml` in
        `folder` is read if it is there, or else `[tool.workq]` of `pyproject.toml` if that is.

        Raises:
            ConfigError: a value, a name or a file is wrong. Nothing was contacted.
        """
        found = _Found()
        given = {
            "ledger": ledger,
            "broker": broker,
            "inflight": inflight,
            "app": app,
            "namespace": namespace,
            "queue_type": queue_type,
            "payload_max_bytes": payload_max_bytes,
            "retention_s": retention_s,
            "dead_retention_s": dead_retention_s,
        }
        for name, value in given.items():
            if value is not None:
                found.add(name, value, "argument")
        if times is not None:
            if not isinstance(times, Times):
                raise ConfigError(f"times (argument): must be a Times, not {_kind(times)}")
            for one in fields(Times):
                found.add(f"times.{one.name}", getattr(times, one.name), "argument")
        environment = _Environment(os.environ if environ is None else environ, found.warnings)
        environment.settings(found, folder)
        named = file if file is not None else environment.value("WORKQ_CONFIG")
        _read_settings(found, folder, named)
        return found.settings()


class _Found:
    """Values with their origins; the first one stands."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.warnings: list[str] = []

    def add(self, name: str, value: Any, origin: str) -> None:
        if name not in self.values:
            self.values[name] = value
            self.origins[name] = origin

    def settings(self) -> Settings:
        values = {name: value for name, value in self.values.items() if not name.startswith("times.")}
        chosen = {name.partition(".")[2]: value for name, value in self.values.items() if name.startswith("times.")}
        try:
            times = Times(**{name: _float(value) for name, value in chosen.items()})
        except ConfigError as error:
            origin = self.origins.get(str(error).partition(":")[0])
            origins = [origin] if origin else sorted({self.origins[f"times.{name}"] for name in chosen})
            raise ConfigError(f"{error} ({', '.join(origins)})") from None
        for name in ("retention_s", "dead_retention_s"):
            if name in values:
                values[name] = _float(values[name])
        return Settings(**values, times=times, origins=dict(self.origins), warnings=tuple(self.warnings))


# ------------------------------------------------------------------------------------------------------- environment

_VARIABLES: Final = {
    "ledger": "WORKQ_LEDGER_URL",
    "broker": "WORKQ_BROKER_URL",
    "inflight": "WORKQ_INFLIGHT_URL",
    "app": "WORKQ_APP",
    "namespace": "WORKQ_NAMESPACE",
    "queue_type": "WORKQ_QUEUE_TYPE",
}
_URLS: Final = frozenset({"ledger", "broker", "inflight"})


class _Environment:
    def __init__(self, environ: Mapping[str, str], warnings: list[str]) -> None:
        self._environ = environ
        self._warnings = warnings

    def settings(self, found: _Found, folder: Path | None) -> None:
        for name, variable in _VARIABLES.items():
            value = self.value(variable)
            path = self.value(f"{variable}_FILE") if name in _URLS else None
            if value is not None and path is not None:
                raise ConfigError(f"{variable} and {variable}_FILE are both set; unset one of them")
            if name in found.values:  # an argument stands; what it replaces is not read
                continue
            if path is not None:
                found.add(name, self._secret(f"{variable}_FILE", path, folder), f"environment {variable}_FILE")
            elif value is not None:
                found.add(name, value, f"environment {variable}")

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
            raise ConfigError(f"{variable}: the file {_line(path)} does not exist")
        value = self._unquoted(_decoded(body, variable).strip(), variable)  # editors end a file with a newline
        if not value:
            raise ConfigError(f"{variable}: the file {_line(path)} is empty")
        return value


# ------------------------------------------------------------------------------------------------------------- files

_STRINGS: Final = ("ledger", "broker", "inflight", "app", "namespace", "queue_type")
_NUMBERS: Final = ("payload_max_bytes", "retention_s", "dead_retention_s")


def _read_settings(found: _Found, folder: Path | None, named: str | os.PathLike[str] | None) -> None:
    here = Path() if folder is None else folder
    if named is not None:
        path = here / named
        document = _toml(path, _line(str(named)))
        if document is None:
            raise ConfigError(f"{_line(str(named))}: this settings file does not exist")
        if path.name == "pyproject.toml":
            _add_tool_table(found, document, _line(str(named)))
        else:
            _add_table(found, document, _line(str(named)))
        return
    document = _toml(here / "workq.toml", "workq.toml")
    if document is not None:
        _add_table(found, document, "workq.toml")
        return
    document = _toml(here / "pyproject.toml", "pyproject.toml")
    if document is not None:
        _add_tool_table(found, document, "pyproject.toml")


def _add_tool_table(found: _Found, document: dict[str, Any], file: str) -> None:
    tools = document.get("tool", {})
    table = tools.get("workq", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: tool.workq must be a table, not {_kind(table)}")
    _add_table(found, table, f"{file} [tool.workq]")


def _add_table(found: _Found, table: dict[str, Any], origin: str) -> None:
    for key, value in table.items():
        if key == "times":
            if not isinstance(value, dict):
                raise ConfigError(f"{origin}: times must be a table, not {_kind(value)}")
            for name, seconds in value.items():
                if name not in (known := [one.name for one in fields(Times)]):
                    raise ConfigError(f"{origin}: unknown key times.{_line(name)}{_nearest(name, known)}")
                if not _is_number(seconds):
                    raise ConfigError(f"{origin}: times.{name} must be a number of seconds, not {_kind(seconds)}")
                found.add(f"times.{name}", seconds, origin)
        elif key in _STRINGS:
            if not isinstance(value, str):
                raise ConfigError(f"{origin}: {key} must be text, not {_kind(value)}")
            found.add(key, value, origin)
        elif key in _NUMBERS:
            if not _is_number(value):
                raise ConfigError(f"{origin}: {key} must be a number, not {_kind(value)}")
            found.add(key, value, origin)
        else:
            raise ConfigError(f"{origin}: unknown key {_line(key)}{_nearest(key, [*_STRINGS, *_NUMBERS, 'times'])}")


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
        raise ConfigError(f"{what}: {_line(str(path))} is a folder, not a file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise ConfigError(f"{what}: cannot read {_line(str(path))}: {reason}") from None
    if len(body) > max_bytes:
        raise ConfigError(f"{what}: {_line(str(path))} is larger than {max_bytes} bytes")
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


# -------------------------------------------------------------------------------------------------------------- URLs

LEDGER_SCHEMES: Final = (
    "sqlite",
    "postgresql",
    "postgres",
    "postgresql+psycopg",
    "mysql",
    "mysql+pymysql",
    "mariadb",
    "mariadb+pymysql",
)
_LEDGER_FORMS: Final = (
    "sqlite:///workq.db, postgresql://user:password@host:5432/database or mysql://user:password@host:3306/database"
)
_BROKER_FORMS: Final = "amqp://user:password@host:5672/vhost or amqps://..."
_INFLIGHT_FORMS: Final = "redis://:password@host:6379/0, rediss://... or unix:///path/to/redis.sock?db=0"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True, slots=True)
class _Url:
    """The parts that are checked. None goes into a message by itself: a broken URL may have its password anywhere."""

    scheme: str
    host: str
    path: str
    query: Mapping[str, str]


def check_ledger_url(url: object) -> str:
    """The URL of a ledger, unchanged. Nothing is contacted.

    Raises:
        ConfigError: it is not one of the right form; the message shows that form, and no password.
    """
    if isinstance(url, str) and url.startswith("sqlite:"):
        return _check_sqlite(url)
    parts = _parsed(url, LEDGER_SCHEMES, _LEDGER_FORMS)
    is_mysql = parts.scheme.startswith(("mysql", "mariadb"))
    socket = "unix_socket" if is_mysql else "host"
    if not parts.host and socket not in parts.query and (is_mysql or "service" not in parts.query):
        raise ConfigError(f"no host in {masked(str(url))}; use {_LEDGER_FORMS} (a Unix socket: ?{socket}=/path)")
    database = unquote(parts.path[1:])
    if not database and (is_mysql or not {"service", "dbname"}.intersection(parts.query)):
        raise ConfigError(f"no database name in {masked(str(url))}; use {_LEDGER_FORMS}")
    return str(url)


def check_broker_url(url: object) -> str:
    """The URL of RabbitMQ, unchanged. Nothing is contacted.

    Raises:
        ConfigError: it is not one of the right form; the message shows that form, and no password.
    """
    parts = _parsed(url, ("amqp", "amqps"), _BROKER_FORMS)
    if not parts.host:
        raise ConfigError(f"no host in {masked(str(url))}; use {_BROKER_FORMS}")
    if "/" in parts.path[1:]:
        raise ConfigError(f"write a slash in the vhost as %2F in {masked(str(url))}; use {_BROKER_FORMS}")
    return str(url)


def check_inflight_url(url: object) -> str:
    """The URL of Redis, unchanged. Nothing is contacted.

    Raises:
        ConfigError: it is not one of the right form; the message shows that form, and no password.
    """
    parts = _parsed(url, ("redis", "rediss", "unix"), _INFLIGHT_FORMS)
    if parts.scheme == "unix":
        if parts.host or parts.path in ("", "/"):
            raise ConfigError(f"no path of a socket in {masked(str(url))}; use {_INFLIGHT_FORMS}")
        number = parts.query.get("db", "0")
    else:
        if not parts.host:
            raise ConfigError(f"no host in {masked(str(url))}; use {_INFLIGHT_FORMS}")
        number = parts.path[1:] or parts.query.get("db", "0")
    if not re.fullmatch(r"[0-9]{1,5}", number):
        raise ConfigError(f"the database of Redis is a number in {masked(str(url))}; use {_INFLIGHT_FORMS}")
    return str(url)


def _check_sqlite(url: str) -> str:
    forms = "sqlite:///workq.db for a file in the working folder, or sqlite:////srv/workq.db for an absolute path"
    if not url.isprintable():  # a path may have spaces, and nothing in it is decoded
        raise ConfigError(f"a control character in {masked(url)}; use {forms}")
    if not url.startswith("sqlite:///"):
        raise ConfigError(f"three slashes come before the path in {masked(url)}; use {forms}")
    path, _, query = url.removeprefix("sqlite:///").partition("?")
    if path in ("", "/", ":memory:") or "mode=memory" in query:
        raise ConfigError(f"SQLite needs a file here, because workers are processes; use {forms}")
    return url


def _parsed(url: object, schemes: tuple[str, ...], forms: str) -> _Url:
    if not isinstance(url, str):
        raise ConfigError(f"must be text, not {_kind(url)}; use {forms}")
    if not url:
        raise ConfigError(f"is empty; use {forms}, or leave it out")
    _check_characters(url, forms)
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise ConfigError(f"not a URL (no scheme://); use {forms}")  # unquoted: it may be a bare password
    if scheme not in schemes:
        raise ConfigError(f"the scheme of {masked(url)} is not {_either(schemes)}; use {forms}")
    if rest.count("@") > 1 or ("@" in rest and "@" not in re.split("[/?#]", rest, maxsplit=1)[0]):
        raise ConfigError(
            f"in {masked(url)} write @ as %40, / as %2F, # as %23 and ? as %3F, except where they separate; use {forms}"
        )
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:  # its text may quote a password
        raise ConfigError(f"not a valid host in {masked(url)}; use {forms}; IPv6: [::1]") from None
    if parts.fragment or url.endswith("#"):
        raise ConfigError(f"write # as %23 in {masked(url)}; use {forms}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    return _Url(scheme, _check_host(host, url, forms), parts.path, options)


def _check_host(host: str, url: str, forms: str) -> str:
    """The name or address in `host[:port]`, both checked; "" if there is none."""
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", host)
    if bracketed:
        name, port = bracketed[1], bracketed[2]
        is_valid = re.fullmatch(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?", name) is not None
    else:
        if host.count(":") > 1 or "[" in host or "]" in host:
            raise ConfigError(f"an IPv6 address needs brackets in {masked(url)}: [::1] or [::1]:5432; use {forms}")
        name, colon, number = host.partition(":")
        port = number if colon else None
        is_valid = not name or _HOST.fullmatch(name) is not None
    if not is_valid:
        raise ConfigError(f"not a valid host in {masked(url)}; use {forms}; IPv6: [::1]")
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise ConfigError(f"the port in {masked(url)} must be a number from 1 to 65535; use {forms}")
    return name


def _check_characters(url: str, forms: str) -> None:
    if any(not character.isprintable() or character.isspace() for character in url):
        raise ConfigError(f"a space or control character in {masked(url)}; write it as %20 or %0A; use {forms}")


def _either(schemes: tuple[str, ...]) -> str:
    return " or ".join(f"{one}://" for one in schemes if "+" not in one)


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST_AND_PORT = re.compile(r"([^:/?#\[\]]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{0,5})?([/?#].*)?")
_SECRET_OPTION = re.compile(r"([?&;][^=&;]*(?:pass|pwd|secret|token)[^=&;]*=).*", re.IGNORECASE)


def masked(url: str) -> str:
    """The URL in one line, without its password, for messages.

    Made for broken URLs too, so it hides too much rather than too little: everything from the first colon after the
    scheme to the last @, what stands in the place of a port and is none, and all from an option named like a password.
    """
    url = _line(url)
    found = _SCHEME.match(url)
    scheme = found[0] if found else ""
    rest = url[len(scheme) :]
    if scheme.lower() not in ("sqlite://", "unix://") or "@" in rest.partition("/")[0]:
        rest = _without_password(scheme.lower(), rest)
    return scheme + _SECRET_OPTION.sub(r"\1***", rest)


def _without_password(scheme: str, rest: str) -> str:
    userinfo, at, place = rest.rpartition("@")
    if not at:
        if ":" not in rest or _HOST_AND_PORT.fullmatch(rest):
            return rest
        return f"{rest.partition(':')[0]}:***"
    user, colon, _ = userinfo.partition(":")
    if colon:
        return f"{user}:***@{place}"
    return f"***@{place}" if scheme in ("redis://", "rediss://") else rest


# ------------------------------------------------------------------------------------------------------------ values


def _check_app(value: object) -> None:
    module, colon, attribute = value.partition(":") if isinstance(value, str) else ("", "", "")
    names = [*module.split("."), *(attribute.split(".") if colon else [])]
    if not all(name.isidentifier() for name in names):
        raise ConfigError("must be module:attribute, for example shop.tasks:queue")


def _check_queue_type(value: object) -> None:
    if value not in get_args(QueueType):
        raise ConfigError(f"must be {' or '.join(get_args(QueueType))}")


def _check_payload_max(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= PAYLOAD_LIMIT_BYTES:
        raise ConfigError(f"must be a whole number of bytes from 1 to {PAYLOAD_LIMIT_BYTES} (16 MiB)")


def _check_retention(value: object) -> None:
    if not _is_number(value) or not 0.0 < cast(float, value) <= _RETENTION_MAX_S:
        raise ConfigError(f"must be more than 0 and at most {_RETENTION_MAX_S:.0f} seconds (100 years)")


_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "ledger": check_ledger_url,
    "broker": check_broker_url,
    "inflight": check_inflight_url,
    "app": _check_app,
    "namespace": check_namespace,
    "queue_type": _check_queue_type,
    "payload_max_bytes": _check_payload_max,
    "retention_s": _check_retention,
    "dead_retention_s": _check_retention,
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: Any) -> Any:
    """A number as a float, anything else as it is, for the check that follows."""
    if not _is_number(value):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _kind(value: object) -> str:
    """What a value is, without showing it."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")


def _line(text: str) -> str:
    """One line, whatever somebody put into it."""
    return "".join(character if character.isprintable() else "?" for character in text)
