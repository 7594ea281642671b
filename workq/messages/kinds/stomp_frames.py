"""Frames of STOMP 1.2: how one is written, and how they are found in what comes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

FRAME_MAX_BYTES: Final = 1_048_576
"""What a server says to a sender is short; more than this is no answer of one."""
_ESCAPES: Final = {"\\": "\\\\", "\r": "\\r", "\n": "\\n", ":": "\\c"}
_PLAIN: Final = {"\\\\": "\\", "\\r": "\r", "\\n": "\n", "\\c": ":"}
_LINE_ENDS: Final = (bytearray(b"\n"), bytearray(b"\r"))
_COMMANDS: Final = frozenset({"CONNECTED", "RECEIPT", "ERROR", "MESSAGE"})


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a server."""

    command: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def said(self) -> str:
        """What an ERROR says."""
        message = self.headers.get("message", "")
        return f"{message} {self.body[:1000].decode('utf-8', 'replace')}".strip()


def encoded(command: str, headers: Mapping[str, str], body: bytes = b"", *, is_text: bool = False) -> bytes:
    """A frame as it is sent. Those of a login are not escaped, as the protocol wants it.

    `is_text`: without its length, which is how Artemis knows a text; it has no zero byte then.
    """
    is_login = command == "CONNECT"
    lines = [command]
    for name, value in headers.items():
        lines.append(f"{name}:{value}" if is_login else f"{_escaped(name)}:{_escaped(value)}")
    if body and not is_text:
        lines.append(f"content-length:{len(body)}")
    return "\n".join([*lines, "", ""]).encode() + body + b"\0"


class Frames:
    """Puts frames together from the pieces that come."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, piece: bytes) -> Iterator[Frame]:
        """The frames that are complete with this piece. Raises ValueError: it is no STOMP."""
        self._data += piece
        while True:
            while self._data[:1] in _LINE_ENDS:  # heartbeats, and line ends after a frame
                del self._data[:1]
            if not self._data:
                return
            if len(self._data) > FRAME_MAX_BYTES:
                raise ValueError("a frame without an end")
            frame = self._next()
            if frame is None:
                return
            yield frame

    def _next(self) -> Frame | None:
        match = re.search(rb"\r?\n\r?\n", self._data)
        if match is None:
            begin = bytes(self._data[:9])
            if not any(one.encode().startswith(begin.split(b"\n")[0].rstrip(b"\r")[:9]) for one in _COMMANDS):
                raise ValueError(f"it begins with {begin!r}")
            return None
        command, *lines = bytes(self._data[: match.start()]).decode("utf-8", "replace").split("\n")
        command = command.rstrip("\r")
        if command not in _COMMANDS:
            raise ValueError(f"it begins with {command[:20]!r}")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.rstrip("\r").partition(":")
            headers.setdefault(_plain(name), _plain(value))  # of a header that comes twice the first one counts
        length = headers.get("content-length", "")
        begin_of_body = match.end()
        if length.isdigit():
            end = begin_of_body + int(length)
            if len(self._data) <= end:
                return None
        else:
            end = self._data.find(b"\0", begin_of_body)
            if end < 0:
                return None
        body = bytes(self._data[begin_of_body:end])
        del self._data[: end + 1]
        return Frame(command, headers, body)


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


def _plain(text: str) -> str:
    return re.sub(r"\\[\\rnc]", lambda found: _PLAIN[found[0]], text)
