"""Through an egress proxy: who looks names up, who sees the login, whose fault it is; and that nothing goes past it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from msgspec.structs import replace

from tests.faults.egress import BOUND_S, EgressProxy, refusing
from tests.faults.receivers import (
    BODY,
    OK,
    SHORT_S,
    Handler,
    answering,
    bound,
    client_trust,
    closed,
    full,
    keeping,
    saying,
    server_trust,
    serving,
    silent,
    status,
    unknown,
)
from tests.unit.test_attempt import Nobody
from tests.unit.test_webhook_carry import PARCEL, claim_of
from workq import Snooze, WorkQueue
from workq.handlers import context
from workq.outbound.post import Answer, ErrorClass, Sender
from workq.outbound.proxy import Proxy
from workq.outbound.target import TargetPolicy
from workq.outbound.vault import Vault
from workq.values.task import Delivered, Done
from workq.webhooks.carry import Carrier
from workq.webhooks.endpoints import Endpoints

HTTP = "http://hooks.example/a%20b?c=d"
HTTPS = "https://hooks.example/a%20b?c=d"
LOGIN = "app:c4nary%2F%25%C3%A9@"
BASIC = "Basic YXBwOmM0bmFyeS8lw6k="
"""The same in a header."""


def nobody(host: str, *_: object, **__: object) -> list[Any]:
    """A server of names that is not to be asked."""
    raise AssertionError(f"who looks {host} up?")


def through(
    proxy: EgressProxy,
    *urls: str,
    handler: Handler | None = None,
    tls: Path | None = None,
    trust: Path | None = None,
    login: str = "",
    allow: str = "loopback",
    ports: str = "",
    lookup: Any = nobody,
    **options: Any,
) -> list[Answer]:
    """One attempt at each URL, by one sender, through this proxy, to a receiver that does so; one after the other."""

    async def run() -> list[Answer]:
        shown = None if tls is None else server_trust(tls)
        async with (
            serving(handler or keeping([], status(200)), trust=shown) as ahead,
            serving(proxy.serve) as port,
        ):
            proxy.ahead = ahead
            policy = TargetPolicy.of(allow, ports, proxy=f"http://{login}127.0.0.1:{port}")
            options.setdefault("total_s", 5.0)
            async with Sender(policy, lookup=lookup, trust=client_trust(trust), **options) as sender:
                return [await sender.post(url, BODY, {"x-shop": "7"}) for url in urls]

    return asyncio.run(run())


# -- the way


def test_http_is_forwarded_and_the_proxy_looks_the_name_up() -> None:
    got, proxy = list[tuple[dict[str, str], bytes]](), EgressProxy()

    [found] = through(proxy, HTTP, handler=keeping(got, status(204)))

    assert (found.error_class, found.status, found.address) == (None, 204, "127.0.0.1")
    [(line, headers)] = proxy.asked
    assert line == f"POST {HTTP} HTTP/1.1"
    assert headers["host"] == "hooks.example"
    [(headers, body)] = got
    assert (body, headers["host"], headers["x-shop"]) == (BODY, "hooks.example", "7")


@pytest.mark.parametrize(
    ("host", "is_trusted", "expected"),
    [
        ("hooks.example", True, None),
        ("hooks.example.", True, None),
        ("hooks.example", False, ErrorClass.TLS),
        ("other.example", True, ErrorClass.TLS),
    ],
)
def test_https_goes_through_a_tunnel_and_the_certificate_is_the_receivers(
    host: str, is_trusted: bool, expected: ErrorClass | None, certificate: Path
) -> None:
    got, proxy = list[tuple[dict[str, str], bytes]](), EgressProxy()

    [found] = through(
        proxy,
        f"https://{host}/hooks",
        handler=keeping(got, status(200)),
        tls=certificate,
        trust=certificate if is_trusted else None,
    )

    assert found.error_class is expected
    [(line, headers)] = proxy.asked
    assert line == f"CONNECT {host}:443 HTTP/1.1"
    assert headers["user-agent"].startswith("workq/")
    assert not {"x-shop", "content-type"} & set(headers), "what is sent is for the receiver alone"
    assert len(got) == (expected is None)
    if expected is None:
        assert (found.status, (found.tls or "")[:5]) == (200, "TLSv1")


def test_only_the_proxys_name_is_looked_up_here() -> None:
    asked: list[str] = []

    def lookup(host: str, *given: Any, **more: Any) -> list[Any]:
        asked.append(host)
        return answering("127.0.0.1")(host, *given, **more)

    async def one() -> Answer:
        proxy = EgressProxy()
        async with serving(saying(status(200))) as proxy.ahead, serving(proxy.serve) as port:
            policy = TargetPolicy.of("loopback", proxy=f"http://proxy.example:{port}")
            async with Sender(policy, total_s=5.0, lookup=lookup) as sender:
                return await sender.post(HTTP, BODY, {})

    found = asyncio.run(one())

    assert (found.error_class, asked) == (None, ["proxy.example"])
    assert (found.addresses, found.address) == (("127.0.0.1",), "127.0.0.1")


@pytest.mark.parametrize("url", [HTTP, HTTPS])
def test_the_login_is_for_the_proxy_and_never_reaches_the_receiver(url: str, certificate: Path) -> None:
    got, proxy = list[tuple[dict[str, str], bytes]](), EgressProxy(login=BASIC)
    tls = certificate if url == HTTPS else None

    [found] = through(proxy, url, handler=keeping(got, status(200)), login=LOGIN, tls=tls, trust=tls)

    assert found.error_class is None
    assert [headers["proxy-authorization"] for _, headers in proxy.asked] == [BASIC]
    assert not [name for headers, _ in got for name in headers if "authorization" in name]


def test_no_proxy_of_the_environment_takes_the_place_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "*")
    proxy = EgressProxy()

    [found] = through(proxy, HTTP)

    assert (found.error_class, len(proxy.asked)) == (None, 1)


# -- connections that are kept


@pytest.mark.parametrize("url", [HTTP, HTTPS])
def test_two_requests_use_one_connection(url: str, certificate: Path) -> None:
    got, proxy = list[tuple[dict[str, str], bytes]](), EgressProxy(login=BASIC)
    tls = certificate if url == HTTPS else None

    first, second = through(proxy, url, url, handler=keeping(got, status(200)), login=LOGIN, tls=tls, trust=tls)

    assert (first.error_class, second.error_class, len(got)) == (None, None, 2)
    assert proxy.connections == 1
    assert (first.address, second.address) == ("127.0.0.1", None)


def test_a_connection_that_the_proxy_has_closed_while_it_was_kept_is_no_failure() -> None:
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await saying(status(200))(reader, writer)
        await reader.read(1)  # the next request, or the end: closed without an answer

    async def two() -> list[Answer]:
        async with (
            serving(once) as port,
            Sender(TargetPolicy.of("loopback", proxy=f"http://127.0.0.1:{port}"), total_s=5.0) as sender,
        ):
            return [await sender.post(HTTP, BODY, {}) for _ in range(2)]

    assert [found.error_class for found in asyncio.run(two())] == [None, None]
    assert connections == 2


def test_a_proxy_that_has_gone_while_a_connection_to_it_was_kept_is_away() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await saying(status(200))(reader, writer)
        servers[0].close()
        await reader.read(1)
        writer.close()

    async def two() -> list[Answer]:
        servers.append(await asyncio.start_server(once, "127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{servers[0].sockets[0].getsockname()[1]}"
        async with Sender(TargetPolicy.of("loopback", proxy=proxy), total_s=5.0) as sender:
            return [await sender.post(HTTP, BODY, {}) for _ in range(2)]

    servers: list[asyncio.Server] = []
    first, second = asyncio.run(two())

    assert (first.error_class, second.error_class) == (None, ErrorClass.PROXY)
    assert (first.is_proxy_away, second.is_proxy_away) == (False, True)


# -- a proxy that is not reached: nobody's failure


def away(url: str, host: str, *, lookup: Any = nobody, allow: str = "loopback", **options: Any) -> Answer:
    async def one() -> Answer:
        policy = TargetPolicy.of(allow, proxy=f"http://{LOGIN}{host}")
        async with Sender(policy, total_s=SHORT_S, lookup=lookup, **options) as sender:
            return await sender.post(url, BODY, {})

    return asyncio.run(one())


@pytest.mark.parametrize("url", [HTTP, HTTPS])
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("refused", "nothing listens there"),
        ("full", "no connection in time"),
        ("late", "no connection in time"),
        ("unknown", "the name has no address"),
        ("silent names", "no connection in time"),
        ("unreachable", "the proxy http://255.255.255.255:3128: "),
        ("blocked", "blocked address 127.0.0.1 (set WORKQ_WEBHOOK_ALLOW=external,127.0.0.1 to permit)"),
        ("blocked name", "blocked address 10.0.0.7 (set WORKQ_WEBHOOK_ALLOW=external,10.0.0.7 to permit)"),
    ],
)
def test_a_proxy_that_is_not_reached_is_away_and_nothing_was_sent(url: str, case: str, said: str) -> None:
    with ExitStack() as stack:
        match case:
            case "refused":
                found = away(url, f"127.0.0.1:{stack.enter_context(closed())}")
            case "full":
                found = away(url, f"127.0.0.1:{stack.enter_context(full())}", connect_s=0.2)
            case "late":
                found = away(url, f"127.0.0.1:{stack.enter_context(full())}")
            case "unknown":
                found = away(url, "proxy.example:3128", lookup=unknown)
            case "silent names":
                ended = Event()
                stack.callback(ended.set)
                found = away(url, "proxy.example:3128", lookup=lambda *_, **__: ended.wait(BOUND_S) and [])
            case "unreachable":
                found = away(url, "255.255.255.255:3128", allow="*")
            case "blocked":
                found = away(url, "127.0.0.1:3128", allow="external")
            case _:
                found = away(url, "proxy.example:3128", allow="external", lookup=answering("10.0.0.7"))

    assert (found.error_class, found.is_proxy_away, found.status) == (ErrorClass.PROXY, True, None)
    assert found.error.startswith("the proxy http://")
    assert said in found.error
    assert not [secret for secret in ("app", "c4nary", BASIC) if secret in repr(found)]


def test_a_delivery_waits_while_the_proxy_is_away_and_arrives_when_it_is_back() -> None:
    proxy, place, parcel = EgressProxy(), bound(), replace(PARCEL, url=HTTP)
    policy = TargetPolicy.of("loopback", proxy=f"http://127.0.0.1:{place.getsockname()[1]}")

    async def carried(carrier: Carrier) -> Delivered:
        context.enter(claim_of(), Nobody())
        try:
            return await carrier.carry(parcel.delivery_id)
        finally:
            context.leave()

    async def run() -> Delivered:
        carrier = Carrier(lambda _: {parcel.delivery_id: parcel}, vault=Vault(), policy=policy)
        try:
            with pytest.raises(Snooze, match="nothing listens there"):
                await carried(carrier)
            async with serving(saying(status(200))) as proxy.ahead, serving(proxy.serve, place=place):
                return await carried(carrier)
        finally:
            await carrier.close()

    found = asyncio.run(run())

    assert (found.then, found.sent.status, found.sent.number) == (Done(), 200, parcel.attempts + 1)
    assert len(proxy.asked) == 1


def test_what_an_application_sends_goes_through_the_proxy_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKQ_WEBHOOK_PROXY", f"http://{LOGIN}proxy.example:3128")

    policy = Endpoints(WorkQueue(ledger="sqlite:///unopened.db")).policy

    assert policy.proxy == Proxy("http://proxy.example:3128", "proxy.example", {"proxy-authorization": BASIC})


# -- a proxy that is reached, and refuses


async def gone(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Closes without an answer."""
    await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (refusing(403), "403 X"),
        (refusing(502), "502 X"),
        (refusing(204), "204 X"),
        (EgressProxy(refusal=b"HTTP/1.1 407 Request rejected by proxy\r\n\r\n"), "407 Request rejected by proxy"),
        (EgressProxy(refusal=b""), "it has closed the connection"),
        (EgressProxy(refusal=b"SSH-2.0-OpenSSH_9.2\r\n"), "it does not speak HTTP"),
    ],
    ids=["403", "502", "204", "smokescreen", "closed", "another protocol"],
)
def test_a_proxy_that_makes_no_tunnel_is_a_failed_attempt(proxy: EgressProxy, said: str) -> None:
    [found] = through(proxy, HTTPS, login=LOGIN, total_s=SHORT_S)

    assert (found.error_class, found.is_proxy_away, found.status) == (ErrorClass.PROXY, False, None)
    assert found.error.startswith("the proxy http://127.0.0.1:")
    assert said in found.error
    assert not [secret for secret in ("app", "c4nary", BASIC) if secret in repr(found)]


