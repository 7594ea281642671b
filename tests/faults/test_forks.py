"""Handlers that fork, and what they start. One consumer process serves all of these tests, with tasks behind each."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.test_task_behaviour import record, settled
from tests.system.fleet import Fleet, wait_until
from tests.system.legs import Leg
from workq import State

pytestmark = pytest.mark.one_leg

STATUS = {"returns": "0", "raises": "1", "exits": "7", "exec_fails": "1"}
"""What the parent sees of a child that came back from the handler so: as in a plain program."""


class Forking:
    """A leg with one consumer process that runs the handlers of forking.py."""

    def __init__(self, leg: Leg, fleet: Fleet) -> None:
        self.leg = leg
        self.fleet = fleet
        wait_until(lambda: len(fleet.children()) == 1, timeout_s=20, what="a consumer process")
        [self.process] = fleet.children()

    def run(self, handler: str, how: str) -> None:
        """Run a handler to its end, with other tasks beside it and behind it."""
        task_id = record(self.leg, name=f"forking.{handler}", payload=f'{{"a":["{how}"],"k":{{}}}}', failures_max=1)
        self.leg["note"].enqueue_many({"number": number, "seconds": 0.01} for number in range(15))
        self.leg["anote"].enqueue_many({"number": number, "seconds": 0.01} for number in range(15))
        assert settled(self.leg, task_id, timeout_s=60).state is State.SUCCEEDED
        self.leg.wait_settled(timeout_s=60)

    def said(self, what: str, how: str) -> list[str]:
        """What the handlers have said."""
        path = Path(self.leg.environ["WITNESS"] + ".said")
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        return [saw for one, other, saw in (line.split(" ") for line in lines) if (one, other) == (what, how)]

    def check(self) -> None:
        """Every task has run once, in the one consumer process, which has no children left."""
        lines = [line for line in self.leg.testimony() if line.what == "start"]
        assert {line.pid for line in lines} == {self.process.pid}
        assert set(Counter((line.task_id, line.attempt) for line in lines).values()) == {1}
        assert self.process.children() == []
        assert "child_died" not in self.fleet.text()
        assert self.leg.states()[State.DEAD] == 0


@pytest.fixture(scope="module", params=["sqlite", "servers"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        urls = {"ledger": f"sqlite:///{folder / 'workq.db'}"}
    else:
        stores = {"ledger": "postgres_server", "broker": "rabbitmq_server", "inflight": "redis_server"}
        urls = {store: request.getfixturevalue(server).url for store, server in stores.items()}
    leg = Leg.open(request.param, folder, divide=10.0, **urls)
    with leg.fleet(processes=1, threads=2, app="tests.faults.forking:wq") as fleet:
        yield Forking(leg, fleet)
        fleet.terminate()
        assert fleet.wait(20) == 0
    leg.close()


@pytest.fixture
def forking(served: Forking) -> Iterator[Forking]:
    yield served
    served.check()


@pytest.mark.parametrize("how", STATUS)
@pytest.mark.parametrize("handler", ["plain", "coroutine", "in_thread", "together", "transaction"])
def test_a_forked_child_ends_where_it_comes_back_from_the_handler(handler: str, how: str, forking: Forking) -> None:
    before = forking.said(handler, how)  # of other tests, on the same workers
    forking.run(handler, how)

    assert forking.said(handler, how) == [*before, STATUS[how]]


def test_a_forked_child_ends_where_a_coroutine_waits_for_the_loop_of_its_parent(forking: Forking) -> None:
    forking.run("suspends", "for_ever")

    assert forking.said("suspends", "for_ever") == ["1"]
    assert "has no event loop" in forking.fleet.text()


def test_a_forked_child_of_a_jobs_handler_runs_no_part_of_its_chunk_again(forking: Forking) -> None:
    forking.run("begin", "chunk")

    assert forking.said("called", "raises") == [f"{forking.process.pid}:4"]
    assert forking.said("chunk", "raises") == ["1"]


def test_a_forked_child_of_a_source_records_nothing(forking: Forking) -> None:
    forking.run("begin", "source")

    assert forking.said("item", "raises") == ["[1]"]
    assert forking.said("source", "raises") == ["1"]


def test_a_child_that_multiprocessing_runs_has_no_connection_of_its_worker(forking: Forking) -> None:
    forking.run("asks", "fork")

    assert forking.said("asks", "fork") == ["as_a_plain_child"]


def test_what_was_printed_before_a_fork_is_written_once_and_so_is_what_the_child_prints(forking: Forking) -> None:
    before = forking.fleet.text().count("child-of-a-handler")
    forking.run("plain", "returns")

    assert forking.fleet.text().count("child-of-a-handler") == before + 1
    runs = len(forking.said("plain", "returns"))
    assert forking.fleet.text().count("handler-before-its-fork-returns") == runs


def test_what_a_handler_starts_has_the_signals_and_the_input_of_a_plain_program(forking: Forking) -> None:
    shown = (
        "import os; print(*[one.split()[1] for one in open('/proc/self/status') if one[:6] in ('SigBlk', 'SigIgn')])"
    )
    plain = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout

    forking.run("signals", "start")

    assert forking.said("signals", "started") == [plain.strip().replace(" ", ",")]
    assert forking.said("signals", "forked") == ["plain"]
    assert forking.said("signals", "standard_input") == ["0"]


def test_what_a_handler_starts_ends_when_the_handler_ends_it(forking: Forking) -> None:
    forking.run("ends", "all")

    assert [forking.said("ends", how) for how in ("terminate", "interrupt", "pool")] == [["-15"], ["-2"], ["10"]]


def test_a_consumer_process_leads_a_group_of_its_own_and_has_no_terminal(served: Forking) -> None:
    its = psutil.Process(served.process.pid)  # nothing runs here, so there is nothing to check of what ran

    assert its.terminal() is None
    assert [int(one) for one in Path(f"/proc/{its.pid}/stat").read_text().rpartition(")")[2].split()[2:4]] == [
        its.pid
    ] * 2
