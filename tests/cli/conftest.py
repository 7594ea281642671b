"""Runs of the real command in a folder of their own, with a small application in it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.zygote import Forked, fits, zygote
from workq.app import WorkQueue
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Outcome, Settlement

REPOSITORY = Path(__file__).parents[2]
BOUND_S = 60.0

SHOP = """
from workq import WorkQueue, Times

wq = WorkQueue()

@wq.task(name="shop.add", queue="sums")
def add(a: int, b: int = 0) -> int:
    return a + b

@wq.task(name="shop.fail", failures_max=1)
def fail(text: str = "no") -> None:
    raise ValueError(text)

@wq.task(name="shop.echo")
def echo(value: object) -> object:
    return value
"""


@dataclass(frozen=True)
class Ran:
    """What one run printed, and its exit status."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """The one document on standard output."""
        assert self.status in (0, 1, 3, 4, 5, 6), self
        return json.loads(self.out)


def ran_in(args: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """Run `workq` in a process of its own: its status, and what it printed."""
    if fits(env):
        return zygote().run(args, cwd=cwd, env=env, stdin=stdin, timeout_s=BOUND_S)
    process = subprocess.run(
        [sys.executable, "-m", "workq", *args],
        cwd=cwd,
        env=env,
        input=stdin,
        capture_output=True,
        timeout=BOUND_S,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


class Cli:
    """`workq` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("WORKQ_", "LC_", "COV"))}
        self.env |= {"PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8", "WORKQ_LEDGER_URL": "sqlite:///shop.db"}
        for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
            self.env.pop(name, None)
        (folder / "shop.py").write_text(SHOP)

    def __call__(
        self, *args: str, stdin: str | bytes = "", env: dict[str, str] | None = None, app: bool = False
    ) -> Ran:
        """Run it to its end. `app` names the application in the environment."""
        environ = self.env | ({"WORKQ_APP": "shop:wq"} if app else {}) | (env or {})
        given = stdin.encode() if isinstance(stdin, str) else stdin
        status, out, err = ran_in(args, cwd=self.folder, env=environ, stdin=given)
        ran = Ran(status, out.decode(), err.decode())
        # of the command's own: in the log of a worker, those of dead tasks are indented
        assert "-v" in args or not re.search("^Traceback", ran.err, flags=re.MULTILINE), ran
        return ran

    def here(self, *args: str) -> Ran:
        """Run it in this process, which is faster than to start another."""
        from workq.cli.root import run

        out, err, before = io.StringIO(), io.StringIO(), dict(os.environ)
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            os.environ["WORKQ_LEDGER_URL"] = "sqlite:///shop.db"
            try:
                status = run(list(args))
            finally:
                os.environ.clear()
                os.environ.update(before)
        return Ran(status, out.getvalue(), err.getvalue())

    def look(self, *args: str) -> Any:
        """What it prints with `-o json`, asked in this process."""
        return self.here(*args, "-o", "json", "-q").json()

    def on_a_terminal(self, *args: str, typed: str = "", env: dict[str, str] | None = None) -> Ran:
        """Run it on a terminal of its own, where somebody types. What it prints there comes together."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, typed.encode())
            with Forked(
                [sys.executable, "-m", "workq", *args],
                cwd=self.folder,
                env=self.env | {"TERM": "xterm", "COLUMNS": "100"} | (env or {}),
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
            ) as process:
                os.close(theirs)
                told = b""
                with contextlib.suppress(OSError):  # the end of a terminal is an error, EIO
                    while some := os.read(ours, 4096):
                        told += some
                status = process.wait(BOUND_S)
        finally:
            os.close(ours)
        return Ran(status, told.decode(), "")

    @contextlib.contextmanager
    def queue(self) -> Iterator[WorkQueue]:
        """The stores of the folder, opened in this process, with a handler of the name `shop.add`."""
        with WorkQueue(ledger=f"sqlite:///{self.folder}/shop.db") as wq:
            wq.task(name="shop.add", queue="sums")(_add)
            wq.task(name="shop.fail", failures_max=1)(_fail)
            yield wq

    def start(self, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start it and let it run."""
        return Forked(
            [sys.executable, "-m", "workq", *args],
            cwd=self.folder,
            env=self.env | {"WORKQ_APP": "shop:wq"} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def record(self, name: str, *args: Any, count: int = 1) -> list[str]:
        """Record tasks; answers their ids."""
        with self.queue() as wq:
            return [wq.handler(name).enqueue(*args).id for _ in range(count)]

    def claim(self, task_ids: list[str]) -> list[str]:
        """Let these run, in this process by the ledger's account; answers their ids."""
        me = Incarnation.of_this_process()
        with self.queue() as wq:
            wq.stores.ledger.workers.join(me, queues=["sums"], threads=1)
            assert len(wq.stores.ledger.claims.claim(task_ids, by=me.id)) == len(task_ids)
        return task_ids

    def settle(self, task_ids: list[str], outcome: Outcome) -> list[str]:
        """Let a worker run these tasks, to this outcome; answers their ids."""
        me = Incarnation.of_this_process()
        with self.queue() as wq:
            ledger = wq.stores.ledger
            ledger.workers.join(me, queues=["sums"], threads=1)
            claims = ledger.claims.claim(task_ids, by=me.id)
            assert len(claims) == len(task_ids)
            ledger.outcomes.settle([Settlement(claim, outcome) for claim in claims])
            ledger.workers.leave(me.id)
        return task_ids

    def kill(self, count: int = 1, error: str = "ValueError: no") -> list[str]:
        """So many dead tasks."""
        return self.settle(self.record("shop.fail", count=count), Dead("failures_max reached: ValueError", error))


def _add(a: int, b: int = 0) -> int:
    return a + b


def _fail(text: str = "no") -> None:
    raise ValueError(text)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command in an empty folder, apart from the application `shop:wq`."""
    return Cli(tmp_path)


@pytest.fixture(scope="module")
def shared_cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """The same for tests that change nothing."""
    return Cli(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ran]]:
    """The command in this process: for what is decided before any store is opened."""
    from workq.cli.root import run

    for name in list(os.environ):
        if name.startswith("WORKQ_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WORKQ_LEDGER_URL", "sqlite:///shop.db")
    monkeypatch.setenv("WORKQ_APP", "")
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> Ran:
        status = run(list(args))
        told = capsys.readouterr()
        return Ran(status, told.out, told.err)

    yield call
    assert list(tmp_path.iterdir()) == []
