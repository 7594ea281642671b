"""The settings of one application, checked when they are made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from workq.config.addresses import Allowed, Ports
from workq.config.kafka import is_kafka
from workq.config.sources import RETENTIONS, SECRETS, URLS, Environment, Found, read_files
from workq.config.times import LEDGER, Times, levels_ms
from workq.config.urls import check_broker_url, check_inflight_url, check_ledger_url, check_proxy_url, masked
from workq.config.values import as_float, is_number, kind_of
from workq.config.variables import unread
from workq.errors import ConfigError
from workq.logs.forms import FORMS, Form
from workq.values.names import check_namespace

QueueType = Literal["quorum", "classic"]

DEFAULT_LEDGER: Final = "sqlite:///workq.db"
PAYLOAD_DEFAULT_BYTES: Final = 256 * 1024
PAYLOAD_LIMIT_BYTES: Final = 16 * 1024 * 1024
_RETENTION_MAX_S: Final = 100 * 365 * 86400.0


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """The settings of one application. Checked when made, so that an instance is always valid.

    URLs contain passwords, and keys are secret: print `table()` or the `repr`, which mask them.

    Attributes:
        ledger: the URL of the SQL database.
        broker: of RabbitMQ or Kafka; None: the ledger carries the hints.
        inflight: of Redis, or of the nodes of a Redis Cluster; None: the ledger keeps holds and leases.
        app: `module:attribute` of the WorkQueue that the commands use.
        namespace: prefix of every table, queue and key.
        queue_type: of the queues in RabbitMQ.
        ladder: how hints wait until they are due: in rows of the ledger with `ledger`; in RabbitMQ with `binary`, or
            `levels:` and the levels.
        payload_max_bytes: the largest payload, measured on the encoded JSON.
        retention_s: how long succeeded and cancelled tasks are kept.
        dead_retention_s: how long dead ones are.
        webhook_body_retention_s: how long what webhooks say is kept.
        webhook_retention_s: how long they themselves are, with each attempt; at least as long.
        webhook_allow: to which addresses webhooks may go (see addresses.py).
        webhook_ports: to which ports; empty: 80, 443, and those above 1023 but for well-known services'.
        webhook_schemes: `http,https`, or one of them.
        webhook_proxy: the proxy that they go through; None: none, whatever other variables of the environment say.
        message_allow: to which addresses messages may go: brokers stand inside a network, so by default everywhere but
            to addresses of a link, such as a cloud's metadata.
        secret_key: with which the secrets of endpoints and the URLs of destinations are encrypted (see
            outbound/vault.py); None: they are not.
        log_format: of the commands that log, where the application has not configured logging: `text` or `json`.
        origins: where each value came from, by name: "argument", "environment WORKQ_LEDGER_URL", "workq.toml",
            "pyproject.toml [tool.workq]" or "default".
        warnings: what was accepted but should be put right; for stderr, or a log.
        secret_files: the files that were read and hold a secret, or a URL with a password.
    """

    ledger: str = DEFAULT_LEDGER
    broker: str | None = None
    inflight: str | None = None
    app: str | None = None
    namespace: str = "workq"
    queue_type: QueueType = "quorum"
    ladder: str = LEDGER
    times: Times = field(default_factory=Times)
    payload_max_bytes: int = PAYLOAD_DEFAULT_BYTES
    retention_s: float = 7 * 86400.0
    dead_retention_s: float = 90 * 86400.0
    webhook_body_retention_s: float = 7 * 86400.0
    webhook_retention_s: float = 30 * 86400.0
    webhook_allow: str = "external"
    webhook_ports: str = ""
    webhook_schemes: str = "http,https"
    webhook_proxy: str | None = None
    message_allow: str = "external,private,loopback"
    secret_key: str | None = None
    log_format: Form = "text"
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    secret_files: tuple[Path, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is None and name in ("broker", "inflight", "app", "webhook_proxy", "secret_key"):
                continue
            try:
                check(value)
            except ConfigError as error:
                origin = self.origins.get(name, "argument")
                raise ConfigError(f"{name} ({origin}): {error}") from None
        if self.webhook_retention_s < self.webhook_body_retention_s:
            name = "webhook_retention_s" if "webhook_retention_s" in self.origins else "webhook_body_retention_s"
            raise ConfigError(
                f"{name} ({self.origins.get(name, 'argument')}): webhooks are kept at least as long as their bodies: "
                f"webhook_retention_s is {self.webhook_retention_s:g}, below webhook_body_retention_s, "
                f"{self.webhook_body_retention_s:g}"
            )

        if is_kafka(self.broker) and self.ladder != LEDGER:
            raise ConfigError(
                f"ladder ({self.origins.get('ladder', 'argument')}): Kafka knows no delays: use {LEDGER}, which is the "
                "default: delayed hints wait in rows of the ledger"
            )

    def __repr__(self) -> str:
        return "Settings(" + ", ".join(f"{name}={value}" for name, value, _ in self.table()) + ")"

    def table(self) -> list[tuple[str, str, str]]:
        """Every setting as (name, value with passwords masked, origin), in the order in which they are documented."""
        rows = []
        for name in _CHECKS:
            value = getattr(self, name)
            rows.append((name, _shown(name, value), self.origins.get(name, "default")))
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
        ladder: str | None = None,
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
        found = Found()
        given = {
            "ledger": ledger,
            "broker": broker,
            "inflight": inflight,
            "app": app,
            "namespace": namespace,
            "queue_type": queue_type,
            "ladder": ladder,
            "payload_max_bytes": payload_max_bytes,
            "retention_s": retention_s,
            "dead_retention_s": dead_retention_s,
        }
        for name, value in given.items():
            if value is not None:
                found.add(name, value, "argument")
        if times is not None:
            if not isinstance(times, Times):
                raise ConfigError(f"times (argument): must be a Times, not {kind_of(times)}")
            for one in fields(Times):
                found.add(f"times.{one.name}", getattr(times, one.name), "argument")
        variables = os.environ if environ is None else environ
        environment = Environment(variables, found.warnings)
        found.warnings += unread(variables)
        environment.settings(found, folder)
        named = file if file is not None else environment.value("WORKQ_CONFIG")
        read_files(found, folder, named)
        return _made_of(found)


def _made_of(found: Found) -> Settings:
    values = {name: value for name, value in found.values.items() if not name.startswith("times.")}
    chosen = {name.partition(".")[2]: value for name, value in found.values.items() if name.startswith("times.")}
    try:
        times = Times(**{name: as_float(value) for name, value in chosen.items()})
    except ConfigError as error:
        origin = found.origins.get(str(error).partition(":")[0])
        origins = [origin] if origin else sorted({found.origins[f"times.{name}"] for name in chosen})
        raise ConfigError(f"{error} ({', '.join(origins)})") from None
    for name in RETENTIONS:
        if name in values:
            values[name] = as_float(values[name])
    return Settings(
        **values,
        times=times,
        origins=dict(found.origins),
        warnings=tuple(found.warnings),
        secret_files=tuple(found.secret_files),
    )


def _shown(name: str, value: Any) -> str:
    if value in (None, ""):
        return "-"
    return "***" if name in SECRETS else masked(value) if name in URLS else str(value)


def _check_app(value: object) -> None:
    module, colon, attribute = value.partition(":") if isinstance(value, str) else ("", "", "")
    names = [*module.split("."), *(attribute.split(".") if colon else [])]
    if not all(name.isidentifier() for name in names):
        raise ConfigError("must be module:attribute, for example shop.tasks:queue")


def _check_queue_type(value: object) -> None:
    if value not in get_args(QueueType):
        raise ConfigError(f"must be {' or '.join(get_args(QueueType))}")


def _check_log_format(value: object) -> None:
    if value not in FORMS:
        raise ConfigError(f"must be {' or '.join(FORMS)}")


def _check_schemes(value: object) -> None:
    if not isinstance(value, str) or not {part.strip() for part in value.split(",")} <= {"http", "https"}:
        raise ConfigError("must be http, https or http,https")


def _check_text(value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError("must be text")


def _check_payload_max(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= PAYLOAD_LIMIT_BYTES:
        raise ConfigError(f"must be a whole number of bytes from 1 to {PAYLOAD_LIMIT_BYTES} (16 MiB)")


def _check_retention(value: object) -> None:
    if not is_number(value) or not 0.0 < cast(float, value) <= _RETENTION_MAX_S:
        raise ConfigError(f"must be more than 0 and at most {_RETENTION_MAX_S:.0f} seconds (100 years)")


_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "ledger": check_ledger_url,
    "broker": check_broker_url,
    "inflight": check_inflight_url,
    "app": _check_app,
    "namespace": check_namespace,
    "queue_type": _check_queue_type,
    "ladder": levels_ms,
    "payload_max_bytes": _check_payload_max,
    "retention_s": _check_retention,
    "dead_retention_s": _check_retention,
    "webhook_body_retention_s": _check_retention,
    "webhook_retention_s": _check_retention,
    "webhook_allow": Allowed.of,
    "webhook_ports": Ports.of,
    "webhook_schemes": _check_schemes,
    "webhook_proxy": check_proxy_url,
    "message_allow": Allowed.of,
    "secret_key": _check_text,
    "log_format": _check_log_format,
}
