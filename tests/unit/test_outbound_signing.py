"""Signatures: the independent library accepts ours, and `verify` its; nothing else passes, nothing else is raised."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from email.message import Message
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from workq.errors import ConfigError, VerificationFailed
from workq.outbound.signing import check_secret, signed
from workq.webhooks import new_secret, verify

SECRET, OTHER = new_secret(), new_secret()
BODY = json.dumps({"type": "invoice.paid", "data": {"text": "\u00fc \u2603"}}, ensure_ascii=False).encode()


def headers(*secrets: str, body: bytes = BODY, at: datetime | None = None) -> dict[str, str]:
    return signed(secrets or (SECRET,), message_id="msg_1", body=body, at=at or datetime.now(UTC))


def test_a_new_secret_is_32_random_bytes_and_no_two_are_alike() -> None:
    secrets = {new_secret() for _ in range(50)}

    assert len(secrets) == 50
    assert {len(base64.b64decode(check_secret(one).removeprefix("whsec_"))) for one in secrets} == {32}


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!!", "whsec_QUJD", "QUJD" * 11, None, 7])
def test_what_is_no_secret_is_refused_without_being_shown(secret: Any) -> None:
    with pytest.raises(ConfigError, match="whsec_") as raised:
        check_secret(secret)

    assert "QUJD" not in str(raised.value)


@pytest.mark.parametrize("secret", [None, [], [None], b"whsec_", "whsec_", 7])
def test_who_verifies_without_a_secret_is_told_so(secret: Any) -> None:
    with pytest.raises(ConfigError, match="secret: need whsec_"):
        verify(headers(), BODY, secret)


@pytest.mark.parametrize("hours", [0, 5, -8])
def test_the_independent_library_accepts_what_we_sign_wherever_our_clock_is(hours: int) -> None:
    at = datetime.now(timezone(timedelta(hours=hours)))

    assert Webhook(SECRET).verify(BODY, headers(at=at)) == json.loads(BODY)


def test_we_accept_what_the_independent_library_signs() -> None:
    now = datetime.now(UTC)
    theirs = {
        "Webhook-Id": "msg_9",
        "Webhook-Timestamp": str(int(now.timestamp())),
        "Webhook-Signature": Webhook(SECRET).sign("msg_9", now, BODY.decode()),
    }

    assert verify(theirs, BODY, SECRET) == "msg_9"


def test_under_an_alias_the_same_is_said_again() -> None:
    now = datetime.now(UTC)

    both = signed((SECRET, OTHER), message_id="msg_1", body=BODY, at=now, alias="svix")

    assert both == {
        **signed((SECRET, OTHER), message_id="msg_1", body=BODY, at=now),
        **{f"svix-{part}": both[f"webhook-{part}"] for part in ("id", "timestamp", "signature")},
    }
    assert len(both) == 6


def test_headers_are_taken_as_frameworks_have_them() -> None:
    told = headers()
    message = Message()
    for name, value in told.items():
        message[name.title()] = value
    raw = [(name.encode(), value.encode()) for name, value in told.items()]

    assert [verify(one, BODY, SECRET) for one in (message, raw, list(told.items()))] == ["msg_1"] * 3


def test_while_a_secret_is_replaced_both_are_accepted() -> None:
    during, after = headers(OTHER, SECRET), headers(OTHER)

    assert [verify(during, BODY, one) for one in (SECRET, OTHER)] == ["msg_1", "msg_1"]
    assert [Webhook(one).verify(BODY, during) for one in (SECRET, OTHER)] == [json.loads(BODY)] * 2
    assert verify(headers(SECRET), BODY, [OTHER, SECRET]) == "msg_1"
    with pytest.raises(VerificationFailed, match="no signature fits"):
        verify(after, BODY, SECRET)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"webhook-id": "msg_2"}, "no signature fits"),
        ({"webhook-id": ""}, "webhook-id is missing"),
        ({"webhook-timestamp": "1"}, "s old"),
        ({"webhook-timestamp": "99999999999"}, "ahead"),
        ({"webhook-timestamp": "soon"}, "no number"),
        ({"webhook-timestamp": "\u0661\u0662"}, "no number"),
        ({"webhook-timestamp": "9" * 400}, "no number"),
        ({"webhook-timestamp": "-5"}, "no number"),
        ({"webhook-signature": "v1,"}, "no signature fits"),
        ({"webhook-signature": "nonsense"}, "no signature fits"),
        ({"webhook-signature": "v1a,abc v2,def"}, "no signature fits"),
        ({"webhook-signature": "\u2603"}, "no signature fits"),
        ({"webhook-signature": "\ud800"}, "cannot be read"),
        ({"webhook-signature": 7}, "cannot be read"),
    ],
)
def test_what_was_changed_is_refused_with_the_reason(change: dict[str, Any], said: str) -> None:
    with pytest.raises(VerificationFailed, match=said):
        verify({**headers(), **change}, BODY, SECRET)


@pytest.mark.parametrize("body", [BODY + b" ", BODY[:-1], b"", b"\xff\xfe", "text", BODY.decode().upper()])
def test_another_body_is_refused(body: bytes | str) -> None:
    with pytest.raises(VerificationFailed):
        verify(headers(), body, SECRET)


def test_how_old_it_may_be_is_said_in_seconds() -> None:
    at = datetime.now(UTC)
    told = headers(at=at)

    assert verify(told, BODY, SECRET, tolerance_s=10, now=at.timestamp() + 9) == "msg_1"
    assert verify(told, BODY, SECRET, tolerance_s=10, now=at.timestamp() - 9) == "msg_1"
    for now in (at.timestamp() + 12, at.timestamp() - 12):
        with pytest.raises(VerificationFailed, match="allowed are 10 s"):
            verify(told, BODY, SECRET, tolerance_s=10, now=now)


@given(st.dictionaries(st.text(), st.text() | st.none() | st.integers()), st.binary() | st.text())
def test_whatever_is_sent_only_its_own_error_is_raised(sent: Any, body: Any) -> None:
    named = {name: sent.get(name, "1") for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
    requests: list[Any] = [sent, {**sent, **named}, None, 7, [("a",)]]
    for one in requests:
        with pytest.raises(VerificationFailed):
            verify(one, body, SECRET)
