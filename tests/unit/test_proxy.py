"""The network that breaks on command, tried with plain sockets against an echo server."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import pytest

from workq.lab.proxy import FaultProxy
from workq.lab.proxy.link import PIECE, Direction

LONG_S = 20.0
"""Far more than anything here takes."""
QUIET_S = 0.2
"""How long a socket is watched to say that nothing comes."""


class Echo:
    """A server that sends back what it gets, and counts it; it can be told to stay silent."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.got = bytearray()
        self.ends: list[str] = []
        self.is_silent = False
        self.peers: list[socket.socket] = []
        self.threads = [threading.Thread(target=self.serve)]
        self.threads[0].start()

    def serve(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            self.peers.append(peer)
            self.threads.append(threading.Thread(target=self.answer, args=(peer,)))
            self.threads[-1].start()

    def answer(self, peer: socket.socket) -> None:
        end = "end"
        with peer:
            try:
                while data := peer.recv(PIECE):
                    self.got += data
                    if not self.is_silent:
                        peer.sendall(data)
            except OSError:
                end = "reset"
        self.ends.append(end)  # only now: whoever waits for it may count descriptors

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        for peer in self.peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(LONG_S)
        self.listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Callable[[], socket.socket]]:
    clients: list[socket.socket] = []

    def one() -> socket.socket:
        clients.append(socket.create_connection(proxy.address, timeout=LONG_S))
        return clients[-1]

    yield one
    for client in clients:
        client.close()


Connect = Callable[[], socket.socket]


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {LONG_S:.0f} s: {what}"
        time.sleep(0.005)


def read(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := client.recv(count - len(data))):
        data += piece
    return data


def is_quiet(client: socket.socket) -> bool:
    client.settimeout(QUIET_S)
    try:
        return not client.recv(1) and False
    except TimeoutError:
        return True
    finally:
        client.settimeout(LONG_S)


def answers(client: socket.socket, word: bytes = b"word") -> bool:
    client.sendall(word)
    return read(client, len(word)) == word


def is_reset(client: socket.socket) -> bool:
    try:
        client.recv(1)
    except ConnectionResetError:
        return True
    return False


def is_reset_at(address: tuple[str, int]) -> bool:
    """Whether a new connection is: perhaps so soon that connecting tells it."""
    try:
        with socket.create_connection(address, timeout=LONG_S) as client:
            return is_reset(client)
    except ConnectionResetError:
        return True


# Nothing is wrong.


def test_bytes_pass_both_ways_unchanged_and_are_counted(proxy: FaultProxy, connect: Connect) -> None:
    data = Random(1).randbytes(3_000_000)
    client = connect()
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()

    back = read(client, len(data))

    sender.join()
    assert back == data
    assert proxy.passed(Direction.TO_SERVER) == proxy.passed(Direction.TO_CLIENT) == len(data)
    assert proxy.passed() == 2 * len(data)
    assert (proxy.connections, proxy.accepted) == (1, 1)


def test_the_end_of_one_direction_reaches_the_other_side_and_leaves_the_other_direction_open(
    proxy: FaultProxy, connect: Connect
) -> None:
    client = connect()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)

    assert read(client, 100) == b"question"
    wait_until(lambda: proxy.connections == 0, "the connection is over")


def test_a_reset_of_the_client_reaches_the_server(echo: Echo, connect: Connect) -> None:
    client = connect()
    assert answers(client)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()

    wait_until(lambda: echo.ends == ["reset"], "the server is told")


def test_where_nobody_listens_the_client_is_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with FaultProxy("127.0.0.1", port) as proxy:
        assert is_reset_at(proxy.address)


def test_a_reader_that_is_slow_stops_the_sender_and_not_the_memory(
    echo: Echo, proxy: FaultProxy, connect: Connect
) -> None:
    """The client reads nothing: the server can send only what fits into the sockets and the proxy's few pieces."""
    client = connect()
    client.settimeout(0.5)
    sent = 0
    with suppress(TimeoutError):
        while sent < 200_000_000:
            sent += client.send(b"x" * PIECE)

    assert sent < 200_000_000
    client.settimeout(LONG_S)
    assert read(client, 1000) == b"x" * 1000


