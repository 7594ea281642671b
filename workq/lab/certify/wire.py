"""The network between the workers and the servers: one TCP proxy for each store, to be cut on command.

The driver and the workers go through it, the auditor does not. A store without a host of its own (a file, a socket of
the file system) has no wire; neither has one whose certificate is checked against its host's name, nor a cluster.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from workq.config import Settings, node_urls
from workq.lab.namespace import Store, urls_of
from workq.lab.proxy import FaultProxy

_CHECKS_THE_HOST: Final = ("amqps://", "rediss://", "sslmode=verify-full", "ssl_verify_identity", "ssl_check_hostname")


class Wires(AbstractContextManager["Wires"]):
    """The proxies of one run. `missing` tells of each store without one, why."""

    def __init__(self, settings: Settings) -> None:
        self.urls: dict[Store, str] = {}
        """Where each store is for those who go through the proxies."""
        self.proxies: dict[Store, FaultProxy] = {}
        self.missing: dict[Store, str] = {}
        for store, url in urls_of(settings).items():
            self.urls[store] = url
            if any(mark in url for mark in _CHECKS_THE_HOST):
                self.missing[store] = "TLS checks the host's name, and a proxy has another"
                continue
            if node_urls(url) != [url]:
                self.missing[store] = "the nodes of a cluster tell their own addresses, which lead around a proxy"
                continue
            try:
                proxy = FaultProxy.before(url)
            except ValueError:
                self.missing[store] = "no one way to it through a network: a file, a local socket, or several hosts"
                continue
            proxy.start()
            self.proxies[store] = proxy
            self.urls[store] = proxy.url(url)

    def heal(self) -> None:
        """End all faults."""
        for proxy in self.proxies.values():
            proxy.heal()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for proxy in self.proxies.values():
            proxy.stop()
