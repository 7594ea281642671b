"""Runs of the command line as processes of their own, forked from one that has imported it already.

A run does what `python -m workq` does, but for the imports: they take most of the time of a short command, and the
tests run some thousand. Whoever changes how Python itself starts (its locale, its paths, its clock) gets a process that
is started as a user starts it; so does every command that runs on, but for the supervisors that `start` has started.

A supervisor that was forked has its processes forked too. It has threads and open databases by then, and neither
survives a fork: so a child of it, its nursery, which was forked before it did anything, forks them in its place, and
they become its own children. What they import is there already, but for their programs and the application.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from workq.supervisor import supervisor
from workq.values import failpoints

REPOSITORY: Final = Path(__file__).resolve().parents[1]
REQUEST_MAX: Final = 1 << 20
FORKED_WITH: Final = {"PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"}
"""What the environment of a run that is forked has."""
NURSERY: Final = "nursery"
"""The name of such a process."""
_STARTS_WITH: Final = ("PYTHON", "LC_", "LANG", "LD_", "FAKETIME", "MALLOC_", "TZ")
_RUNS_ON: Final = ("worker", "intake", "demo", "bench", "certify", "listen", "watch", "scratch", "--every", "--wait")
_HAVE_PROCESSES: Final = ("worker", "intake")
_PROGRAMS: Final = ("workq.__main__", "workq.consumer", "workq.intake", "workq.worker.process")
"""What a process imports when it begins to be one."""
_PYTHON: Final = b"python3"
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_SHIM: Final = """\
#!{python} -IS
import json, os, socket, sys
args, env = sys.argv[1:], dict(os.environ)
fits = all(env.get(one) == {env!r}.get(one) for one in {{*env, *{env!r}}} if one.startswith({starts!r}))
runs_on = "--drain" not in args and any(one in {runs_on!r} for one in args)
if not fits or runs_on:
    os.execv({python!r}, [{python!r}, "-m", "workq", *args])
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({path!r})
request = json.dumps(dict(args=args, cwd=os.getcwd(), env=env)).encode()
socket.send_fds(line, [request], [0, 1, 2])
line.recv(64)
status = int(line.recv(64) or 1)
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class Forked:
    """A process that a zygote has started, as `subprocess.Popen` shows one."""

    def __init__(self, args: Sequence[str], line: socket.socket) -> None:
        self.args = args
        self.returncode: int | None = None
        self._line = line
        self.pid = int(line.recv(64))

    def poll(self) -> int | None:
        """How it has ended; None while it lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; how. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._line.recv(64))
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it lives."""
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that forks, and serves at a socket."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """`env`: in which it is started."""
        self.env = dict(env)
        self._folder = tempfile.TemporaryDirectory(prefix="zygote-")
        self.path = f"{self._folder.name}/line"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.path)
        listener.listen(64)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote", str(listener.fileno())],
            env=self.env,
            cwd=REPOSITORY,
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,  # its end tells that this process has ended, however it did
            start_new_session=True,
        )
        self.pid = self._process.pid
        listener.close()

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether a run in this environment may be forked."""
        return all(env.get(one) == self.env.get(one) for one in {*env, *self.env} if one.startswith(_STARTS_WITH))

    def run(
        self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        """Run `workq` with these arguments to its end; its status and what it printed."""
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(stdin)
            given.seek(0)
            line.connect(self.path)
            request = json.dumps({"args": list(args), "cwd": str(cwd), "env": dict(env)}).encode()
            socket.send_fds(line, [request], [given.fileno(), out.fileno(), err.fileno()])
            pid = int(line.recv(64))
            is_late = threading.Event()
            timer = threading.Timer(timeout_s, _kill, [pid, is_late])
            timer.start()
            try:
                status = int(line.recv(64))
            finally:
                timer.cancel()
            if is_late.is_set():
                raise subprocess.TimeoutExpired(["workq", *args], timeout_s)
            return status, _all(out), _all(err)

    def start(self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], out: IO[bytes]) -> Forked:
        """Start `workq` with these arguments, in a session of its own; what it prints goes to that file."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(self.path)
        request = json.dumps({"args": list(args), "cwd": str(cwd), "env": dict(env), "in_session": True}).encode()
        with open(os.devnull, "rb") as given:
            socket.send_fds(line, [request], [given.fileno(), out.fileno(), out.fileno()])
        return Forked([sys.executable, "-m", "workq", *args], line)

    def write_command(self, path: Path) -> None:
        """An executable that is `workq`."""
        shim = _SHIM.format(python=sys.executable, env=self.env, starts=_STARTS_WITH, runs_on=_RUNS_ON, path=self.path)
        path.write_text(shim, encoding="utf-8")
        path.chmod(0o755)

    def close(self) -> None:
        """End it. Repeatable."""
        self._process.kill()
        self._process.communicate(timeout=30)
        self._folder.cleanup()


@cache
def zygote() -> Zygote:
    """The one of this process; it ends with it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("WORKQ_", "LC_", "COV"))}
    made = Zygote(env | FORKED_WITH)
    atexit.register(made.close)
    return made


