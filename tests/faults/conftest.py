"""The legs of the system tests, here too; a RabbitMQ to break; an intruder; throw-away certificates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.intruder import intruder
from tests.faults.rabbitmq import server, shared_server
from tests.faults.receivers import certificate
from tests.system.conftest import fast_leg, leg, open_leg

__all__ = ["certificate", "fast_leg", "intruder", "leg", "open_leg", "server", "shared_server"]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a throw-away authority (ca.pem) and a certificate for 127.0.0.1 only (server.pem, server.key)."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *sign)
    return folder
