"""KafkaReach: which brokers of a Kafka may be connected to, and how; of a destination, and of a way in.

The hosts of the URL are judged, and then each broker that Kafka advertises (kafka_look.py). librdkafka is not imported
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workq.config.addresses import Allowed
from workq.config.given_options import GivenOptions
from workq.config.kafka import KAFKA_FORM, connection_settings, kafka_place, take_access
from workq.config.place import UrlPlace, shown
from workq.errors import ConfigError
from workq.messages.kinds import SendFault, Unsent
from workq.messages.kinds.kafka_look import look, meaning
from workq.messages.kinds.reach import (
    Lookup,
    NotAllowed,
    ReachFailed,
    judged,
    left,
    remembering,
    trouble_of,
    trust_of,
)

TOPIC_MAX: Final = 249


def take_kafka_options(given: GivenOptions) -> None:
    """Take what every use of a Kafka has: `url`, `topic`, `mechanism`, `ca_file` and the like.

    Raises:
        ConfigError: one is missing or not right.
    """
    place = kafka_place(given.take("url", why=f"it is {KAFKA_FORM}"))
    given.stored["url"] = str(place)
    if place.path:
        raise ConfigError(f"url: nothing follows the hosts; need {KAFKA_FORM}, and the topic as an option")
    check_topic(given.text("topic", why="it has to be there already", most=TOPIC_MAX))
    take_access(given, place)


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
        return connection_settings(self._place, self._addresses, self._options)
