"""What may be a name: of a queue, a task, a namespace; a key, a delay, a word of a list, a duration as people write it,
and what a person says of a decision.

Names become parts of tables, broker queues, Redis keys and log lines, so each has a pattern that is safe in all of
them. ASCII only: two names that look the same are the same. Nothing is ever imported by its name.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, TypeVar

from workq.errors import ConfigError

QUEUE_PATTERN: Final = "[A-Za-z0-9_.-]{1,100}"
TASK_NAME_PATTERN: Final = "[A-Za-z_][A-Za-z0-9_.:-]{0,199}"
NAMESPACE_PATTERN: Final = "[a-z][a-z0-9_]{0,30}"
KEY_MAX_CHARACTERS: Final = 200
DELAY_MAX_S: Final = 10 * 366 * 86400.0
"""Ten years: no task waits longer."""

_QUEUE = re.compile(QUEUE_PATTERN)
_TASK_NAME = re.compile(TASK_NAME_PATTERN)
_NAMESPACE = re.compile(NAMESPACE_PATTERN)
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|[smhd])")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NOT_IN_A_KEY = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SHOWN_CHARACTERS: Final = 60

Choice = TypeVar("Choice", bound=StrEnum)


def check_queue(name: object) -> str:
    """The name of a queue, unchanged.

    Raises:
        ConfigError: it does not match `QUEUE_PATTERN`, starts with `amq.` (RabbitMQ's own), a dot or a hyphen (an
            option on the command line), or contains two dots.
    """
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise ConfigError(f"queue {_shown(name)}: a queue's name must match {QUEUE_PATTERN}")
    if name.startswith((".", "-")) or name.lower().startswith("amq.") or ".." in name:
        raise ConfigError(
            f"queue {_shown(name)}: a queue's name must match {QUEUE_PATTERN}, must not start with 'amq.', '.' or '-', "
            "and must not contain '..'"
        )
    return name


def check_task_name(name: object) -> str:
    """The name of a task's handler, unchanged.

    Raises:
        ConfigError: it does not match `TASK_NAME_PATTERN`.
    """
    if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
        raise ConfigError(f"task name {_shown(name)}: a task's name must match {TASK_NAME_PATTERN}")
    return name


def check_namespace(name: object) -> str:
    """The prefix of every table, queue and key of one application, unchanged.

    Raises:
        ConfigError: it does not match `NAMESPACE_PATTERN`.
    """
    if not isinstance(name, str) or not _NAMESPACE.fullmatch(name):
        raise ConfigError(f"namespace {_shown(name)}: a namespace must match {NAMESPACE_PATTERN}")
    return name


def check_key(key: object, what: str = "key") -> str:
    """The key that keeps a task from being recorded twice, unchanged.

    Raises:
        ConfigError: it is not text of 1 to 200 characters, has a control character or a lone surrogate, or ends with a
            space (MySQL compares without it).
    """
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_MAX_CHARACTERS:
        raise ConfigError(f"{what} {_shown(key)}: a key is text of 1 to {KEY_MAX_CHARACTERS} characters")
    if _NOT_IN_A_KEY.search(key):
        raise ConfigError(f"{what} {_shown(key)}: a key must not contain control characters or lone surrogates")
    if key.endswith(" "):
        raise ConfigError(f"{what} {_shown(key)}: a key must not end with a space")
    return key


def check_choice(value: object, kind: type[Choice], what: str) -> Choice:
    """One of a closed list of words.

    Raises:
        ConfigError: it is none of them; `what` is named.
    """
    if not isinstance(value, str) or value not in tuple(kind):
        raise ConfigError(f"{what}: need one of {', '.join(kind)}, got {value!r:.100}")
    return kind(value)


def check_delay_s(value: object, what: str = "delay_s") -> float:
    """Seconds to wait.

    Raises:
        ConfigError: it is no number from 0 to ten years.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= DELAY_MAX_S:
        raise ConfigError(f"{what}: need seconds from 0 to {DELAY_MAX_S:.0f} (ten years), got {value!r}")
    return float(value)


def check_said(said: object, what: str) -> str:
    """Who has decided, or why, unchanged.

    Raises:
        ConfigError: it is no text, or says nothing.
    """
    if not isinstance(said, str):
        raise ConfigError(f"{what}: need a text, got {_shown(said)}")
    if not said.strip():
        raise ConfigError(f"{what}: need some words: they are kept with what was decided, for whoever asks later")
    return said


def seconds_of(duration: str) -> float | None:
    """`500ms`, `90s`, `10m`, `2h` or `1d` as seconds; None when it is written in another way."""
    found = _DURATION.fullmatch(duration)
    return float(found[1]) * _UNITS_S[found[2]] if found else None


def _shown(name: object) -> str:
    """One line, ASCII, and short: names come from anywhere."""
    if not isinstance(name, str):
        return f"of type {type(name).__name__}"
    return ascii(name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "...")
