"""What goes wrong: one line that says what, why and what to do; the right exit status; never a password."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import socketserver
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import BOUND_S, REPOSITORY, SHOP, Cli
from workq.lab.servers import PostgreSQL

CANARY = "canary-7d1f"
ASKING = (
    ("status",), ("task", "ls"), ("queue", "ls"), ("dead", "ls"), ("worker", "ls"), ("sweep",), ("db", "status"),
    ("db", "migrate"), ("doctor",),
)  # fmt: skip


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """A port on which nothing listens: bound, so that nobody else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(scope="module")
def web_port() -> Iterator[int]:
    """A port on which a web server answers."""
    with WebServer(("127.0.0.1", 0), BadRequest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class WebServer(socketserver.ThreadingTCPServer):
    daemon_threads = True


class BadRequest(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(65536)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def one_line(err: str) -> str:
    """The error, which is the last line, after notes."""
    lines = err.splitlines()
    assert sum(line.startswith("workq: error: ") for line in lines) == 1, err
    assert lines[-1].startswith("workq: error: ")
    return lines[-1]


class TestUnreachable:
    @pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
    @pytest.mark.parametrize("more", [(), ("-v",)], ids=["plain", "verbose"])
    def test_a_ledger_that_is_away_exits_4_and_no_password_is_shown(
        self, shared_cli: Cli, closed_port: int, scheme: str, more: tuple[str, ...]
    ) -> None:
        url = f"{scheme}://ann:{CANARY}@127.0.0.1:{closed_port}/shop"

        ran = shared_cli("status", *more, env={"WORKQ_LEDGER_URL": url})

        assert ran.status == 4
        assert ran.out == ""
        assert f"ann:***@127.0.0.1:{closed_port}" in one_line(ran.err)
        assert CANARY not in ran.err
        assert ("Traceback" in ran.err) == bool(more)

    @pytest.mark.parametrize("args", ASKING, ids=" ".join)
    def test_every_command_says_so_alike(self, shared_cli: Cli, closed_port: int, args: tuple[str, ...]) -> None:
        url = f"postgresql://ann:{CANARY}@127.0.0.1:{closed_port}/shop"

        ran = shared_cli.here(*args, "--url", url)

        assert ran.status == 4
        assert CANARY not in ran.out + ran.err
        assert str(closed_port) in ran.out + ran.err

    @pytest.mark.parametrize(
        ("name", "url"),
        [
            ("WORKQ_LEDGER_URL", f"postgresql://ann:{CANARY}@127.0.0.1:{{port}}/shop"),
            ("WORKQ_BROKER_URL", f"amqps://ann:{CANARY}@127.0.0.1:{{port}}/"),
            ("WORKQ_INFLIGHT_URL", f"redis://ann:{CANARY}@127.0.0.1:{{port}}/0"),
        ],
    )
    def test_a_worker_does_not_wait_for_a_server_of_another_kind(
        self, shared_cli: Cli, web_port: int, name: str, url: str
    ) -> None:
        ran = shared_cli("worker", app=True, env={name: url.format(port=web_port)})

        assert ran.status == 4
        assert f"127.0.0.1:{web_port}" in one_line(ran.err)
        assert CANARY not in ran.out + ran.err

    def test_the_queues_are_shown_without_hints_when_the_broker_is_away(self, cli: Cli, closed_port: int) -> None:
        cli.record("shop.add", 1)

        ran = cli(
            "queue", "ls", "-o", "json", env={"WORKQ_BROKER_URL": f"amqp://ann:{CANARY}@127.0.0.1:{closed_port}/"}
        )

        assert ran.status == 4
        (sums,) = ran.json()["queues"]
        assert (sums["queue"], sums["ready"], sums["hints"]) == ("sums", 1, None)
        assert "workq: warning:" in ran.err
        assert CANARY not in ran.err

    def test_a_task_is_recorded_while_the_broker_is_away(self, cli: Cli, closed_port: int) -> None:
        ran = cli(
            "enqueue", "shop.add", "a=1", "-o", "json", app=True,
            env={"WORKQ_BROKER_URL": f"amqp://ann:{CANARY}@127.0.0.1:{closed_port}/"},
        )  # fmt: skip

        assert ran.json()["created"] is True
        assert CANARY not in ran.err
        assert cli.look("sweep", "--dry-run", "--only", "relay")["relayed"] in (0, 1)  # the grace may not be over
        assert cli.look("status")["states"]["ready"] == 1

    def test_a_missing_driver_names_the_extra(self, shared_cli: Cli) -> None:
        (shared_cli.folder / "psycopg.py").write_text("raise ModuleNotFoundError('psycopg')\n")
        try:
            own = {"PYTHONHASHSEED": "0"}  # it is started, not forked from a process that has the driver
            ran = shared_cli("status", "--url", f"postgresql://ann:{CANARY}@127.0.0.1/shop", env=own)
        finally:
            (shared_cli.folder / "psycopg.py").unlink()

        assert ran.status == 2
        assert "[postgres]" in one_line(ran.err)
        assert CANARY not in ran.err


class TestApplication:
    @pytest.mark.parametrize(
        ("source", "said"),
        [
            (None, "No module named 'broken'"),
            ("1/0", "ZeroDivisionError: division by zero"),
            ("import sys; sys.exit(3)", "SystemExit: 3"),
            ("def def", "SyntaxError"),
            ("wq = 42", "int, not a WorkQueue"),
            ("other = 42", "not a WorkQueue"),
            ("from workq import WorkQueue\nwq = WorkQueue()", "has no tasks"),
            ("from workq import WorkQueue\nwq = WorkQueue(ledger='sqlite://x')", "three slashes"),
        ],
        ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
    )
    def test_one_that_cannot_be_used_exits_2_with_its_own_error(self, cli: Cli, source: str | None, said: str) -> None:
        if source is not None:
            (cli.folder / "broken.py").write_text(source + "\n")

        ran = cli("worker", "--drain", "--app", "broken:wq")

        assert ran.status == 2
        assert said in one_line(ran.err)
        assert not (cli.folder / "shop.db").exists()

    def test_verbose_shows_where_it_failed(self, cli: Cli) -> None:
        (cli.folder / "broken.py").write_text("def deep():\n    return 1 / 0\ndeep()\n")

        ran = cli("worker", "-v", "--app", "broken:wq")

        assert ran.status == 2
        assert 'broken.py", line 2, in deep' in ran.err
        assert ran.err.splitlines()[-1].startswith("workq: error: ")

    def test_a_url_beside_an_application_with_its_own_ledger_is_refused(self, cli: Cli) -> None:
        (cli.folder / "own.py").write_text("from workq import WorkQueue\nwq = WorkQueue(ledger='sqlite:///own.db')\n")

        ran = cli("enqueue", "x", "--app", "own:wq", "--url", "sqlite:///other.db")
        shown = cli("config", "--app", "own:wq", "-o", "json")

        assert ran.status == 2
        assert "own:wq" in one_line(ran.err)
        assert shown.json()["settings"][0] == {"name": "ledger", "value": "sqlite:///own.db", "origin": "argument"}


class TestSchema:
    def test_a_newer_schema_is_refused_and_an_older_one_names_the_cure(self, cli: Cli) -> None:
        assert cli("db", "status").status == 2
        assert not (cli.folder / "shop.db").exists()
        assert cli("db", "migrate", "-o", "json").json()["applied"] == ["schema.sql"]
        assert cli.look("db", "migrate")["applied"] == []

        with sqlite3.connect(cli.folder / "shop.db") as file:
            file.execute("UPDATE workq_meta SET value = '999' WHERE name = 'schema_version'")
        file.close()

        for args in (("status",), ("db", "migrate"), ("sweep",)):
            ran = cli(*args)
            assert ran.status == 1
            assert "999" in one_line(ran.err)
            assert "Upgrade workq" in ran.err
        assert cli("db", "status").status == 3
        assert cli("doctor").status == 3

    def test_a_file_of_somebody_else_is_not_touched(self, cli: Cli) -> None:
        with sqlite3.connect(cli.folder / "shop.db") as file:
            file.execute("CREATE TABLE theirs (id INTEGER)")
        file.close()

        ran = cli("status")

        assert ran.status == 1
        assert "workq db migrate" in one_line(ran.err)

    def test_the_sql_is_printed_for_each_dialect(self, shared_cli: Cli) -> None:
        assert "CREATE TABLE" in shared_cli("db", "sql").out
        for dialect in ("postgresql", "mysql", "sqlite"):
            assert "CREATE TABLE" in shared_cli.look("db", "sql", dialect)["sql"]
        assert shared_cli("db", "sql", "oracle").status == 2

    def test_the_sql_that_follows_a_version_is_printed_alone(self, shared_cli: Cli) -> None:
        sql = shared_cli.look("db", "sql", "mysql", "--from", "14")["sql"]

        assert "CREATE TABLE IF NOT EXISTS workq_webhook " in sql
        assert "CREATE TABLE IF NOT EXISTS workq_task " not in sql
        assert shared_cli("db", "sql", "mysql", "--from", "999").status == 2


class TestSurroundings:
    def test_no_home_the_c_locale_and_no_terminal_are_fine(self, cli: Cli) -> None:
        cli.env = {name: value for name, value in cli.env.items() if name not in ("HOME", "LANG", "USER", "TERM")}

        cli.here("db", "migrate")
        for args in (("status",), ("doctor",), ("config",), ("--help",)):
            ran = cli(*args, env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"})

            assert ran.status == 0, ran
            assert ran.out.isascii()

    @pytest.mark.parametrize("folder", ["/proc", "/sys"])
    def test_a_folder_that_takes_no_file_is_a_clear_error(self, cli: Cli, folder: str) -> None:
        if not Path(folder).is_dir():
            pytest.skip(f"this system has no {folder}")
        cli.folder = Path(folder)

        ran = cli("status", env={"WORKQ_LEDGER_URL": "sqlite:///workq.db"})

        assert ran.status in (2, 4)
        assert "workq.db" in one_line(ran.err)

    def test_a_file_that_nobody_may_look_at_is_a_clear_error_and_doctor_says_so_too(self, cli: Cli) -> None:
        """Here by a name that no file can have: as root, who runs tests, one may look anywhere."""
        url = f"sqlite:///{'long' * 100}.db"

        for args in (("status",), ("db", "status"), ("db", "migrate"), ("sweep",), ("enqueue", "shop.add", "a=1")):
            ran = cli(*args, app=True, env={"WORKQ_LEDGER_URL": url})
            assert ran.status == 2
            assert "ledger: cannot look at " in one_line(ran.err)
            assert "(File name too long); let this user into its folder, or set WORKQ_LEDGER_URL" in ran.err
        doctor = cli("doctor", "-o", "json", env={"WORKQ_LEDGER_URL": url})
        cli("db", "migrate")
        plan = cli("sweep", "--plan", "long" * 100)

        assert doctor.status == 3
        told = [check["message"] for check in doctor.json()["checks"] if check["area"] == "ledger"]
        assert [text.partition("long")[0] for text in told] == ["ledger: cannot look at "]
        assert (plan.status, "File name too long" in one_line(plan.err)) == (2, True)

    def test_an_answer_that_cannot_be_written_is_told_and_what_was_done_stands(self, cli: Cli) -> None:
        (task_id,) = cli.record("shop.add", 1)

        with open("/dev/full", "wb") as full:
            ran = self.cancelled(cli, [sys.executable, "-m", "workq", "task", "cancel", task_id], stdout=full)

        assert ran.returncode == 1
        assert "standard output cannot be written (No space left on device)" in one_line(ran.stderr)
        assert cli.look("task", "show", task_id)["state"] == "cancelled"

    def test_a_closed_standard_output_is_nobody_who_reads(self, cli: Cli) -> None:
        (task_id,) = cli.record("shop.add", 1)

        command = f"exec {sys.executable} -m workq task cancel {task_id} >&-"
        ran = self.cancelled(cli, ["/bin/sh", "-c", command])

        assert (ran.returncode, ran.stderr) == (0, "")
        assert cli.look("task", "show", task_id)["state"] == "cancelled"

    @staticmethod
    def cancelled(cli: Cli, command: list[str], stdout: Any = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cli.folder,
            env=cli.env,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=BOUND_S,
            check=False,
        )

    def test_a_missing_folder_is_named(self, shared_cli: Cli) -> None:
        for args in (("status",), ("db", "migrate"), ("enqueue", "shop.add", "a=1")):
            ran = shared_cli(*args, app=True, env={"WORKQ_LEDGER_URL": "sqlite:///missing/shop.db"})

            assert ran.status == 2
            assert "missing does not exist" in one_line(ran.err)

    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
    def test_a_signal_ends_a_command_without_a_traceback(self, cli: Cli, number: signal.Signals, status: int) -> None:
        (task_id,) = cli.record("shop.add", 1)

        with cli.start("task", "show", task_id, "--wait", "1h", "-v") as waiting:
            assert waiting.stderr is not None
            waits = waiting.stderr.readline()
            waiting.send_signal(number)
            out, err = waiting.communicate(timeout=BOUND_S)

        assert waits.startswith(b"workq: waiting")
        assert waiting.returncode == status  # a shell reports -15 as 143
        assert out == b""
        assert b"Traceback" not in err

    def test_errors_with_a_password_of_a_settings_file_do_not_show_it(self, cli: Cli, closed_port: int) -> None:
        (cli.folder / "workq.toml").write_text(f'ledger = "postgresql://ann:{CANARY}@127.0.0.1:{closed_port}/shop"\n')

        for args in (("status", "-v"), ("config",), ("config", "-o", "json"), ("doctor",)):
            ran = cli(*args, env={"WORKQ_LEDGER_URL": ""})

            assert CANARY not in ran.out + ran.err
            assert "ann:***@" in ran.out + ran.err

    def test_what_an_error_quotes_moves_no_cursor_and_begins_no_line(self, cli: Cli) -> None:
        evil = "a\x1b[2J\u202eb\nworkq: error: forged"

        task = cli("enqueue", evil, app=True)
        (cli.folder / "evil.py").write_text(f"raise RuntimeError({evil!r})")
        app = cli("worker", "--app", "evil:wq", "-v")

        for ran in (task, app):
            assert ran.status == 2
            assert r"a\x1b[2J\u202eb" in one_line(ran.err)
            assert all(line.isprintable() for line in ran.err.splitlines()), ran.err

    def test_a_defect_is_one_line_that_says_how_to_see_more(self, cli: Cli) -> None:
        with sqlite3.connect(cli.folder / "shop.db") as file:
            pass
        file.close()
        cli.record("shop.add", 1)
        with sqlite3.connect(cli.folder / "shop.db") as file:
            file.execute("UPDATE workq_task SET payload = '[1]'")
        file.close()

        ran = cli("task", "ls")

        assert ran.status == 1
        assert "-v" in one_line(ran.err)


def test_a_host_clock_that_cannot_be_right_is_told_and_the_ledgers_decides(
    tmp_path: Path, postgres_server: PostgreSQL
) -> None:
    """What a host in 1970 or 2100 enqueues is due now, because PostgreSQL says when now is."""
    if shutil.which("faketime") is None:
        pytest.fail("the tool faketime is missing; run: make servers")
    (tmp_path / "shop.py").write_text(SHOP)
    environ = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "WORKQ_APP": "shop:wq",
        "WORKQ_LEDGER_URL": postgres_server.create_database(),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }

    def run(*args: str, at: str | None = None) -> subprocess.CompletedProcess[str]:
        wrong = () if at is None else ("faketime", "-f", f"@{at} 00:00:00")
        command = [*wrong, sys.executable, "-m", "workq", *args]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=BOUND_S)

    migrated = run("db", "migrate", at="1970-01-02")
    assert migrated.returncode == 0, migrated.stderr
    for day in ("1970-01-02", "2100-01-02"):
        recorded = run("enqueue", "shop.add", "a=1", "b=2", at=day)
        counted = run("status", "-o", "json", at=day)
        assert recorded.returncode == 0, recorded.stderr
        assert f"warning: this host's clock says {day}" in recorded.stderr
        assert 0.0 <= json.loads(counted.stdout)["oldest_ready_s"] < 60.0
    worked = run("worker", "--drain")
    listed = run("task", "ls", "-o", "json")

    assert worked.returncode == 0, worked.stderr
    assert "clock" not in worked.stderr
    assert listed.stdout.count('"succeeded"') == 2


@pytest.mark.parametrize("command", [("worker", "--app", "shop:wq"), ("demo", "reindex")], ids=" ".join)
def test_without_a_folder_for_temporary_files_a_command_names_tmpdir(tmp_path: Path, command: tuple[str, ...]) -> None:
    """As where no place is writable: Python finds none."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "sitecustomize.py").write_text("import tempfile\ntempfile._candidate_tempdir_list = lambda: []\n")
    ran = subprocess.run(
        [sys.executable, "-m", "workq", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )

    assert ran.returncode == 2, ran.stderr
    assert "set TMPDIR" in one_line(ran.stderr)
    assert "defect" not in ran.stderr


def test_a_variable_that_nothing_reads_is_told_once_with_the_nearest_name(cli: Cli) -> None:
    cli.here("db", "migrate")

    ran = cli("status", "-q", env={"WORKQ_LEDGR_URL": "sqlite:///other.db"})

    assert ran.status == 0
    assert ran.err.count("WORKQ_LEDGR_URL") == 1
    assert "workq: warning: WORKQ_LEDGR_URL is set, and nothing reads it; did you mean WORKQ_LEDGER_URL?\n" in ran.err
