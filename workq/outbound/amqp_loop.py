"""pika's event loop, with a way to end its connections from below.

`close()` of a connection whose peer is silent would wait for the peer; a socket that is shut down is found at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from pika.adapters.select_connection import IOLoop


class WatchedLoop(IOLoop):
    """pika's event loop, which also remembers the sockets that it watches: the only public way to reach them."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: set[int] = set()

    def add_handler(self, fd: int, handler: Any, events: int) -> None:
        self._sockets.add(fd)
        super().add_handler(fd, handler, events)

    def remove_handler(self, fd: int) -> None:
        self._sockets.discard(fd)
        super().remove_handler(fd)

    def shut_down_sockets(self) -> None:
        """End every stream from below: pika finds the end of each on its next turn."""
        for fd in self._sockets:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as watched:
                watched.shutdown(socket.SHUT_RDWR)
