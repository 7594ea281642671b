"""What a value from outside is: for checks, and for messages that must not show it."""

from __future__ import annotations

import math
from typing import Any


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_float(value: Any) -> Any:
    """A number as a float, anything else as it is, for the check that follows."""
    if not is_number(value):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


def kind_of(value: object) -> str:
    """What a value is, without showing it."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")


def one_line(text: str) -> str:
    """One line, whatever somebody put into it."""
    return "".join(character if character.isprintable() else "?" for character in text)
