"""The kinds of destinations without their servers: URLs, options, frames, functions that are called, libraries."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.receivers import stranger
from workq.config.addresses import Allowed
from workq.config.place import place_of
from workq.errors import Cancel, ConfigError, LedgerUnavailable, Retry, Snooze
from workq.messages.kinds import Confirmed, DestinationAddress, Posting, SendFault, Unsent
from workq.messages.kinds.call import CallKind
from workq.messages.kinds.registry import KINDS
from workq.messages.kinds.stomp_frames import Frame, Frames, encoded

CANARY = "c4nary-8d"
FORM = "x://host"
HERE = Allowed.of("loopback")
LONG_S = 30.0


def posting() -> Posting:
    return Posting("id-1", 1, b"x", "text/plain")


# Libraries


def test_a_kind_imports_its_library_when_it_is_made() -> None:
    code = """
import sys
from workq.messages.kinds.registry import KINDS
names = {"pika", "redis", "confluent_kafka", "aiohttp"}
assert not names & set(sys.modules), sys.modules
assert KINDS["call"]().name == "call"
assert KINDS["stomp"]().name == "stomp"
assert not names & set(sys.modules), sys.modules
assert KINDS["redis"]().name == "redis"
assert names & set(sys.modules) == {"redis"}, sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("kind", "library", "extra"),
    [
        ("amqp", "pika", "rabbitmq"),
        ("kafka", "confluent_kafka", "kafka"),
        ("redis", "redis", "redis"),
        ("http", "aiohttp", "webhooks"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(kind: str, library: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{library!r}] = None
from workq.errors import MissingExtra
from workq.messages.kinds.registry import KINDS
try:
    KINDS[{kind!r}]()
except MissingExtra as error:
    assert "[{extra}]" in str(error), error
else:
    raise SystemExit("made without its library")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_each_kind_is_there_by_its_name() -> None:
    assert list(KINDS) == ["amqp", "kafka", "stomp", "redis", "http", "call"]
    assert [made().name for made in KINDS.values()] == list(KINDS)


# URLs


def place(url: object, *, hosts_max: int = 1) -> Any:
    return place_of(url, {"x": 1000, "xs": 1001}, form=FORM, tls="xs", hosts_max=hosts_max)


def test_a_url_is_taken_apart_and_shown_without_its_password() -> None:
    found = place(f"xs://us%40er:{CANARY}%2F@Host.example:99/a%2Fb")

    assert (found.user, found.password, found.hosts) == ("us@er", f"{CANARY}/", (("host.example", 99),))
    assert (found.path, found.is_tls) == ("a/b", True)
    assert str(found) == "xs://us%40er:***@host.example:99/a%2Fb"
    assert CANARY not in f"{found!r}"
    assert found.clean(f"it says\n{CANARY}%2F and {CANARY}/") == "it says *** and ***"
    assert place("x://[::1]:7,b", hosts_max=2).hosts == (("::1", 7), ("b", 1000))
    assert str(place("x://[::1]")) == "x://[::1]:1000"


@pytest.mark.parametrize(
    ("url", "login"),
    [("x://h", ("g", "g")), ("x://u@h", ("u", "g")), ("x://u:@h", ("u", "")), ("x://u:p%40@h", ("u", "p@"))],
)
def test_what_a_url_leaves_out_of_a_login_is_the_usual_one_and_an_empty_password_is_not_left_out(
    url: str, login: tuple[str, str]
) -> None:
    assert place(url).login("g") == login


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        7,
        CANARY,
        f"y://u:{CANARY}@host",
        f"x://u:{CANARY}@",
        f"x://u:{CANARY}/@host",
        f"x://u:{CANARY}@host@other",
        f"x://u:{CANARY}@host?x=1",
        f"x://u:{CANARY}@host#x",
        f"x://u:{CANARY}@host:0",
        f"x://u:{CANARY}@host:99999",
        f"x://u:{CANARY}@host:{CANARY}",
        f"x://u:{CANARY}@ho st",
        f"x://u:{CANARY}@one,two",
        f"x://u:{CANARY}@127.1",
        f"x://u:{CANARY}@2130706433",
        f"x://u:{CANARY}@::1",
        f"x://u:{CANARY}@[{CANARY}]",
        f"x://u:{CANARY}@[fe80::1%25eth0]",
        f"x://u:{CANARY}@höst",
        f"x://{'u' * 3000}:{CANARY}@host",
    ],
)
def test_a_url_that_is_none_is_refused_and_not_shown(url: object) -> None:
    with pytest.raises(ConfigError, match=f"need {FORM}") as failed:
        place(url)
    assert CANARY not in str(failed.value)