def test_a_proxy_that_answers_407_in_the_place_of_a_receiver_refuses() -> None:
    [found] = through(EgressProxy(refusal=b"HTTP/1.1 407 Request rejected by proxy\r\n\r\n"), HTTP, login=LOGIN)

    assert (found.error_class, found.is_proxy_away, found.status) == (ErrorClass.PROXY, False, 407)
    assert found.error.endswith(": 407 Proxy Authentication Required")


@pytest.mark.parametrize("url", [HTTP, HTTPS])
def test_a_proxy_that_wants_another_login_is_no_failure_of_a_receiver(url: str) -> None:
    [found] = through(EgressProxy(login="Basic another"), url, login=LOGIN)

    assert (found.error_class, found.is_proxy_away) == (ErrorClass.PROXY, True)
    assert ": 407 " in found.error
    assert not [secret for secret in ("app", "c4nary", BASIC) if secret in repr(found)]


def test_a_receiver_that_wants_a_login_for_a_proxy_has_failed_itself(certificate: Path) -> None:
    strange = saying(status(407, 'Proxy-Authenticate: Basic realm="out"'))

    [found] = through(EgressProxy(), HTTPS, handler=strange, tls=certificate, trust=certificate)

    assert (found.error_class, found.is_proxy_away) == (ErrorClass.CLIENT_ERROR, False)


