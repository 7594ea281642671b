"""Fingerprint: which dead tasks died of the same thing. Pure: the text of an error in, sixteen hexadecimal digits out.

Two deaths are alike when the handler, the reason, the place in the code (the innermost file and function, not the line:
a new release must not split a group) and the first line of the error are the same, after what differs between one
order and the next was taken out of that line: ids, addresses, quoted values, numbers. The number of a status, an errno,
a signal or an exit stays: 404 is not 500.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import PurePath
from typing import Final

LINE_MAX: Final = 500
"""How much of the first line counts, in characters."""

_FRAME: Final = re.compile(r'^\s*(?:\| )*File "([^"\n]{1,500})", line \d+, in (.{1,200})$', re.MULTILINE)
_VARIES: Final = re.compile(
    r"""
    (?P<kept>\b(?:                                                                      # says what happened
        \w{0,20}http\w{0,20}\W{1,3}(?:error\W{1,3})?[1-5]\d\d
        | (?:status|code|errno|signal|sig|exit)\W{1,3}\d{1,5} | error\ \d{1,5}
    )\b)
    | '[^'\n]*' | "[^"\n]*"                                                             # a value
    | \b0x[0-9a-f]+\b | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b                 # an address, a UUID
    | \b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b                                                   # a hash
    | \d+(?:[.,:]\d+)*                                                                  # a number, a time
    """,
    re.VERBOSE | re.IGNORECASE,
)


def fingerprint(name: str, reason: str, error: str | None) -> str:
    """The group of one death.

    Args:
        name: of the handler.
        reason: why the task is dead, such as `failures_max reached: ValueError`.
        error: as it is kept: its class and first line, then perhaps a traceback.
    """
    text = error or ""
    line, _, rest = text.partition("\n")
    frames = _FRAME.findall(rest)
    place = f"{PurePath(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
    parts = (name, _same(reason), place, _same(line))
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _same(line: str) -> str:
    """A line without what differs from one death to the next."""
    return _VARIES.sub(lambda found: found["kept"] or "*", line[:LINE_MAX])
