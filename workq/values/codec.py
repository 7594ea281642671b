"""JSON in and out: task arguments, results, and the envelope of a hint. msgspec does the work; no pickle anywhere.

Arguments are checked, not coerced: what JSON cannot carry exactly (sets, bytes, NaN, lone surrogates, keys that are
not text) is refused with the path of the offender, so that what a handler receives is what was passed.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from workq.errors import PayloadError

PAYLOAD_MAX_BYTES: Final = 256 * 1024
DEPTH_MAX: Final = 100
DIGITS_MAX: Final = 4000
"""Integers above this many digits are refused: Python itself refuses to print more than 4,300."""
HINT_MAX_BYTES: Final = 64 * 1024
HINT_VERSION: Final = 1
MARKER_VERSION: Final = 2
"""A marker is a message of its own: to a worker that knows only hints it is a newer version, and is handed on."""
WAIT_MAX_MS: Final = 1000
"""No hint of ours tells its consumer to wait for longer."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_INT_MAX: Final = 10**DIGITS_MAX


def encode(value: Any, *, path: str, max_bytes: int = PAYLOAD_MAX_BYTES) -> str:
    """JSON text of `value`, which must survive the round trip.

    Raises:
        PayloadError: names the offending place below `path`, or the size and the limit.
    """
    _check(value, path, 0)
    try:
        body = _encoder.encode(value)
    except (OverflowError, msgspec.MsgspecError, UnicodeError, TypeError, ValueError):
        body = _encode_big(value, path)
    if len(body) > max_bytes:
        raise PayloadError(
            f"{path}: {len(body)} bytes of JSON, more than the limit of {max_bytes}; "
            "store the data elsewhere and pass a reference"
        )
    return body.decode("utf-8")


def decode(text: str | bytes) -> Any:
    """The value of JSON text that `encode` made."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise PayloadError(f"not JSON: {error}") from error


def _encode_big(value: Any, path: str) -> bytes:
    import json

    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except (TypeError, ValueError, UnicodeError) as error:
        raise PayloadError(f"{path}: {error}") from error


def _check(value: Any, path: str, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise PayloadError(f"{path}: nested more than {DEPTH_MAX} levels deep, or circular")
    if value is None or value is True or value is False:
        return
    kind = type(value)
    if kind is str:
        _check_text(value, path)
    elif kind is int:
        if not -_INT_MAX < value < _INT_MAX:
            raise PayloadError(f"{path}: an integer of more than {DIGITS_MAX} digits")
    elif kind is float:
        if not math.isfinite(value):
            raise PayloadError(f"{path}: {value} is not JSON")
    elif kind is list or kind is tuple:
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise PayloadError(f"{path}: the key {key!r} is {type(key).__name__}; JSON keys are text")
            _check_text(key, path)
            _check(item, f"{path}.{key}", depth + 1)
    else:
        raise PayloadError(f"{path}: {kind.__name__} is not JSON; pass text, numbers, lists or dictionaries")


def _check_text(value: str, path: str) -> None:
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PayloadError(f"{path}: text with a lone surrogate is not valid Unicode") from error
    if "\x00" in value:
        raise PayloadError(f"{path}: text with a NUL character; PostgreSQL cannot store it")


def storable(text: str, *, characters_max: int) -> str:
    """The beginning of any text, as every ledger can store it: no NUL and no lone surrogates.

    For what people and exceptions say, which must never keep an outcome from being written.
    """
    return (
        str.__str__(text)[:characters_max]
        .replace("\x00", "\\x00")
        .encode("utf-8", "backslashreplace")
        .decode("utf-8")[:characters_max]
    )


class Envelope(msgspec.Struct, frozen=True):
    """A hint as it travels: version, queue, ids, and how often unknown ids were looked up already.

    `waits_ms`: how long its consumer waits before it looks at each id, if for any; a consumer that does not know of it
    looks too early, and sends the hint on its way once more. Or a marker: then there are no ids.
    """

    queue: str
    task_ids: tuple[str, ...]
    looks: int = 0
    marker: str | None = None
    waits_ms: tuple[int, ...] = ()


class _Wire(msgspec.Struct):
    v: int
    q: str
    ids: list[str] = msgspec.field(default_factory=list)
    n: int = 0
    m: str | None = None
    w: list[int] = msgspec.field(default_factory=list)


_wire_decoder = msgspec.json.Decoder(_Wire)


def encode_hint(envelope: Envelope) -> bytes:
    """The message body of a hint or a marker."""
    if envelope.marker is not None:
        return _encoder.encode({"v": MARKER_VERSION, "q": envelope.queue, "m": envelope.marker})
    wire = {"v": HINT_VERSION, "q": envelope.queue, "ids": envelope.task_ids}
    if envelope.looks:
        wire["n"] = envelope.looks
    if envelope.waits_ms:
        wire["w"] = envelope.waits_ms
    return _encoder.encode(wire)


def decode_hint(body: bytes) -> Envelope | str:
    """The envelope in a message body, or the reason why it is not one of ours.

    Reasons: `empty`, `too_large`, `not_json`, `bad_envelope`, `newer_version`.
    """
    if not body:
        return "empty"
    if len(body) > HINT_MAX_BYTES:
        return "too_large"
    try:
        wire = _wire_decoder.decode(body)
    except msgspec.ValidationError:
        return _why_invalid(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "not_json"
    if wire.v == MARKER_VERSION:
        is_ours = wire.m is not None and is_task_id(wire.m) and not wire.ids
        return Envelope(wire.q, (), 0, wire.m) if is_ours else "bad_envelope"
    if wire.v != HINT_VERSION:
        return "newer_version" if wire.v > MARKER_VERSION else "bad_envelope"
    is_sane = 0 <= wire.n <= 100 and (not wire.w or _fit(wire.w, wire.ids))
    if not wire.ids or not is_sane or not all(map(is_task_id, wire.ids)):
        return "bad_envelope"
    return Envelope(wire.q, tuple(wire.ids), wire.n, waits_ms=tuple(wire.w))


def _fit(waits_ms: list[int], ids: list[str]) -> bool:
    return len(waits_ms) == len(ids) and min(waits_ms) >= 0 and max(waits_ms) <= WAIT_MAX_MS


def _why_invalid(body: bytes) -> str:
    try:
        value = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "not_json"
    version = value.get("v") if isinstance(value, dict) else None
    if isinstance(version, int) and not isinstance(version, bool) and version > MARKER_VERSION:
        return "newer_version"
    return "bad_envelope"


_TASK_ID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_task_id(text: str) -> bool:
    """Whether text has the canonical form of a task id (a UUID in lower case with hyphens)."""
    return _TASK_ID.fullmatch(text) is not None


def made_at_s(task_id: str) -> float | None:
    """When the client made this id, in seconds since 1970 by its own clock; None when it is no UUIDv7."""
    return int(task_id[:8] + task_id[9:13], 16) / 1000 if is_task_id(task_id) and task_id[14] == "7" else None


def new_task_id() -> str:
    """A new UUIDv7: unique without asking anyone, and sorted by time."""
    import uuid

    make = getattr(uuid, "uuid7", None)
    if make is None:
        import uuid_utils

        make = uuid_utils.uuid7
    return str(make())
