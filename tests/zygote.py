"""Processes of Python of their own, forked from one that has imported `workq` already.

A run does what `python` does that is started with the same arguments, but for the imports: they take most of the time
of a short command, and the tests run some thousand. Whoever changes how Python itself starts (its locale, its paths,
its clock) gets a process that is started as a user starts it; so does what runs no module of ours.

A process that starts others (a supervisor, a demo, a benchmark) has them forked too. It has threads and open databases
by then, and neither survives a fork: so a child of it, its nursery, which was forked before it did anything, forks them
in its place, and they become its own children. What they import is there already, but for their programs and the
applications; and of a supervisor of the tests its application, too, with the tables of its namespace, is made before,
once for all of them. What an application does when it is imported, it does once there: so this is for those alone that
do nothing then but read their settings.

A process shows its environment as the kernel tells it, and by that it may be found. One that was forked has none of its
own there: it writes its own over that of the zygote, which has room for it.
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
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Final, NoReturn, TextIO

import psutil

from tests.zygote_loop import REQUEST_MAX, fork_for_each, gather_memory
from workq.application import load_app
from workq.errors import ConfigError
from workq.jobs.ledger.tables import JobTables
from workq.ledger.columns import DIALECTS
from workq.ledger.engine.url import ledger_url
from workq.ledger.schema import shared_tables
from workq.limits.ledger.tables import LimitTables
from workq.messages.ledger.tables import MessageTables
from workq.order.ledger.tables import OrderTables
from workq.schedules.ledger import ScheduleTables
from workq.values import failpoints
from workq.webhooks.ledger.tables import WebhookTables

REPOSITORY: Final = Path(__file__).resolve().parents[1]
FORKED_WITH: Final = {"PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"}
"""What the environment of a run that is forked has."""
NURSERY: Final = "nursery"
"""The name of such a process."""
_STARTS_WITH: Final = ("PYTHON", "LC_", "LANG", "LD_", "FAKETIME", "MALLOC_", "TZ")
_OURS: Final = ("workq", "tests", "benchmarks")
_HAVE_PROCESSES: Final = ("worker", "intake", "demo", "bench", "certify")
_PROGRAMS: Final = ("workq.__main__", "workq.consumer", "workq.intake", "workq.worker.process")
"""What a process imports when it begins to be one."""
_APPLICATIONS: Final = ("workq.demo", "workq.lab.bench", "workq.lab.certify")
"""In them are modules that read their settings when they are imported."""
_MADE_BEFORE: Final = (
    *(f"tests.system.{one}:wq" for one in ("box", "lists", "postman", "witness", "workshop")),
    "workq.lab.certify.witness:wq",
    "workq.demo.reindex:wq",
)
"""Applications that say nothing, write nothing and ask for no pid when they are imported."""
_PARTS: Final = (OrderTables, LimitTables, ScheduleTables, JobTables, WebhookTables, MessageTables)
_PYTHON: Final = b"python3"
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_ROOM: Final = "WORKQTEST_ROOM"
_ROOM_BYTES: Final = 1 << 16
_SHIM: Final = """\
#!{python} -IS
import json, os, signal, socket, sys
args, env = [*{before!r}, *sys.argv[1:]], dict(os.environ)
fits = all(env.get(one) == {env!r}.get(one) for one in {{*env, *{env!r}}} if one.startswith({starts!r}))
ours = args[:1] == ["-c"] or args[:2] == ["-m", "workq"] or args and not args[0].startswith("-")
if not fits or not ours:
    os.execv({python!r}, [{python!r}, *args])
told = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
signal.pthread_sigmask(signal.SIG_BLOCK, told)  # until it is known whom to tell
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({path!r})
request = json.dumps(dict(python=args, cwd=os.getcwd(), env=env, ends_with_its_shim=True)).encode()
socket.send_fds(line, [request], [0, 1, 2])
pid = int(line.recv(64))
def tell(number, _):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
for one in told:
    if signal.getsignal(one) != signal.SIG_IGN:
        signal.signal(one, tell)
