"""Names and keys: what is accepted is safe in a table, a broker, Redis, a shell and a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workq.errors import ConfigError
from workq.values.names import check_key, check_namespace, check_queue, check_task_name, seconds_of

HOSTILE = [
    *("", " ", "a b", "a\n", "\x00", "a\x1b[31m", "../x", "a/b", "*", "a#b", "'", 'x"; drop', "%s"),
    *("é", "\u0430", "a\u200b", "\ud800"),  # the second is a Cyrillic letter that looks like a Latin one
    *(None, True, 5, b"orders", ["orders"]),
]


@pytest.mark.parametrize("name", ["a", "orders", "Orders.EU", "a-b_c.d", "_", "0", "amqp", "amq", "a.", "x" * 100])
def test_a_queue_name_of_the_right_form_is_taken_as_it_is(name: str) -> None:
    assert check_queue(name) == name


@pytest.mark.parametrize("name", [*HOSTILE, "x" * 101, "amq.direct", "AMQ.x", ".a", "-a", "--queue", "a..b", "a:b"])
def test_a_queue_name_of_another_form_is_refused_with_the_pattern(name: Any) -> None:
    assert "[A-Za-z0-9_.-]{1,100}" in _refused(check_queue, name)


@pytest.mark.parametrize("name", ["a", "_a", "shop.tasks.send", "shop:send", "Send-2", "os.system", "x" * 200])
def test_a_task_name_of_the_right_form_is_taken_as_it_is(name: str) -> None:
    assert check_task_name(name) == name  # os.system too: a name is looked up among handlers, never imported


@pytest.mark.parametrize("name", [*HOSTILE, "x" * 201, "1a", ".a", "-a", "__import__('os')"])
def test_a_task_name_of_another_form_is_refused_with_the_pattern(name: Any) -> None:
    assert "[A-Za-z_][A-Za-z0-9_.:-]{0,199}" in _refused(check_task_name, name)


@pytest.mark.parametrize("name", ["a", "workq", "shop_2", "x" * 31])
def test_a_namespace_of_the_right_form_is_taken_as_it_is(name: str) -> None:
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", [*HOSTILE, "x" * 32, "Shop", "_a", "2a", "a-b", "a.b"])
def test_a_namespace_of_another_form_is_refused_with_the_pattern(name: Any) -> None:
    assert "[a-z][a-z0-9_]{0,30}" in _refused(check_namespace, name)


@pytest.mark.parametrize("key", ["a", " a", "order 42", "é\u0430\U0001f600", "'; drop", "x" * 200, "😀" * 200])
def test_a_key_is_any_text_of_up_to_200_characters(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "\x00", "\x7f", "\x9b", "\ud800", "a ", None, 5, b"a", True])
def test_a_key_of_another_form_is_refused_with_the_rule(key: Any) -> None:
    assert "a key " in _refused(check_key, key)


def _refused(check: Callable[[object], str], name: Any) -> str:
    """The message, proved to be one short line of plain ASCII whatever the name was."""
    with pytest.raises(ConfigError) as caught:
        check(name)
    message = str(caught.value)
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 300
    return message


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("500ms", 0.5), ("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0), ("1d", 86400.0), ("0s", 0.0)]
    + [
        (bad, None)
        for bad in ("", "5", "s", "5 s", "5S", "-5s", "+5s", "1e3s", ".5s", "5s ", "5s\n", "\u0665s", "5sec")
    ],
)
def test_a_duration_is_a_number_and_its_unit_and_nothing_else(written: str, seconds: float | None) -> None:
    assert seconds_of(written) == seconds
