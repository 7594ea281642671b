"""Receivers of webhooks to send to, each of which does what it is told; names that lead where they should; TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from workq.outbound.target import TargetPolicy

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HERE = TargetPolicy.of("loopback", "1-65535")
BODY = b'{"type":"invoice.paid"}'
SHORT_S = 0.6
OK = "HTTP/1.1 200 OK\r\n"


def bound() -> socket.socket:
    """A socket with a port of this machine, where nothing listens yet."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


@contextlib.asynccontextmanager
async def serving(
    handler: Handler, *, trust: ssl.SSLContext | None = None, place: socket.socket | None = None
) -> AsyncIterator[int]:
    """A server that does to each connection what it is told to; answers its port. `place`: where it listens."""
    open_ones: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        with contextlib.suppress(OSError):
            writer.close()

    server = await asyncio.start_server(serve, sock=place or bound(), ssl=trust)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in open_ones:
            writer.transport.abort()
        await asyncio.sleep(0)


async def head_of(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """The first line and the headers of one request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    return head[0], {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}


async def request_of(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """The headers and the body of one request."""
    _, headers = await head_of(reader)
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


def keeping(got: list[tuple[dict[str, str], bytes]], answer: bytes) -> Handler:
    """Answers each request of a connection so, and keeps what it was sent."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            got.append(await request_of(reader))
            writer.write(answer)

    return handler


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Reads, and says nothing."""
    await reader.read()


def status(code: int, *headers: str) -> bytes:
    """An answer with this status, and nothing in it."""
    lines = [f"HTTP/1.1 {code} X", "Content-Length: 0", *headers, "", ""]
    return "\r\n".join(lines).encode()


@contextlib.contextmanager
def closed() -> Iterator[int]:
    """A port where nothing listens."""
    with bound() as taken:
        yield taken.getsockname()[1]


@contextlib.contextmanager
def full() -> Iterator[int]:
    """A port where no more connections are accepted: their first packets are dropped."""
    with bound() as listens, contextlib.ExitStack() as stack:
        listens.listen(0)
        for _ in range(4):  # nobody accepts them
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(listens.getsockname())
        yield listens.getsockname()[1]


def answering(*addresses: str) -> Callable[..., list[Any]]:
    """A server of names that knows these."""

    def lookup(_host: str, port: int, **_: object) -> list[Any]:
        kinds = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(kinds[":" in one], socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (one, port)) for one in addresses]

    return lookup


@contextlib.contextmanager
def stranger(told: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """The port of a server that answers whatever comes first with this, and what it was sent."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted, _ = listener.accept()
                    with contextlib.suppress(OSError), accepted:
                        heard.append(accepted.recv(65_536))
                        accepted.sendall(told)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1], heard
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def unknown(*_: object, **__: object) -> list[Any]:
    """A server of names that knows none."""
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For hooks.example, signed by itself, with its key in the same file."""
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
    path = tmp_path_factory.mktemp("hooks") / "certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def server_trust(certificate: Path) -> ssl.SSLContext:
    """What a server shows that has this certificate."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(certificate)
    return made


def client_trust(certificate: Path | None) -> ssl.SSLContext:
    """Which certificates a sender accepts: this one, or those of the system."""
    return ssl.create_default_context(cafile=None if certificate is None else str(certificate))
