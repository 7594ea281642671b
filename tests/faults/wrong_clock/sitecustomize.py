"""First on PYTHONPATH, this gives a process a wall clock that is wrong by what the file WRONG_CLOCK says, in seconds.

The file may change while the process runs: the clock jumps. The monotonic clock is right, as on a real host whose wall
clock is set. (libfaketime would do it for the whole process, but Python's timed waits then end at the wrong time.)
"""

from __future__ import annotations

import datetime
import os
import time
from datetime import datetime as _Datetime  # noqa: N812
from typing import Any

_FILE = os.environ["WRONG_CLOCK"]
_time, _time_ns = time.time, time.time_ns


def _wrong_s() -> float:
    with open(_FILE) as file:
        return float(file.read() or "0")


class _Kind(type):
    """Real ones, which C code makes, are instances too."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _Datetime)


class _WrongDatetime(_Datetime, metaclass=_Kind):
    __slots__ = ()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _Datetime.fromtimestamp(_time() + _wrong_s(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return _Datetime.fromtimestamp(_time() + _wrong_s(), datetime.UTC).replace(tzinfo=None)


time.time = lambda: _time() + _wrong_s()
time.time_ns = lambda: _time_ns() + int(_wrong_s() * 1e9)
datetime.datetime = _WrongDatetime  # type: ignore[misc]  # for everybody in this process
