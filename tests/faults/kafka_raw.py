"""Records of Kafka with headers whose names are any bytes, as clients in other languages may send them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import confluent_kafka

from workq.lab.servers import Kafka
from workq.lab.servers.kafka_cluster import KafkaCluster

_PRODUCER: Final = 0
_END, _TOPIC, _VALUE, _HEADER = 0, 1, 4, 9
"""What the values of a call of `rd_kafka_producev` are, as librdkafka counts them."""
_WAIT_MS: Final = 60_000


def produce_raw(kafka: Kafka | KafkaCluster, topic: str, body: bytes, headers: Mapping[bytes, bytes]) -> None:
    """One record. Its names end at a byte of zero, as C has them."""
    [path] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka[-.]*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    servers = kafka.admin_conf["bootstrap.servers"].encode()
    assert library.rd_kafka_conf_set(settings, b"bootstrap.servers", servers, error, 512) == 0, error.value
    handle = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, settings, error, 512))
    assert handle.value, error.value
    try:
        given: list[object] = [ctypes.c_int(_TOPIC), ctypes.c_char_p(topic.encode())]
        given += [ctypes.c_int(_VALUE), ctypes.c_char_p(body), ctypes.c_size_t(len(body))]
        for key, value in headers.items():
            given += [ctypes.c_int(_HEADER), ctypes.c_char_p(key), ctypes.c_char_p(value), ctypes.c_ssize_t(len(value))]
        assert library.rd_kafka_producev(handle, *given, ctypes.c_int(_END)) == 0
        assert library.rd_kafka_flush(handle, ctypes.c_int(_WAIT_MS)) == 0
    finally:
        library.rd_kafka_destroy(handle)
