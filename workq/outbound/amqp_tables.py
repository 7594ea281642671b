"""Header tables of AMQP, which pika reads for us: whatever is in them, a consumer goes on.

pika raises for a time beyond the year 9999, for a number that is none (NaN) and for tables nested deeper than Python's
stack, and its connection ends by that: the message comes again, and stops its queue for good. From a number with a
fraction it cuts the fraction off. `read_any_table` makes pika read such a time as a number of seconds, each number as
it is, and what is nested too deep as its bytes; for the whole process, since pika has no other place for it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any, Final

import pika.data

DEPTH_MAX: Final = 32
_PIKAS: Final[Callable[[bytes, int], tuple[Any, int]]] = pika.data.decode_value
_NUMBERS: Final = {b"f": struct.Struct(">f"), b"d": struct.Struct(">d")}
_SECONDS: Final = struct.Struct(">Q")
_LENGTH: Final = struct.Struct(">I")


class _Depth(threading.local):
    now = 0


_depth = _Depth()


def read_any_table() -> None:
    """Let pika read every table that RabbitMQ lets through. It may be called more than once."""
    pika.data.decode_value = _decode_value


def _decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    kind, start = encoded[offset : offset + 1], offset + 1
    if (number := _NUMBERS.get(kind)) is not None:
        return number.unpack_from(encoded, start)[0], start + number.size
    if kind == b"T":
        try:
            return _PIKAS(encoded, offset)
        except (ValueError, OverflowError, OSError):
            return _SECONDS.unpack_from(encoded, start)[0], start + _SECONDS.size
    if kind not in (b"A", b"F"):
        return _PIKAS(encoded, offset)
    if _depth.now >= DEPTH_MAX:
        end = start + _LENGTH.size + _LENGTH.unpack_from(encoded, start)[0]
        return encoded[start:end], end
    _depth.now += 1
    try:
        return _PIKAS(encoded, offset)
    finally:
        _depth.now -= 1