def _kill(pid: int, is_late: threading.Event) -> None:
    is_late.set()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


# -- in the process that forks


def load() -> None:
    """Import, once for all, what a command or supervisor may need. By name: what nothing uses would be tidied away."""
    for one in pkgutil.walk_packages([str(REPOSITORY / "workq")], "workq."):
        if one.name not in _PROGRAMS:
            importlib.import_module(one.name)
    for name in (
        "sqlalchemy.dialects.sqlite",
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.mysql.pymysql",
        "pymysql",
        "rich.progress",
        "rich.table",
        "importlib.resources.readers",  # the files of sql/
        "encodings.ascii",  # names of threads
    ):
        importlib.import_module(name)
    gc.freeze()  # else the first collection of each run would copy it all


def _serve(listener: socket.socket) -> None:
    load()
    while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            try:
                _attend(line)
            finally:
                os._exit(0)
        line.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
    shutil.rmtree(Path(listener.getsockname()).parent)  # whose it is was killed, and did not


def _attend(line: socket.socket) -> None:
    """One run, from its request to its status."""
    request, fds, _, _ = socket.recv_fds(line, REQUEST_MAX, 3)
    begun, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        line.close()
        os.close(begun)
        _become(json.loads(request), fds, begins)
    for one in (*fds, begins):
        os.close(one)
    os.read(begun, 1)  # until it is in its own session, as whoever signals a group expects
    line.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    line.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], fds: Sequence[int], begins: int) -> NoReturn:
    """Be a process that was just started so."""
    status: object = 1
    try:
        if request.get("in_session"):
            os.setsid()
        os.close(begins)
        for number, one in enumerate(fds):
            os.dup2(one, number)
        for one in fds:
            os.close(one)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = ["workq", *request["args"]]
        sys.path[0] = request["cwd"]
        sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
        if "WORKQ_FAILPOINT" in os.environ:
            importlib.reload(failpoints)
        if any(one in _HAVE_PROCESSES for one in request["args"]):
            supervisor.start_afresh = Nursery().start  # type: ignore[assignment, attr-defined]
        from workq.cli.root import run

        status = run(request["args"])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except SystemExit as leave:
        status = leave.code
    except BaseException:  # as Python does with what nobody has caught
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


# -- in a supervisor, and in its nursery


class Born:
    """A process that a nursery has forked: as much of `subprocess.Popen` as a supervisor uses."""

    def __init__(self, pid: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it has ended; None while it lives."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait until it has ended; how."""
        status = self._wait(0)
        assert status is not None
        return status

    def terminate(self) -> None:
        """Send it SIGTERM, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else has waited for it: as `subprocess` has it
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Nursery:
    """The process that forks for this one. It ends with it, and nothing that is sent to a group reaches it."""

    def __init__(self) -> None:
        """Call it before this process has a thread."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _prctl(_PR_SET_NAME, NURSERY.encode())  # before the fork: nobody may take it for a consumer, however early
        if os.fork() == 0:
            self._line.close()
            try:
                _nurse(theirs)
            finally:
                os._exit(0)
        _prctl(_PR_SET_NAME, _PYTHON)
        theirs.close()

    def start(self, program: str) -> Born:
        """Start the process that runs this module: a child of this one, in a session of its own."""
        given, stdin = os.pipe()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whose parent has gone becomes a child of this one
        try:
            socket.send_fds(self._line, [program.encode()], [given])
            pid = int(self._line.recv(64))
        finally:
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)
            os.close(given)
        return Born(pid, open(stdin, "wb", buffering=0))


def _nurse(line: socket.socket) -> None:
    os.setsid()
    while True:
        program, fds, _, _ = socket.recv_fds(line, 256, 1)
        if not program:
            return
        between = os.fork()
        if between == 0:
            me = os.getpid()
            if os.fork() == 0:
                _be_born(program.decode(), line, fds[0], born_of=me)
            os._exit(0)
        os.close(fds[0])
        os.waitpid(between, 0)


def _be_born(program: str, line: socket.socket, given: int, *, born_of: int) -> NoReturn:
    """Be a process that its supervisor has just started."""
    try:
        os.setsid()
        os.dup2(given, 0)
        os.close(given)
        _prctl(_PR_SET_NAME, _PYTHON)
        while os.getppid() == born_of:
            time.sleep(0.0005)
        line.send(str(os.getpid()).encode())
        line.close()
        sys.argv = [program]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


def _prctl(option: int, value: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
