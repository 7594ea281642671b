"""Where on the network a private server is: on loopback, or in a network namespace that somebody has made."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from workq.lab.servers import server


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """One host, as a server and those who look for it see it."""

    host: str = "localhost"
    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()
    """The words before a command that is to run there. None: here."""
    hosts: tuple[tuple[str, str], ...] = ()
    """Names and addresses that are known there; the system's where there are none."""

    def listens(self, port: int, pid: int) -> bool:
        """Whether this very process listens on the port. In a namespace of its own nobody else can."""
        if not self.enter:
            return server.listens(port, pid)
        try:
            with socket.create_connection((self.address, port), timeout=server.ANSWER_LIMIT_S):
                return True
        except OSError:
            return False
