"""Forms: a record as text for people or as JSON for programs. Both are safe for terminals and for what reads lines.

    text    `time level process event key=value ...`, the lines of a traceback below it, indented
    json    one object on one line: time, level, logger, process, message, the fields, traceback

What a record says is on its first line: line breaks and control characters are escaped, in the lines of a traceback
too, so that whatever a handler, a message or a server has put there begins no line and moves no cursor.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

Form = Literal["text", "json"]

_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUOTED: Final = frozenset(' "=')


def escaped(text: str) -> str:
    r"""The text on one line: line breaks, control, format and bidirectional characters as `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def in_one_line(text: str) -> str:
    """The same, where line breaks and tabs between words say nothing: each run of white space is one blank."""
    return escaped(" ".join(text.split()))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given beside the message: the `extra` of the record."""
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def in_text(fields: Mapping[str, Any]) -> str:
    """`key=value ...` on one line."""
    return " ".join(f"{escaped(str(name))}={_shown(value)}" for name, value in fields.items())


def _shown(value: Any) -> str:
    text = escaped(str(value))
    if isinstance(value, str) and (not text or not _QUOTED.isdisjoint(text)):
        return '"' + text.replace('"', '\\"') + '"'
    return text


class TextForm(logging.Formatter):
    """The form for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(process)d ")

    def format(self, record: logging.LogRecord) -> str:
        record.asctime = self.formatTime(record)
        said = [self.formatMessage(record) + headline(record)]
        said += ("  " + escaped(one) for one in below(record))
        return "\n".join(said)


class JsonForm(logging.Formatter):
    """The form for programs."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        document: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        for name, value in fields_of(record).items():
            document.setdefault(name, _in_json(value))
        if lines := below(record):
            document["traceback"] = "\n".join(lines)
        return json.dumps(document)


class SaidForm(logging.Formatter):
    """The form of what a command prints: the message alone, which is a JSON document already where it is one."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__()
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        if self._is_json and fields:  # of the buffer's own events
            return json.dumps({"event": record.getMessage(), **fields})
        return headline(record)


FORMS: Final[Mapping[Form, type[logging.Formatter]]] = {"text": TextForm, "json": JsonForm}


def headline(record: logging.LogRecord) -> str:
    """The message with its fields on one line; behind the name of its logger, unless that is one of workq's."""
    is_ours = record.name == "workq" or record.name.startswith("workq.")
    message = escaped(record.getMessage())
    fields = in_text(fields_of(record))
    return (message if is_ours else f"{escaped(record.name)}: {message}") + (f" {fields}" if fields else "")


def below(record: logging.LogRecord) -> list[str]:
    """The lines of its traceback, and of its stack, as they are."""
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return [line for text in (record.exc_text, record.stack_info) if text for line in str(text).split("\n")]


def _in_json(value: Any) -> Any:
    """Itself, where JSON carries it; its text otherwise."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value
