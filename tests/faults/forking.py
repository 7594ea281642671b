"""An application whose handlers fork, start programs and end their process's children. Each writes down what it saw."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import workq
from tests.system import witness
from workq import NotInTask

wq = witness.wq
WAIT_S = 10.0
"""How long a handler waits for its child. One that goes on as a worker never ends."""


def say(what: str, how: str, saw: object) -> None:
    """One line beside the testimony, for the test to read."""
    with Path(os.environ["WITNESS"] + ".said").open("a", encoding="ascii") as file:
        file.write(f"{what} {how} {saw}\n")


def come_back(how: str) -> None:
    """In the child: how it comes back from the handler's code."""
    match how:
        case "returns":
            print("child-of-a-handler")
        case "raises":
            raise ValueError("in the child")
        case "exits":
            sys.exit(7)
        case "exec_fails":
            os.execvp("/no/such/program", ["program"])  # noqa: S606 - it fails


def status_of(pid: int) -> str:
    """How a child has ended: its exit status as `subprocess` has it, or that it goes on."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "went_on"


@wq.task(name="forking.plain", queue="witness", failures_max=1)
def plain(how: str) -> None:
    print("handler-before-its-fork-", how, sep="")
    if (pid := os.fork()) == 0:
        come_back(how)
    else:
        say("plain", how, status_of(pid))


@wq.task(name="forking.coroutine", queue="witness", failures_max=1)
async def coroutine(how: str) -> None:
    if (pid := os.fork()) == 0:
        come_back(how)
    else:
        say("coroutine", how, await asyncio.to_thread(status_of, pid))


@wq.task(name="forking.suspends", queue="witness", failures_max=1)
async def suspends(how: str) -> None:
    """The child waits for what its copy of the loop would bring: others run there meanwhile."""
    here = asyncio.get_running_loop()
    if (pid := os.fork()) == 0:
        await here.create_future()
    say("suspends", how, await asyncio.to_thread(status_of, pid))


@wq.task(name="forking.in_thread", queue="witness", failures_max=1)
async def in_thread(how: str) -> None:

    def fork() -> str | None:
        if (pid := os.fork()) == 0:
            return come_back(how)  # type: ignore[func-returns-value]  # the child's answer
        return status_of(pid)

    say("in_thread", how, await asyncio.to_thread(fork))


@wq.task(name="forking.together", queue="witness", failures_max=1, batch=10, linger_s=0.05)
def together(hows: list[str]) -> None:
    if (pid := os.fork()) == 0:
        come_back(hows[0])
    else:
        say("together", hows[0], status_of(pid))


@wq.job(name="forking.chunk", queue="witness", failures_max=1, chunk=4, source=lambda how: [how] * 4)
def chunk(hows: list[str], how: str) -> None:
    me = os.getpid()
    say("called", how, f"{me}:{len(hows)}")
    if (pid := os.fork()) == 0:
        come_back(how)
    else:
        say("chunk", how, status_of(pid))


def of_a_source(how: str) -> Iterator[int]:
    yield 1
    if (pid := os.fork()) == 0:
        come_back(how)
    else:
        say("source", how, status_of(pid))


@wq.job(name="forking.source", queue="witness", failures_max=1, chunk=1, source=of_a_source)
def source(numbers: list[int], how: str) -> None:
    say("item", how, numbers)


@wq.task(name="forking.begin", queue="witness", failures_max=1)
def begin(job: str) -> None:
    """Begins a job, all of whose handlers' children raise."""
    {"chunk": chunk, "source": source}[job].run(how="raises")


@wq.task(name="forking.transaction", queue="witness", failures_max=1)
def transaction(how: str) -> None:
    """The child leaves the block before its parent does: it would commit, or roll back, on the parent's connection."""
    with workq.current().transaction():
        if (pid := os.fork()) == 0:
            come_back(how)
        else:
            say("transaction", how, status_of(pid))


@wq.task(name="forking.asks", queue="witness", failures_max=1)
def asks(how: str) -> None:
    """A child that multiprocessing runs has its own connections, and not those of the worker."""

    def ask(answers: Any) -> None:
        me = workq.current()
        try:
            me.cancelled()
        except NotInTask:
            answers.put("refused")
        wq.close()
        witness.note.enqueue(99)
        wq.close()
        answers.put(me.id)

    forked = multiprocessing.get_context("fork")
    answers = forked.SimpleQueue()
    child = forked.Process(target=ask, args=(answers,))
    child.start()
    child.join(WAIT_S)
    said = [answers.get() for _ in range(2)] if child.exitcode == 0 else child.exitcode
    say("asks", how, "as_a_plain_child" if said == ["refused", workq.current().id] else said)


@wq.task(name="forking.signals", queue="witness", failures_max=1)
def signals(how: str) -> None:
    """What it starts has the signals that it would have if this were a plain program."""
    shown = (
        "import os; print(*[one.split()[1] for one in open('/proc/self/status') if one[:6] in ('SigBlk', 'SigIgn')])"
    )
    ran = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    say("signals", "started", ran.stdout.strip().replace(" ", ","))
    read, write = os.pipe()
    if os.fork() == 0:
        names = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
        is_plain = names == [signal.default_int_handler, signal.SIG_DFL]
        os.write(write, b"plain" if is_plain else repr(names).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        say("signals", "forked", answer.read().replace(" ", "_"))
    os.wait()
    said = subprocess.run(["cat"], capture_output=True, timeout=WAIT_S, check=True)
    say("signals", "standard_input", len(said.stdout))


@wq.task(name="forking.ends", queue="witness", failures_max=1)
def ends(how: str) -> None:
    """Each of these ends what it was told to."""
    forked = multiprocessing.get_context("fork")
    for _ in range(50):  # the signal comes while the child is about to begin
        sleeper = forked.Process(target=time.sleep, args=(600,), daemon=True)
        sleeper.start()
        sleeper.terminate()
        sleeper.join(WAIT_S)
        if (status := sleeper.exitcode) is None:
            sleeper.kill()
            sleeper.join()
            break
    say("ends", "terminate", status)
    with subprocess.Popen(["sleep", "600"]) as program:
        program.send_signal(signal.SIGINT)
        try:
            say("ends", "interrupt", program.wait(WAIT_S))
        except subprocess.TimeoutExpired:
            say("ends", "interrupt", "ignored")
            program.kill()
    with forked.Pool(2) as pool:
        say("ends", "pool", sum(pool.map(abs, range(5))))


@wq.task(name="forking.leaves", queue="witness", failures_max=1)
def leaves(how: str) -> None:
    """Leaves programs behind whose parents end at once."""
    for _ in range(5):
        subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"], check=True)
    say("leaves", how, 5)


def is_running(pid: int) -> bool:
    """Whether that process lives; one that nobody has waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@wq.task(name="forking.shell", queue="witness", failures_max=2, crashes_max=2)
def shell(how: str) -> None:
    """The first attempt starts a program and one in a session of its own; later ones look whether these still run."""
    pids = Path(os.environ["WITNESS"] + f".{how}")
    if workq.current().attempt > 1:
        started = [int(line) for line in pids.read_text(encoding="ascii").splitlines()]
        say("shell", how, ",".join("runs" if is_running(pid) else "ended" for pid in started))
        return
    programs = [
        subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 0.05; done"], start_new_session=is_apart)
        for is_apart in (False, True)
    ]
    pids.write_text("".join(f"{one.pid}\n" for one in programs), encoding="ascii")
    witness.write("start", how)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    programs[0].wait()


@wq.task(name="forking.limited", queue="witness", failures_max=2, time_limit_s=0.5)
def limited(how: str) -> None:
    shell(how)
