"""One server database is enough: PostgreSQL or MariaDB alone carries ledger, hints, holds and leases."""

from __future__ import annotations

import os
import signal

import pytest

from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.test_kills import check_nothing_lost
from workq import State


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_a_database_alone_runs_retries_and_recovers(database: str, open_leg: OpenLeg) -> None:
    leg = open_leg(database)
    with leg.fleet(processes=2, threads=4) as fleet:
        leg["note"].enqueue_many({"number": number, "seconds": 0.01} for number in range(600))
        wait_until(lambda: len(leg.testimony()) > 20, timeout_s=30, what="the first tasks start")
        victim = leg.testimony()[-1].pid
        os.kill(victim, signal.SIGKILL)
        leg.wait_settled(timeout_s=90)
        check_nothing_lost(leg, 600, {victim})

        retried = leg["fail_until"].enqueue(1, 3)
        later = leg["anote"].options(delay_s=1.0).enqueue(2)
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(40) == 0

    found = [leg.app.get(task.id) for task in (retried, later)]
    assert [(one.state, one.failures) for one in found if one is not None] == [
        (State.SUCCEEDED, 2),
        (State.SUCCEEDED, 0),
    ]
