"""Jitter: random numbers of workq's own, so that processes that wait for one thing do not come back for it together.

They are not the application's: that may have seeded its own, and its next number is its own. A forked process begins
anew: with those of its parent it would wait as long as each of its siblings does.
"""

from __future__ import annotations

import os
from random import Random
from typing import Final

jitter: Final = Random()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=jitter.seed)
