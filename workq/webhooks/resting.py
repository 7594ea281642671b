"""Resting: why nothing is sent to an endpoint for a while, in words, for `workq why`."""

from __future__ import annotations

from typing import Final

from workq.webhooks.values import RESTS_AFTER, EndpointRow

ASKED: Final = "429 Too Many Requests; the wait is its Retry-After, or that of the schedule where that is longer"


def reason(endpoint: EndpointRow) -> str:
    """Why an endpoint rests: it has asked for it, or has failed again and again."""
    if endpoint.failures < RESTS_AFTER:
        return f"it has answered {ASKED}"
    return f"its last {endpoint.failures} attempts have failed"


def asked_for(error: str | None) -> str:
    """What is said of an attempt that has failed, when its receiver has asked for the wait; nothing otherwise."""
    return f" with {ASKED}" if (error or "").startswith("throttled:") else ""
