"""Cures: what to do next about an error of the database, by what it says it is; and whether waiting may mend it."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from workq.errors import NAME_PATIENCE_S

_OTHER_WRITER: Final = (
    "Another transaction keeps it for too long: of another process, perhaps a stopped one (continue it, or end it); or "
    "your own, which enqueue() then has to get as connection=."
)
_SQLITE: Final = {
    "SQLITE_BUSY": _OTHER_WRITER,
    "SQLITE_LOCKED": _OTHER_WRITER,
    "SQLITE_FULL": "The disk is full: make room.",
    "SQLITE_NOTADB": "Another file is there: move it away, or name the right one by WORKQ_LEDGER_URL.",
    "SQLITE_CORRUPT": "It is damaged: stop the workers, and restore a copy of it.",
    "SQLITE_READONLY": "This user may not write to it: give it the file and its folder.",
}
_NO_FILE: Final = "Does its folder exist, and may this user write there?"
_NO_LOGIN: Final = "The user or the password is wrong: set WORKQ_LEDGER_URL."
_NO_DATABASE: Final = "There is no such database: create it, or set WORKQ_LEDGER_URL."
_NO_RIGHT: Final = "This user lacks a right: grant it those of its role (see least-privilege.md)."
_DENIED_POSTGRESQL: Final = re.compile(r"permission denied for (?:table|relation) (?P<table>\w+)")
_DENIED_SEQUENCE: Final = re.compile(r"permission denied for sequence (?P<sequence>\w+)")
_DENIED_MYSQL: Final = re.compile(
    r"(?P<rights>[A-Z]+(?:, ?[A-Z]+)*) command denied to user .* for table '?(?P<table>`[^`]+`\.`[^`]+`|[\w.]+)"
)
_FULL: Final = "The server's disk is full: make room."
_CROWDED: Final = "It has no connection left: allow more of them, or run fewer processes."
_SLOW: Final = "It took longer than statement_s allows: see what keeps the server busy."
_LOCKED: Final = "Somebody else holds its rows for too long: see who has a transaction open."
_DEADLOCK: Final = "Another transaction and yours waited for each other: roll yours back, and do all of it again."
_NO_HOST: Final = "Nobody knows that host: check the name in WORKQ_LEDGER_URL, or the DNS."
_NO_ENTRY: Final = "Its pg_hba.conf lets nobody in as this user from here: add a line there."
_NO_TRANSACTIONS: Final = "workq needs transactions: set pool_mode to transaction, or to session."
_NO_DATABASE_SERVER: Final = "What listens there is another server: check host and port of WORKQ_LEDGER_URL."
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
    "40P01": _DEADLOCK,
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
    "no pg_hba.conf entry": _NO_ENTRY,
    "permission denied for database": _NO_RIGHT,
    "failed to resolve host": _NO_HOST,
    "could not translate host name": _NO_HOST,
    "Name or service not known": _NO_HOST,
    "name resolution": _NO_HOST,
    "No address associated with hostname": _NO_HOST,
    "Packet sequence number wrong": _NO_DATABASE_SERVER,
    "invalid response to SSL negotiation": _NO_DATABASE_SERVER,
    "expected authentication request": _NO_DATABASE_SERVER,
    "too many clients": _CROWDED,
    "remaining connection slots": _CROWDED,
    "server_login_retry": "The pooler answers, and the server behind it does not: is that running?",
    "query_wait_timeout": "The pooler has no connection to the server left: allow more (default_pool_size).",
    "statement pooling mode": _NO_TRANSACTIONS,
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
    1213: _DEADLOCK,
    1290: _READ_ONLY,
    1969: _SLOW,
    3024: _SLOW,
}
_PATIENCE_S: Final = {
    **dict.fromkeys((_NO_LOGIN, _NO_DATABASE, _NO_RIGHT, _NO_ENTRY, _NO_TRANSACTIONS), 0.0),
    **dict.fromkeys((_UNVERIFIED, _NO_TLS, _NO_DATABASE_SERVER), 0.0),
    **dict.fromkeys((_SQLITE["SQLITE_NOTADB"], _SQLITE["SQLITE_CORRUPT"], _SQLITE["SQLITE_READONLY"], _NO_FILE), 0.0),
    _NO_HOST: NAME_PATIENCE_S,
}
"""What waiting does not mend."""


def cure_of(dialect: str, error: Any) -> str:
    """One sentence for whoever reads the message. `error` is the driver's own."""
    text = str(error)
    match dialect:
        case "sqlite":
            kind = getattr(error, "sqlite_errorname", None) or ""
            found = next((cure for name, cure in _SQLITE.items() if kind.startswith(name)), None)
            return found or _NO_FILE
        case "postgresql":
            found = _POSTGRESQL.get(getattr(error, "sqlstate", None) or "") or _said_by_postgresql(text)
        case _:
            arguments = getattr(error, "args", ())
            found = _MYSQL.get(arguments[0]) if arguments and isinstance(arguments[0], int) else None
            found = found or _said(text)
    return found or "Is it running?"


def patience_of(dialect: str, error: Any) -> float:
    """For how many seconds waiting may mend it. Of several hosts that were tried, the best one tells."""
    attempts = str(error).split("\n- host: ")[1:] if dialect == "postgresql" else []
    cures = [_said_by_postgresql(one) for one in attempts] or [cure_of(dialect, error)]
    return max(_PATIENCE_S.get(cure or "", math.inf) for cure in cures)


def _said_by_postgresql(text: str) -> str | None:
    found = _said(text)
    if found is None and "does not exist" in text:
        return _NO_DATABASE if 'database "' in text else _NO_LOGIN if 'role "' in text else None
    return found


def _said(text: str) -> str | None:
    return next((cure for said, cure in _SAID.items() if said in text), None)


def right_of(error: Any, *, statement: str | None, user: str | None) -> str | None:
    """The same, of a right that `user` lacks on a table or a sequence; None: the error is about something else."""
    missing = _right(str(error), statement or "")
    return missing and f"This user lacks a right: GRANT {missing} TO {user or 'it'} (see least-privilege.md)."


def _right(text: str, statement: str) -> str | None:
    """The right that an error is about, as GRANT names it. PostgreSQL names the table alone, MySQL both."""
    if named := _DENIED_MYSQL.search(text):
        return f"{named['rights']} ON {named['table']}"
    if named := _DENIED_SEQUENCE.search(text):
        return f"USAGE ON SEQUENCE {named['sequence']}"
    if named := _DENIED_POSTGRESQL.search(text):
        table = named["table"]
        verbs = re.findall(rf'\b(INSERT INTO|UPDATE|DELETE FROM) "?{re.escape(table)}\b', statement)
        rights = dict.fromkeys(["SELECT", *(verb.partition(" ")[0] for verb in verbs)])
        if "FOR UPDATE" in statement or "FOR NO KEY UPDATE" in statement or "DO UPDATE" in statement:
            rights["UPDATE"] = None
        return f"{', '.join(rights)} ON {table}"
    return None