@pytest.mark.parametrize(("code", "expected"), [(403, ErrorClass.CLIENT_ERROR), (502, ErrorClass.SERVER_ERROR)])
def test_what_else_a_proxy_answers_to_http_cannot_be_told_from_a_receiver(code: int, expected: ErrorClass) -> None:
    [found] = through(refusing(code), HTTP)

    assert (found.error_class, found.status) == (expected, code)


def test_a_407_in_a_tunnel_is_the_receivers(certificate: Path) -> None:
    [found] = through(EgressProxy(), HTTPS, handler=saying(status(407)), tls=certificate, trust=certificate)

    assert (found.error_class, found.status) == (ErrorClass.CLIENT_ERROR, 407)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [(silent, ErrorClass.ANSWER_TIMEOUT), (saying((OK + "Content-Length: 9\r\n\r\n").encode()), ErrorClass.RESET)],
)
def test_what_a_receiver_does_in_a_tunnel_is_its_own(handler: Handler, expected: ErrorClass, certificate: Path) -> None:
    [found] = through(EgressProxy(), HTTPS, handler=handler, tls=certificate, trust=certificate, total_s=SHORT_S)

    assert (found.error_class, found.is_proxy_away) == (expected, False)


@pytest.mark.parametrize(("url", "expected"), [(HTTPS, ErrorClass.CONNECT_TIMEOUT), (HTTP, ErrorClass.ANSWER_TIMEOUT)])
def test_a_proxy_that_is_silent_cannot_be_told_from_a_silent_receiver(url: str, expected: ErrorClass) -> None:
    async def one() -> Answer:
        async with (
            serving(silent) as port,
            Sender(TargetPolicy.of("loopback", proxy=f"http://127.0.0.1:{port}"), total_s=SHORT_S) as sender,
        ):
            return await sender.post(url, BODY, {})

    found = asyncio.run(one())

    assert (found.error_class, found.is_proxy_away) == (expected, False)