def test_many_connections_at_once_do_not_mix_their_bytes(proxy: FaultProxy, connect: Connect) -> None:
    clients = [connect() for _ in range(50)]
    for number, client in enumerate(clients):
        client.sendall(f"client {number:02}".encode())

    assert [read(client, 9) for client in clients] == [f"client {number:02}".encode() for number in range(50)]


# New connections.


def test_while_it_refuses_new_connections_are_reset_and_existing_ones_go_on(
    proxy: FaultProxy, connect: Connect
) -> None:
    old = connect()
    assert answers(old)
    proxy.refuse()

    try:
        refused = is_reset(connect())
    except ConnectionResetError:  # so fast that connect() itself fails
        refused = True

    assert refused
    assert answers(old)
    proxy.heal()
    assert answers(connect())


def test_a_new_connection_that_is_dropped_is_made_but_nobody_answers(
    echo: Echo, proxy: FaultProxy, connect: Connect
) -> None:
    old = connect()
    assert answers(old)
    proxy.drop_new()
    new = connect()
    new.sendall(b"anybody?")

    assert is_quiet(new)
    assert len(echo.peers) == 1
    assert answers(old)
    proxy.heal()
    assert is_reset(new)
    assert answers(old)
    assert answers(connect())


# Existing connections.


def test_cut_closes_every_connection_on_both_sides_and_says_how_many(
    echo: Echo, proxy: FaultProxy, connect: Connect
) -> None:
    clients = [connect() for _ in range(3)]
    assert all(map(answers, clients))

    assert proxy.cut() == 3

    assert [client.recv(1) for client in clients] == [b""] * 3
    wait_until(lambda: echo.ends == ["end"] * 3, "the server is told")
    assert proxy.connections == 0
    assert proxy.cut() == 0
    assert answers(connect())


def test_reset_is_a_reset_on_both_sides(echo: Echo, proxy: FaultProxy, connect: Connect) -> None:
    clients = [connect() for _ in range(3)]
    assert all(map(answers, clients))

    assert proxy.reset() == 3

    assert all(map(is_reset, clients))
    wait_until(lambda: echo.ends == ["reset"] * 3, "the server is told")
    assert answers(connect())


# Bytes that do not go on.


def test_half_open_nothing_goes_on_and_nobody_is_told(echo: Echo, proxy: FaultProxy, connect: Connect) -> None:
    client, leaver = connect(), connect()
    assert answers(client)
    assert answers(leaver)
    before = bytes(echo.got)
    proxy.blackhole()
    client.sendall(b"x" * 30_000_000)  # read and forgotten: the sender does not block
    leaver.close()
    new = connect()
    new.sendall(b"hello?")

    assert is_quiet(client)
    assert is_quiet(new)
    assert echo.got == before
    assert echo.ends == []


def test_when_it_heals_what_has_a_hole_is_reset_and_what_has_none_lives_on(
    echo: Echo, proxy: FaultProxy, connect: Connect
) -> None:
    holed, whole, left = connect(), connect(), connect()
    for client in (holed, whole, left):
        assert answers(client)
    proxy.blackhole()
    holed.sendall(b"lost")
    left.close()
    assert is_quiet(holed)
    proxy.heal()

    assert is_reset(holed)
    assert answers(whole)
    wait_until(lambda: echo.ends == ["reset"] * 2, "the server is told of both")
    assert b"lost" not in echo.got


