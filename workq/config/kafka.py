"""A Kafka as its URL says: where it is, how to log in, and which settings of librdkafka follow. No I/O, no library.

The same for the broker of a namespace, for a destination of messages and for a way in.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard
from urllib.parse import parse_qsl

from workq.config.given_options import GivenOptions, check_files
from workq.config.place import HOSTS_MAX, UrlPlace, place_of, shown
from workq.errors import ConfigError

KAFKA_FORM: Final = "kafka://host:9092[,host:9092] or, with TLS, kafkas://user:password@host:9093"
KAFKA_SCHEMES: Final = ("kafka", "kafkas")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
FILES: Final = {"ssl.ca.location": "ca_file", "ssl.certificate.location": "cert_file", "ssl.key.location": "key_file"}
"""Settings of librdkafka, each with its name in a URL."""
PARTITIONS_DEFAULT: Final = 8
PARTITIONS_MAX: Final = 1000
SILENT: Final = logging.getLogger("workq.kafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False  # what librdkafka says is told in our own words


def is_kafka(url: str | None) -> TypeGuard[str]:
    """Whether the URL of a broker is that of a Kafka."""
    return url is not None and url.partition("://")[0] in KAFKA_SCHEMES


def kafka_place(url: object) -> UrlPlace:
    """The place of a Kafka.

    Raises:
        ConfigError: it is none.
    """
    return place_of(url, {"kafka": 9092, "kafkas": 9093}, form=KAFKA_FORM, tls="kafkas", hosts_max=HOSTS_MAX)


def take_access(given: GivenOptions, place: UrlPlace) -> None:
    """Take how to log in: `mechanism`, `ca_file` and the like.

    Raises:
        ConfigError: one is not right.
    """
    if (place.user is None) != (place.password is None):
        raise ConfigError(f"url: a login is a user and a password; need {KAFKA_FORM}")
    given.choice("mechanism", MECHANISMS, default=None if place.user is None else "PLAIN")
    check_files(given, is_tls=place.is_tls)


def connection_settings(place: UrlPlace, servers: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """What every client of librdkafka is given to come to these servers. `options`: as `take_access` stored them."""
    found: dict[str, Any] = {
        "bootstrap.servers": ",".join(dict.fromkeys(servers)),
        "allow.auto.create.topics": False,
        "enable.sparse.connections": True,  # it connects to those brokers only that it needs
        "log_level": 0,
        "logger": SILENT,
    }
    if place.is_tls:
        found |= {setting: options[one] for setting, one in FILES.items() if one in options}
        found |= {"ssl.endpoint.identification.algorithm": "https", "enable.ssl.certificate.verification": True}
    if place.user is not None:
        found |= {"sasl.mechanism": options["mechanism"], "sasl.username": place.user}
        found["sasl.password"] = place.password
    protocol = ("sasl_" if place.user is not None else "") + ("ssl" if place.is_tls else "plaintext")
    return found | {"security.protocol": protocol}


@dataclass(frozen=True, slots=True)
class KafkaUrl:
    """The broker of a namespace: `kafka://host:9092,host:9092?partitions=8&protocol=consumer`."""

    place: UrlPlace
    options: Mapping[str, Any] = field(repr=False)
    """`mechanism` and the files of TLS, as far as they are there."""
    partitions: int
    """Of each topic that is made. One that exists keeps what it has."""
    protocol: str
    """Of the consumer group: `consumer`, or `classic` for Kafka before 4.0."""

    @staticmethod
    def parse(url: str) -> KafkaUrl:
        """The parts of a URL.

        Raises:
            ConfigError: it is not such a URL. The message repeats nothing that may be a password.
        """
        address, _, query = url.partition("?")
        place = kafka_place(address)
        if place.path:
            raise ConfigError(f"url: nothing stands between the hosts and a question mark; need {KAFKA_FORM}")
        try:
            asked = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
        except ValueError:
            raise ConfigError("url: what follows the question mark is NAME=VALUE, joined by &") from None
        given = GivenOptions(asked)
        take_access(given, place)
        partitions = given.number("partitions", default=PARTITIONS_DEFAULT, least=1, most=PARTITIONS_MAX)
        protocol = given.choice("protocol", ("consumer", "classic"), default="consumer")
        options = given.done(kind="kafka")
        return KafkaUrl(place, options, partitions, protocol)

    def settings(self) -> dict[str, Any]:
        """What every client is given."""
        servers = [shown(*one) for one in self.place.hosts]
        return connection_settings(self.place, servers, self.options)
