"""Messages of a RabbitMQ queue as records: which headers are kept, and what names a message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pika
import pytest

from workq.messages.intake.amqp_records import record_of_amqp
from workq.messages.intake.reading import read_record
from workq.messages.intake.values import Unreadable
from workq.messages.values import NewMessage

LATER = datetime(2026, 12, 1, 8, tzinfo=UTC)


def message(properties: pika.BasicProperties) -> NewMessage:
    found = read_record(record_of_amqp(properties, b"x", where="q#1"), to="orders")
    assert isinstance(found, NewMessage), found
    return found


def test_a_message_of_rabbitmq_keeps_the_headers_that_rabbitmq_has_not_added() -> None:
    theirs: dict[str, Any] = {"x-request-id": "r", "X-Tenant": "acme", "n": 5, "b": True, "none": None, "at": LATER}
    own: dict[str, Any] = {
        "CC": ["q2"],
        "x-death": [{"queue": "q"}],
        "x-first-death-reason": "expired",
        "x-last-death-queue": "q",
    }
    properties = pika.BasicProperties(
        headers={**theirs, **own, "tab": {"a": [1, LATER]}, "x-delivery-count": 1, "x-acquired-count": 2}
    )

    assert message(properties).headers == {
        "x-request-id": "r",
        "X-Tenant": "acme",
        "n": "5",
        "b": "true",
        "none": "null",
        "tab": f'{{"a":[1,"{LATER.isoformat()}"]}}',
        "at": LATER.isoformat(),
    }


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"headers": {"Workq-Id": "b"}, "message_id": "a"}, "b"),
        ({"headers": {"workq-id": "b"}, "message_id": "a"}, "b"),
        ({"message_id": "a"}, "a"),
    ],
)
def test_a_header_names_a_message_of_rabbitmq_before_its_message_id_does(given: Any, wanted: str) -> None:
    assert message(pika.BasicProperties(**given)).id == wanted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"message_id": b"\xff"}, "'workq-id' is no text in UTF-8"),
        ({"content_type": b"\xff"}, "'content-type' is no text in UTF-8"),
        ({"headers": {b"\xff": "x"}}, "a name has up to 100"),
        ({"headers": {"a": b"\xff"}}, "'a' is no text in UTF-8"),
    ],
)
def test_what_pika_gives_as_bytes_is_said(given: Any, said: str) -> None:
    found = read_record(record_of_amqp(pika.BasicProperties(**given), b"x", where="q#1"), to="orders")

    assert isinstance(found, Unreadable)
    assert said in found.reason


def test_how_a_body_is_encoded_is_told() -> None:
    given = pika.BasicProperties(content_encoding="gzip")

    assert message(given).headers == {"content-encoding": "gzip"}
