"""A handler that breaks its process: it ends with evidence, and another takes its place."""

from __future__ import annotations

import json

import pytest

from tests.faults.test_task_behaviour import record
from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from workq import State

APP = "tests.faults.breaking:wq"


@pytest.mark.parametrize(
    ("leg_name", "handler", "how"),
    [
        ("sqlite", "plain", "descriptors"),
        ("sqlite", "plain", "file_size"),
        ("servers", "coroutine", "descriptors"),
    ],
)
def test_a_process_that_its_handler_broke_is_replaced(leg_name: str, handler: str, how: str, open_leg: OpenLeg) -> None:
    leg = open_leg(leg_name, divide=10.0)
    with leg.fleet(processes=1, threads=2, app=APP) as fleet:
        broken = record(leg, name=f"breaking.{handler}", payload=json.dumps({"a": [how], "k": {}}))
        wait_until(lambda: leg.starts()[broken] > 0, timeout_s=30, what="it breaks its process")
        behind = [leg["note"].enqueue(1).id, leg["anote"].enqueue(2).id]
        leg.wait_settled(timeout_s=90)

        assert {leg.app.get(one).state for one in behind} == {State.SUCCEEDED}  # type: ignore[union-attr]
        assert fleet.process.poll() is None


def test_a_broken_process_ends_with_its_evidence_and_does_not_take_the_whole_grace(open_leg: OpenLeg) -> None:
    leg = open_leg("sqlite", divide=10.0)
    with leg.fleet(processes=1, threads=2, app=APP) as fleet:
        broken = record(leg, name="breaking.plain", payload='{"a":["descriptors"],"k":{}}')
        wait_until(lambda: leg.starts()[broken] > 0, timeout_s=30, what="it breaks its process")
        fleet.terminate()

        assert fleet.wait(90) == 1  # its grace is two minutes
        [worker] = leg.app.stores.ledger.questions.workers(live_only=False)
        assert worker.certificate is not None
        assert "it had reached no store that its supervisor did reach" in worker.certificate.cause
        task = leg.app.get(broken)
        assert task is not None
        assert (task.state, task.crashes) == (State.SUCCEEDED, 0)
