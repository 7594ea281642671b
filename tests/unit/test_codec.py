"""JSON in and out: what is passed is what arrives, or it is refused with its place."""

from __future__ import annotations

import gzip
import json
import math
import pickle
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workq.errors import PayloadError
from workq.values import codec
from workq.values.codec import DIGITS_MAX, HINT_MAX_BYTES, PAYLOAD_MAX_BYTES, Envelope

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)
AN_ID = "01a1fc37-b878-73f8-a202-c5d422001c03"


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


def len_of(value: int) -> str:
    return f"{len(str(value))}_digits"


# -- arguments


@given(JSON)
@example(-0.0)
@example(5e-324)
@example(2**64)
@example('🦀 é \u2028 \\ " \x7f \x1f')
def test_what_is_encoded_arrives_as_it_was(value: Any) -> None:
    text = codec.encode(value, path="args")

    assert repr(codec.decode(text)) == repr(value)
    assert repr(json.loads(text)) == repr(value)


@given(JSON)
def test_equal_values_are_equal_text(value: Any) -> None:
    again = codec.decode(codec.encode(value, path="args"))

    assert codec.encode(again, path="args") == codec.encode(value, path="args")


def test_a_tuple_arrives_as_a_list() -> None:
    assert codec.decode(codec.encode((1, (2, 3)), path="args")) == [1, [2, 3]]


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset(),
        b"bytes",
        bytearray(b"x"),
        memoryview(b"x"),
        object(),
        Decimal("1.5"),
        Fraction(1, 2),
        1j,
        datetime(2026, 1, 1, tzinfo=UTC),
        date(2026, 1, 1),
        timedelta(1),
        UUID(int=1),
        Path("/"),
        lambda: 1,
        print,
        int,
        Colour.RED,
        Word.RED,
        Number.ONE,
        Text("x"),
        OrderedDict(a=1),
        range(3),
        iter([1]),
        ValueError("x"),
        ...,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_carry_exactly_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        codec.encode({"rows": [0, {"x": value}]}, path="kwargs")

    assert str(caught.value).startswith("kwargs.rows[1].x: ")
    assert type(value).__name__ in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_float_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(PayloadError, match=r"^args\[1\]: (nan|inf|-inf) is not JSON"):
        codec.encode([1, value], path="args")


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**100, 10**DIGITS_MAX - 1], ids=len_of)
def test_integers_are_exact_up_to_the_limit(value: int) -> None:
    assert codec.decode(codec.encode({"n": [value, -value]}, path="args")) == {"n": [value, -value]}


@pytest.mark.parametrize(
    "value",
    [10**DIGITS_MAX, -(10**DIGITS_MAX), 10**5000],
    ids=["limit", "minus", "unprintable"],  # Python itself refuses to print the last one
)
def test_an_integer_with_too_many_digits_is_refused(value: int) -> None:
    with pytest.raises(PayloadError, match=f"args.n: an integer of more than {DIGITS_MAX} digits"):
        codec.encode({"n": value}, path="args")


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", "\ud83e\udd80"])
def test_a_lone_surrogate_is_refused_in_text_and_in_keys(value: str) -> None:
    for place in ([value], {value: 1}):
        with pytest.raises(PayloadError, match="surrogate"):
            codec.encode(place, path="args")


@pytest.mark.parametrize("value", ["\x00", "é\x00", "a\x00b"])
def test_a_nul_character_is_refused_in_text_and_in_keys(value: str) -> None:
    for place in ([value], {value: 1}):
        with pytest.raises(PayloadError, match="NUL"):
            codec.encode(place, path="args")


def test_four_byte_characters_are_kept_as_they_are() -> None:
    assert codec.encode("🦀", path="args") == '"🦀"'


@pytest.mark.parametrize("key", [1, 1.5, None, True, (1,), b"k", Word.RED])
def test_keys_are_text(key: Any) -> None:
    with pytest.raises(PayloadError, match=r"^args.deep: the key .* is \w+; JSON keys are text"):
        codec.encode({"deep": {key: 1}}, path="args")


