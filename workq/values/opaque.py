"""Opaque: what may be asked of an object of the application without running code of its class.

What a handler raises or answers may define anything: `__class__`, `__getattribute__`, a metaclass whose `__name__`
raises. What is here asks the interpreter alone.
"""

from __future__ import annotations

from typing import Any, TypeGuard, TypeVar

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
