"""Runs of the command line as processes of their own, forked from one that has imported it already.

A run does what `python -m workq` does, but for the imports: they take most of the time of a short command, and the
tests run some thousand. Whoever changes how Python itself starts (its locale, its paths, its clock) gets a process that
is started as a user starts it; so does every command that runs on.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, NoReturn

REPOSITORY: Final = Path(__file__).resolve().parents[1]
REQUEST_MAX: Final = 1 << 20
_STARTS_WITH: Final = ("WORKQ_FAILPOINT", "PYTHON", "LC_", "LANG", "LD_", "FAKETIME", "MALLOC_", "TZ")
_RUNS_ON: Final = ("worker", "demo", "bench", "certify", "listen", "watch", "scratch", "--every", "--wait")
_SHIM: Final = """\
#!{python} -IS
import json, os, socket, sys
args, env = sys.argv[1:], dict(os.environ)
fits = all(env.get(one) == {env!r}.get(one) for one in {{*env, *{env!r}}} if one.startswith({starts!r}))
if not fits or any(one in {runs_on!r} for one in args):
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
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
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

    def write_command(self, path: Path) -> None:
        """An executable that is `workq`."""
        shim = _SHIM.format(python=sys.executable, env=self.env, starts=_STARTS_WITH, runs_on=_RUNS_ON, path=self.path)
        path.write_text(shim, encoding="utf-8")
        path.chmod(0o755)

    def close(self) -> None:
        """End it. Repeatable."""
        self._process.kill()
        self._process.wait(30)
        self._folder.cleanup()


@cache
def zygote() -> Zygote:
    """The one of this process; it ends with it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("WORKQ_", "LC_", "COV"))}
    made = Zygote(env | {"PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"})
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


def _serve(listener: socket.socket) -> None:

    while True:
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


def _attend(line: socket.socket) -> None:
    """One run, from its request to its status."""
    request, fds, _, _ = socket.recv_fds(line, REQUEST_MAX, 3)
    pid = os.fork()
    if pid == 0:
        line.close()
        _become(json.loads(request), fds)
    for one in fds:
        os.close(one)
    line.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    line.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], fds: Sequence[int]) -> NoReturn:
    """Be a process that was just started so."""
    status: object = 1
    try:
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


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
