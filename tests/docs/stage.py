"""Where one page is played: a folder with a ledger of its own, one shell and one Python session.

The folder has `.venv/bin` with the commands `workq` and `python`, and a page may write `/srv/shop` for it. `make`
works on this repository with that `.venv`, so that a target does what it does for a user, without installing anything.
A command that fails must be followed by `$ echo $?`.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from sqlalchemy import create_engine, make_url

from tests.docs.page import REPOSITORY, Block
from tests.system.fleet import PATIENCE
from tests.zygote import Forked, zygote
from workq.config import Settings

BOUND_S: Final = PATIENCE * 60.0
"""No command of a page may take longer than a minute, on a quiet machine."""
PLACE: Final = "/srv/shop"
"""What pages call the folder of an application."""
_NUMBER: Final = re.compile(r"\d[\d,]*(?:\.\d+)?")
_KINDS: Final = {
    "id": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "instant": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
    "logged": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:INFO|WARNING|ERROR) \d+",
    "pid": r"pid=\d+",
    "process": r"process \d+",
    "schema": r"(?:at|schema) version \d+",
    "worker": r"[A-Za-z0-9-]+(?:\.[0-9a-f]{1,8}){4}",
    "anything": r"\.\.\.",
    "gap": r"  +",
}
_VARYING: Final = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))
_CRON: Final = re.compile(r"((?:[0-9*/,-]+ ){5})(.+)")


class Stage:
    """Plays blocks in order. `urls` maps what a page writes to the private servers that are meant."""

    def __init__(self, folder: Path, urls: Mapping[str, str]) -> None:
        self.folder = folder
        self.urls = urls
        self.not_executed: list[Block] = []
        self.ids: dict[str, str] = {}
        """The ids that the page shows, and what they are in this run."""
        bin_ = folder / ".venv" / "bin"
        bin_.mkdir(parents=True)
        zygote().write_command(bin_ / "workq", "-m", "workq")
        zygote().write_command(bin_ / "python")
        for stamp in (".installed-base", ".installed-full"):
            (folder / ".venv" / stamp).touch()
        _write_command(bin_ / "make", f'exec {_make(folder)} "$@"')
        foreign = ("WORKQ_", "LC_", "COV", "MAKE", "MFLAGS", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTHONWARNINGS")
        keep = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.environ = keep | {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "LANG": "C.UTF-8",
            "PS1": "",
        }
        if urls:
            self.environ["WORKQ_NAMESPACE"] = f"d{secrets.token_hex(4)}"
        self.shell: _Shell | None = None
        self.session: subprocess.Popen[str] | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        if self.session is not None:
            self.session.communicate(timeout=BOUND_S)
        if self.shell is not None:
            self.shell.close()

    # -- blocks

    def play(self, block: Block) -> None:
        """Do what a block says, and compare what comes of it."""
        if block.reason is not None:
            self.not_executed.append(block)
            return
        if block.executed_by is not None:
            return
        HANDLERS[block.language](self, block)

    def python(self, block: Block) -> None:
        """A file, or code that runs in the page's namespace and prints nothing."""
        compile(block.text, block.place, "exec")
        if block.file is not None:
            self._write(block)
            return
        out = self._ask(block, is_session=False)
        assert out == "", f"{block.place} prints {out!r}: show it as a pycon block"

    def pycon(self, block: Block) -> None:
        """A session with its answers."""
        self._ask(block, is_session=True)

    def console(self, block: Block) -> None:
        """Commands with their whole output."""
        steps = list(_commands(block))
        for at, (command, expected) in enumerate(steps):
            status, out = self._run(command)
            is_asked = at + 1 < len(steps) and steps[at + 1][0] == "echo $?"
            assert status == 0 or is_asked, f"{block.place}: $ {command}\nexit status {status}\n{out}"
            pattern, new = _pattern(expected, self.ids, block.is_figures_vary)
            found = re.fullmatch(pattern, _stripped(out))
            assert found, f"{block.place}: $ {command}\n--- the page says\n{expected}\n--- it prints\n{out}"
            self.ids.update(zip(new, found.groups(), strict=True))

    def sh(self, block: Block) -> None:
        """Commands that succeed, whatever they print; or a file."""
        if block.file is not None:
            self._write(block)
            return
        for command in _joined(block.text.splitlines()):
            if command and not command.startswith("#"):
                status, out = self._run(command)
                assert status == 0, f"{block.place}: {command}\nexit status {status}\n{out}"

    def toml(self, block: Block) -> None:
        """A settings file: every key is known, every value is valid."""
        document = tomllib.loads(block.text)
        self._write(block)
        if "workq" in document.get("tool", {}) or block.file == "workq.toml":
            Settings.load(environ={}, folder=self.folder, file=block.file)

    def ini(self, block: Block) -> None:
        """A systemd unit: it parses, and what it starts exists with these options."""
        unit = configparser.RawConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign] # the documented way to keep the case of names
        unit.read_string(block.text)
        assert set(unit.sections()) <= {"Unit", "Service", "Timer", "Install"}, block.place
        if unit.has_option("Service", "ExecStart"):
            status, out = self._run(f"{unit.get('Service', 'ExecStart')} --help")
            assert status == 0, f"{block.place}: {out}"
            assert "Usage:" in out, f"{block.place}: {out}"

    def cron(self, block: Block) -> None:
        """Lines of a crontab: five fields, and a command that works."""
        for line in block.text.splitlines():
            if line.startswith("#") or "=" in line.split(" ")[0]:
                continue
            found = _CRON.fullmatch(line)
            assert found, f"{block.place}: {line}"
            status, out = self._run(found[2])
            assert status == 0, f"{block.place}: {found[2]}\nexit status {status}\n{out}"

    def sql(self, block: Block) -> None:
        """Statements, executed in the page's ledger and committed; it gets its schema if it has none."""
        status, out = self._run("workq db migrate")
        assert status == 0, f"{block.place}: {out}"
        url = make_url(self._environ().get("WORKQ_LEDGER_URL", "sqlite:///workq.db"))
        if url.get_backend_name() == "sqlite":
            url = url.set(database=str(self.folder / str(url.database)))
        namespace = self.environ.get("WORKQ_NAMESPACE", "workq")
        engine = create_engine(url)
        try:
            with engine.begin() as connection:
                for statement in filter(str.strip, block.text.replace("workq_", f"{namespace}_").split(";")):
                    connection.exec_driver_sql(statement)
        finally:
            engine.dispose()

    def drawing(self, block: Block) -> None:
        """Not for a machine: it must only be plain, and fit."""
        assert block.text.isascii(), f"{block.place}: a drawing is ASCII"
        assert max(map(len, block.text.splitlines())) <= 120, f"{block.place}: a drawing has at most 120 columns"

    # -- parts

    def _write(self, block: Block) -> None:
        assert block.file is not None, f"{block.place}: the first line must be `# name.ext`"
        (self.folder / block.file).write_text(self._meant(block.text) + "\n", encoding="utf-8")

    def _meant(self, text: str) -> str:
        for written, meant in {**self.urls, **self.ids, PLACE: str(self.folder)}.items():
            text = text.replace(written, meant)
        return text

    def _run(self, command: str) -> tuple[int, str]:
        if self.shell is None:
            self.shell = _Shell(self.folder, self.environ)
        status, out = self.shell.run(self._meant(command))
        return status, out.replace(str(self.folder), PLACE)

    def _environ(self) -> dict[str, str]:
        self._run("env -0 > .environ")
        body = (self.folder / ".environ").read_text(encoding="utf-8")
        return dict(line.split("=", 1) for line in body.split("\0") if "=" in line)

    def _ask(self, block: Block, *, is_session: bool) -> str:
        environ = self._environ()
        if self.session is None:
            self.session = Forked(
                [sys.executable, "-W", "error", "-m", "tests.docs.reader"],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        stdin, stdout = self.session.stdin, self.session.stdout
        assert stdin is not None
        assert stdout is not None
        asked = {"place": block.place, "text": self._meant(block.text), "environ": environ, "is_session": is_session}
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        assert select.select([stdout], [], [], BOUND_S)[0], f"{block.place}: no answer within {BOUND_S:.0f} s"
        answer: dict[str, Any] = json.loads(stdout.readline())
        assert not answer["trouble"], f"{block.place}\n{answer['trouble']}"
        return str(answer["out"])


HANDLERS: Final[Mapping[str, Callable[[Stage, Block], None]]] = {
    "python": Stage.python,
    "pycon": Stage.pycon,
    "console": Stage.console,
    "sh": Stage.sh,
    "toml": Stage.toml,
    "ini": Stage.ini,
    "cron": Stage.cron,
    "sql": Stage.sql,
    "text": Stage.drawing,
}
"""Who plays which language. A block of another one fails the tests."""


class _Shell:
    """One bash, so that variables and background processes last from block to block."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._mark = f"--{secrets.token_hex(8)}--"
        self._status = 0
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """One command; its exit status and all that it prints."""
        stdin, stdout = self._bash.stdin, self._bash.stdout
        assert stdin is not None
        assert stdout is not None
        lines = [
            f"(exit {self._status})",
            f"eval {shlex.quote(command)} < /dev/null",
            f"__status=$?; printf '\\n%s %s\\n' {shlex.quote(self._mark)} $__status",
        ]
        stdin.write(("\n".join(lines) + "\n").encode())
        stdin.flush()
        out = b""
        deadline = time.monotonic() + BOUND_S
        while (found := re.search(rb"\n%s (\d+)\n" % self._mark.encode(), out)) is None:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"not within {BOUND_S:.0f} s: $ {command}\n{out.decode(errors='replace')}"
            got = os.read(stdout.fileno(), 65536)
            assert got, f"the shell ended: $ {command}\n{out.decode(errors='replace')}"
            out += got
        is_pause = command.strip() == "echo $?"
        self._status = 0 if is_pause else int(found[1])
        return int(found[1]), out[: found.start()].decode(errors="replace")

    def close(self) -> None:
        """End the shell and what it left running: all of its session, which this class began."""
        try:
            os.killpg(self._bash.pid, signal.SIGTERM)
            os.killpg(self._bash.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._bash.communicate(timeout=BOUND_S)


def _write_command(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def _make(folder: Path) -> str:
    make = shutil.which("make")
    assert make, "the pages name targets of make"
    return f"{make} --no-print-directory -C {shlex.quote(str(REPOSITORY))} VENV={shlex.quote(str(folder / '.venv'))}"


def _joined(lines: list[str]) -> list[str]:
    joined: list[str] = []
    is_open = False
    for line in lines:
        if is_open:
            joined[-1] += "\n" + line
        else:
            joined.append(line)
        is_open = line.endswith("\\")
    return joined


def _commands(block: Block) -> list[tuple[str, str]]:
    """Each command after `$ ` (lines that end with a backslash go on), and the output that follows it."""
    steps: list[tuple[str, list[str]]] = []
    is_open = False
    for line in block.text.splitlines():
        if is_open:
            command, out = steps[-1]
            steps[-1] = (f"{command}\n{line}", out)
            is_open = line.endswith("\\")
        elif line.startswith("$ "):
            steps.append((line[2:], []))
            is_open = line.endswith("\\")
        else:
            assert steps, f"{block.place}: a console block begins with `$ `"
            steps[-1][1].append(line)
    return [(command, "\n".join(out)) for command, out in steps]


def _stripped(out: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in out.strip("\n").splitlines())


def _pattern(expected: str, ids: Mapping[str, str], is_figures_vary: bool) -> tuple[str, list[str]]:
    """What the output must match, and the ids that the page shows for the first time, one for each group.

    A line `...` stands for any lines, `...` in a line for anything there, two spaces for two or more. Times, process
    ids, the names of workers and the version of the schema stand for others of their kind.
    """
    parts: list[str] = []
    new: list[str] = []
    for line in expected.strip("\n").splitlines():
        if line.strip() == "...":
            parts.append(r"(?:[^\n]*\n)*?")
            continue
        part, end = "", 0
        line = line.rstrip()
        for found in _VARYING.finditer(line):
            part += _plain(line[end : found.start()], is_figures_vary)
            end = found.end()
            kind = str(found.lastgroup)
            if kind != "id":
                part += r"[^\n]*?" if kind == "anything" else _KINDS[kind]
            elif found[0] in ids:
                part += ids[found[0]]
            elif found[0] in new:
                part += rf"\{new.index(found[0]) + 1}"
            else:
                new.append(found[0])
                part += f"({_KINDS[kind]})"
        parts.append(part + _plain(line[end:], is_figures_vary) + "\n")
    return "".join(parts), new


def _plain(text: str, is_figures_vary: bool) -> str:
    return _any_figures(text) if is_figures_vary else re.escape(text)


def _any_figures(text: str) -> str:
    """Numbers but 0 stand for any; `1 subtask` and `5 subtasks` are the same then."""
    pattern, end = "", 0
    for found in _NUMBER.finditer(text):
        pattern += re.escape(text[end : found.start()])
        pattern += "0" if found[0] == "0" else r"\d[\d,]*(?:\.\d+)?"
        end = found.end()
    return re.sub(r"subtasks?\b", "subtasks?", pattern + re.escape(text[end:]))
