"""Whatever a receiver does, or who stands in its place: an attempt ends in time, with a class that says what it was."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.faults.egress import refusing
from tests.faults.receivers import (
    BODY,
    HERE,
    OK,
    SHORT_S,
    Handler,
    answering,
    client_trust,
    closed,
    full,
    keeping,
    request_of,
    saying,
    server_trust,
    serving,
    silent,
    status,
    unknown,
)
from workq.outbound.answer_limits import ANSWER_MAX_BYTES
from workq.outbound.post import Answer, ErrorClass, Sender
from workq.outbound.signing import signed
from workq.outbound.target import TargetPolicy
from workq.webhooks import new_secret

Attempt = Callable[[Path], Answer]
"""One attempt. It is given a certificate for hooks.example, with its key."""


async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request_of(reader)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks HTTP to whatever comes."""
    await reader.read(10)
    writer.write(status(400))


def post(handler: Handler, *, scheme: str = "http", policy: TargetPolicy = HERE, **options: Any) -> Answer:
    """One attempt at a server that does so."""

    async def one() -> Answer:
        async with serving(handler) as port, Sender(policy, total_s=SHORT_S, **options) as sender:
            return await sender.post(f"{scheme}://127.0.0.1:{port}/hooks", BODY, {})

    return asyncio.run(one())


def to(url: str, *, lookup: Any = socket.getaddrinfo, policy: TargetPolicy = HERE, **options: Any) -> Answer:
    """One attempt at this URL."""

    async def one() -> Answer:
        async with Sender(policy, total_s=SHORT_S, lookup=lookup, **options) as sender:
            return await sender.post(url, BODY, {})

    return asyncio.run(one())


def at(handler: Handler, *, scheme: str = "http") -> Attempt:
    return lambda _: post(handler, scheme=scheme)


def calling(url: str, **options: Any) -> Attempt:
    return lambda _: to(url, **options)


def with_its_certificate(name: str, *, is_trusted: bool = True) -> Attempt:
    """At a server with a certificate for hooks.example, by this name."""

    def attempt(certificate: Path) -> Answer:
        trust = client_trust(certificate if is_trusted else None)

        async def one() -> Answer:
            async with (
                serving(saying(status(200, "Connection: close")), trust=server_trust(certificate)) as port,
                Sender(HERE, total_s=5.0, trust=trust, lookup=answering("127.0.0.1")) as sender,
            ):
                return await sender.post(f"https://{name}:{port}/", BODY, {})

        return asyncio.run(one())

    return attempt


def where_nothing_listens(_: Path) -> Answer:
    with closed() as port:
        return to(f"http://127.0.0.1:{port}/")


def where_no_connection_is_accepted(_: Path) -> Answer:
    with full() as port:
        return to(f"http://127.0.0.1:{port}/", connect_s=0.3)


def through_a_proxy_that_refuses(_: Path) -> Answer:
    async def one() -> Answer:
        async with serving(refusing(403).serve) as port:
            policy = TargetPolicy.of("loopback", proxy=f"http://127.0.0.1:{port}")
            async with Sender(policy, total_s=SHORT_S) as sender:
                return await sender.post("https://hooks.example/", BODY, {})

    return asyncio.run(one())


def through_a_proxy_that_is_not_there(_: Path) -> Answer:
    with closed() as port:
        return to("https://hooks.example/", policy=TargetPolicy.of("loopback", proxy=f"http://127.0.0.1:{port}"))


