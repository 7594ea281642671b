"""What a receiver may send around a body: limits of bytes, answers and reads, so that no neighbour waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.faults.hostile_receivers import SHAPES, endless
from tests.faults.receivers import BODY, HERE, OK, keeping, request_of, saying, serving, status
from workq.outbound.answer_limits import ANSWER_MAX_BYTES, INFORMATIONAL_MAX, RAW_MAX_BYTES, READ_EVERY_S, READS_FREE
from workq.outbound.post import Answer, ErrorClass, Sender

GENEROUS_S = 30.0
"""A deadline that no limit is mistaken for."""
SLOWER_MAX = 5.0
ROUNDS = 3
POSTS = 2_000
"""So many that the few reads that each receiver is allowed at once are little beside them."""
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"

EXPECTED = {
    "answers before the answer": (ErrorClass.PROTOCOL, "1xx"),
    "empty lines before the answer": (ErrorClass.PROTOCOL, "128 KiB"),
    "a status line": (ErrorClass.PROTOCOL, "8190"),
    "header lines": (ErrorClass.PROTOCOL, "Too many headers"),
    "a header line, byte by byte": (ErrorClass.PROTOCOL, "8190"),
    "a chunk's size": (ErrorClass.PROTOCOL, "128 KiB"),
    "a chunk's extensions": (ErrorClass.PROTOCOL, "128 KiB"),
    "chunks of one byte": (None, ""),
    "chunks of one byte, one by one": (None, ""),
    "trailers": (ErrorClass.PROTOCOL, "Too many headers"),
    "answers after the answer": (None, ""),
}


def post(handler: object, *, total_s: float = GENEROUS_S) -> Answer:
    async def one() -> Answer:
        async with serving(handler) as port, Sender(HERE, total_s=total_s) as sender:  # type: ignore[arg-type]
            return await sender.post(f"http://127.0.0.1:{port}/", BODY, {})

    return asyncio.run(one())


@pytest.mark.parametrize("name", SHAPES)
def test_an_answer_that_never_ends_is_ended_by_a_limit_and_not_by_its_deadline(name: str) -> None:
    kind, text = EXPECTED[name]

    found = post(endless(*SHAPES[name]))

    assert found.error_class == kind
    assert text in found.error
    assert found.ms < GENEROUS_S * 1000 / 2


def test_a_body_in_chunks_of_one_byte_is_kept_as_any_other() -> None:
    begin, chunks = SHAPES["chunks of one byte"]
    whole = begin + chunks[: 6 * 1_500] + b"0\r\n\r\n"

    found, cut = post(saying(whole)), post(endless(begin, chunks))

    assert (found.status, found.error_class, found.body, found.is_cut) == (200, None, b"x" * 1_500, False)
    assert (cut.status, cut.error_class, cut.body, cut.is_cut) == (200, None, b"x" * ANSWER_MAX_BYTES, True)


def test_a_few_answers_may_precede_the_answer() -> None:
    allowed, too_many = (
        post(saying(EARLY * count + status(202))) for count in (INFORMATIONAL_MAX, INFORMATIONAL_MAX + 1)
    )

    assert (allowed.status, allowed.error_class) == (202, None)
    assert (too_many.status, too_many.error_class) == (None, ErrorClass.PROTOCOL)


def test_the_limits_hold_for_each_answer_and_not_for_the_connection() -> None:
    answer = EARLY * INFORMATIONAL_MAX + OK.encode() + b"Content-Length: 12000\r\n\r\n" + b"x" * 12_000

    async def many() -> list[Answer]:
        async with serving(keeping([], answer)) as port, Sender(HERE, total_s=GENEROUS_S) as sender:
            return [
                await sender.post(f"http://127.0.0.1:{port}/", BODY, {})
                for _ in range(2 * RAW_MAX_BYTES // len(answer))
            ]

    found = asyncio.run(many())

    assert {(one.status, len(one.body)) for one in found} == {(200, 12_000)}
    assert [one.address for one in found[1:]] == [None] * (len(found) - 1)  # the connection was kept


def test_what_was_not_asked_for_is_never_taken_for_the_next_answer() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(OK.encode() + b"Content-Length: 1\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)  # the head is read by itself, and the rest in one
        writer.write(b"x" + status(200, "X-Forged: yes"))
        with contextlib.suppress(asyncio.IncompleteReadError):
            await request_of(reader)
        writer.write(status(404))

    async def two() -> tuple[Answer, Answer]:
        async with serving(handler) as port, Sender(HERE, total_s=GENEROUS_S) as sender:
            url = f"http://127.0.0.1:{port}/"
            return await sender.post(url, BODY, {}), await sender.post(url, BODY, {})

    first, second = asyncio.run(two())

    assert (first.status, second.status) == (200, 200)
    assert (first.body, second.body) == (b"x", b"x")  # its own answer, on a connection of its own


@pytest.mark.parametrize("more", [b"ok", status(500), b"Content-Length: 2\r\n\r\nok"], ids=["body", "answer", "length"])
def test_what_follows_an_answer_without_a_body_ends_the_connection_and_the_answer_stands(more: bytes) -> None:
    seen: list[tuple[dict[str, str], bytes]] = []
    begin = b"HTTP/1.1 204 No Content\r\n" + (b"" if more.startswith(b"Content") else b"\r\n")

    async def two() -> list[Answer]:
        async with serving(keeping(seen, begin + more)) as port, Sender(HERE, total_s=GENEROUS_S) as sender:
            return [await sender.post(f"http://127.0.0.1:{port}/", BODY, {}) for _ in range(2)]

    found = asyncio.run(two())

    assert [(one.status, one.error_class, one.body) for one in found] == [(204, None, b"")] * 2
    assert None not in [one.address for one in found]  # each on a connection of its own
    assert len(seen) == 2  # and each was sent once


def test_a_slow_answer_in_many_pieces_is_read_less_often_and_is_whole() -> None:
    pieces = READS_FREE * 2

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(OK.encode() + f"Content-Length: {pieces}\r\n\r\n".encode())
        for _ in range(pieces):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(READ_EVERY_S / 10)

    found = post(handler)

    assert (found.status, found.error_class, found.body) == (200, None, b"x" * pieces)


@pytest.fixture(scope="module")
def hostile_ports() -> Iterator[list[int]]:
    """One receiver of each shape, in another process."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.hostile_receivers"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield [int(port) for port in process.stdout.readline().split()]
        finally:
            process.kill()


def test_a_healthy_receiver_is_not_slowed_down_by_hostile_ones(hostile_ports: list[int]) -> None:
    """All of them share an event loop, so a post waits for the processor time that is spent between its steps.

    That time is compared: the machine's other work, and that of the hostile receivers, is no part of it.
    """

    async def seconds(sender: Sender, port: int) -> float:
        begun = time.thread_time()
        for _ in range(POSTS):
            assert (await sender.post(f"http://127.0.0.1:{port}/", BODY, {})).error_class is None
        return time.thread_time() - begun

    async def ratios() -> list[float]:
        found = []
        async with serving(keeping([], status(200))) as port, Sender(HERE, total_s=GENEROUS_S) as sender:
            await seconds(sender, port)
            for _ in range(ROUNDS):
                alone_s = await seconds(sender, port)
                hostile = [
                    asyncio.create_task(sender.post(f"http://127.0.0.1:{one}/", BODY, {})) for one in hostile_ports
                ]
                beside_s = await seconds(sender, port)
                for task in hostile:
                    task.cancel()
                await asyncio.gather(*hostile, return_exceptions=True)
                found.append(beside_s / alone_s)
        return found

    found = asyncio.run(ratios())

    assert statistics.median(found) < SLOWER_MAX, found