def test_the_limit_counts_encoded_bytes() -> None:
    fits = "é" * ((PAYLOAD_MAX_BYTES - 2) // 2)

    assert len(codec.encode(fits, path="args").encode()) == PAYLOAD_MAX_BYTES
    with pytest.raises(
        PayloadError, match=f"{PAYLOAD_MAX_BYTES + 1} bytes .* limit of {PAYLOAD_MAX_BYTES}; .*reference"
    ):
        codec.encode(fits + "x", path="args")


def test_the_limit_can_be_set() -> None:
    assert codec.encode("x" * 98, path="args", max_bytes=100) == f'"{"x" * 98}"'
    with pytest.raises(PayloadError, match="101 bytes"):
        codec.encode("x" * 99, path="args", max_bytes=100)


def test_a_million_keys_are_over_the_limit() -> None:
    with pytest.raises(PayloadError, match="bytes of JSON"):
        codec.encode({str(number): number for number in range(1_000_000)}, path="args")


@pytest.mark.parametrize("empty", [[], {}, "", None])
def test_nothing_is_something(empty: Any) -> None:
    assert codec.decode(codec.encode(empty, path="args")) == empty


def test_a_circular_reference_is_refused() -> None:
    ring: list[Any] = []
    ring.append({"again": ring})

    with pytest.raises(PayloadError, match="circular"):
        codec.encode(ring, path="args")


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return value

    assert codec.decode(codec.encode(nested(100), path="args")) == nested(100)
    with pytest.raises(PayloadError, match="more than 100 levels"):
        codec.encode(nested(101), path="args")


def test_a_payload_that_changes_afterwards_has_no_effect() -> None:
    value = {"rows": [1]}
    text = codec.encode(value, path="args")
    value["rows"].append(2)

    assert codec.decode(text) == {"rows": [1]}


def test_of_repeated_keys_the_last_one_counts() -> None:
    assert codec.decode('{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize("text", ["", "{", "nul", "[1,]", '"\ud800"', b"\xff", "\ufeff{}", pickle.dumps({"a": 1})])
def test_what_is_not_json_is_refused(text: Any) -> None:
    with pytest.raises(PayloadError, match="not JSON"):
        codec.decode(text)


# -- text of people and exceptions


@given(st.text(st.characters(), max_size=50), st.integers(0, 60))
def test_any_text_can_be_stored(text: str, characters_max: int) -> None:
    stored = codec.storable(text, characters_max=characters_max)

    assert len(stored) <= characters_max
    assert "\x00" not in stored
    codec.encode(stored, path="event")


@given(TEXT)
def test_valid_text_is_stored_as_it_is(text: str) -> None:
    assert codec.storable(text, characters_max=100) == text


# -- hints


@given(
    TEXT.filter(bool),
    st.lists(st.uuids().map(str), min_size=1, max_size=20),
    st.integers(0, 100),
    st.none() | st.integers(0, 900),
)
def test_a_hint_arrives_as_it_was_sent(queue: str, ids: list[str], looks: int, wait_ms: int | None) -> None:
    waits_ms = () if wait_ms is None else tuple(wait_ms + number for number in range(len(ids)))
    envelope = Envelope(queue, tuple(ids), looks, waits_ms=waits_ms)

    assert codec.decode_hint(codec.encode_hint(envelope)) == envelope


def test_a_marker_arrives_as_it_was_sent_and_a_worker_that_knows_only_hints_sees_a_newer_version() -> None:
    marker = Envelope("q", (), 0, AN_ID)

    assert codec.decode_hint(codec.encode_hint(marker)) == marker
    assert json.loads(codec.encode_hint(marker)) == {"v": 2, "q": "q", "m": AN_ID}


def test_a_hint_is_version_queue_and_ids_and_nothing_more() -> None:
    assert json.loads(codec.encode_hint(Envelope("q", (AN_ID,)))) == {"v": 1, "q": "q", "ids": [AN_ID]}
    waits = json.loads(codec.encode_hint(Envelope("q", (AN_ID,), waits_ms=(30,))))
    assert waits == {"v": 1, "q": "q", "ids": [AN_ID], "w": [30]}
    assert json.loads(codec.encode_hint(Envelope("q", (AN_ID,), 2))) == {"v": 1, "q": "q", "ids": [AN_ID], "n": 2}


def test_a_page_of_a_thousand_ids_fits() -> None:
    page = Envelope("q" * 100, tuple(codec.new_task_id() for _ in range(1000)), 9)

    assert codec.decode_hint(codec.encode_hint(page)) == page


def body(**fields: Any) -> bytes:
    return json.dumps({"v": 1, "q": "q", "ids": [AN_ID]} | fields).encode()


@pytest.mark.parametrize(
    ("foreign", "reason"),
    [
        (b"", "empty"),
        (b" " * (HINT_MAX_BYTES + 1), "too_large"),
        (body(q="x" * HINT_MAX_BYTES), "too_large"),
        (b"\x80\x81\xfe", "not_json"),
        (b'{"v":1,"q":"q","ids":["', "not_json"),
        (body() + b"x", "not_json"),
        (b"\xef\xbb\xbf" + body(), "not_json"),
        (body().decode().encode("utf-16"), "not_json"),
        (gzip.compress(body(), mtime=0), "not_json"),
        (pickle.dumps({"v": 1}), "not_json"),
        (b"\x00" * 10, "not_json"),
        (b'{"v":1,"q":"\xff","ids":[]}', "not_json"),
        (b"[" * 60_000, "not_json"),
        (b"[" * 30_000 + b"]" * 30_000, "not_json"),
        (b"[]", "bad_envelope"),
        (b"5", "bad_envelope"),
        (b"null", "bad_envelope"),
        (b'"x"', "bad_envelope"),
        (b"{}", "bad_envelope"),
        (json.dumps({"q": "q", "ids": [AN_ID]}).encode(), "bad_envelope"),
        (json.dumps({"v": 1, "ids": [AN_ID]}).encode(), "bad_envelope"),
        (json.dumps({"v": 1, "q": "q"}).encode(), "bad_envelope"),
        (body(ids=[]), "bad_envelope"),
        (body(ids=AN_ID), "bad_envelope"),
        (body(ids=[1]), "bad_envelope"),
        (body(ids=[None]), "bad_envelope"),
        (body(ids=[AN_ID, "x"]), "bad_envelope"),
        (body(ids=[AN_ID.upper()]), "bad_envelope"),
        (body(ids=[AN_ID + "\n"]), "bad_envelope"),
        (body(q=None), "bad_envelope"),
        (body(q=5), "bad_envelope"),
        (body(n=-1), "bad_envelope"),
        (body(n=101), "bad_envelope"),
        (body(n="1"), "bad_envelope"),
        (body(n=10**30), "bad_envelope"),
        (body(w=30), "bad_envelope"),
        (body(w=[-1]), "bad_envelope"),
        (body(w=[1001]), "bad_envelope"),
        (body(w=[0.5]), "bad_envelope"),
        (body(w=[1, 2]), "bad_envelope"),
        (body(v=0), "bad_envelope"),
        (body(v=-1), "bad_envelope"),
        (body(v="1"), "bad_envelope"),
        (body(v=True), "bad_envelope"),
        (body(v=None), "bad_envelope"),
        (body(v=1.5), "bad_envelope"),
        (b'{"v":-1' + b"0" * 400 + b"}", "bad_envelope"),
        (json.dumps({"v": 2, "other": "shape"}).encode(), "bad_envelope"),
        (body(v=2), "bad_envelope"),
        (json.dumps({"v": 2, "q": "q", "m": "no id"}).encode(), "bad_envelope"),
        (json.dumps({"v": 2, "q": "q", "m": AN_ID, "ids": [AN_ID]}).encode(), "bad_envelope"),
        (body(v=3), "newer_version"),
        (json.dumps({"v": 3, "other": "shape"}).encode(), "newer_version"),
        (body(v=2**63), "newer_version"),
        (b'{"v":1' + b"0" * 400 + b',"q":"q","ids":[]}', "newer_version"),
    ],
)
def test_what_is_no_hint_of_ours_says_why(foreign: bytes, reason: str) -> None:
    assert codec.decode_hint(foreign) == reason


def test_fields_that_we_do_not_know_are_ignored() -> None:
    assert codec.decode_hint(body(trace="x", deep={"a": [1]})) == Envelope("q", (AN_ID,))


@given(st.binary(max_size=200))
def test_any_bytes_get_an_answer(foreign: bytes) -> None:
    assert isinstance(codec.decode_hint(foreign), str | Envelope)


@pytest.mark.parametrize("seed", range(5))
def test_any_damage_to_a_hint_gets_an_answer(seed: int) -> None:
    rng = Random(seed)
    whole = codec.encode_hint(Envelope("default", tuple(codec.new_task_id() for _ in range(3)), 1))
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        found = codec.decode_hint(bytes(damaged[: rng.randint(0, len(damaged))] if rng.random() < 0.3 else damaged))
        assert isinstance(found, str) or all(map(codec.is_task_id, found.task_ids))


# -- ids


def test_new_ids_are_unique_canonical_and_sorted_by_time() -> None:
    ids = [codec.new_task_id() for _ in range(5000)]

    assert len(set(ids)) == 5000
    assert all(codec.is_task_id(one) and UUID(one).version == 7 for one in ids)
    assert [one[:13] for one in ids] == sorted(one[:13] for one in ids)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        AN_ID.upper(),
        AN_ID.replace("-", ""),
        "{" + AN_ID + "}",
        AN_ID + " ",
        AN_ID[:-1],
        AN_ID[:-1] + "g",
        AN_ID[:-1] + "٣",
        AN_ID.replace("-", "_"),
        "-" * 36,
        AN_ID[:9] + "-" + AN_ID[10:],
    ],
)
def test_only_the_canonical_form_is_an_id(text: str) -> None:
    assert not codec.is_task_id(text)
    assert codec.is_task_id(AN_ID)