CASES: dict[str, tuple[Attempt, ErrorClass | None, int | None]] = {
    "200": (at(saying(status(200))), None, 200),
    "202": (at(saying(status(202))), None, 202),
    "204": (at(saying(b"HTTP/1.1 204 No Content\r\n\r\n")), None, 204),
    "204 with a body": (at(saying(b"HTTP/1.1 204 No Content\r\n\r\nok")), None, 204),
    "204 with a body and its length": (
        at(saying(b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok")),
        None,
        204,
    ),
    "204 with a body, in pieces": (at(saying(b"HTTP/1.1 204 No Content\r\n\r", rest=b"\nok", every_s=0.05)), None, 204),
    "204 with a body, after early hints": (
        at(saying(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\nok")),
        None,
        204,
    ),
    "304 with a body": (at(saying(b"HTTP/1.1 304 Not Modified\r\n\r\nok")), ErrorClass.REDIRECT, 304),
    "a body longer than its length": (
        at(saying((OK + "Content-Length: 2\r\n\r\nokmore").encode())),
        ErrorClass.PROTOCOL,
        None,
    ),
    "301": (at(saying(status(301, "Location: http://169.254.169.254/"))), ErrorClass.REDIRECT, 301),
    "302": (at(saying(status(302, "Location: /elsewhere"))), ErrorClass.REDIRECT, 302),
    "307": (at(saying(status(307, "Location: https://example.org/"))), ErrorClass.REDIRECT, 307),
    "304": (at(saying(status(304))), ErrorClass.REDIRECT, 304),
    "400": (at(saying(status(400))), ErrorClass.CLIENT_ERROR, 400),
    "401": (at(saying(status(401))), ErrorClass.CLIENT_ERROR, 401),
    "404": (at(saying(status(404))), ErrorClass.CLIENT_ERROR, 404),
    "410": (at(saying(status(410))), ErrorClass.GONE, 410),
    "499, which has no name": (at(saying(status(499))), ErrorClass.CLIENT_ERROR, 499),
    "429": (at(saying(status(429, "Retry-After: 7"))), ErrorClass.THROTTLED, 429),
    "500": (at(saying(status(500))), ErrorClass.SERVER_ERROR, 500),
    "503": (at(saying(status(503))), ErrorClass.SERVER_ERROR, 503),
    "no answer": (at(silent), ErrorClass.ANSWER_TIMEOUT, None),
    "headers that drip": (at(saying(OK.encode(), rest=b"x: y\r\n", every_s=0.05)), ErrorClass.ANSWER_TIMEOUT, None),
    "half a status": (at(saying(b"HTTP/1.1 2", rest=b"", every_s=0.1)), ErrorClass.ANSWER_TIMEOUT, None),
    "a body that stops": (
        at(saying((OK + "Content-Length: 9\r\n\r\nab").encode(), every_s=0.1)),
        ErrorClass.BODY_TIMEOUT,
        200,
    ),
    "a body that drips": (
        at(saying((OK + "Content-Length: 9000\r\n\r\n").encode(), rest=b".", every_s=0.02)),
        ErrorClass.BODY_TIMEOUT,
        200,
    ),
    "an endless body": (
        at(saying((OK + "Connection: close\r\n\r\n").encode(), rest=b"x" * 65_536, every_s=0.0)),
        None,
        200,
    ),
    "closed without an answer": (at(saying(b"")), ErrorClass.RESET, None),
    "closed in its body": (at(saying((OK + "Content-Length: 9\r\n\r\nab").encode())), ErrorClass.RESET, 200),
    "reset": (at(resetting), ErrorClass.RESET, None),
    "another protocol": (at(saying(b"SSH-2.0-OpenSSH_9.2\r\n")), ErrorClass.PROTOCOL, None),
    "a header of a megabyte": (
        at(saying((OK + "x: " + "y" * 1_000_000 + "\r\n\r\n").encode())),
        ErrorClass.PROTOCOL,
        None,
    ),
    "two lengths": (
        at(saying((OK + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab").encode())),
        ErrorClass.PROTOCOL,
        None,
    ),
    "nothing listens there": (where_nothing_listens, ErrorClass.REFUSED, None),
    "no connection is accepted": (where_no_connection_is_accepted, ErrorClass.CONNECT_TIMEOUT, None),
    "a handshake that does not end": (at(saying(b""), scheme="https"), ErrorClass.CONNECT_TIMEOUT, None),
    "a name without an address": (calling("http://nowhere.example/", lookup=unknown), ErrorClass.DNS, None),
    "no way leads there": (
        calling("http://far.example/", lookup=answering("255.255.255.255"), policy=TargetPolicy.of("*")),
        ErrorClass.UNREACHABLE,
        None,
    ),
    "a certificate of its name": (with_its_certificate("hooks.example"), None, 200),
    "a certificate of another name": (with_its_certificate("other.example"), ErrorClass.TLS, None),
    "a certificate that nobody trusts": (
        with_its_certificate("hooks.example", is_trusted=False),
        ErrorClass.TLS,
        None,
    ),
    "https at a port for http": (at(plain, scheme="https"), ErrorClass.TLS, None),
    "an inner address": (calling("http://10.0.0.5/", policy=TargetPolicy.of()), ErrorClass.BLOCKED, None),
    "a name that leads to one": (
        calling("http://rebind.example/", lookup=answering("10.0.0.5"), policy=TargetPolicy.of()),
        ErrorClass.BLOCKED,
        None,
    ),
    "a proxy that refuses": (through_a_proxy_that_refuses, ErrorClass.PROXY, None),
    "a proxy that is not there": (through_a_proxy_that_is_not_there, ErrorClass.PROXY, None),
}


@pytest.mark.parametrize("name", CASES)
def test_whatever_comes_of_an_attempt_has_one_class(name: str, certificate: Path) -> None:
    attempt, expected, code = CASES[name]

    found = attempt(certificate)

    assert (found.error_class, found.status) == (expected, code)
    assert bool(found.error) == (expected is not None)
    assert len(found.body) <= ANSWER_MAX_BYTES
    assert found.is_cut == (name == "an endless body")


def test_each_class_of_failure_is_in_the_table() -> None:
    assert {expected for _, expected, _ in CASES.values()} == {None, *ErrorClass}


def test_of_an_endless_body_16_kib_are_kept(tmp_path: Path) -> None:
    found = CASES["an endless body"][0](tmp_path)

    assert found.body == b"x" * ANSWER_MAX_BYTES


def test_which_tls_it_was_is_kept_also_of_an_empty_answer(certificate: Path) -> None:
    encrypted, clear = CASES["a certificate of its name"][0](certificate), CASES["200"][0](certificate)

    assert encrypted.tls is not None
    assert encrypted.tls.startswith("TLSv1")
    assert clear.tls is None


def test_what_it_asks_for_is_kept() -> None:
    assert post(saying(status(429, "Retry-After: 7"))).retry_after == "7"


@pytest.mark.parametrize(
    ("addresses", "blocked"),
    [
        (["10.0.0.5"], "10.0.0.5"),
        (["169.254.169.254"], "169.254.169.254"),
        (["::1"], "::1"),
        (["::ffff:127.0.0.1"], "127.0.0.1"),
        (["8.8.8.8", "127.0.0.1"], "127.0.0.1"),
        (["2606:4700::1111", "10.0.0.5"], "10.0.0.5"),
    ],
)
def test_a_name_with_any_address_that_may_not_be_reached_is_blocked(addresses: list[str], blocked: str) -> None:
    found = to("http://rebind.example/", lookup=answering(*addresses), policy=TargetPolicy.of())

    assert found.error_class is ErrorClass.BLOCKED
    assert found.error.startswith(f"blocked address {blocked} (set WORKQ_WEBHOOK_ALLOW=")
    assert found.addresses == tuple(addresses)
    assert found.address is None, "no socket was made"


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "2130706433", "localhost", "10.0.0.1", "[::1]"])
def test_however_an_inner_address_is_written_nothing_is_sent_there(host: str) -> None:
    reached: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(1))

    async def one() -> Answer:
        async with serving(handler) as port, Sender(TargetPolicy.of("external", "1-65535"), total_s=SHORT_S) as sender:
            return await sender.post(f"http://{host}:{port}/", BODY, {})

    found = asyncio.run(one())

    assert (found.error_class, reached) == (ErrorClass.BLOCKED, [])


def test_a_name_that_changes_its_address_is_judged_anew_at_each_connection() -> None:
    answers = iter([answering("127.0.0.1"), answering("127.0.0.2")])
    policy = TargetPolicy.of("127.0.0.1", "1-65535")

    async def both() -> list[Answer]:
        async with (
            serving(saying(status(200, "Connection: close"))) as port,
            Sender(policy, total_s=SHORT_S, lookup=lambda *a, **k: next(answers)(*a, **k)) as sender,
        ):
            return [await sender.post(f"http://rebind.example:{port}/", BODY, {}) for _ in range(2)]

    first, second = asyncio.run(both())

    assert (first.error_class, second.error_class) == (None, ErrorClass.BLOCKED)
    assert (first.address, second.address) == ("127.0.0.1", None)


def test_the_socket_itself_is_the_last_to_ask() -> None:
    """Also where nobody has looked the name up: an address in the place of a name goes past the resolver."""

    async def one() -> Answer:
        async with serving(saying(status(200))) as port, Sender(HERE, total_s=SHORT_S) as sender:
            sender._guard._allowed = TargetPolicy.of("external").allowed  # as it would be, had the first look missed it
            return await sender.post(f"http://127.0.0.1:{port}/", BODY, {})

    assert asyncio.run(one()).error_class is ErrorClass.BLOCKED


def test_a_name_that_is_permitted_may_have_any_address() -> None:
    policy = TargetPolicy.of("external,hooks.local", "1-65535")

    async def one() -> list[Answer]:
        async with (
            serving(saying(status(200, "Connection: close"))) as port,
            Sender(policy, total_s=SHORT_S, lookup=answering("127.0.0.1")) as sender,
        ):
            return [await sender.post(f"http://{name}.local:{port}/", BODY, {}) for name in ("hooks", "other")]

    assert [found.error_class for found in asyncio.run(one())] == [None, ErrorClass.BLOCKED]


# -- what is sent


def test_each_attempt_carries_the_same_bytes_and_id_and_a_signature_of_its_own() -> None:
    secret, got = new_secret(), list[tuple[dict[str, str], bytes]]()
    body = '{"type":"invoice.paid","text":"\u2603"}'.encode()

    async def three() -> None:
        handler = keeping(got, status(500, "Set-Cookie: a=1; Path=/"))
        async with serving(handler) as port, Sender(HERE, total_s=SHORT_S) as sender:
            for second in range(3):
                at = datetime.now(UTC) - timedelta(seconds=10 * second)
                headers = signed([secret], message_id="msg_1", body=body, at=at)
                await sender.post(f"http://127.0.0.1:{port}/", body, {"x-shop": "7", **headers})

    asyncio.run(three())

    assert [sent for _, sent in got] == [body] * 3
    assert {headers["webhook-id"] for headers, _ in got} == {"msg_1"}
    assert len({headers["webhook-signature"] for headers, _ in got}) == 3
    for headers, sent in got:
        Webhook(secret).verify(sent, headers)
        assert (headers["x-shop"], headers["content-type"]) == ("7", "application/json")
        assert headers["user-agent"].startswith("workq/")
        assert not {"cookie", "authorization"} & set(headers), "nobody gets what another has set"


def test_no_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert post(saying(status(200))).error_class is None


def test_a_connection_that_was_closed_while_it_was_kept_is_no_failure() -> None:
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await request_of(reader)
        writer.write(status(200))
        await reader.read(1)  # the next request, or the end: closed without an answer

    async def two() -> list[Answer]:
        async with serving(once) as port, Sender(HERE, total_s=5.0) as sender:
            return [await sender.post(f"http://127.0.0.1:{port}/", BODY, {}) for _ in range(2)]

    assert [found.error_class for found in asyncio.run(two())] == [None, None]
    assert connections == 2


def test_a_receiver_that_has_gone_while_a_connection_to_it_was_kept_is_refused() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(status(200))
        servers[0].close()
        await reader.read(1)
        writer.close()

    async def two() -> list[Answer]:
        servers.append(await asyncio.start_server(once, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{servers[0].sockets[0].getsockname()[1]}/"
        async with Sender(HERE, total_s=5.0) as sender:
            return [await sender.post(url, BODY, {}) for _ in range(2)]

    servers: list[asyncio.Server] = []
    found = asyncio.run(two())

    assert [one.error_class for one in found] == [None, ErrorClass.REFUSED]
    assert found[1].ms < 4000.0, "it is not tried until the deadline"


def test_a_compressed_answer_is_kept_as_it_came() -> None:
    import gzip

    packed = gzip.compress(b"x" * 10_000_000)
    head = f"{OK}Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()

    found = post(saying(head + packed))

    assert (found.error_class, found.body) == (None, packed[:ANSWER_MAX_BYTES])