def test_blocked_towards_the_server_the_server_still_speaks(echo: Echo, proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    assert answers(client)
    proxy.blackhole(Direction.TO_SERVER)
    client.sendall(b"lost")
    echo.peers[0].sendall(b"news")

    assert read(client, 4) == b"news"
    assert is_quiet(client)
    assert echo.got == b"word"


def test_blocked_towards_the_client_the_server_still_hears(echo: Echo, proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    assert answers(client)
    proxy.blackhole(Direction.TO_CLIENT)
    client.sendall(b"heard")

    wait_until(lambda: echo.got == b"wordheard", "the server hears")
    assert is_quiet(client)
    proxy.heal()
    assert is_reset(client)


# Bytes that come late, or in pieces.


def test_a_delay_is_added_to_each_answer_and_ends_with_it(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    assert answers(client)
    proxy.delay(0.2)
    began = time.monotonic()
    assert answers(client)
    took_s = time.monotonic() - began
    proxy.heal()
    began = time.monotonic()
    for _ in range(20):
        assert answers(client)

    assert took_s >= 0.4, "there and back"
    assert time.monotonic() - began < 20 * 0.4


def test_delayed_pieces_travel_side_by_side_and_in_order(echo: Echo, proxy: FaultProxy, connect: Connect) -> None:
    """Latency, not a lower speed: thirty pieces are late together, not one after the other."""
    client = connect()
    proxy.delay(0.5, jitter_s=0.2, rng=Random(3), direction=Direction.TO_SERVER)
    began = time.monotonic()
    for number in range(30):
        client.sendall(f"{number:02}".encode())
        time.sleep(0.002)  # pieces of their own
    back = read(client, 60)
    took_s = time.monotonic() - began

    assert back == b"".join(f"{number:02}".encode() for number in range(30))
    assert 0.5 <= took_s < 5.0


def test_what_is_delayed_arrives_at_once_when_it_heals(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    proxy.delay(3600.0)
    client.sendall(b"late")
    assert is_quiet(client)
    proxy.heal()

    assert read(client, 4) == b"late"


def test_jitter_needs_a_random_source(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="pass rng"):
        proxy.delay(0.1, jitter_s=0.1)


def test_slices_are_as_small_as_asked_for_with_a_pause_after_each(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    proxy.slice(3, pause_s=0.02, direction=Direction.TO_CLIENT)
    client.sendall(b"0123456789")
    began = time.monotonic()
    pieces: list[bytes] = []
    while len(b"".join(pieces)) < 10:
        pieces.append(client.recv(100))

    assert b"".join(pieces) == b"0123456789"
    assert time.monotonic() - began >= 0.05
    assert max(map(len, pieces)) <= 9, "not all at once"


# Bytes that are counted.


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_answer_is_cut_after_exactly_so_many_bytes(
    echo: Echo, proxy: FaultProxy, connect: Connect, count: int
) -> None:
    client, other = connect(), connect()
    assert answers(client)
    assert answers(other)
    proxy.cut_after(count, Direction.TO_CLIENT)
    assert not proxy.wait_cut(0.0)
    client.sendall(b"0123456789")

    assert read(client, 100) == b"0123456789"[:count]
    assert proxy.wait_cut(LONG_S)
    assert echo.got == b"wordword0123456789", "the server had it all"
    assert answers(other), "once only"
    assert answers(connect())


def test_what_fits_exactly_passes_and_the_next_byte_is_cut(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    proxy.cut_after(4, Direction.TO_CLIENT)
    assert answers(client)
    assert not proxy.wait_cut(QUIET_S)
    client.sendall(b"more")

    assert read(client, 100) == b""
    assert proxy.wait_cut(LONG_S)


def test_a_request_is_cut_after_exactly_so_many_bytes_of_all_connections(
    echo: Echo, proxy: FaultProxy, connect: Connect
) -> None:
    first, second = connect(), connect()
    proxy.cut_after(6, Direction.TO_SERVER)
    assert answers(first)
    second.sendall(b"word")

    assert read(second, 100) in (b"wo", b"")
    assert proxy.wait_cut(LONG_S)
    wait_until(lambda: len(echo.ends) == 1, "the server is told")
    assert echo.got == b"wordwo"
    assert answers(first)


# Addresses.


@pytest.mark.parametrize(
    ("original", "where"),
    [
        ("redis://127.0.0.1:{port}/3?protocol=2", "redis://127.0.0.1:{proxy}/3?protocol=2"),
        ("rediss://:p%40ss@127.0.0.1:{port}/0", "rediss://:p%40ss@127.0.0.1:{proxy}/0"),
        ("amqp://guest:guest@127.0.0.1:{port}/%2F", "amqp://guest:guest@127.0.0.1:{proxy}/%2F"),
        ("postgresql+psycopg://me@127.0.0.1:{port}/db?a=b", "postgresql+psycopg://me@127.0.0.1:{proxy}/db?a=b"),
        ("mysql+pymysql://u:p@127.0.0.1:{port}/db", "mysql+pymysql://u:p@127.0.0.1:{proxy}/db"),
    ],
    ids=["redis", "rediss", "amqp", "postgresql", "mysql"],
)
def test_a_url_leads_through_it_with_all_the_rest_unchanged(
    echo: Echo, proxy: FaultProxy, original: str, where: str
) -> None:
    given = original.format(port=echo.port)

    assert proxy.url(given) == where.format(proxy=proxy.port)
    assert FaultProxy.before(given).target == ("127.0.0.1", echo.port)


def test_a_url_without_a_port_means_the_usual_one() -> None:
    assert FaultProxy.before("amqp://somewhere/").target == ("somewhere", 5672)
    assert FaultProxy.before("postgres://somewhere/db").target == ("somewhere", 5432)


@pytest.mark.parametrize(
    "url",
    ["sqlite:///file.db", "postgresql:///db?host=/run", "nothing", "redis://:secret@:1/0", "amqp://a:secret@one,two/"],
)
def test_a_url_without_a_server_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match="cannot go through a proxy") as caught:
        FaultProxy.before(url)
    assert "secret" not in str(caught.value)


def test_a_url_of_another_server_is_refused(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="does not lead to"):
        proxy.url("redis://127.0.0.1:1/0")


# Beginning and end.


def test_it_ends_with_every_connection_closed_and_leaves_no_thread_and_no_descriptor(echo: Echo) -> None:
    gc.collect()  # what other tests left is not counted
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with FaultProxy("127.0.0.1", echo.port) as proxy:
        clients = [socket.create_connection(proxy.address, timeout=LONG_S) for _ in range(4)]
        assert answers(clients[0])
        proxy.delay(3600.0)
        clients[1].sendall(b"late")
        proxy.blackhole()
        clients[2].sendall(b"lost")
        proxy.drop_new()
        clients.append(socket.create_connection(proxy.address, timeout=LONG_S))
    for client in clients:
        with suppress(ConnectionResetError):
            client.recv(1)
        client.close()
    wait_until(lambda: len(echo.ends) == len(echo.peers), "the server is told")

    assert set(threading.enumerate()) - threads <= set(echo.threads)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address, timeout=LONG_S)


def test_stopping_twice_is_harmless_and_a_stopped_one_says_so(echo: Echo) -> None:
    proxy = FaultProxy("127.0.0.1", echo.port).start()
    proxy.stop()
    proxy.stop()

    with pytest.raises(RuntimeError, match="is not running"):
        proxy.heal()
    with pytest.raises(RuntimeError, match="started already"):
        proxy.start()


def test_faults_that_come_and_go_at_random_leave_a_proxy_that_works(proxy: FaultProxy, connect: Connect) -> None:
    """One seed, one sequence of faults; clients come, send and fail meanwhile."""
    rng = Random(7)
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            with suppress(OSError), socket.create_connection(proxy.address, timeout=0.05) as one:
                one.sendall(b"x" * 10_000)
                one.recv(10_000)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    faults: list[Callable[[], object]] = [
        proxy.refuse,
        proxy.drop_new,
        proxy.blackhole,
        lambda: proxy.blackhole(rng.choice(list(Direction))),
        lambda: proxy.delay(0.01, 0.01, rng),
        lambda: proxy.slice(rng.randint(1, 5000), 0.001),
        lambda: proxy.cut_after(rng.randint(0, 20_000), Direction.TO_CLIENT),
        proxy.cut,
        proxy.reset,
        proxy.heal,
    ]
    for _ in range(300):
        rng.choice(faults)()
    stop.set()
    for thread in clients:
        thread.join(LONG_S)
    proxy.heal()

    assert answers(connect())
