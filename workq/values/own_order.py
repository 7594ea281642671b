"""The order in which one process tries servers that are as good as each other: its own, and the same for its life.

So many processes spread over the servers, and the connections of one process are at one of them while that is well.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from random import Random
from typing import TypeVar

T = TypeVar("T")


def own_order(servers: Iterable[T]) -> list[T]:
    """These, each once, in the order of this process: by its host's name and its number."""
    found = list(dict.fromkeys(servers))
    Random(f"{socket.gethostname()} {os.getpid()}").shuffle(found)
    return found
