"""A store that does not answer says so, in one line and within a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from workq.errors import InFlightUnavailable


def fails(call: Callable[[], object], *, within_s: float) -> str:
    """The message of the InFlightUnavailable that the call raises."""
    started = time.monotonic()
    with pytest.raises(InFlightUnavailable) as caught:
        call()
    assert time.monotonic() - started < within_s
    message = str(caught.value)
    assert "\n" not in message
    return message