# -- what may be reached


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://10.0.0.5/", "blocked address 10.0.0.5"),
        ("http://[::ffff:10.0.0.5]/", "blocked address 10.0.0.5"),
        ("http://169.254.169.254/", "blocked address 169.254.169.254"),
        ("http://2130706433/", "is a number"),
        ("http://hooks.example:22/", "blocked port 22"),
        ("ftp://hooks.example/", "need http"),
    ],
)
def test_what_a_url_itself_says_is_judged_before_the_proxy_is_asked(url: str, said: str) -> None:
    proxy = EgressProxy()

    [found] = through(proxy, url, allow="external,127.0.0.1")

    assert (found.error_class, found.is_proxy_away, proxy.connections) == (ErrorClass.BLOCKED, False, 0)
    assert said in found.error


@pytest.mark.parametrize("ports", ["", "80,443"])
def test_a_proxy_that_is_permitted_may_have_any_port(ports: str) -> None:
    [found] = through(EgressProxy(), HTTP, allow="external,127.0.0.1", ports=ports)

    assert found.error_class is None


def by_name(allow: str, url: str) -> tuple[Answer, EgressProxy]:
    """Through a proxy by the name of proxy.example."""
    proxy = EgressProxy()

    async def one() -> Answer:
        async with serving(saying(status(200))) as proxy.ahead, serving(proxy.serve) as port:
            policy = TargetPolicy.of(allow, "1-65535", proxy=f"http://proxy.example:{port}")
            async with Sender(policy, total_s=5.0, lookup=answering("127.0.0.1")) as sender:
                return await sender.post(url.replace("PORT", str(port)), BODY, {})

    return asyncio.run(one()), proxy


