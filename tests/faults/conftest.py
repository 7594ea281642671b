"""The legs of the system tests, here too; a RabbitMQ to break; an intruder; throw-away certificates."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.faults.intruder import intruder
from tests.faults.rabbitmq import server
from tests.faults.receivers import certificate
from tests.faults.ways_in import way_in
from tests.system.conftest import fast_leg, leg, open_leg

__all__ = ["certificate", "fast_leg", "intruder", "leg", "open_leg", "server", "way_in"]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a throw-away authority and certificates, each for 127.0.0.1 only and with the key server.key.

    ca.pem: the authority; server.pem: signed by it; expired.pem: signed by it, and over since yesterday; other.pem: an
    authority of that name, too, with another key.
    """
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        of = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", "/CN=authority")
        openssl("req", "-x509", *key, *of, "-days", "2")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *sign)
    _expire(folder)
    return folder


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


def _expire(folder: Path) -> None:
    """server.pem once more, with a time that is over: openssl 3.0 makes none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    authority = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(server.issuer, server.subject, server.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=3)).not_valid_after(now - timedelta(days=1))
    for extension in server.extensions:
        made = made.add_extension(extension.value, extension.critical)
    signed = made.sign(authority, hashes.SHA256())  # type: ignore[arg-type]  # it is one that signs
    (folder / "expired.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
