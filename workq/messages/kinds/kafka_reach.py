"""KafkaReach: which brokers of a Kafka may be connected to, and how; of a destination, and of a way in.

The hosts of the URL are judged, and then each broker that Kafka advertises (kafka_look.py). librdkafka is not imported
here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from workq.config.addresses import Allowed
from workq.errors import ConfigError
from workq.messages.kinds import SendFault, Unsent
from workq.messages.kinds.kafka_look import look, meaning
from workq.messages.kinds.options import GivenOptions
from workq.messages.kinds.place import HOSTS_MAX, UrlPlace, place_of, shown
from workq.messages.kinds.reach import (
    Lookup,
    NotAllowed,
    ReachFailed,
    check_files,
    judged,
    left,
    remembering,
    trouble_of,
    trust_of,
)

FORM: Final = "kafka://host:9092[,host:9092] or, with TLS, kafkas://user:password@host:9093"
TOPIC_MAX: Final = 249
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SILENT: Final = logging.getLogger("workq.messages.kafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False  # what librdkafka says is told as what came of a message


def kafka_place(url: object) -> UrlPlace:
    """The place of a Kafka.

    Raises:
        ConfigError: it is none.
    """
    return place_of(url, {"kafka": 9092, "kafkas": 9093}, form=FORM, tls="kafkas", hosts_max=HOSTS_MAX)


def take_kafka_options(given: GivenOptions) -> None:
    """Take what every use of a Kafka has: `url`, `topic`, `mechanism`, `ca_file` and the like.

    Raises:
        ConfigError: one is missing or not right.
    """
    place = kafka_place(given.take("url", why=f"it is {FORM}"))
    given.stored["url"] = str(place)
    if (place.user is None) != (place.password is None):
        raise ConfigError(f"url: a login is a user and a password; need {FORM}")
    if place.path:
        raise ConfigError(f"url: nothing follows the hosts; need {FORM}, and the topic as an option")
    check_topic(given.text("topic", why="it has to be there already", most=TOPIC_MAX))
    given.choice("mechanism", MECHANISMS, default=None if place.user is None else "PLAIN")
    check_files(given, is_tls=place.is_tls)


def check_topic(topic: str) -> str:
    """The name of a topic, unchanged.

    Raises:
        ConfigError: Kafka permits no such name.
    """
    if not all(one.isascii() and (one.isalnum() or one in "._-") for one in topic) or topic in (".", ".."):
        raise ConfigError(f"topic: has letters, digits, '.', '_' and '-', not {topic!r:.60}")
    return topic


class KafkaReach:
    """The way to one Kafka, and to one topic of it."""

    def __init__(self, place: UrlPlace, options: Mapping[str, Any], *, allowed: Allowed, lookup: Lookup) -> None:
        self._place = place
        self._options = options
        self._allowed = allowed
        self._lookup = lookup
        self._addresses: list[str] = []

    def look(self, ends: float) -> None:
        """Judge the hosts of the URL, then those that they advertise; and whether the topic is there.

        Raises:
            ReachFailed: no broker answers, or one may not be reached, or the topic is not there.
        """
        self._addresses = []
        lookup = remembering(self._lookup)
        for host, port in self._place.hosts:
            try:
                found = judged(host, port, self._allowed, lookup=lookup, within_s=left(ends))
            except OSError as error:
                if isinstance(error, NotAllowed):
                    raise ReachFailed(trouble_of(error, host, port)) from None
            else:
                self._addresses += [shown(host if self._place.is_tls else one, port) for one in found]
        topic = self._options["topic"]
        advertised = look(
            self._place,
            topic,
            mechanism=self._options.get("mechanism"),
            trust=trust_of(self._options) if self._place.is_tls else None,
            allowed=self._allowed,
            lookup=lookup,
            ends=ends,
        )
        for host, port in advertised.brokers:
            try:
                judged(host, port, self._allowed, lookup=lookup, within_s=left(ends))
            except NotAllowed as error:
                raise ReachFailed(
                    Unsent(SendFault.REFUSED, f"Kafka sends us to {shown(host, port)}: {error}")
                ) from None
            except OSError:
                continue  # a name without an address is not connected to
        if (unsent := meaning(advertised.topic_error, topic)) is not None:
            raise ReachFailed(unsent)

    def conf(self) -> dict[str, Any]:
        """The settings of librdkafka that every client of it has, after a look."""
        place, options = self._place, self._options
        found: dict[str, Any] = {
            "bootstrap.servers": ",".join(dict.fromkeys(self._addresses)),
            "allow.auto.create.topics": False,
            "enable.sparse.connections": True,  # it connects to those brokers only that it needs
            "log_level": 0,
            "logger": SILENT,
        }
        if place.is_tls:
            files = {"ca_file": "ssl.ca", "cert_file": "ssl.certificate", "key_file": "ssl.key"}
            found |= {f"{name}.location": options[one] for one, name in files.items() if one in options}
            found |= {"ssl.endpoint.identification.algorithm": "https", "enable.ssl.certificate.verification": True}
        if place.user is not None:
            found |= {"sasl.mechanism": options["mechanism"], "sasl.username": place.user}
            found["sasl.password"] = place.password
        protocol = ("sasl_" if place.user is not None else "") + ("ssl" if place.is_tls else "plaintext")
        return found | {"security.protocol": protocol}
