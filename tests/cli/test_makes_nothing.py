"""On a ledger that is not there: what reads or changes makes nothing and says so; what records something makes it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import pytest

from tests.cli.conftest import BOUND_S, REPOSITORY, Cli
from tests.cli.test_usage import commands
from workq.app import WorkQueue
from workq.errors import NoLedger
from workq.webhooks.endpoints import Endpoints
from workq.webhooks.outbox import Outbox

ID: Final = "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"
READS: Final = (
    "status", "why ID", "worker ls", "worker show w", "task ls", "task show ID", "job ls", "job show ID",
    "job watch ID", "job failures ID", "job results ID", "webhook endpoint ls", "webhook endpoint show acme",
    "webhook delivery ls", "webhook delivery show ID", "queue ls", "queue show mail", "limit ls", "limit show k",
    "order ls", "order show k", "schedule ls", "schedule next n", "dead ls", "dead groups", "dead export", "audit",
    "meters", "doctor", "db status", "db history", "sweep --dry-run", "sweep --plan plan.json", "rebuild --dry-run",
    "db prune --dry-run", "message ls", "message show ID", "message destination ls", "message destination show orders",
    "message destination test orders", "intake ls", "intake show shop", "intake peek shop",
)  # fmt: skip
CHANGES: Final = (
    "task cancel ID", "task cancel --all --yes", "task reschedule ID --now", "task retry ID", "job pause ID --why y",
    "job resume ID", "job cancel ID", "job throttle ID --off", "job retry ID", "webhook recover acme --since 1d",
    "webhook replay --since 1d", "webhook endpoint edit acme --rate 1/s", "webhook endpoint rotate acme",
    "webhook endpoint disable acme --why y", "webhook endpoint enable acme", "webhook endpoint release acme",
    "webhook endpoint discard acme --yes", "webhook endpoint rm acme --yes", "webhook endpoint seal",
    "webhook delivery retry ID", "queue pause mail --why y", "queue resume mail", "queue drain mail --why y",
    "queue purge mail --yes", "schedule run n", "schedule pause n --why y", "schedule resume n", "schedule rm n",
    "dead retry --all --yes", "dead discard --all --yes", "sweep", "sweep --every 1s", "rebuild --yes",
    "db history full", "db prune", "message send orders hello", "message cancel ID",
    "message reschedule ID --in 1h", "message retry ID",
    "message restore --to orders --yes", "message clear --to orders --yes", "message destination enable orders",
    "message destination disable orders --why y", "message destination edit orders --rate 1/s",
    "message destination rm orders --yes", "message destination seal",
    "intake rm shop --yes", "intake run shop",
)  # fmt: skip
CREATES: Final = (
    "enqueue shop.add a=1", "job run shop.many", "webhook send a.b", "webhook endpoint add https://example.org/",
    "schedule sync", "db migrate", "worker --drain", "message destination add orders --kind call --handler shop.add",
    "intake add shop --kind amqp --url amqp://127.0.0.1 --queue q",
)  # fmt: skip
OPENS_NONE: Final = (
    "demo reindex", "demo webhooks", "demo messages", "bench", "certify", "webhook test", "webhook listen",
    "handler ls", "handler show", "db sql", "config", "completion", "version", "help",
)  # fmt: skip
"""Demo, bench and certify work in a folder or namespace of their own."""
WITHOUT_ROOTS_RIGHTS: Final = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""A file's mode holds for root, too, behind this command."""
SHOP: Final = """
from workq import Range, WorkQueue

wq = WorkQueue()

@wq.task(name="shop.add")
def add(a: int) -> int:
    return a

@wq.job(name="shop.many", source=Range(0, 3))
def many(items: list[int]) -> None:
    pass
"""


def words(line: str) -> list[str]:
    return [ID if word == "ID" else word for word in line.split()]


def test_every_command_says_whether_it_makes_a_ledger() -> None:
    known = {path for path, one in commands() if not isinstance(one, click.Group)} | {("worker",)}

    def path_of(line: str) -> tuple[str, ...]:
        """The longest beginning that is a command."""
        parts = tuple(line.split())
        return next(parts[:n] for n in range(len(parts), 0, -1) if parts[:n] in known)

    chosen = [{path_of(line) for line in lines} for lines in (READS, CHANGES, CREATES, OPENS_NONE)]

    assert set().union(*chosen) == known
    assert chosen[2].isdisjoint(chosen[0] | chosen[1] | chosen[3])
    assert chosen[3].isdisjoint(chosen[0] | chosen[1])


