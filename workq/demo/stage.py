"""What the demo runs on: a folder, settings in it, servers of its own, and the worker. All of it is gone at the end.

Nothing of the surrounding environment or folder reaches the queue of the demo. Another Ctrl-C does not keep `working`
from ending what it has started, also what has lost its parent.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from workq.config.sources import temporary_folder
from workq.errors import ConfigError, MissingExtra

_OWNER: Final = "WORKQ_DEMO_FOLDER"
"""The variable by which a process is known as ours."""
_LEAVE_S: Final = 15.0
"""How long the worker may take to leave after SIGTERM."""
_LAST_LINES: Final = 15


@contextmanager
def folder_for(keep: Path | None) -> Iterator[Path]:
    """A private folder: a temporary one, or the one to keep, which must be new or empty."""
    if keep is not None:
        keep = keep.absolute()
        try:
            keep.mkdir(parents=True, exist_ok=True)
            is_empty = not any(keep.iterdir())
        except OSError as error:
            raise ConfigError(f"--keep {keep}: {error.strerror}") from None
        if not is_empty:
            raise ConfigError(f"--keep {keep}: the folder is not empty; name a new one")
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="workq-demo-", dir=temporary_folder())).absolute()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def write_settings(folder: Path, settings: Mapping[str, str]) -> Path:
    """A settings file that says where the stores are, so that none of the user's own is read."""
    file = folder / "workq.toml"
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items()]
    file.write_text("".join(lines), encoding="utf-8")
    return file


@contextmanager
def private_servers() -> Iterator[tuple[str, dict[str, str]]]:
    """RabbitMQ, Redis and PostgreSQL for this run alone: what they are, and their URLs."""
    from workq.lab.servers import ServerFailed, ServerMissing, start_postgres, start_rabbitmq, start_redis

    for module, extra in (("pika", "rabbitmq"), ("redis", "redis"), ("psycopg", "postgres")):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"--servers needs {module}; install workq with its extra: {extra}")
    with ExitStack() as stack:
        try:
            rabbitmq, redis, postgres = (
                stack.enter_context(start()) for start in (start_rabbitmq, start_redis, start_postgres)
            )
        except ServerMissing as error:
            raise ConfigError(f"--servers: {error} (all that is missing, on Debian: make servers)") from error
        except ServerFailed as error:
            raise ConfigError(f"--servers: {error}") from error
        names = ", ".join(f"{one.name} {one.version}" for one in (rabbitmq, redis, postgres))
        yield names, {"ledger": postgres.url, "broker": rabbitmq.url, "inflight": redis.url}


@contextmanager
def working(folder: Path, *, app: str, queues: str, processes: int, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """`workq worker` as a real process; it and its children are gone at the end. A Ctrl-C is for us alone.

    `app`: the demo's application, `module:name`. `queues`: those that it serves.
    """
    command = [sys.executable, "-m", "workq", "worker", "--app", app, "--queues", queues]
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*command, "--processes", str(processes), "--threads", str(threads)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(folder), _OWNER: str(folder)},
            start_new_session=True,
        )
    try:
        yield worker
    finally:
        _end(worker, folder)


def _end(worker: subprocess.Popen[bytes], folder: Path) -> None:
    """SIGTERM, and SIGKILL for what is left after a while. Another Ctrl-C does not keep us from it."""
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for process in _ours(folder):
            with suppress(psutil.NoSuchProcess):
                process.resume()  # a stopped process does not see the signal
        if worker.poll() is None:
            worker.terminate()
            try:
                worker.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        left = list(_ours(folder))
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()  # psutil makes sure that the pid is still the same process
        psutil.wait_procs(left, timeout=_LEAVE_S)
    finally:
        for number, before in ignored.items():
            signal.signal(number, before)


def _ours(folder: Path) -> Iterator[psutil.Process]:
    """The processes that were started for this folder, also those whose parent is gone."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(_OWNER) == str(folder):
                yield process


def last_words(folder: Path) -> str:
    """The end of the worker's log, which stands beside the settings."""
    log = folder / "worker.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:] if log.exists() else []
    return "".join(f"\n    {line}" for line in ["the worker's last words:", *lines]) if lines else ""
