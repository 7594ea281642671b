"""An application whose handlers bear witness: each start and end is a line in a file of their own, never in the stores.

The environment says where (`WITNESS`) and how fast time runs (`WITNESS_DIVIDE`, which divides the default times).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sqlalchemy import text

import workq
from tests.system.pace import paced_by_environment
from workq import WorkQueue
from workq.handlers.retry import Exponential, Schedule

wq = WorkQueue(times=paced_by_environment())


def write(what: str, number: object) -> None:
    """One line, appended in one system call: it survives any later death of this process."""
    me = workq.current()
    line = f"{what} {me.id} {me.attempt} {number} {os.getpid()} {time.time():.6f}\n"
    handle = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Line:
    """One line of testimony."""

    what: str
    task_id: str
    attempt: int
    number: str
    pid: int
    at: float


def testimony(path: Path) -> list[Line]:
    """Every line written so far."""
    if not path.exists():
        return []
    lines = []
    whole, _, _ = path.read_text().rpartition("\n")  # a line that crosses a page can be seen before its end is there
    for one in whole.splitlines():
        what, task_id, attempt, number, pid, at = one.split(" ")
        lines.append(Line(what, task_id, int(attempt), number, int(pid), float(at)))
    return lines


@wq.task(name="witness.note", queue="witness")
def note(number: int, seconds: float = 0.0) -> None:
    write("start", number)
    if seconds:
        time.sleep(seconds)
    write("end", number)


@wq.task(name="witness.anote", queue="witness")
async def anote(number: int, seconds: float = 0.0) -> str:
    write("start", number)
    await asyncio.sleep(seconds)
    write("end", number)
    return f"done {number}"


@wq.task(name="witness.fail", queue="witness", failures_max=3, retry=Exponential(0.2, 0.2))
def fail(number: int) -> None:
    write("start", number)
    raise ValueError(f"no luck with {number}")


@wq.task(name="witness.fail_until", queue="witness", failures_max=1000, retry=Exponential(0.7, 0.7))
def fail_until(number: int, attempts: int) -> None:
    write("start", number)
    if workq.current().attempt < attempts:
        raise ValueError("again")


@wq.task(name="witness.later", queue="witness", failures_max=2, retry=Schedule([0.4]), give_up_on=LookupError)
def later(number: int, how: str, times: int, in_s: float) -> None:
    write("start", number)
    if workq.current().attempt > times:
        write("end", number)
        return
    match how:
        case "snooze":
            raise workq.Snooze(in_s, "too early")
        case "retry":
            raise workq.Retry("busy", in_s=in_s)
        case "fail":
            raise ConnectionError("busy")
    raise KeyError("never again")


@wq.task(name="witness.answer", queue="witness")
def answer(value: Any = None, kind: str = "value") -> Any:
    write("start", kind)
    match kind:
        case "value":
            return value
        case "set":
            return {1, 2}
        case "nan":
            return float("nan")
        case "huge":
            return "x" * 10_000_000
        case "error":
            return ValueError("returned")
    raise AssertionError(kind)


@wq.task(name="witness.misbehave", queue="witness", failures_max=1, crashes_max=2)
def misbehave(how: str) -> None:
    write("start", how)
    match how:
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "memory":
            raise MemoryError
        case "recursion":
            misbehave(how)
        case "bad_str":
            raise BadText
        case "strange":
            raise Strange
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "_exit":
            os._exit(0)
        case "segfault":
            ctypes.string_at(0)
        case "surrogate":
            raise ValueError("lone \ud800 and NUL \x00")
        case "close_stdout":
            sys.stdout.close()
        case "close_stderr":
            sys.stderr.close()
        case "replace_streams":
            sys.stdout = sys.stderr = cast(Any, BadStream())


class BadStream:
    """Nothing can be written to it, nor asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


@wq.task(name="witness.amisbehave", queue="witness", failures_max=1, crashes_max=2)
async def amisbehave(how: str) -> None:
    write("start", how)
    match how:
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "memory":
            raise MemoryError
        case "recursion":
            await amisbehave(how)
        case "bad_str":
            raise BadText
        case "strange":
            raise Strange
        case "surrogate":
            raise ValueError("lone \ud800 and NUL \x00")
        case "leave_exit":
            left_behind.append(asyncio.get_running_loop().create_task(leave()))


left_behind: list[asyncio.Task[None]] = []


async def leave() -> None:
    """What a careless handler starts and forgets."""
    await asyncio.sleep(0.1)
    sys.exit(3)


class BadText(Exception):
    """Its own text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Strange(Exception):
    """It resists being looked at, also at its class."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


async def hidden_body() -> str:
    await asyncio.sleep(0)
    write("start", "hidden")
    seen = tenant.get()
    tenant.set("set")
    return seen


tenant: ContextVar[str] = ContextVar("tenant", default="not set")
hidden = wq.task(name="witness.hidden", queue="witness")(lambda: hidden_body())
"""A coroutine function behind a function that does not look so."""


