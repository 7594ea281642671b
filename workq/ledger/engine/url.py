"""The URL of a ledger: its form is checked, it names the driver that workq uses, and it is shown in messages."""

from __future__ import annotations

from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from workq.config import check_ledger_url, masked
from workq.config.place import shown
from workq.errors import ConfigError

DRIVERS: Final = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mysql+pymysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
    "mariadb+pymysql": "mysql+pymysql",
}


def ledger_url(url: str) -> URL:
    """The SQLAlchemy URL of a ledger, with the driver that workq uses.

    Raises:
        ConfigError: it is not of the right form (see workq.config); the message shows that form, and no password.
    """
    try:
        parsed = _one_url(check_ledger_url(url))
    except ConfigError as error:
        raise ConfigError(f"ledger: {error}") from None
    except (ArgumentError, ValueError):  # from None: the original error may show a part of the password
        raise ConfigError(f"ledger: not a URL that SQLAlchemy can read: {masked(url)}") from None
    driver = DRIVERS[parsed.drivername]
    return parsed.set(drivername=driver)


def shown_url(url: URL) -> str:
    """The URL for messages: without its password and its query, but with each host where there are several."""
    hosts, ports = (str(url.query.get(name, "")).split(",") for name in ("host", "port"))
    is_read = len(hosts) == len(ports) and all(port.isdecimal() for port in ports)  # by `_one_url`
    if url.host is not None or len(hosts) == 1 or not is_read:
        return masked(url.render_as_string(hide_password=True))
    rest = url.difference_update_query(["host", "port"]).render_as_string(hide_password=True)
    place, slash, tail = rest.partition("://")[2].partition("/")
    several = ",".join(shown(host, int(port)) for host, port in zip(hosts, ports, strict=True))
    return masked(f"{url.drivername}://{place}{several}{slash}{tail}")


def _one_url(url: str) -> URL:
    """SQLAlchemy reads several hosts from the query alone."""
    scheme, _, rest = url.partition("://")
    place, slash, tail = rest.partition("/")
    login, at, hosts = place.rpartition("@")
    if "," not in hosts or scheme == "sqlite":
        return make_url(url)
    each = [make_url(f"{scheme}://{one}") for one in hosts.split(",")]
    several = {
        "host": ",".join(one.host or "" for one in each),
        "port": ",".join(str(one.port or 5432) for one in each),
    }
    return make_url(f"{scheme}://{login}{at}{slash}{tail}").update_query_dict(several)
