"""`workq task cancel --kill`: what does not listen ends with its process; its neighbours run again, and pay nothing."""

from __future__ import annotations

import pytest

from tests.system.fleet import wait_until
from tests.system.legs import Leg
from tests.system.witness import tell
from workq import State
from workq.values.certificate import ProofOfEnd


@pytest.mark.parametrize("handler", ["until_told", "hold_gil"], ids=["sleeping", "holding_the_interpreter"])
def test_what_does_not_listen_is_ended_with_its_process_and_its_neighbour_runs_again(
    fast_leg: Leg, handler: str
) -> None:
    leg, ledger = fast_leg, fast_leg.app.stores.ledger
    neighbour = leg["until_told"].enqueue(1).id
    with leg.fleet(processes=1, threads=2) as fleet:
        wait_until(lambda: neighbour in leg.starts(), timeout_s=30, what="the neighbour runs")
        stubborn = leg[handler].enqueue(60.0 if handler == "hold_gil" else 2).id
        wait_until(lambda: stubborn in leg.starts(), timeout_s=30, what="it runs")

        answer = leg.app.cancel(stubborn, why="it does not listen", kill=True)
        wait_until(lambda: leg.starts()[neighbour] == 2, timeout_s=30, what="the neighbour runs again")
        tell(leg.folder / "witness")
        leg.wait_settled(timeout_s=30)
        fleet.terminate()
        assert fleet.wait(30) == 0

    ended, other = ledger.questions.get(stubborn), ledger.questions.get(neighbour)
    assert answer.value == "requested"
    assert ended is not None
    assert (ended.state, ended.reason) == (State.CANCELLED, "it does not listen")
    assert leg.starts()[stubborn] == 1
    assert other is not None
    assert (other.state, other.crashes, other.failures) == (State.SUCCEEDED, 0, 0)
    [death] = [event for event in ledger.questions.history(neighbour) if event.kind == "reaped"]
    assert (death.detail["kind"], death.detail["charged"]) == (ProofOfEnd.CANCEL, "nothing")
    assert f"a person cancelled task {stubborn} (attempt 1) by force" in death.detail["cause"]