@pytest.mark.parametrize("line", [*READS, *CHANGES])
def test_what_reads_or_changes_makes_nothing_and_names_the_file_and_its_setting(cli: Cli, line: str) -> None:
    run = cli if "--every" in line else cli.here  # what runs on has a printer that no test can redirect
    (cli.folder / "shop.py").unlink()

    ran = run(*words(line), *(["-o", "json"] if line == "doctor" else []))  # whose table wraps long paths

    assert ran.status == 2, ran
    said = ran.out if line == "doctor" else ran.err
    assert f"{cli.folder}/shop.db" in said
    assert "environment WORKQ_LEDGER_URL" in said
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "file", "origin"),
    [
        (["--url", "sqlite:///other.db"], "other.db", "option --url"),
        ([], "of-file.db", "workq.toml"),
        ([], "workq.db", "default"),
    ],
)
def test_each_place_that_a_ledger_can_be_named_in_is_told(cli: Cli, option: list[str], file: str, origin: str) -> None:
    if origin == "workq.toml":
        (cli.folder / "workq.toml").write_text('ledger = "sqlite:///of-file.db"\n')
    before = sorted(cli.folder.iterdir())

    ran = cli("status", *option, env={"WORKQ_LEDGER_URL": ""})

    assert ran.status == 2
    assert f"ledger ({origin}): {cli.folder}/{file}: there is no such file" in ran.err.splitlines()[-1]
    assert sorted(cli.folder.iterdir()) == before


@pytest.mark.parametrize("line", CREATES)
def test_what_records_something_new_makes_the_ledger(cli: Cli, line: str) -> None:
    (cli.folder / "shop.py").write_text(SHOP)

    ran = cli(*words(line), app=True)

    assert ran.status == 0, ran
    assert cli("db", "status").status == 0
    assert ("making a new ledger: " in ran.err) == line.startswith("worker")


@pytest.mark.parametrize("content", [b"", b"a letter" * 1000, None], ids=["empty", "letter", "theirs"])
def test_a_file_that_holds_no_ledger_is_told_and_left_as_it_is(cli: Cli, content: bytes | None) -> None:
    file = cli.folder / "shop.db"
    if content is None:
        with sqlite3.connect(file) as theirs:
            theirs.execute("CREATE TABLE theirs (id INTEGER)")
        theirs.close()
    else:
        file.write_bytes(content)
    before = file.read_bytes()

    told = [cli.here(*line.split()) for line in ("status", "sweep", "queue pause mail --why y", "db status", "doctor")]

    assert file.read_bytes() == before
    assert sorted(one.name for one in cli.folder.iterdir()) == ["shop.db", "shop.py"]
    if content is None:  # a database without our tables, as on a server: exit 1, and 3 from what asks for its version
        assert [ran.status for ran in told] == [1, 1, 1, 3, 3]
        assert all("workq db migrate" in ran.err for ran in told[:3])
    else:
        assert [ran.status for ran in told] == [2, 2, 2, 2, 3]
        lack = "the file is empty" if not content else "the file is no SQLite database"
        said = [
            " ".join((ran.err + ran.out).split()) for ran in told
        ]  # doctor's lines are wrapped where the path ends them
        assert [one for one in said if lack not in one] == []


def test_a_ledger_in_a_folder_that_is_not_writable_is_told_in_words(cli: Cli) -> None:
    cli.record("shop.add", 1)
    read_only = cli.folder / "read-only"
    read_only.mkdir()
    shutil.copy(cli.folder / "shop.db", read_only)
    (read_only / "shop.db").chmod(0o444)
    read_only.chmod(0o555)
    before = sorted(read_only.iterdir())
    try:
        ran = subprocess.run(
            [*(WITHOUT_ROOTS_RIGHTS if os.geteuid() == 0 else ()), sys.executable, "-m", "workq", "status"],
            cwd=read_only,
            env=cli.env | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        left = sorted(read_only.iterdir())
    finally:
        read_only.chmod(0o755)

    assert ran.returncode == 2, ran
    assert f"{read_only}/shop.db: this user may not write to it or to its folder" in ran.stderr
    assert left == before


def test_calls_from_python_that_read_or_change_make_nothing_either(tmp_path: Path) -> None:
    wq = WorkQueue(ledger=f"sqlite:///{tmp_path}/shop.db")
    job = wq.job(name="shop.many", source=[1, 2, 3])(lambda items: None)
    endpoints, outbox = Endpoints(wq), Outbox(wq)
    calls: list[Callable[[], Any]] = [
        lambda: wq.get(ID),
        lambda: wq.cancel(ID),
        lambda: wq.pause_queue("mail", why="y"),
        lambda: wq.resume_queue("mail"),
        lambda: wq.reschedule(ID, delay_s=1.0),
        lambda: wq.revive(ID),
        lambda: job.feed_into(ID, [1]),
        lambda: list(endpoints.all()),
        lambda: endpoints.get("acme"),
        lambda: endpoints.edit("acme", topic="t"),
        lambda: endpoints.rotate("acme"),
        endpoints.seal,
        lambda: endpoints.disable("acme", why="y"),
        lambda: endpoints.enable("acme"),
        lambda: endpoints.release("acme"),
        lambda: endpoints.discard("acme"),
        lambda: endpoints.remove("acme"),
        lambda: list(outbox.deliveries()),
        lambda: outbox.attempts(ID),
        lambda: outbox.retry(ID),
        lambda: outbox.recover("acme", since_s=60.0),
        lambda: outbox.replay(since_s=60.0),
    ]

    for number, call in enumerate(calls):
        with pytest.raises(NoLedger, match=r"ledger \(argument\): .*/shop\.db: there is no such file"):
            call()
        assert list(tmp_path.iterdir()) == [], number
    wq.close()
