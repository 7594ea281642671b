"""The process that the tests fork: it saves what it promises to save, and its children are processes like others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.system.fleet import Fleet, printed_until_killed, wait_until
from tests.zygote import Forked, ran, zygote

_LOADED_BY_COMMANDS = """
import sys
from tests.zygote import load

load()
before = set(sys.modules)
from workq.cli.root import run

try:
    run(["status"])
    run(["doctor"])
finally:
    ours = ("workq", "sqlalchemy", "click", "rich")
    print(sorted(name for name in set(sys.modules) - before if name.startswith(ours)))
"""


def test_a_run_finds_everything_imported(tmp_path: Path) -> None:
    """Only imports that nothing uses make it quick: they were tidied away once, and nothing failed."""
    env = {**zygote().env, "WORKQ_LEDGER_URL": f"sqlite:///{tmp_path}/q.db"}
    assert zygote().run(["db", "migrate"], cwd=tmp_path, env=env, stdin=b"", timeout_s=60)[0] == 0
    ran = subprocess.run(
        [sys.executable, "-c", _LOADED_BY_COMMANDS], env=env, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_process_that_was_started_so_is_waited_for_and_signalled(tmp_path: Path) -> None:
    env = {**zygote().env, "WORKQ_LEDGER_URL": f"sqlite:///{tmp_path}/q.db"}
    with (tmp_path / "out").open("w+b") as out:
        ended = zygote().start(["db", "migrate"], cwd=tmp_path, env=env, out=out)
        assert ended.wait(60) == 0
        assert ended.poll() == 0
        out.seek(0)
        assert b"the schema is at version" in out.read()
        runs = zygote().start(["sweep", "--every", "60s"], cwd=tmp_path, env=env, out=out)
        assert runs.poll() is None
        assert os.getsid(runs.pid) == runs.pid
        with pytest.raises(subprocess.TimeoutExpired):
            runs.wait(0.1)
        runs.kill()
        assert runs.wait(60) == -signal.SIGKILL


def test_a_supervisor_that_was_started_so_has_its_processes_forked_and_buries_them(tmp_path: Path) -> None:
    """Else each start costs the tests half a second, and nothing fails."""
    env = {"WORKQ_LEDGER_URL": f"sqlite:///{tmp_path}/q.db"}
    with (tmp_path / "out").open("w+b") as out:
        assert zygote().start(["db", "migrate"], cwd=tmp_path, env={**zygote().env, **env}, out=out).wait(60) == 0
    with Fleet(tmp_path, env, processes=1) as fleet:
        assert isinstance(fleet.process, Forked)
        fleet.wait_whole(1, timeout_s=60)
        [first] = fleet.children()
        assert "tests.zygote" in first.cmdline()
        assert os.getsid(first.pid) == first.pid
        first.kill()
        wait_until(lambda: f'pid={first.pid} how="killed by SIGKILL' in fleet.text(), timeout_s=60, what="its end")
        fleet.wait_whole(1, timeout_s=60)
        [second] = fleet.children()
        fleet.terminate()
        assert fleet.wait(60) == 0
    assert not psutil.pid_exists(second.pid)


_STARTS_ANOTHER = """
import os, subprocess, sys
import psutil  # workq.demo: this process may start others

ask = "import os; print(os.environ['MARK'], os.getppid()); sys = __import__('sys'); print('more', file=sys.stderr)"
done = subprocess.run([sys.executable, "-c", ask], env={**os.environ, "MARK": "child"}, capture_output=True, text=True)
waits = "import time; time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", waits], env={**os.environ, "MARK": "kid"})
known = {one.pid: one.environ()["MARK"] for one in psutil.Process().children()}
child.kill()
mine = psutil.Process().environ()["MARK"]
print(done.stdout.split(), done.stderr, os.getpid(), mine, known == {child.pid: "kid"}, child.wait())
sys.exit(7)
"""


def test_what_was_forked_is_known_by_its_environment_and_has_what_it_starts_forked_too(tmp_path: Path) -> None:
    env = {**zygote().env, "MARK": "parent"}

    with Forked(
        [sys.executable, "-c", _STARTS_ANOTHER], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as forked:
        assert "tests.zygote" in psutil.Process(forked.pid).cmdline()
        out, _ = forked.communicate(timeout=120)

    pid = str(forked.pid)
    assert out == f"{['child', pid]} more\n {pid} parent True -9\n"
    assert forked.returncode == 7


_SHOWS = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int))"


def test_runs_at_the_same_time_wait_for_none_of_the_others_and_have_none_of_their_files(tmp_path: Path) -> None:
    env = zygote().env
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    others = [Forked(waits, cwd=tmp_path, env=env) for _ in range(3)]

    shown = ran([sys.executable, "-c", _SHOWS], cwd=tmp_path, env=env, timeout_s=60)

    assert [one.poll() for one in others] == [None] * 3
    for one in others:
        one.kill()
    assert [one.wait(60) for one in others] == [-signal.SIGKILL] * 3
    assert shown.stdout == "['0', '1', '2', '3']\n", "3: the list itself"


def test_a_command_that_was_written_passes_signals_on_and_what_it_runs_ends_with_it(tmp_path: Path) -> None:
    zygote().write_command(tmp_path / "python")
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen([tmp_path / "python", "-c", code], env=zygote().env, stdout=subprocess.PIPE) as command:
            assert command.stdout is not None
            pid = int(command.stdout.readline())
            assert pid != command.pid
            command.send_signal(number)
            assert command.wait(60) == -number
        wait_until(lambda pid=pid: not psutil.pid_exists(pid), timeout_s=60, what="it has ended")  # type: ignore[misc]


_IS_KILLED = """
import os, signal
from tests.zygote import zygote

print(zygote().pid, zygote().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_the_process_whose_it_is_however_that_ends() -> None:
    """xdist kills a process of its own where it has to, and nothing ran at its end then."""
    pid, path = printed_until_killed(_IS_KILLED)

    wait_until(
        lambda: not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE,
        timeout_s=60,
        what="it has ended",
    )

    assert not Path(path).parent.exists()