signal.pthread_sigmask(signal.SIG_UNBLOCK, told)
status = int(line.recv(64) or 1)
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class Forked(subprocess.Popen[Any]):
    """A process like any of `subprocess.Popen`, that is forked if it can be: `python` with a module of ours, or code.

    One of the tests is forked by the zygote, which tells how it ended; one of a process with a nursery is its child.
    """

    nursery: ClassVar[Nursery | None] = None
    _line: socket.socket | None = None

    def _execute_child(self, args: Any, executable: Any, *more: Any) -> None:
        """As `subprocess` calls it, in all versions of Python that are promised."""
        preexec_fn, _, pass_fds, cwd, env, _, _, shell, *pipes = more
        python, env = _python_of(args), dict(os.environ if env is None else env)
        is_plain = executable is None and preexec_fn is None and not (pass_fds or shell)
        if python is None or not is_plain or not fits(env):
            super()._execute_child(args, executable, *more)  # type: ignore[misc]
            return
        fds = [own if theirs == -1 else theirs for own, theirs in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {
            "python": python,
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": env,
            "umask": _umask(),
            "in_session": pipes[11],
        }
        try:
            self._begin(request, fds)
        except (OSError, ValueError):  # a nursery that was killed: whose it is goes on
            super()._execute_child(args, executable, *more)  # type: ignore[misc]
            return
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])  # type: ignore[attr-defined]

    def _begin(self, request: Mapping[str, Any], fds: Sequence[int]) -> None:
        if self.nursery is not None:
            self.pid = self.nursery.bear(request, fds)
            return
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.connect(zygote().path)
        socket.send_fds(self._line, [json.dumps(request).encode()], fds)
        self.pid = int(self._line.recv(64))

    def _internal_poll(self, *args: Any, **named: Any) -> int | None:
        if self._line is None:
            return super()._internal_poll(*args, **named)  # type: ignore[misc, no-any-return]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._wait(0)
        return None

    def _wait(self, timeout: float | None) -> int:
        if self._line is None:
            return super()._wait(timeout)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            with self._waitpid_lock:  # type: ignore[attr-defined]
                if self.returncode is None:
                    self.returncode = int(self._line.recv(64))
                    self._line.close()
        return self.returncode


def fits(env: Mapping[str, str]) -> bool:
    """Whether a run in this environment may be forked."""
    before = zygote().env if _began_with is None else _began_with
    return all(env.get(one) == before.get(one) for one in {*env, *before} if one.startswith(_STARTS_WITH))


