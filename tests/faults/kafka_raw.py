"""What the Python client of Kafka does not offer, by librdkafka itself.

Records with headers whose names are any bytes, as clients in other languages may send them; and its mock of a Kafka,
which answers as it is told.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import confluent_kafka

from workq.lab.servers import Kafka
from workq.lab.servers.kafka_cluster import KafkaCluster

_PRODUCER: Final = 0
_END, _TOPIC, _VALUE, _HEADER = 0, 1, 4, 9
"""What the values of a call of `rd_kafka_producev` are, as librdkafka counts them."""
_WAIT_MS: Final = 60_000
RECORDS: Final = 0
"""The request that carries records, as Kafka counts them."""
WRITER: Final = 22
"""The request of a producer for its id."""
ENDS: Final = 2
"""The request for the ends of partitions."""


@contextlib.contextmanager
def _client(servers: str = "") -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p]]:
    """A producer, and the library that knows it."""
    [path] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka[-.]*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    if servers:
        assert library.rd_kafka_conf_set(settings, b"bootstrap.servers", servers.encode(), error, 512) == 0, error.value
    handle = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, settings, error, 512))
    assert handle.value, error.value
    try:
        yield library, handle
    finally:
        library.rd_kafka_destroy(handle)


def produce_raw(kafka: Kafka | KafkaCluster, topic: str, body: bytes, headers: Mapping[bytes, bytes]) -> None:
    """One record. Its names end at a byte of zero, as C has them."""
    with _client(kafka.admin_conf["bootstrap.servers"]) as (library, handle):
        given: list[object] = [ctypes.c_int(_TOPIC), ctypes.c_char_p(topic.encode())]
        given += [ctypes.c_int(_VALUE), ctypes.c_char_p(body), ctypes.c_size_t(len(body))]
        for key, value in headers.items():
            given += [ctypes.c_int(_HEADER), ctypes.c_char_p(key), ctypes.c_char_p(value), ctypes.c_ssize_t(len(value))]
        assert library.rd_kafka_producev(handle, *given, ctypes.c_int(_END)) == 0
        assert library.rd_kafka_flush(handle, ctypes.c_int(_WAIT_MS)) == 0


class MockKafka:
    """The mock of one node, with one topic of one partition."""

    def __init__(self, library: ctypes.CDLL, cluster: ctypes.c_void_p) -> None:
        self._library = library
        self._cluster = cluster
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        self.servers = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()

    def refuse(self, request: int, *codes: int) -> None:
        """The next requests of this kind are answered by these errors, and nothing is stored."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(request), ctypes.c_size_t(len(codes)), errors
        )


@contextlib.contextmanager
def mock_kafka(topic: str) -> Iterator[MockKafka]:
    """It lives in this process, until the block's end."""
    with _client() as (library, handle):
        library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
        cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(handle, 1))
        assert cluster.value
        try:
            assert library.rd_kafka_mock_topic_create(cluster, topic.encode(), ctypes.c_int(1), ctypes.c_int(1)) == 0
            yield MockKafka(library, cluster)
        finally:
            library.rd_kafka_mock_cluster_destroy(cluster)
