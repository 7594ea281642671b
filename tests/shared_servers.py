"""The servers that all tests of a run share. Each has TLS beside its plain port, so that no test starts one for that.

They show server.pem of the run's authority (authority.py). Who comes by TLS logs in with a password that stands in no
other place: a test can look for it in what is logged or shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from tests.authority import STORE_PASSWORD
from workq.lab.servers import Artemis, Kafka, RabbitMQ, Server
from workq.lab.servers.server import free_port

CANARY: Final = "c4nary-8d"
LONG_S: Final = 30.0


class SharedRabbitMQ(RabbitMQ):
    """With STOMP as well. The user `secured`, whose password is the canary, may do everything."""

    def __init__(self, authority: Path) -> None:
        self._authority = authority
        self.amqps_port = self.stomps_port = 0
        super().__init__(None, (), with_stomp=True)

    def first_start(self) -> Self:
        super().first_start()
        try:
            self.operator.add_user("secured", CANARY)
            self.operator.set_permissions("secured", ".*", ".*", ".*")
        except BaseException:  # an interrupt too: no server is left behind
            self.stop()
            raise
        return self

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.amqps_port, self.stomps_port = free_port(), free_port()
        self.options = (
            f"listeners.ssl.1 = 127.0.0.1:{self.amqps_port}",
            f"stomp.listeners.ssl.1 = 127.0.0.1:{self.stomps_port}",
            f"ssl_options.cacertfile = {self._authority / 'ca.pem'}",
            f"ssl_options.certfile = {self._authority / 'server.pem'}",
            f"ssl_options.keyfile = {self._authority / 'server.key'}",
            "ssl_options.verify = verify_none",
        )


class SharedKafka(Kafka):
    """With three listeners more: `tls_port`; `mutual_tls_port`, which wants a certificate of its clients as well; and
    `elsewhere_port`, in the clear, which sends its clients to 127.0.0.2, where nothing listens.

    Who comes by TLS logs in as `workq`, by PLAIN, or as `scrammed`, by SCRAM-SHA-512. It advertises 127.0.0.1, so that
    another name is met at the first connection.
    """

    def __init__(self, authority: Path) -> None:
        self._authority = authority
        self.tls_port = self.mutual_tls_port = self.elsewhere_port = 0
        self.elsewhere = ""
        """The address that `elsewhere_port` sends its clients to."""
        super().__init__(None, self._security())

    def first_start(self) -> Self:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

        super().first_start()
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("scrammed", scram, CANARY.encode())
        try:
            admin: Any = AdminClient(self.admin_conf)
            admin.alter_user_scram_credentials([user])["scrammed"].result(LONG_S)
        except BaseException:  # as above
            self.stop()
            raise
        return self

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.tls_port, self.mutual_tls_port, self.elsewhere_port = free_port(), free_port(), free_port()
        self.elsewhere = f"127.0.0.2:{free_port()}"

    def _listeners(self) -> dict[str, tuple[int, str]]:
        secured = {"TLS": self.tls_port, "MUTUAL": self.mutual_tls_port}
        own = {name: (port, f"127.0.0.1:{port}") for name, port in secured.items()}
        return super()._listeners() | own | {"ELSEWHERE": (self.elsewhere_port, self.elsewhere)}

    def _security(self) -> list[str]:
        """The options that say how its clients come in."""
        plain = ",".join(f"{name}:PLAINTEXT" for name in ("CLIENT", "ELSEWHERE", "INNER", "CONTROLLER"))
        module = "org.apache.kafka.common.security"
        pem = {
            "ssl.keystore.certificate.chain": "server.pem",
            "ssl.keystore.key": "server.key",
            "ssl.truststore.certificates": "ca.pem",
        }
        each = {
            "scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
            "plain.sasl.jaas.config": f'{module}.plain.PlainLoginModule required user_workq="{CANARY}";',
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            **{name: (self._authority / file).read_text().strip().replace("\n", "\\n") for name, file in pem.items()},
        }
        return [
            f"listener.security.protocol.map={plain},TLS:SASL_SSL,MUTUAL:SASL_SSL",
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
            "broker.session.timeout.ms=9000",  # it is never killed, and costs less while nobody uses it
            "broker.heartbeat.interval.ms=2000",
            "listener.name.mutual.ssl.client.auth=required",
            *(f"listener.name.{one}.{name}={value}" for one in ("tls", "mutual") for name, value in each.items()),
        ]


class SharedArtemis(Artemis):
    """With a second acceptor for STOMP, by TLS. Its user is `workq` with the password `workq` there, too."""

    def __init__(self, authority: Path) -> None:
        self._authority = authority
        self.stomps_port = 0
        super().__init__(None, ())

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.stomps_port = free_port()

    def _acceptors(self) -> dict[int, tuple[str, ...]]:
        store = f"keyStorePath={self._authority / 'server.p12'}"
        trust = ("sslEnabled=true", store, f"keyStorePassword={STORE_PASSWORD}", "keyStoreType=PKCS12")
        return super()._acceptors() | {self.stomps_port: trust}


SHARED: Final[Mapping[type[Server], str]] = {SharedRabbitMQ: "rabbitmq", SharedKafka: "kafka", SharedArtemis: "artemis"}
"""Each by the name that `--require` has for it."""
