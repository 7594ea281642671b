"""Files of a run in a folder of its own: ledger, logs and results, with the payloads of tasks in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def private_files() -> Iterator[None]:
    """What this process makes meanwhile, and what it starts makes, this user alone may read.

    Not for what runs an application's own handlers: their files have the modes that the user has chosen.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