def test_a_proxy_that_is_permitted_by_its_name_opens_no_address() -> None:
    found, proxy = by_name("external,proxy.example", HTTP)
    itself, unasked = by_name("external,proxy.example", "http://127.0.0.1:PORT/")

    assert (found.error_class, len(proxy.asked)) == (None, 1)
    assert (itself.error_class, itself.is_proxy_away, unasked.connections) == (ErrorClass.BLOCKED, False, 0)


def test_one_that_is_permitted_by_its_address_is_asked_for_itself_if_a_url_says_so() -> None:
    found, proxy = by_name("external,127.0.0.1", "http://127.0.0.1:PORT/")

    assert found.error_class is None
    assert [line for line, _ in proxy.asked] == [f"POST http://{proxy.asked[0][1]['host']}/ HTTP/1.1"]


def test_a_receiver_that_is_permitted_by_its_name_permits_no_proxy() -> None:
    found, proxy = by_name("external,hooks.example", HTTP)

    assert (found.is_proxy_away, proxy.connections) == (True, 0)
    assert "blocked address 127.0.0.1" in found.error


def test_the_socket_asks_for_the_proxys_name_and_not_for_the_receivers() -> None:
    found = away(HTTP, "127.0.0.1:3128", allow="external,hooks.example")

    assert (found.error_class, found.is_proxy_away) == (ErrorClass.PROXY, True)
    assert "blocked address 127.0.0.1" in found.error


def test_neither_a_policy_nor_its_proxy_shows_the_login() -> None:
    policy = TargetPolicy.of(proxy=f"http://{LOGIN}proxy.example:3128")

    assert policy.proxy is not None
    assert policy.proxy.headers == {"proxy-authorization": BASIC}
    assert not [secret for secret in ("app", "c4nary", BASIC) if secret in repr(policy)]
