"""The function that messages of the kind `call` are given to, in the worker's processes: a line for each, in a file.

A line is written by one call of the system, so that the kill of its process leaves all of it or nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workq.demo.stage import OWNER

if TYPE_CHECKING:
    from workq.messages import Posting

HANDLER: Final = f"{__name__}.take"
FILE: Final = "called.txt"


def take(posting: Posting) -> None:
    """Note what came, and when."""
    line = f"{time.time():.6f} {posting.id} {posting.body.decode()}\n".encode()
    file = os.open(Path(os.environ[OWNER]) / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)
