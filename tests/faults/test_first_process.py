"""`workq worker` as process 1 of a container."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.faults.test_clock_faults import ELSEWHERE
from tests.faults.test_task_behaviour import record, settled
from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from workq import State


def test_a_worker_that_is_process_1_leaves_no_orphan_as_a_zombie_and_ends_in_order(open_leg: OpenLeg) -> None:
    leg = open_leg("sqlite", divide=10.0)
    with leg.fleet(processes=1, threads=2, app="tests.faults.forking:wq", prefix=ELSEWHERE) as fleet:
        wait_until(lambda: len(leg.app.stores.ledger.workers()) == 1, timeout_s=30, what="a worker")
        [first] = fleet.children()
        everyone = {one.pid for one in first.children(recursive=True)}
        tasks = [record(leg, name="forking.leaves", payload='{"a":["behind"],"k":{}}') for _ in range(4)]
        assert {settled(leg, task_id).state for task_id in tasks} == {State.SUCCEEDED}
        said = Path(leg.environ["WITNESS"] + ".said").read_text(encoding="ascii")
        assert said == "leaves behind 5\n" * 4

        def are_gone() -> bool:
            return {one.pid for one in first.children(recursive=True)} == everyone

        wait_until(are_gone, timeout_s=60, what="what was left behind has ended, and was waited for")
        assert psutil.STATUS_ZOMBIE not in [one.status() for one in first.children(recursive=True)]

        first.terminate()
        assert fleet.wait(30) == 0
    assert leg.app.stores.ledger.workers() == []
