"""How fast time runs for an application of the system tests, and for the processes of its workers."""

from __future__ import annotations

import os
from dataclasses import replace

from workq import Times

VARIABLE = "WITNESS_DIVIDE"


def paced(divide: float) -> Times:
    """The default times, divided; but sweeps come half as often.

    A sweep that finds nothing to do takes 20 ms of a processor. Every half second, it was what most tests paid for.
    """
    given, fast = Times(), Times().divided_by(divide)
    return replace(fast, sweep_s=min(given.sweep_s, 2 * fast.sweep_s))


def paced_by_environment() -> Times:
    """The same, as the environment says."""
    return paced(float(os.environ.get(VARIABLE, "1")))
