"""Fingerprints: two deaths are alike when what happened, and where, is; whatever the order was about."""

from __future__ import annotations

import time

import pytest

from workq.handlers.said import describe
from workq.values.fingerprint import LINE_MAX, fingerprint

NAME, REASON = "shop.charge", "failures_max reached: ValueError"


def death(text: str, *, file: str = "/srv/releases/41/shop/bank.py", line: int = 7, function: str = "pay") -> str:
    """The error of a handler that raised this in that place, as it is kept."""
    source = "\n" * line + f"def {function}():\n    raise ValueError({text!r})\n"
    names: dict[str, object] = {}
    exec(compile(source, file, "exec"), names)  # noqa: S102 - the file's name is what it is about
    try:
        names[function]()  # type: ignore[operator]  # a function, from the line above
    except ValueError as error:
        return describe(error)
    raise AssertionError("it did not raise")


def group(text: str) -> str:
    return fingerprint(NAME, REASON, death(text))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 has no address", "order 4711 has no address"),
        ("no customer 'Eve'", "no customer 'O, Adam'"),
        ('no file "/a/b.csv"', 'no file "/c.csv"'),
        ("01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f is gone", "01a1fc55-d0e0-73a0-96c5-47d5539dc37d is gone"),
        ("<Order at 0x7f5b47e4e7a0> is closed", "<Order at 0x7f5b47e4e812> is closed"),
        ("commit 6a752233f1 is not merged", "commit 0e75031aab is not merged"),
        ("took 1.5 s at 12:30:01", "took 30 s at 09:00:59"),
        ("404 for https://bank/1", "404 for https://bank/22"),
        ("17", "18"),
        ("order 17 has no address\n(see the wiki)", "order 18 has no address\n(as of Monday)"),
    ],
)
def test_what_differs_between_one_order_and_the_next_does_not_count(one: str, other: str) -> None:
    assert group(one) == group(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 has no address", "order 17 has no name"),
        ("HTTP 404 for order 1", "HTTP 500 for order 1"),
        ("HTTPError: 404 for https://bank/1", "HTTPError: 503 for https://bank/1"),
        ("HTTP Error 404: sorry", "HTTP Error 503: sorry"),
        ("status code: 404", "status code: 503"),
        ("MySQL error 1205", "MySQL error 1213"),
        ("status=404", "status=503"),
        ("[Errno 2] gone", "[Errno 13] gone"),
        ("exit 1", "exit 2"),
        ("no such table: orders\n(see the wiki)", "no such column: price\n(see the wiki)"),
    ],
)
def test_what_happened_counts(one: str, other: str) -> None:
    assert group(one) != group(other)


def test_a_new_release_does_not_split_a_group() -> None:
    before = fingerprint(NAME, REASON, death("no", file="/srv/releases/41/shop/bank.py", line=7))
    after = fingerprint(NAME, REASON, death("no", file="/srv/releases/42/shop/bank.py", line=90))

    assert before == after


def test_handler_reason_file_and_function_count() -> None:
    groups = {
        fingerprint(NAME, REASON, death("no")),
        fingerprint("shop.refund", REASON, death("no")),
        fingerprint(NAME, "not retried: ValueError", death("no")),
        fingerprint(NAME, REASON, death("no", file="/srv/shop/cash.py")),
        fingerprint(NAME, REASON, death("no", function="refund")),
        fingerprint(NAME, REASON, None),
    }

    assert len(groups) == 6


def test_it_is_sixteen_digits_of_any_text_and_quick() -> None:
    long = "x" * 20_000
    texts = [
        None,
        "",
        "\n",
        "\udc80",
        long,
        "'" * 20_000,
        '"' * 19_999,
        "1." * 10_000,
        'File "' * 3_000,
        "a" * 19_999 + "1",
    ]
    began = time.process_time()
    found = [fingerprint(NAME, REASON, text) for text in texts]
    spent_s = time.process_time() - began

    assert all(len(one) == 16 and int(one, 16) >= 0 for one in found)
    assert fingerprint(NAME, REASON, "y" * LINE_MAX + "a") == fingerprint(NAME, REASON, "y" * LINE_MAX + "b")
    assert spent_s < 5.0, "no expression that takes longer than the text"
