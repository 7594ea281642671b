"""Cures: what to do next about an error of the database, by what it says it is."""

from __future__ import annotations

from typing import Any, Final

_SQLITE: Final = {
    "SQLITE_BUSY": "Another process is writing there for too long, perhaps one that was stopped: continue or end it.",
    "SQLITE_LOCKED": "Another process is writing there for too long, perhaps one that was stopped: continue or end it.",
    "SQLITE_FULL": "The disk is full: make room.",
    "SQLITE_NOTADB": "Another file is there: move it away, or name the right one by WORKQ_LEDGER_URL.",
    "SQLITE_CORRUPT": "It is damaged: stop the workers, and restore a copy of it.",
    "SQLITE_READONLY": "This user may not write to it: give it the file and its folder.",
}
_NO_LOGIN: Final = "The user or the password is wrong: set WORKQ_LEDGER_URL."
_NO_DATABASE: Final = "There is no such database: create it, or set WORKQ_LEDGER_URL."
_NO_RIGHT: Final = "This user lacks a right: grant it on workq's tables."
_FULL: Final = "The server's disk is full: make room."
_CROWDED: Final = "It has no connection left: allow more of them, or run fewer processes."
_SLOW: Final = "It took longer than statement_s allows: see what keeps the server busy."
_LOCKED: Final = "Somebody else holds its rows for too long: see who has a transaction open."
_READ_ONLY: Final = "It takes no writes: is it a standby? Name the primary by WORKQ_LEDGER_URL."
_UNVERIFIED: Final = (
    "TLS could not verify it: name its authority in the URL (sslrootcert= on PostgreSQL, ssl_ca= on MySQL), and the "
    "host as its certificate does; renew a certificate that has expired."
)
_NO_TLS: Final = "It does not offer TLS, which the URL requires: set it up there; nothing was sent in the clear."
_POSTGRESQL: Final = {
    "28000": _NO_LOGIN,
    "28P01": _NO_LOGIN,
    "3D000": _NO_DATABASE,
    "42501": _NO_RIGHT,
    "53100": _FULL,
    "53300": _CROWDED,
    "57014": _SLOW,
    "55P03": _LOCKED,
    "25006": _READ_ONLY,
}
_SAID: Final = {
    "certificate verify failed": _UNVERIFIED,
    "does not match host name": _UNVERIFIED,
    "root certificate file": _UNVERIFIED,
    "server does not support SSL": _NO_TLS,
    "SSL is required": _NO_TLS,
    "password authentication failed": _NO_LOGIN,
    "no password supplied": _NO_LOGIN,
    "no pg_hba.conf entry": "Its pg_hba.conf lets nobody in as this user from here: add a line there.",
    "too many clients": _CROWDED,
    "remaining connection slots": _CROWDED,
    "server_login_retry": "The pooler answers, and the server behind it does not: is that running?",
    "query_wait_timeout": "The pooler has no connection to the server left: allow more (default_pool_size).",
    "statement pooling mode": "workq needs transactions: set pool_mode to transaction, or to session.",
}
"""psycopg tells no code of what the server said before the login, PyMySQL none of TLS, and poolers one code for all."""
_MYSQL: Final = {
    1044: _NO_RIGHT,
    1045: _NO_LOGIN,
    1049: _NO_DATABASE,
    1142: _NO_RIGHT,
    1021: _FULL,
    1114: _FULL,
    1040: _CROWDED,
    1203: _CROWDED,
    1205: _LOCKED,
    1290: _READ_ONLY,
    1969: _SLOW,
    3024: _SLOW,
}


def cure_of(dialect: str, error: Any) -> str:
    """One sentence for whoever reads the message. `error` is the driver's own."""
    text = str(error)
    match dialect:
        case "sqlite":
            kind = getattr(error, "sqlite_errorname", None) or ""
            found = next((cure for name, cure in _SQLITE.items() if kind.startswith(name)), None)
            return found or "Does its folder exist, and may this user write there?"
        case "postgresql":
            found = _POSTGRESQL.get(getattr(error, "sqlstate", None) or "") or _said(text)
            if found is None and "does not exist" in text:
                found = _NO_DATABASE if 'database "' in text else _NO_LOGIN if 'role "' in text else None
        case _:
            arguments = getattr(error, "args", ())
            found = _MYSQL.get(arguments[0]) if arguments and isinstance(arguments[0], int) else None
            found = found or _said(text)
    return found or "Is it running?"


def _said(text: str) -> str | None:
    return next((cure for said, cure in _SAID.items() if said in text), None)
