"""Ports on 127.0.0.1: one that nobody uses, and who listens on it."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

import psutil

_RANDOM = random.SystemRandom()
"""Not the shared generator: test plugins seed it, and two runs with one seed would fight for the same ports."""


def free_port() -> int:
    """A port on 127.0.0.1 that nobody uses now, below the range that the kernel hands to outgoing connections.

    From that range, a client that reconnects to a killed server would sooner or later be given the server's own port as
    its local one, connect to itself, and keep the server from coming back.
    """
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10_000, first_outgoing)
    for _ in range(1000 if ports else 0):
        port = _RANDOM.choice(ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    with socket.socket() as probe:  # a machine whose outgoing range leaves nothing: take what the kernel gives
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int, pid: int) -> bool:
    """Whether this very process listens on the port."""
    try:
        connections = psutil.Process(pid).net_connections("inet")
    except psutil.NoSuchProcess:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr[1] == port for one in connections)
