"""Stacks: those of another process, even while it holds the interpreter lock, and what a crash left."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from workq.lab import standstill
from workq.worker.stacks import WAIT_S, DumpedStacks, Stacks, parse

LONG_S = 30.0

BEGIN = """
import ctypes, faulthandler, os, sys, threading, time
from pathlib import Path
from workq.worker.stacks import Stacks

stacks = Stacks(Path(sys.argv[1]))
stacks.path.unlink()
stacks.listen()

def say(what):
    os.write(1, f"{what} {threading.get_ident()}\\n".encode())

def doze():
    threading.Event().wait(600)
"""

Start = Callable[[str], "tuple[subprocess.Popen[str], dict[str, int]]"]


@pytest.fixture
def stacks() -> Iterator[Stacks]:
    stacks = Stacks.create()
    yield stacks
    stacks.remove()


@pytest.fixture
def start(stacks: Stacks) -> Iterator[Start]:
    """Start a program that listens; answers it, and the threads that it names until it says `ready`."""
    started: list[subprocess.Popen[str]] = []

    def one(program: str) -> tuple[subprocess.Popen[str], dict[str, int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", BEGIN + program, str(stacks.path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        threads: dict[str, int] = {}
        for line in process.stdout:
            what, ident = line.split()
            threads[what] = int(ident)
            if what == "ready":
                break
        return process, threads

    yield one
    for process in started:
        process.kill()
        process.communicate()


def ask(stacks: Stacks, pid: int) -> bool:
    stacks.ask(pid)
    return stacks.wait(time.monotonic() + LONG_S)


def test_the_file_is_private(stacks: Stacks) -> None:
    assert stat.S_IMODE(stacks.path.stat().st_mode) == 0o600


def test_each_thread_of_another_process_shows_where_it_stands(stacks: Stacks, start: Start) -> None:
    program = """
def begin():
    say("dozing")
    began.set()
    doze()

def doze():
    threading.Event().wait(600)

began = threading.Event()
threading.Thread(target=begin, daemon=True).start()
began.wait()
say("ready")
time.sleep(600)
"""
    process, threads = start(program)

    assert ask(stacks, process.pid)

    found = stacks.read()
    assert "in begin" in found.threads[threads["dozing"]]
    assert "in <module>" in found.threads[threads["ready"]]
    assert found.fault is None
    assert process.poll() is None


def wait_until_all_sleep(pid: int) -> None:
    """Until each thread of a process sleeps, at several looks: `faulthandler` may crash on a thread that moves."""
    looks, deadline = 0, time.monotonic() + LONG_S
    while looks < 5:
        assert time.monotonic() < deadline, "the process does not come to rest"
        time.sleep(0.01)
        states = [one.read_text().rpartition(")")[2].split()[0] for one in Path(f"/proc/{pid}/task").glob("*/stat")]
        looks = looks + 1 if set(states) == {"S"} else 0


def test_a_process_that_holds_the_interpreter_lock_shows_where_it_stands(stacks: Stacks, start: Start) -> None:
    program = """
def hold():
    say("ready")
    ctypes.PyDLL(None).usleep(ctypes.c_uint(600_000_000))

threading.Thread(target=hold, daemon=True).start()
time.sleep(600)
"""
    process, threads = start(program)
    wait_until_all_sleep(process.pid)

    deadline = time.monotonic() + LONG_S
    innermost = ""
    while "in hold" not in innermost and time.monotonic() < deadline:  # it may not have come so far yet
        assert ask(stacks, process.pid)
        innermost = stacks.read().threads[threads["ready"]].splitlines()[0]

    assert "in hold" in innermost


def test_it_may_be_asked_again_and_the_newest_answer_counts(stacks: Stacks, start: Start) -> None:
    program = """
def first():
    sys.stdin.readline()

say("ready")
first()
say("later")
def second():
    time.sleep(600)
second()
"""
    process, threads = start("import sys, os; sys.stdin = os.fdopen(os.dup(0))" + program)

    assert ask(stacks, process.pid)
    assert ask(stacks, process.pid)

    assert threads["ready"] in stacks.read().threads


def test_a_stopped_process_gives_none_and_nobody_waits_for_long(stacks: Stacks, start: Start) -> None:
    process, _ = start("say('ready'); time.sleep(600)")
    standstill.stop(psutil.Process(process.pid))
    began = time.monotonic()
    stacks.ask(process.pid)

    assert not stacks.wait(time.monotonic() + WAIT_S)

    assert time.monotonic() - began < 10.0
    assert stacks.read() == DumpedStacks()


def test_a_process_that_is_gone_gives_none(stacks: Stacks, start: Start) -> None:
    process, _ = start("say('ready')")
    process.wait(LONG_S)
    stacks.ask(process.pid)

    assert not stacks.wait(time.monotonic())


@pytest.mark.parametrize(("call", "number"), [("ctypes.string_at(0)", signal.SIGSEGV), ("os.abort()", signal.SIGABRT)])
def test_a_crash_leaves_the_thread_that_it_came_from(
    stacks: Stacks, start: Start, call: str, number: signal.Signals
) -> None:
    program = f"""
import os
def crash():
    say("ready")
    {call}

threading.Thread(target=doze, daemon=True).start()
threading.Thread(target=crash, daemon=True).start()
time.sleep(600)
"""
    process, threads = start(program)

    assert process.wait(LONG_S) == -number

    found = stacks.read()
    assert found.fault == threads["ready"]
    assert "in crash" in found.threads[threads["ready"]]


def test_a_fault_handler_of_the_applications_own_is_left_in_place(stacks: Stacks) -> None:
    program = "ctypes.string_at(0)"
    begin = BEGIN.replace("stacks.listen()", "faulthandler.enable(); stacks.listen()")

    died = subprocess.run(
        [sys.executable, "-c", begin + program, str(stacks.path)], capture_output=True, text=True, timeout=LONG_S
    )

    assert died.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in died.stderr
    assert stacks.read() == DumpedStacks()


def test_a_process_that_leaves_may_write_them_itself(stacks: Stacks, start: Start) -> None:
    process, threads = start("threading.Thread(target=doze, daemon=True).start(); stacks.dump(); say('ready')")
    process.wait(LONG_S)

    assert threads["ready"] in stacks.read().threads


def test_stacks_are_read_as_they_are_written_and_garbage_is_no_error() -> None:
    text = """Fatal Python error: Segmentation fault

Thread 0x00000000000000aa (most recent call first):
  File "a.py", line 1 in one
  File "a.py", line 2 in two

Current thread 0x00000000000000bb [name] (most recent call first):
  File "b.py", line 3 in three
  <no Python frame>

Extension modules: numpy (total: 1)
  File "c.py", line 4 in four
"""
    assert parse(text) == DumpedStacks(
        {
            0xAA: 'File "a.py", line 1 in one\nFile "a.py", line 2 in two',
            0xBB: 'File "b.py", line 3 in three\n<no Python frame>',
        },
        fault=0xBB,
    )
    assert parse("") == parse("\x00\n  nonsense\nThread 0xzz\n") == DumpedStacks()
