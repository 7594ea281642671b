"""The legs of the system tests, here too; a RabbitMQ to break; an intruder; a certificate whose time is over."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.intruder import intruder
from tests.faults.rabbitmq import server
from tests.faults.receivers import certificate
from tests.faults.ways_in import way_in
from tests.system.conftest import fast_leg, leg, open_leg

__all__ = ["certificate", "fast_leg", "intruder", "leg", "open_leg", "server", "way_in"]


@pytest.fixture(scope="session")
def over(authority: Path) -> Iterator[int]:
    """The port of a server with a certificate whose time is over. It speaks TLS alone: nobody comes further."""
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(authority / "expired.pem", authority / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):  # closed, at the end
                while True:
                    accepted, _ = listener.accept()
                    with contextlib.suppress(OSError), accepted, trust.wrap_socket(accepted, server_side=True) as one:
                        one.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
