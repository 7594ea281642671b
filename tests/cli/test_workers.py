"""`worker show` and the deaths in `task show`: certificates, as people and programs read them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cli.conftest import Cli
from workq.ledger import Evidence
from workq.values.certificate import DeathFacts, OutOfMemory, ProofOfEnd
from workq.values.incarnation import Incarnation

DEAD = "web-7.d93f29b9.29304.6b011c1e.f45b23c6"
LIVE = "web-7.d93f29b9.29377.6b011c2a.00c0ffee"
STACK = 'File "shop.py", line 9 in resize\nFile "shop.py", line 3 in add'


@pytest.fixture
def story(cli: Cli) -> tuple[Cli, str, str, str]:
    """Two workers: one was killed with a guilty task and one that had not started; the other runs a third."""
    guilty, waiting, running = cli.record("shop.add", 1, count=3)
    with cli.queue() as wq:
        ledger = wq.stores.ledger
        for name, pid in ((DEAD, 29304), (LIVE, 29377)):
            ledger.workers.join(Incarnation(name, "web-7", pid, "d93f29b9.f0", 29300), queues=["sums"], threads=2)
            ledger.workers.beat(name, memory_bytes=300 << 20)
        ledger.claims.claim([guilty, waiting], by=DEAD)
        ledger.claims.claim([running], by=LIVE)
        facts = DeathFacts(
            signal="SIGKILL",
            oom=OutOfMemory(1, None, 512 << 20),
            memory_bytes=500 << 20,
            memory_age_s=0.7,
            ran_s={guilty: 4.5},
            stacks={guilty: STACK},
            unknown=("who was meant",),
        )
        ledger.workers.reap(
            DEAD, Evidence("killed by the kernel: out of memory", {guilty: 1}, kind=ProofOfEnd.KILLED, facts=facts)
        )
    return cli, guilty, waiting, running


def squeezed(text: str) -> str:
    """Without what only aligns."""
    return re.sub(r"(?<=\S) +", " ", text)


def test_a_task_shows_the_deaths_of_its_workers(story: tuple[Cli, str, str, str]) -> None:
    cli, guilty, waiting, _ = story

    shown = cli("task", "show", guilty)
    beside = cli("task", "show", waiting)

    assert shown.status == 0
    assert "reaped attempt 1  cause=killed by the kernel: out of memory  state=ready  charged=crash\n" in shown.out
    _, _, deaths = squeezed(shown.out).partition("deaths of its workers:\n")
    for line in (
        f" attempt 1 on {DEAD}\n",
        "    kind: killed\n",
        "    cause: killed by the kernel: out of memory\n",
        "    this task: had started 4.5 s before; charged: crash; went to ready\n",
        "    signal: SIGKILL\n",
        "    out of memory: its control group: 1 kill counted; the machine: cannot be read\n",
        "    memory: 500 MiB at its supervisor's last look, 0.7 s before; 300 MiB at its last beat\n",
        "    not known: who was meant\n",
        "    only claimed: 1 more\n",
        '      File "shop.py", line 9 in resize\n      File "shop.py", line 3 in add\n',
    ):
        assert line in deaths, deaths
    assert "had not started; charged: nothing; went to ready" in squeezed(beside.out)
    assert f"beside it: shop.add {guilty}" in squeezed(beside.out)
    assert "resize" not in beside.out


def test_a_tasks_deaths_are_in_its_document(story: tuple[Cli, str, str, str]) -> None:
    cli, guilty, waiting, _ = story

    [death] = cli.look("task", "show", guilty)["deaths"]
    [beside] = cli.look("task", "show", waiting)["deaths"]

    assert (death["worker"], death["attempt"], death["kind"], death["charged"]) == (DEAD, 1, "killed", "crash")
    assert (death["started"], death["state"], death["stack"], death["signal"]) == (True, "ready", STACK, "SIGKILL")
    assert (beside["charged"], beside["started"]) == ("nothing", False)
    assert death["certificate"] == beside["certificate"]
    assert [claim["task_id"] for claim in death["certificate"]["claims"]] == [guilty, waiting]


def test_a_death_outlives_the_row_of_its_worker(story: tuple[Cli, str, str, str]) -> None:
    cli, guilty, _, _ = story
    with cli.queue() as wq:
        ledger: Any = wq.stores.ledger
        worker = ledger.database.tables.worker
        ledger.database.run(lambda tx: tx.execute(worker.delete().where(worker.c.id == DEAD)))

    shown, [death] = cli("task", "show", guilty), cli.look("task", "show", guilty)["deaths"]

    assert "cause: killed by the kernel: out of memory" in squeezed(shown.out)
    assert "line 9 in resize" in shown.out
    assert (death["certificate"], death["pid"], death["host"]) == (None, 29304, "web-7")


def test_a_dead_worker_shows_its_certificate(story: tuple[Cli, str, str, str]) -> None:
    cli, guilty, waiting, _ = story

    shown, document = cli("worker", "show", DEAD), cli.look("worker", "show", DEAD)

    assert shown.status == 0
    for line in (
        f"id: {DEAD}\n",
        "state: reaped\n",
        "supervisor: 29300\n",
        "memory: 300 MiB at the last beat\n",
        "certificate:\n",
        "    cause: killed by the kernel: out of memory\n",
        f"  {guilty} shop.add attempt 1 ran for 4.5 s; charged: crash; went to ready\n",
        f"  {waiting} shop.add attempt 1 had not started; charged: nothing; went to ready\n",
        "line 9 in resize\n",
    ):
        assert line in squeezed(shown.out), shown.out
    assert "runs:" not in shown.out
    assert (document["state"], document["machine"], document["running"]) == ("reaped", "d93f29b9.f0", [])
    of = document["certificate"]
    assert (of["kind"], of["signal"], of["exit_status"], of["claims_more"]) == ("killed", "SIGKILL", None, 0)
    assert of["oom"] == {"group_kills": 1, "machine_kills": None, "limit_bytes": 512 << 20}
    assert of["claims"][0] == {
        "task_id": guilty, "attempt": 1, "name": "shop.add", "state": "ready", "charged": "crash", "started": True,
        "ran_s": 4.5, "stack": STACK,
    }  # fmt: skip


def test_a_live_worker_shows_what_it_runs(story: tuple[Cli, str, str, str]) -> None:
    cli, _, _, running = story

    shown, document = cli("worker", "show", LIVE), cli.look("worker", "show", LIVE)

    assert f"runs:\n  {running} shop.add attempt 1 started " in squeezed(shown.out)
    assert "certificate" not in shown.out
    assert [task["id"] for task in document["running"]] == [running]
    assert (document["state"], document["certificate"]) == ("live", None)


def test_the_beginning_of_an_id_is_enough_where_it_is_unique(story: tuple[Cli, str, str, str]) -> None:
    cli, *_ = story

    unique = cli("worker", "show", "web-7.d93f29b9.29377")
    several = cli("worker", "show", "web-7")
    unknown = cli("worker", "show", "web-8")
    nothing = cli("worker", "show", "")

    assert squeezed(unique.out).startswith(f"id: {LIVE}\n")
    assert (several.status, several.out) == (2, "")
    assert several.err.startswith("workq: error: 2 workers have ids that begin with 'web-7': ")
    assert (unknown.status, unknown.out) == (1, "")
    assert unknown.err == "workq: error: no worker's id begins with 'web-8'; list them with: workq worker ls --all\n"
    assert nothing.status == 1


def test_the_list_has_the_ids_that_show_takes(story: tuple[Cli, str, str, str]) -> None:
    cli, *_ = story

    listed = cli("worker", "ls", "--all")

    assert DEAD in listed.out
    assert LIVE in listed.out
    assert "killed by the kernel: out of memory" in listed.out


def test_evidence_of_an_older_version_is_shown_as_it_is(story: tuple[Cli, str, str, str]) -> None:
    cli, *_ = story
    with cli.queue() as wq:
        ledger: Any = wq.stores.ledger
        worker = ledger.database.tables.worker
        ledger.database.run(lambda tx: tx.execute(worker.update().values(evidence="process 7: killed by SIGKILL")))

    shown, document = cli("worker", "show", DEAD), cli.look("worker", "show", DEAD)

    assert "evidence: process 7: killed by SIGKILL\n" in squeezed(shown.out)
    assert (document["evidence"], document["certificate"]) == ("process 7: killed by SIGKILL", None)
