"""Whatever a receiver does, or who stands in its place: an attempt ends in time, with a class that says what it was."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from workq.webhooks import new_secret
from workq.webhooks.post import ANSWER_MAX_BYTES, Answer, ErrorClass, Sender
from workq.webhooks.signing import signed
from workq.webhooks.target import Policy

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HERE = Policy.of("loopback", "1-65535")
BODY = b'{"type":"invoice.paid"}'
SHORT_S = 0.6


@contextlib.asynccontextmanager
async def serving(handler: Handler, *, trust: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that does to each connection what it is told to; answers its port."""
    open_ones: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        with contextlib.suppress(OSError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=trust)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in open_ones:
            writer.transport.abort()
        await asyncio.sleep(0)


async def request_of(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """The headers and the body of one request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    return headers, await reader.readexactly(int(headers["content-length"]))


def saying(answer: bytes, *, rest: bytes = b"", every_s: float | None = None) -> Handler:
    """Answers so; then, if it has a rest, with that again and again."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(answer)
        while every_s is not None:
            writer.write(rest)
            await writer.drain()
            await asyncio.sleep(every_s)
        await writer.drain()

    return handler


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request_of(reader)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def status(code: int, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {code} X", "Content-Length: 0", *headers, "", ""]
    return "\r\n".join(lines).encode()


OK = "HTTP/1.1 200 OK\r\n"
CASES: dict[str, tuple[Handler, ErrorClass | None, int | None]] = {
    "200": (saying(status(200)), None, 200),
    "202": (saying(status(202)), None, 202),
    "204": (saying(b"HTTP/1.1 204 No Content\r\n\r\n"), None, 204),
    "301": (saying(status(301, "Location: http://169.254.169.254/")), ErrorClass.REDIRECT, 301),
    "302": (saying(status(302, "Location: /elsewhere")), ErrorClass.REDIRECT, 302),
    "307": (saying(status(307, "Location: https://example.org/")), ErrorClass.REDIRECT, 307),
    "304": (saying(status(304)), ErrorClass.REDIRECT, 304),
    "400": (saying(status(400)), ErrorClass.CLIENT_ERROR, 400),
    "401": (saying(status(401)), ErrorClass.CLIENT_ERROR, 401),
    "404": (saying(status(404)), ErrorClass.CLIENT_ERROR, 404),
    "410": (saying(status(410)), ErrorClass.GONE, 410),
    "418, a word of its own": (saying(status(499)), ErrorClass.CLIENT_ERROR, 499),
    "429": (saying(status(429, "Retry-After: 7")), ErrorClass.THROTTLED, 429),
    "500": (saying(status(500)), ErrorClass.SERVER_ERROR, 500),
    "503": (saying(status(503)), ErrorClass.SERVER_ERROR, 503),
    "no answer": (silent, ErrorClass.ANSWER_TIMEOUT, None),
    "headers that drip": (saying(OK.encode(), rest=b"x: y\r\n", every_s=0.05), ErrorClass.ANSWER_TIMEOUT, None),
    "half a status": (saying(b"HTTP/1.1 2", rest=b"", every_s=0.1), ErrorClass.ANSWER_TIMEOUT, None),
    "a body that stops": (
        saying((OK + "Content-Length: 9\r\n\r\nab").encode(), every_s=0.1),
        ErrorClass.BODY_TIMEOUT,
        200,
    ),
    "a body that drips": (
        saying((OK + "Content-Length: 9000\r\n\r\n").encode(), rest=b".", every_s=0.02),
        ErrorClass.BODY_TIMEOUT,
        200,
    ),
    "an endless body": (
        saying((OK + "Connection: close\r\n\r\n").encode(), rest=b"x" * 65_536, every_s=0.0),
        None,
        200,
    ),
    "closed without an answer": (saying(b""), ErrorClass.RESET, None),
    "closed in its body": (saying((OK + "Content-Length: 9\r\n\r\nab").encode()), ErrorClass.RESET, 200),
    "reset": (resetting, ErrorClass.RESET, None),
    "another protocol": (saying(b"SSH-2.0-OpenSSH_9.2\r\n"), ErrorClass.PROTOCOL, None),
    "a header of a megabyte": (saying((OK + "x: " + "y" * 1_000_000 + "\r\n\r\n").encode()), ErrorClass.PROTOCOL, None),
    "two lengths": (
        saying((OK + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab").encode()),
        ErrorClass.PROTOCOL,
        None,
    ),
}


def post(handler: Handler, *, policy: Policy = HERE, **options: Any) -> Answer:
    """One attempt at a server that does so."""

    async def one() -> Answer:
        async with serving(handler) as port, Sender(policy, total_s=SHORT_S, **options) as sender:
            return await sender.post(f"http://127.0.0.1:{port}/hooks", BODY, {})

    return asyncio.run(one())


@pytest.mark.parametrize("name", CASES)
def test_whatever_a_receiver_does_has_one_class(name: str) -> None:
    handler, expected, code = CASES[name]

    found = post(handler)

    assert (found.error_class, found.status) == (expected, code)
    assert bool(found.error) == (expected is not None)
    assert len(found.body) <= ANSWER_MAX_BYTES
    assert found.is_cut == (name == "an endless body")


def test_of_an_endless_body_16_kib_are_kept() -> None:
    found = post(CASES["an endless body"][0])

    assert found.body == b"x" * ANSWER_MAX_BYTES


def test_what_it_asks_for_is_kept() -> None:
    assert post(CASES["429"][0]).retry_after == "7"


def to(url: str, *, lookup: Any = socket.getaddrinfo, policy: Policy = HERE, **options: Any) -> Answer:
    async def one() -> Answer:
        async with Sender(policy, total_s=SHORT_S, lookup=lookup, **options) as sender:
            return await sender.post(url, BODY, {})

    return asyncio.run(one())


def answering(*addresses: str) -> Callable[..., list[Any]]:
    """A server of names that knows these."""

    def lookup(_host: str, port: int, **_: object) -> list[Any]:
        kinds = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(kinds[":" in one], socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (one, port)) for one in addresses]

    return lookup


def unknown(*_: object, **__: object) -> list[Any]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_where_nothing_listens_is_refused() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        found = to(f"http://127.0.0.1:{closed.getsockname()[1]}/")

    assert found.error_class is ErrorClass.REFUSED


def test_who_accepts_no_connection_is_given_up_in_time() -> None:
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # nobody accepts them: the others' first packets are dropped
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())
        found = to(f"http://127.0.0.1:{full.getsockname()[1]}/", connect_s=0.3)

    assert found.error_class is ErrorClass.CONNECT_TIMEOUT


def test_a_name_without_an_address_is_a_failure_of_its_own() -> None:
    assert to("http://nowhere.example/", lookup=unknown).error_class is ErrorClass.DNS


def test_where_no_way_leads_is_unreachable() -> None:
    found = to("http://far.example/", lookup=answering("255.255.255.255"), policy=Policy.of("*"))

    assert found.error_class is ErrorClass.UNREACHABLE


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
    found = to("http://rebind.example/", lookup=answering(*addresses), policy=Policy.of())

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
        async with serving(handler) as port, Sender(Policy.of("external", "1-65535"), total_s=SHORT_S) as sender:
            return await sender.post(f"http://{host}:{port}/", BODY, {})

    found = asyncio.run(one())

    assert (found.error_class, reached) == (ErrorClass.BLOCKED, [])


def test_a_name_that_changes_its_address_is_judged_anew_at_each_connection() -> None:
    answers = iter([answering("127.0.0.1"), answering("127.0.0.2")])
    policy = Policy.of("127.0.0.1", "1-65535")

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
            sender._guard._allowed = Policy.of("external").allowed  # as it would be, had the first look missed it
            return await sender.post(f"http://127.0.0.1:{port}/", BODY, {})

    assert asyncio.run(one()).error_class is ErrorClass.BLOCKED


def test_a_name_that_is_permitted_may_have_any_address() -> None:
    policy = Policy.of("external,hooks.local", "1-65535")

    async def one() -> list[Answer]:
        async with (
            serving(saying(status(200, "Connection: close"))) as port,
            Sender(policy, total_s=SHORT_S, lookup=answering("127.0.0.1")) as sender,
        ):
            return [await sender.post(f"http://{name}.local:{port}/", BODY, {}) for name in ("hooks", "other")]

    assert [found.error_class for found in asyncio.run(one())] == [None, ErrorClass.BLOCKED]


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For localhost, signed by itself, with its key in the same file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hooks.example")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.mark.parametrize(
    ("name", "trusts", "expected"),
    [
        ("hooks.example", True, None),
        ("hooks.example", False, ErrorClass.TLS),
        ("other.example", True, ErrorClass.TLS),
    ],
)
def test_a_certificate_has_to_be_trusted_and_of_that_name(
    name: str, trusts: bool, expected: ErrorClass | None, certificate: Path
) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    trust = ssl.create_default_context(cafile=str(certificate) if trusts else None)

    async def one() -> Answer:
        async with (
            serving(saying(status(200, "Connection: close")), trust=server) as port,
            Sender(HERE, total_s=5.0, trust=trust, lookup=answering("127.0.0.1")) as sender,
        ):
            return await sender.post(f"https://{name}:{port}/", BODY, {})

    assert asyncio.run(one()).error_class is expected


def test_https_at_a_port_for_http_is_a_failure_of_tls() -> None:
    async def one() -> Answer:
        async with serving(saying(b"")) as port, Sender(HERE, total_s=SHORT_S) as sender:
            return await sender.post(f"https://127.0.0.1:{port}/", BODY, {})

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(status(400))

    async def other() -> Answer:
        async with serving(plain) as port, Sender(HERE, total_s=SHORT_S) as sender:
            return await sender.post(f"https://127.0.0.1:{port}/", BODY, {})

    assert asyncio.run(other()).error_class is ErrorClass.TLS
    assert asyncio.run(one()).error_class is ErrorClass.CONNECT_TIMEOUT, "it waits for more of the handshake"


# -- what is sent


def test_each_attempt_carries_the_same_bytes_and_id_and_a_signature_of_its_own() -> None:
    secret, got = new_secret(), list[tuple[dict[str, str], bytes]]()
    body = '{"type":"invoice.paid","text":"\u2603"}'.encode()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            got.append(await request_of(reader))
            writer.write(status(500, "Set-Cookie: a=1; Path=/"))

    async def three() -> None:
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
