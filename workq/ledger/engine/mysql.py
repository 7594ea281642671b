"""What only MySQL and MariaDB need: TLS by the options of the URL, verified as a whole or not at all; session limits.

PyMySQL and SQLAlchemy share the options between them, so that some of them cancel others: with an authority, a request
to verify the host loses it; without one, the host is not verified even where that is asked for. So they are read here.
"""

from __future__ import annotations

import math
import ssl
from functools import cache
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from workq.errors import ConfigError

_FILES: Final = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_key", "ssl_key_password", "ssl_cipher")
_SWITCHES: Final = ("ssl_verify_cert", "ssl_verify_identity", "ssl_check_hostname")
_WORDS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def with_tls(url: URL) -> tuple[URL, ssl.SSLContext | None]:
    """The URL without its options of TLS, and what they ask for; None: they ask for nothing.

    With any of them TLS is required, the certificate is verified (by `ssl_ca`, or by the authorities that the system
    trusts) and so is the host, unless an option says false.

    Raises:
        ConfigError: a file cannot be used, or a switch is neither true nor false.
    """
    given = {name: str(url.query[name]) for name in (*_FILES, *_SWITCHES) if name in url.query}
    if not given:
        return url, None
    switches = {name: _switch(name, given[name]) for name in _SWITCHES if name in given}
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca"), capath=given.get("ssl_capath"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # what MySQL makes for itself does not pass that
        if "ssl_cert" in given:
            context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"), given.get("ssl_key_password"))
        if "ssl_cipher" in given:
            context.set_ciphers(given["ssl_cipher"])
    except OSError as error:  # also of ssl
        raise ConfigError(
            f"ledger: the files of ssl_ca, ssl_cert and ssl_key in the URL cannot be used ({error.strerror or error})"
        ) from None
    if not switches.get("ssl_verify_identity", switches.get("ssl_check_hostname", True)):
        context.check_hostname = False
    if not switches.get("ssl_verify_cert", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return url.difference_update_query(list(given)), context


def share_tls(engine: Engine) -> None:
    """Let all connections of which nobody has asked for TLS share what they would use TLS with, if the server has it.

    PyMySQL makes that anew for each connection. It reads all authorities that the system trusts, and verifies nothing
    by them: that is 20 ms of processor time, nearly all that a connection costs.
    """

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: object, _record: object, _args: list[Any], given: dict[str, Any]) -> Any:
        return _sharing()(**given)


@cache
def _sharing() -> Any:
    from pymysql.connections import Connection  # the engine has found it

    unasked: list[ssl.SSLContext] = []

    class Sharing(Connection):
        def _create_ssl_ctx(self, options: Any) -> Any:
            make = super()._create_ssl_ctx  # type: ignore[misc]  # its stubs leave out what is private
            if options:
                return make(options)
            if not unasked:
                unasked.append(make(options))
            return unasked[0]

    return Sharing


def set_session(engine: Engine, statement_timeout_s: float) -> None:
    """Let a session wait for a lock, and be idle in a transaction, only so long; and let it refuse what is too long."""
    statements = (
        # the second part, for which see `settings_of` in postgresql.py, is a comment to MySQL, which has no such limit;
        # the third, to what is older than MariaDB 11.4.2: a statement that has waited for a row decides by what is
        # there by then, and is not refused because the row has changed (the default since 11.6.2)
        f"SET SESSION innodb_lock_wait_timeout = {max(1, int(statement_timeout_s / 2))} "
        f"/*M!100300 , SESSION idle_transaction_timeout = {max(1, math.ceil(statement_timeout_s))} */"
        "/*M!110402 , SESSION innodb_snapshot_isolation = OFF */",
        "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')",  # what is too long is not cut
    )

    @event.listens_for(engine, "connect")
    def _connected(raw: Any, _record: Any) -> None:
        try:
            with raw.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            raw.commit()
        except BaseException:
            raw.close()  # the pool does not know it yet
            raise


def _switch(name: str, text: str) -> bool:
    found = _WORDS.get(text.lower())
    if found is None:
        raise ConfigError(f"ledger: {name} in the URL is true or false")
    return found
