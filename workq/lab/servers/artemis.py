"""A private ActiveMQ Artemis: its broker.xml, the acceptor for STOMP, and how it shows that it is ours."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from workq.lab.servers import server
from workq.lab.servers.jars import LOGGING, find_jars, java
from workq.lab.servers.server import ANSWER_LIMIT_S, Server

VERSION: Final = "2.40.0"
HEAP_MB: Final = 256

_BROKER: Final = """<?xml version='1.0'?>
<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
 <name>{name}</name>
 <persistence-enabled>true</persistence-enabled>
 <journal-type>NIO</journal-type>
 <journal-min-files>2</journal-min-files><journal-pool-files>2</journal-pool-files><journal-file-size>1M</journal-file-size>
 <paging-directory>{data}/paging</paging-directory><bindings-directory>{data}/bindings</bindings-directory>
 <journal-directory>{data}/journal</journal-directory>
 <large-messages-directory>{data}/large-messages</large-messages-directory>
 <max-disk-usage>-1</max-disk-usage>
 <critical-analyzer>false</critical-analyzer>
 <acceptors>{acceptors}</acceptors>
 <security-settings><security-setting match="#">{permissions}</security-setting></security-settings>
 <address-settings>
  <address-setting match="#"><dead-letter-address>DLQ</dead-letter-address>
   <auto-delete-queues>false</auto-delete-queues><auto-delete-addresses>false</auto-delete-addresses></address-setting>
  <address-setting match="closed.#">
   <auto-create-queues>false</auto-create-queues><auto-create-addresses>false</auto-create-addresses></address-setting>
 </address-settings>
 <addresses><address name="DLQ"><anycast><queue name="DLQ"/></anycast></address></addresses>
</core></configuration>
"""
_PERMISSIONS: Final = (
    *("createNonDurableQueue", "deleteNonDurableQueue", "createDurableQueue", "deleteDurableQueue", "createAddress"),
    *("deleteAddress", "consume", "browse", "send", "manage"),
)
_LOGIN: Final = """activemq {
 org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required
 org.apache.activemq.jaas.properties.user="users.properties"
 org.apache.activemq.jaas.properties.role="roles.properties";
};
"""
_BOOTSTRAP: Final = """<broker xmlns="http://activemq.apache.org/schema">
 <jaas-security domain="activemq"/><server configuration="{broker}"/>
</broker>
"""


class Artemis(Server):
    """A private Artemis that speaks STOMP on 127.0.0.1, to the user `workq` with the password `workq` alone.

    Addresses and queues come into being when somebody asks for one; below `closed.` they do not. `options`: more
    parameters of its acceptor. What it has confirmed survives `kill()`.
    """

    name = "Artemis"
    _is_packaged = False

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        self._home = find_jars(f"apache-artemis-{VERSION}")
        self._java = java(HEAP_MB, self._home)
        super().__init__(folder, options)

    @property
    def url(self) -> str:
        return f"stomp://workq:workq@127.0.0.1:{self.port}"

    def _acceptors(self) -> dict[int, tuple[str, ...]]:
        """The ports that it listens on, each with the parameters of its acceptor."""
        return {self.port: self.options}

    @property
    def _etc(self) -> Path:
        return self.folder / "etc"

    def _prepare(self) -> None:
        for folder in (self._etc, self.folder / "tmp", self._data):
            folder.mkdir(exist_ok=True)
        acceptors = "".join(
            f'<acceptor name="stomp-{port}">tcp://127.0.0.1:{port}?{";".join(["protocols=STOMP", *more])}</acceptor>'
            for port, more in self._acceptors().items()
        )
        permissions = "".join(f'<permission type="{one}" roles="all"/>' for one in _PERMISSIONS)
        files = {
            "broker.xml": _BROKER.format(
                name=self.folder.name,
                data=self._data,
                acceptors=acceptors,
                permissions=permissions,
            ),
            "bootstrap.xml": _BOOTSTRAP.format(broker=(self._etc / "broker.xml").as_uri()),
            "management.xml": '<management-context xmlns="http://activemq.apache.org/schema"/>\n',
            "login.config": _LOGIN,
            "users.properties": "workq = workq\n",
            "roles.properties": "all = workq\n",
            "log4j2.properties": LOGGING,
        }
        for name, text in files.items():
            (self._etc / name).write_text(text)

    def _command(self) -> list[str]:
        settings = {
            "log4j2.configurationFile": self._etc / "log4j2.properties",
            "java.security.auth.login.config": self._etc / "login.config",
            "artemis.home": self._home,
            "artemis.instance": self.folder,
            "artemis.instance.etc": self._etc,
            "data.dir": self._data,
            "java.io.tmpdir": self.folder / "tmp",
            "log4j2.disableJmx": "true",
        }
        words = [f"-D{name}={value}" for name, value in settings.items()]
        opened = ("--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED")
        # not by its boot class, whose own loader finds nothing in an archive of classes
        run = ("-cp", f"{self._home / 'lib'}/*", "org.apache.activemq.artemis.cli.Artemis", "run")
        return [*self._java, *words, *opened, *run]

    def _answer(self) -> str | None:
        """The listeners belong to our process, and the one of `port` also has to greet."""
        if not all(server.listens(port, self.pid) for port in self._acceptors()):
            return None
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_LIMIT_S) as connection:
                connection.sendall(b"CONNECT\naccept-version:1.2\nhost:/\nlogin:workq\npasscode:workq\n\n\0")
                greeting = connection.recv(4096)
        except OSError:
            return None
        return VERSION if greeting.startswith(b"CONNECTED") else None


def start_artemis(folder: Path | None = None, *, options: Sequence[str] = ()) -> Artemis:
    """Start a private Artemis; as `start_rabbitmq`, but `options` are parameters of its acceptor."""
    return Artemis(folder, options).first_start()
