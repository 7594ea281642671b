"""A Kafka that is come to by a login over TLS alone, and one that wants a certificate of its clients as well."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.conftest import Private
from workq.lab.servers import Kafka, start_kafka

LONG_S = 30.0


@contextlib.contextmanager
def kafka_behind_tls(
    private: Private, authority: Path, *, password: str, wants_certificate: bool = False
) -> Iterator[Kafka]:
    """The users are `workq`, by PLAIN, and `scrammed`, by SCRAM-SHA-512.

    It shows server.pem. It advertises 127.0.0.1, so that another name is met at the first connection.
    """
    key = subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-nocrypt", "-in", "server.key"], cwd=authority, check=True, capture_output=True
    ).stdout.decode()
    pem = {"ssl.keystore.certificate.chain": (authority / "server.pem").read_text(), "ssl.keystore.key": key}
    if wants_certificate:
        pem["ssl.truststore.certificates"] = (authority / "ca.pem").read_text()
    options = [
        "listener.security.protocol.map=CLIENT:SASL_SSL,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
        "listener.name.client.scram-sha-512.sasl.jaas.config="
        "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "listener.name.client.plain.sasl.jaas.config="
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_workq="{password}";',
        "listener.name.client.ssl.keystore.type=PEM",
        "listener.name.client.ssl.truststore.type=PEM",
        *(["listener.name.client.ssl.client.auth=required"] if wants_certificate else []),
        *(f"listener.name.client.{name}=" + text.strip().replace("\n", "\\n") for name, text in pem.items()),
    ]
    with private(start_kafka, options=options) as server:
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("scrammed", scram, password.encode())
        admin = AdminClient(server.admin_conf)
        admin.alter_user_scram_credentials([user])["scrammed"].result(LONG_S)
        yield server