def ran(
    command: Sequence[str], *, timeout_s: float, read: str | None = None, **given: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` does it, with all that it prints; forked if it can be. `read`: what it finds to read."""
    stdin = subprocess.DEVNULL if read is None else subprocess.PIPE
    with Forked(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                **given) as process:  # fmt: skip
        try:
            out, err = process.communicate(read, timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """What this process starts meanwhile is forked if it can be, whoever starts it: the engines of `workq.lab`."""
    popen, children = subprocess.Popen, psutil.Process.children
    before = dict(os.environ)
    os.environ.update(FORKED_WITH)
    subprocess.Popen = Forked  # type: ignore[misc]
    _pass_over_nurseries()
    try:
        yield
    finally:
        subprocess.Popen, psutil.Process.children = popen, children  # type: ignore[misc, method-assign]
        os.environ.clear()
        os.environ.update(before)


def _umask() -> int:
    """That of this process. To ask for it with `os.umask` would change it for a moment, for all threads."""
    return int(Path("/proc/self/status").read_text().partition("\nUmask:")[2].split()[0], 8)


def _python_of(args: Any) -> list[str] | None:
    """What Python is asked to run, as its arguments; None: not by us."""
    if not isinstance(args, list | tuple) or args[0] != sys.executable:
        return None
    python = [str(one) for one in args[1:]]
    match python[2:] if python[:2] == ["-W", "error"] else python:
        case ["-m", program, *_] if program.partition(".")[0] in _OURS:
            return python
        case ["-c", _, *_]:
            return python
    return None


class Zygote:
    """The process that forks, and serves at a socket."""

    def __init__(self, path: str, env: Mapping[str, str], pid: int) -> None:
        """`path`: of its socket. `env`: in which it was started."""
        self.path = path
        self.env = dict(env)
        self.pid = pid

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
            request = json.dumps({"python": ["-m", "workq", *args], "cwd": str(cwd), "env": dict(env)}).encode()
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
        return Forked(
            [sys.executable, "-m", "workq", *args],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def write_command(self, path: Path, *before: str) -> None:
        """An executable that is `python` with these arguments before others."""
        shim = _SHIM.format(python=sys.executable, env=self.env, starts=_STARTS_WITH, before=before, path=self.path)
        path.write_text(shim, encoding="utf-8")
        path.chmod(0o755)


class OwnZygote(Zygote):
    """One that this process has started, and ends. It ends with this process, however that ends."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """`env`: in which it is started."""
        self._folder = tempfile.TemporaryDirectory(prefix="zygote-")
        path = f"{self._folder.name}/line"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        listener.listen(64)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote", str(listener.fileno())],
            env={**env, _ROOM: "-" * _ROOM_BYTES},
            cwd=REPOSITORY,
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,  # its end tells that this process has ended, however it did
            start_new_session=True,
        )
        listener.close()
        super().__init__(path, env, self._process.pid)

    def close(self) -> None:
        """End it. Repeatable."""
        self._process.kill()
        self._process.communicate(timeout=30)
        self._folder.cleanup()


_found: Zygote | None = None
_finding: Final = threading.Lock()


def zygote() -> Zygote:
    """The one of this process, started when it is first asked for, or that of the run (`use`)."""
    global _found
    with _finding:
        if _found is None:
            env = {name: value for name, value in os.environ.items() if not name.startswith(("WORKQ_", "LC_", "COV"))}
            _found = own = OwnZygote(env | FORKED_WITH)
            atexit.register(own.close)
        return _found


def use(path: str, env: Mapping[str, str], pid: int) -> None:
    """From now on: the zygote of another process, which ends it. All processes of a distributed run share one."""
    global _found
    with _finding:
        _found = Zygote(path, env, pid)


def _kill(pid: int, is_late: threading.Event) -> None:
    is_late.set()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


# -- in the process that forks

_began_with: dict[str, str] | None = None
"""The environment of the zygote, in what it has forked; None in others."""


def load() -> None:
    """Import, once for all, what a command or supervisor may need. By name: what nothing uses would be tidied away."""
    for one in pkgutil.walk_packages([str(REPOSITORY / "workq")], "workq."):
        if one.name not in _PROGRAMS and not one.name.startswith(_APPLICATIONS):
            importlib.import_module(one.name)
    for name in (
        "sqlalchemy.dialects.sqlite",
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.mysql.pymysql",
        "pymysql",
        "rich.progress",
        "rich.table",
        "aiohttp",  # the receivers of a demo
        "doctest",  # the reader of the pages
        "importlib.resources.readers",  # the files of sql/
        "encodings.ascii",  # names of threads
        "encodings.idna",  # names of hosts
        "encodings.utf_8_sig",  # files of settings
        "tomllib",
    ):
        importlib.import_module(name)
    for dialect in DIALECTS:
        _make_tables("workq", dialect)
    gc.freeze()  # else the first collection of each run would copy it all


def _make_tables(namespace: str, dialect: str) -> None:
    tables = shared_tables(namespace, dialect)
    for part in _PARTS:
        tables.part(part)


def _serve(listener: socket.socket) -> None:
    global _began_with
    load()
    gather_memory()
    del os.environ[_ROOM]
    _began_with = dict(os.environ)
    os.environ.update(_began_with)  # a copy of each, elsewhere: what the kernel shows is free
    folder = Path(listener.getsockname()).parent
    fork_for_each(listener, _become)
    shutil.rmtree(folder)  # whose it is was killed, and did not


def _become(request: Mapping[str, Any], fds: Sequence[int], begins: Callable[[], None]) -> NoReturn:
    """Be a process that was just started so."""
    status: object = 1
    try:
        if request.get("in_session"):
            os.setsid()
        for number, one in enumerate(fds):
            os.dup2(one, number)
        for one in fds:
            os.close(one)
        if "umask" in request:
            os.umask(request["umask"])
        os.environ.clear()
        os.environ.update(request["env"])
        _show_environ()
        begins()
        os.chdir(request["cwd"])
        tempfile.tempdir = None
        sys.stdin, sys.stdout, sys.stderr = _standard_streams()
        if "WORKQ_FAILPOINT" in os.environ:
            importlib.reload(failpoints)
        if _has_processes(request["python"]):
            _make_before(request["python"])
            _have_a_nursery()
        status = _run(request["python"], request["cwd"])
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def _standard_streams() -> tuple[TextIO, TextIO, TextIO]:
    """They leave open what they read and write: those of whom this process was forked of are replaced by them."""
    return (
        open(0, encoding="utf-8", closefd=False),
        open(1, "w", encoding="utf-8", closefd=False),
        open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False),
    )


def _run(python: Sequence[str], cwd: str) -> object:
    """What Python does with these arguments; its exit status."""
    if python[:2] == ["-W", "error"]:
        sys.warnoptions[:] = ["error"]
        warnings.simplefilter("error")
        python = python[2:]
    sys.path[0] = cwd
    match python:
        case ["-m", "workq", *args]:
            from workq import logs
            from workq.cli.root import run

            sys.argv = ["workq", *args]
            status = run(args)
            logs.flush()
            return status
        case ["-m", program, *args]:
            sys.argv = [program, *args]
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        case ["-c", code, *args]:
            sys.argv, sys.path[0] = ["-c", *args], ""
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), vars(main))  # noqa: S102 - it is what `-c` is for
        case [script, *args]:
            sys.argv, sys.path[0] = [script, *args], str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
    return None


def _show_environ() -> None:
    """Let the kernel show the environment of this process as its own."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    shown = b"".join(b"%s=%s\0" % one for one in os.environb.items())
    if len(shown) >= end - start:
        raise ValueError(f"an environment of {len(shown)} bytes, and room for {end - start}")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))


# -- in a process that starts others, and in its nursery


def _has_processes(python: Sequence[str]) -> bool:
    """Whether it may start others."""
    match python:
        case ["-m", "workq", *args]:
            return any(one in _HAVE_PROCESSES for one in args)
        case ["-m", program, *_]:
            return program.startswith("benchmarks")
        case ["-c", code, *_]:
            return "workq.demo" in code
    return False


def _make_before(python: Sequence[str]) -> None:
    """What a supervisor and all of its processes would each make: the application, and the tables of its ledger."""
    found = next((one for one in _MADE_BEFORE if one in python), None)
    if found is None:
        return
    with contextlib.suppress(ConfigError):  # whoever needs it meets that, too, and says so
        settings = load_app(found).settings
        _make_tables(settings.namespace, ledger_url(settings.ledger).get_backend_name())
    gc.freeze()


def _have_a_nursery() -> None:
    """Whatever this process starts, it is forked; and no nursery is taken for one of those that were started."""
    Forked.nursery = Nursery()
    subprocess.Popen = Forked  # type: ignore[misc]
    _pass_over_nurseries()


def _pass_over_nurseries() -> None:
    """Let psutil tell of none among the children of a process."""
    children = psutil.Process.children

    def but_nurseries(self: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        return [one for one in children(self, recursive) if not _is_nursery(one)]

    psutil.Process.children = but_nurseries  # type: ignore[method-assign]


def _is_nursery(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == NURSERY
    return False


class Nursery:
    """The process that forks for this one. It ends with it, and nothing that is sent to a group reaches it."""

    def __init__(self) -> None:
        """Call it before this process has a thread."""
        self._lock = threading.Lock()
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

    def bear(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Start a process so, as a child of this one; its pid."""
        with self._lock:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whose parent has gone becomes a child of this one
            try:
                socket.send_fds(self._line, [json.dumps(request).encode()], fds)
                return int(self._line.recv(64))
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _nurse(line: socket.socket) -> None:
    os.setsid()
    while True:
        body, fds, _, _ = socket.recv_fds(line, REQUEST_MAX, 3)
        if not body:
            return
        between = os.fork()
        if between == 0:
            me = os.getpid()
            if os.fork() == 0:
                _be_born(json.loads(body), fds, line, of=me)
            os._exit(0)
        for one in fds:
            os.close(one)
        os.waitpid(between, 0)


def _be_born(request: Mapping[str, Any], fds: Sequence[int], line: socket.socket, *, of: int) -> NoReturn:
    def begins() -> None:
        while os.getppid() == of:
            time.sleep(0.0005)
        line.send(str(os.getpid()).encode())
        line.close()

    _prctl(_PR_SET_NAME, _PYTHON)
    _become(request, fds, begins)


def _prctl(option: int, value: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
