"""Addresses: where webhooks and messages may go. Pure.

Whoever chooses the URL of a webhook chooses what a worker connects to, and a worker stands inside your network. So by
default only public addresses may be reached: what `external` means is the list of IANA's special-purpose registries,
written out here, because `ipaddress.is_global` answers otherwise from one version of Python to the next. Left out are
public addresses and names at which clouds serve their own machines: metadata, credentials, inner services.

    external      every public address
    private       10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7
    loopback      127.0.0.0/8, ::1
    10.1.0.0/16   those
    hooks.local   whatever this very name resolves to: whoever can change that decides
    *             everything

An address that carries another one in it (`::ffff:10.0.0.5`) is judged as that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from workq.errors import ConfigError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL_4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' own
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local: the metadata of clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays to IPv6
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_OF_CLOUDS: Final = tuple(
    IPv4Network(text)
    for text in (
        "161.26.0.0/16",  # IBM Cloud: services of its infrastructure
        "166.8.0.0/14",  # IBM Cloud: private service endpoints
        "168.63.129.16/32",  # Azure: WireServer, which hands out certificates and extensions' settings
        "192.80.8.124/32",  # Equinix Metal: metadata
        "199.36.153.4/30",  # Google Cloud: restricted.googleapis.com
        "199.36.153.8/30",  # Google Cloud: private.googleapis.com
    )
)
"""Public addresses that lead to a cloud's own services from inside of that cloud. All that is link-local is above."""
_HOSTS_OF_CLOUDS: Final = frozenset(
    {
        *("metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"),
        *("metadata.azure.internal", "metadata.tencentyun.com", "metadata.packet.net", "metadata.platformequinix.com"),
        *("api.metadata.cloud.ibm.com", "api.service.softlayer.com"),
    }
)
"""Names of the same: behind a proxy nothing of ours sees their addresses."""
_GLOBAL_6: Final = IPv6Network("2000::/3")
_SPECIAL_6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo and other protocols
        "2001:db8::/32",  # documentation
        "2002::/16",  # an IPv4 address in it
        "3fff::/20",
    )
)
_PRESETS: Final[dict[str, tuple[Network, ...]]] = {
    "private": tuple(ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")),
    "loopback": (ip_network("127.0.0.0/8"), ip_network("::1/128")),
    "*": (ip_network("0.0.0.0/0"), ip_network("::/0")),
}
_HOST: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
HOST_MAX: Final = 253
_PORT: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")

SERVICES: Final = frozenset(
    {
        *(1433, 1521, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 4369, 5432, 5671, 5672, 5900, 5984, 6000, 6379),
        *(6443, 6667, 7000, 7001, 8020, 9000, 9042, 9092, 9160, 9200, 9300, 10250, 10255, 11211, 15672, 25672, 26379),
        *(27017, 27018, 50070),
    }
)
"""Ports above 1023 of databases, brokers and cluster managers, which answer HTTP too, or read it as commands."""


def unwrapped(address: Address) -> Address:
    """An IPv4 address that is written as an IPv6 one, as itself."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_external(address: Address) -> bool:
    """Whether it is an address of the public internet."""
    address = unwrapped(address)
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _SPECIAL_4 + _OF_CLOUDS)
    return address in _GLOBAL_6 and not any(address in network for network in _SPECIAL_6)


@dataclass(frozen=True)
class Allowed:
    """Where webhooks or messages may go. `text`: as a person has written it, in the variable `setting`."""

    text: str
    is_external: bool
    networks: tuple[Network, ...]
    hosts: frozenset[str] = field(default_factory=frozenset)
    setting: str = "WORKQ_WEBHOOK_ALLOW"

    @staticmethod
    def of(text: object, *, setting: str = "WORKQ_WEBHOOK_ALLOW") -> Allowed:
        """What such a list means, which stands in the variable `setting`.

        Raises:
            ConfigError: a part of it is no preset, network, address or host.
        """
        if not isinstance(text, str) or not text.strip():
            raise ConfigError("need external, private, loopback, *, networks or hosts, as in external,10.1.0.0/16")
        networks: list[Network] = []
        hosts: set[str] = set()
        parts = [part.strip().lower() for part in text.split(",") if part.strip()]
        for part in parts:
            if part in _PRESETS:
                networks += _PRESETS[part]
            elif part != "external":
                try:
                    networks.append(ip_network(part))
                except ValueError as error:
                    if "/" in part or is_number_like(part) or not is_host(part):
                        raise ConfigError(
                            f"{part[:100]!r} is no preset (external, private, loopback, *), network or host: {error}"
                        ) from None
                    hosts.add(part)
        return Allowed(text, "external" in parts, tuple(networks), frozenset(hosts), setting)

    def permits(self, address: Address) -> bool:
        """Whether anything may be sent there."""
        address = unwrapped(address)
        if self.is_external and is_external(address):
            return True
        return any(address in network for network in self.networks if network.version == address.version)

    def permits_host(self, host: str) -> bool:
        """Whether this very name is permitted, whatever it resolves to."""
        return host.lower().rstrip(".") in self.hosts

    def forbids_host(self, host: str) -> bool:
        """Whether this is the name of a cloud's own service, which is no external one whatever it resolves to."""
        is_everything = any(network.prefixlen == 0 for network in self.networks)
        return host.lower().rstrip(".") in _HOSTS_OF_CLOUDS and not is_everything and not self.permits_host(host)

    def refusal(self, target: Address | str) -> str:
        """What to say of an address, or of a name, that is not permitted; it names the setting."""
        if isinstance(target, str):
            return f"blocked name {target} (set {self.setting}={self.text},{target} to permit)"
        target = unwrapped(target)
        return f"blocked address {target} (set {self.setting}={self.text},{target} to permit)"


@dataclass(frozen=True)
class Ports:
    """To which ports webhooks may go. None are named: 80, 443, and those above 1023 but for well-known services'."""

    text: str

    @staticmethod
    def of(text: object) -> Ports:
        """What such a list means.

        Raises:
            ConfigError: a part of it is no port, or no range of ports.
        """
        if not isinstance(text, str):
            raise ConfigError("need ports, as in 443,8000-8999")
        found = Ports(text)
        _ = found.ranges
        return found

    @cached_property
    def ranges(self) -> tuple[range, ...]:
        """Those that are named."""
        found = []
        for part in filter(None, (part.strip() for part in self.text.split(","))):
            match = _PORT.fullmatch(part)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
            if not 1 <= first <= last <= 65535:
                raise ConfigError(f"{part[:100]!r} is no port, and no range such as 8000-8999")
            found.append(range(first, last + 1))
        return tuple(found)

    def permits(self, port: int) -> bool:
        """Whether a webhook may go to this port."""
        if self.ranges:
            return any(port in one for one in self.ranges)
        return port in (80, 443) or (port > 1023 and port not in SERVICES)


def is_host(text: str) -> bool:
    """Whether this is the name of a host, in ASCII; a trailing dot is not counted."""
    text = text.removesuffix(".")
    return len(text) <= HOST_MAX and _HOST.fullmatch(text.lower()) is not None


def is_number_like(host: str) -> bool:
    """Whether some programs read it as an address, which it does not look like: `127.1`, `0x7f000001`, `2130706433`."""
    last = host.removesuffix(".").rpartition(".")[2].lower()
    return last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last) is not None


def literal(host: str) -> Address | None:
    """The address that a URL has in the place of a host; None: it has a name there."""
    try:
        return ip_address(host)
    except ValueError:
        return None