@pytest.mark.parametrize(
    ("kind", "options", "word"),
    [
        ("amqp", {"url": "amqp://h", "exchange": ""}, "routing_key"),
        ("amqp", {"url": "amqp://h", "exchange": "e", "routing_key": "k" * 256}, "routing_key"),
        ("amqp", {"url": "amqp://h", "exchange": "e", "ca_file": "/x"}, "they are for TLS"),
        ("amqp", {"url": "amqps://h", "exchange": "e", "ca_file": "x"}, "absolute path"),
        ("amqp", {"url": "amqps://h", "exchange": "e", "key_file": "/x"}, "cert_file"),
        ("kafka", {"url": "kafka://h", "topic": "a b"}, "topic"),
        ("kafka", {"url": "kafka://h/t", "topic": "t"}, "nothing follows"),
        ("kafka", {"url": "kafka://user@h", "topic": "t"}, "a user and a password"),
        ("kafka", {"url": "kafka://u:p@h", "topic": "t", "mechanism": "GSSAPI"}, "mechanism"),
        ("kafka", {"url": "kafka://h", "topic": "t", "client": 7}, "client"),
        ("stomp", {"url": "stomp://h/a", "address": "a"}, "nothing follows"),
        ("stomp", {"url": "stomp://h", "address": "a\nb"}, "address"),
        ("stomp", {"url": "stomp://h", "address": "a", "routing": "both"}, "routing"),
        ("redis", {"url": "redis://h"}, "stream, list"),
        ("redis", {"url": "redis://h", "stream": "s", "list": "l"}, "stream, list"),
        ("redis", {"url": "redis://h/x", "stream": "s"}, "database"),
        ("redis", {"url": "redis://h", "stream": "s", "maxlen": 0}, "maxlen"),
        ("redis", {"url": "redis://h", "stream": "s", "replicas": True}, "replicas"),
        ("http", {"url": "http://u@h/"}, "a user and a password"),
        ("http", {"url": "http://whsec_short@h/"}, "secret"),
        ("http", {"url": "ftp://h/"}, "URL"),
        ("http", {"url": "http://h/#x"}, "URL"),
        ("call", {"handler": "name"}, "handler"),
        ("call", {"handler": "a.b; c"}, "handler"),
    ],
)
def test_an_option_that_is_not_right_is_named(kind: str, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        KINDS[kind]().check(options)


# Frames of STOMP


def test_frames_are_found_in_whatever_pieces_they_come() -> None:
    told = b"CONNECTED\nversion:1.2\nserver:a\\cb\\\\n\\n\n\n\0\n\nRECEIPT\r\nreceipt-id:7\r\n\r\n\0"
    told += b"MESSAGE\ncontent-length:3\n\na\0b\0ERROR\nmessage:no\nmessage:twice\n\nwhy\0"
    expected = [
        Frame("CONNECTED", {"version": "1.2", "server": "a:b\\n\n"}),
        Frame("RECEIPT", {"receipt-id": "7"}),
        Frame("MESSAGE", {"content-length": "3"}, b"a\0b"),
        Frame("ERROR", {"message": "no"}, b"why"),
    ]

    for size in (1, 2, 3, 7, len(told)):
        frames = Frames()
        found = [one for at in range(0, len(told), size) for one in frames.add(told[at : at + size])]
        assert found == expected
    assert expected[-1].said == "no why"


@pytest.mark.parametrize("told", [b"HTTP/1.1 400 Bad", b"\x15\x03\x01\0\x02", b"AMQP\0\0\x09\x01", b"HELLO\n\n\0"])
def test_what_is_no_stomp_is_known_at_once(told: bytes) -> None:
    with pytest.raises(ValueError, match="it begins with"):
        list(Frames().add(told))


def test_a_header_cannot_become_another_one() -> None:
    assert encoded("SEND", {"a\nb:c": "d\r\nreceipt:1\\"}, b"x") == (
        b"SEND\na\\nb\\cc:d\\r\\nreceipt\\c1\\\\\ncontent-length:1\n\nx\0"
    )


# Functions


BEHAVIOUR: Callable[[Posting], object] = print


def behave(one: Posting) -> object:
    """A user's function, which does what the test says."""
    return BEHAVIOUR(one)


@contextlib.contextmanager
def calling(function: Callable[[Posting], object], *, timeout_s: float = LONG_S) -> Iterator[Callable[[], Any]]:
    global BEHAVIOUR
    BEHAVIOUR = function
    kind = CallKind()
    link = kind.open(DestinationAddress("c", kind.check({"handler": f"{__name__}.behave"})), allowed=HERE)
    try:
        yield lambda: link.send([posting()], timeout_s=timeout_s)[0]
    finally:
        link.close()


@pytest.mark.parametrize(
    ("error", "fault", "after_s"),
    [
        (ValueError("bad"), SendFault.LATE, None),
        (TimeoutError("slow"), SendFault.LATE, None),
        (SystemExit(3), SendFault.LATE, None),
        (ConnectionRefusedError("away"), SendFault.AWAY, None),
        (LedgerUnavailable("away"), SendFault.AWAY, None),
        (Retry("later", in_s=9.0), SendFault.ASKED, 9.0),
        (Snooze(4.0), SendFault.ASKED, 4.0),
        (Cancel("never"), SendFault.MESSAGE, None),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else None,
)
def test_what_a_function_raises_says_what_becomes_of_the_message(
    error: BaseException, fault: SendFault, after_s: float | None
) -> None:
    def raising(_: Posting) -> None:
        raise error

    with calling(raising) as call:
        answer = call()
        again = call()

    assert (answer.fault, answer.after_s) == (fault, after_s)
    assert again == answer


def test_a_function_that_does_not_return_is_late_and_gets_no_other_message_meanwhile() -> None:
    goes_on, got = threading.Event(), []

    def hanging(one: Posting) -> None:
        got.append(one)
        goes_on.wait(LONG_S)

    with calling(hanging, timeout_s=0.2) as call:
        answers = [call(), call()]
        goes_on.set()
        deadline = time.monotonic() + LONG_S
        while not isinstance(call(), Confirmed):
            assert time.monotonic() < deadline

    assert [one.fault for one in answers] == [SendFault.LATE, SendFault.AWAY]
    assert len(got) == 2


@pytest.mark.parametrize(
    "handler", ["no_such_module_here.f", f"{__name__}.nothing", f"{__name__}.CANARY", "module_that_exits.f"]
)
def test_a_function_that_is_not_there_is_no_target(
    handler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_that_exits.py").write_text("import sys\nsys.exit(2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    link = CallKind().open(DestinationAddress("c", {"handler": handler}), allowed=HERE)

    [answer] = link.send([posting()], timeout_s=LONG_S)

    assert isinstance(answer, Unsent)
    assert answer.fault is SendFault.NO_TARGET
    assert link.test(timeout_s=LONG_S) == [answer.text]
    link.close()


# Strangers


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("amqp", {"exchange": "", "routing_key": "q"}),
        ("kafka", {"topic": "t"}),
        ("stomp", {"address": "a"}),
        ("redis", {"stream": "s"}),
    ],
)
@pytest.mark.parametrize("told", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, b"\0" * 64, b""])
def test_what_speaks_another_protocol_confirms_nothing(kind: str, options: dict[str, Any], told: bytes) -> None:
    with stranger(told) as (port, _):
        made = KINDS[kind]()
        given = {"url": f"{kind}://u:{CANARY}@127.0.0.1:{port}", **options}
        link = made.open(DestinationAddress("s", made.check(given), url=given["url"]), allowed=HERE)
        answers = link.send([posting(), posting()], timeout_s=3.0)
        problems = link.test(timeout_s=3.0)
        link.close()

    assert all(isinstance(one, Unsent) for one in answers)
    assert problems
    assert CANARY not in f"{answers} {problems}"
