"""Header tables of AMQP: all that RabbitMQ lets through can be read, and it goes on behind it."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from typing import Any

import pika.data
import pytest

from workq.outbound.amqp_tables import DEPTH_MAX, read_any_table


@pytest.fixture(autouse=True)
def reading() -> None:
    read_any_table()


def field(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def table(*fields: bytes) -> bytes:
    return struct.pack(">I", sum(map(len, fields))) + b"".join(fields)


@pytest.mark.parametrize(
    ("encoded", "wanted"),
    [
        (b"T" + struct.pack(">Q", 1_764_340_000_000), 1_764_340_000_000),  # milliseconds: the year 57879
        (b"T" + struct.pack(">Q", 2**64 - 1), 2**64 - 1),
        (b"T" + struct.pack(">Q", 1_764_340_000), datetime.fromtimestamp(1_764_340_000, UTC)),
        (b"d" + struct.pack(">d", 3.75), 3.75),
        (b"f" + struct.pack(">f", -0.5), -0.5),
        (b"d" + struct.pack(">d", math.inf), math.inf),
        (b"A" + struct.pack(">I", 9) + b"d" + struct.pack(">d", 0.5), [0.5]),
        (b"F" + table(field(b"at", b"T" + struct.pack(">Q", 2**62))), {"at": 2**62}),
        (b"l" + struct.pack(">q", -7), -7),
    ],
)
def test_a_value_is_read_as_what_it_is(encoded: bytes, wanted: Any) -> None:
    found, _ = pika.data.decode_table(table(field(b"x", encoded), field(b"next", b"t\x01")), 0)

    assert found == {"x": wanted, "next": True}


def test_a_number_that_is_none_is_read() -> None:
    found: Any = pika.data.decode_table(table(field(b"x", b"d" + struct.pack(">d", math.nan))), 0)

    assert math.isnan(found[0]["x"])


def test_what_is_nested_too_deep_is_its_bytes_and_the_next_one_is_read() -> None:
    deep = b"t\x01"
    for _ in range(20_000):
        deep = b"F" + table(field(b"", deep))
    for _ in range(2):  # the depth is that of each table, not of all
        found, _ = pika.data.decode_table(table(field(b"deep", deep), field(b"next", b"t\x01")), 0)

        assert found["next"] is True
        inner, depth = found["deep"], 0
        while isinstance(inner, dict):
            inner, depth = inner[""], depth + 1
        assert (type(inner), depth) == (bytes, DEPTH_MAX)