def steps() -> Iterator[None]:
    write("start", "steps")
    yield


unrun = wq.task(name="witness.unrun", queue="witness", failures_max=1)(lambda: steps())


@wq.task(name="witness.tenant", queue="witness")
def see_tenant() -> str:
    seen = tenant.get()
    tenant.set("set")
    return seen


def book_of(app: WorkQueue) -> str:
    """A table of the user's own in the ledger's database: each transfer debits one account and credits another."""
    return f"{app.settings.namespace}_book"


def make_book(app: WorkQueue) -> None:
    """For those tests that transfer."""
    with closing(app.database()) as database, database.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {book_of(app)} (task_id CHAR(36), side VARCHAR(6))"))


def read_book(app: WorkQueue) -> Counter[tuple[str, str]]:
    """How often each side of each transfer stands there."""
    rows = text(f"SELECT task_id, side FROM {book_of(app)}")
    with closing(app.database()) as database, database.engine.connect() as connection:
        return Counter((row.task_id, row.side) for row in connection.execute(rows))


def at_boundary(name: str) -> None:
    """Between two statements of a transfer."""


@wq.task(name="witness.transfer", queue="witness")
def transfer(number: int) -> None:
    write("start", number)
    with workq.current().transaction() as connection:
        at_boundary("begun")
        for side in ("debit", "credit"):
            given = {"task_id": workq.current().id, "side": side}
            connection.execute(text(f"INSERT INTO {book_of(wq)} VALUES (:task_id, :side)"), given)
            at_boundary(f"{side}ed")
    write("end", number)


@wq.task(name="witness.soft", queue="witness", failures_max=1, time_limit_s=0.5)
def soft() -> None:
    write("start", 0)
    while True:
        time.sleep(0.01)


@wq.task(name="witness.asoft", queue="witness", failures_max=1, time_limit_s=0.5)
async def asoft() -> None:
    write("start", 0)
    await asyncio.sleep(60)


@wq.task(name="witness.hard", queue="witness", failures_max=1, time_limit_s=0.5)
def hard() -> None:
    write("start", 0)
    time.sleep(600)  # one C call: a soft limit cannot interrupt it


@wq.task(name="witness.long_once", queue="witness")
def long_once(number: int) -> None:
    """The first attempt ends only with its process; later ones are short."""
    write("start", number)
    time.sleep(600 if workq.current().attempt == 1 else 0.3)
    write("end", number)


@wq.task(name="witness.along_once", queue="witness")
async def along_once(number: int) -> None:
    write("start", number)
    await asyncio.sleep(600 if workq.current().attempt == 1 else 0.3)
    write("end", number)


@wq.task(name="witness.hard_gil", queue="witness", failures_max=1, time_limit_s=0.5)
def hard_gil() -> None:
    write("start", 0)
    ctypes.PyDLL(None).usleep(ctypes.c_uint(600_000_000))  # keeps the interpreter lock


@wq.task(name="witness.eat", queue="witness", failures_max=1, crashes_max=2)
def eat(mib: int) -> None:
    """Take memory, a little at a time, until there is so much of it."""
    write("start", mib)
    eaten = []
    for _ in range(mib):
        eaten.append(b"x" * (1 << 20))
        time.sleep(0.001)
    write("end", mib)


@wq.task(name="witness.cancel_me", queue="witness")
def cancel_me(seconds: float) -> str:
    write("start", 0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if workq.current().cancelled():
            write("cancelled", 0)
            raise workq.Cancel("asked to")
        time.sleep(0.02)
    return "never asked"


@wq.task(name="witness.acancel_me", queue="witness")
async def acancel_me(seconds: float) -> str:
    write("start", 0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if workq.current().cancelled():
            write("cancelled", 0)
            raise workq.Cancel("asked to")
        await asyncio.sleep(0.02)
    return "never asked"


def close_application(how: str) -> str:
    """End the application's connections, as a handler that was a script does; the id of what is enqueued afterwards."""
    write("start", how)
    if how == "close":
        wq.close()
    else:
        with wq:
            note.enqueue(1)
    return note.enqueue(2).id


@wq.task(name="witness.close", queue="witness", failures_max=1)
def close(how: str) -> str:
    return close_application(how)


@wq.task(name="witness.aclose", queue="witness", failures_max=1)
async def aclose(how: str) -> str:
    return close_application(how)


@wq.task(name="witness.hold_gil", queue="witness")
def hold_gil(seconds: float) -> None:
    """Keep the interpreter lock in one C call after the other, as a careless extension would."""
    write("start", 0)
    # PyDLL does not release the lock during the call
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))
    write("end", 0)


@wq.task(name="witness.until_told", queue="witness")
def until_told(number: int) -> None:
    """Runs until the test says that it may end (`tell`)."""
    write("start", number)
    while not os.path.exists(os.environ["WITNESS"] + ".told"):
        time.sleep(0.05)
    write("end", number)


def tell(path: Path) -> None:
    """Let every `until_told` of this testimony end, those to come included."""
    path.with_name(path.name + ".told").touch()
