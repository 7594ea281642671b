"""What a handler has said, as text that can be kept: what it raised, what it answered, what it says of an item.

Whatever it is, it is the application's object: its own methods may raise anything, and its text may be of any length.
It may define `__class__`, `__getattribute__`, a metaclass whose `__name__` raises. So `kind_of`, `is_a` and `has` ask
the interpreter alone, and run no code of its class.
"""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from typing import Any, Final, TypeGuard, TypeVar

from workq.errors import PayloadError
from workq.values import codec

RESULT_MAX_BYTES: Final = 64 * 1024
REASON_MAX: Final = 200
TRACEBACK_MAX: Final = 8_000
HEADLINE_MAX: Final = 1_000
MEMBERS_MAX: Final = 1_000
"""How many exceptions may hang together, as causes or in groups, for a traceback to be kept."""

_TRACEBACK = BaseException.__dict__["__traceback__"].__get__
T = TypeVar("T")

_NAME = type.__dict__["__name__"].__get__
_MRO = type.__dict__["__mro__"].__get__
_MEMBERS = type.__dict__["__dict__"].__get__


def kind_of(value: object) -> str:
    """The name of the class of a value."""
    name: str = _NAME(type(value))
    return name


def is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """Whether the class of a value is `kind` or derives from it, as `except` decides."""
    return type.__subclasscheck__(kind, type(value))


def has(value: Any, method: str) -> bool:
    """Whether the class of a value defines a method, or a class that it derives from does."""
    return any(method in _MEMBERS(one) for one in _MRO(type(value)))


def describe(error: BaseException) -> str:
    """The error's class and first line, then the end of its traceback: at most a few kilobytes, always valid text."""
    try:
        if _is_bushy(error):  # formatting visits every member of a group, and groups may contain groups
            text = f"{kind_of(error)}: {error}\n(of more than {MEMBERS_MAX} exceptions: not shown)"
            said = text
        else:
            whole = traceback.TracebackException(type(error), error, _TRACEBACK(error), limit=-20, compact=True)
            text = "".join(whole.format()).rstrip()
            said = _own_text(whole)
    except BaseException as broken:  # an exception whose own __str__ raises is still a failure to record
        begin = "".join(traceback.format_tb(_TRACEBACK(error), limit=-20))
        said = f"{kind_named(error)} (its text cannot be shown: {kind_named(broken)})"
        text = begin + said
    first = _first_line(said)[:HEADLINE_MAX]
    shown = f"{first}\n\n{text[-TRACEBACK_MAX:]}" if "\n" in text else text
    return codec.storable(shown, characters_max=2 * TRACEBACK_MAX)


def _own_text(error: traceback.TracebackException) -> str:
    """The class and the message, without the source that a SyntaxError shows before them, and the notes after them."""
    parts = list(error.format_exception_only())
    return next((part for part in parts if not part.startswith("  ")), parts[-1])


def _first_line(said: str) -> str:
    """The class and the first line of the message that is not blank; the class alone, where there is none."""
    kind, colon, message = said.partition(": ")
    line = next((line for line in message.split("\n") if line.strip()), "")
    return f"{kind}{colon}{line}".rstrip() if line else kind.rstrip()


def _is_bushy(error: BaseException) -> bool:
    """Whether more exceptions hang together here than anybody reads."""
    found: list[BaseException | None] = [error]
    for visited in range(MEMBERS_MAX):
        if len(found) <= visited:
            return False
        one = found[visited]
        if one is not None:
            found += [one.__cause__, one.__context__]
            if is_a(one, BaseExceptionGroup):
                found += one.exceptions
    return True


def line_of(error: BaseException) -> str:
    try:
        return codec.storable(f"{kind_of(error)}: {error}", characters_max=1000)
    except BaseException:  # it is the user's class: its text may raise anything
        return kind_named(error)


def kind_named(error: BaseException) -> str:
    return codec.storable(kind_of(error), characters_max=REASON_MAX // 2)


def text_of(said: object) -> str:
    """What a handler says of an item, in whatever form."""
    if is_a(said, BaseException):
        return describe(said)
    try:
        return str.__str__(said) if is_a(said, str) else repr(said)
    except BaseException:  # it is the user's object
        return kind_of(said)


def short(reason: object) -> str:
    """A reason of a handler's, which may have passed anything."""
    return codec.storable(reason, characters_max=REASON_MAX) if is_a(reason, str) else ""


def encoded(result: object) -> tuple[str | None, str | None]:
    """A result as JSON; or a note why it cannot be, which does not undo the work that was done."""
    try:
        return codec.encode(result, path="result", max_bytes=RESULT_MAX_BYTES), None
    except PayloadError as error:
        trouble = str(error)
    except BaseException as error:  # it is the user's object: its own methods may do anything
        trouble = kind_of(error)
    return None, codec.storable(f"result_error: {trouble}", characters_max=REASON_MAX)


def tell(to: logging.Logger, event: str, error: BaseException, **fields: object) -> None:
    """Log what the application has raised, where that is no outcome. Its class may do anything when it is looked at."""
    try:
        to.warning(event, exc_info=error, extra=fields)
    except BaseException:
        with suppress(BaseException):
            to.warning("%s: %s", event, describe(error), extra=fields)
