"""`workq worker` as process 1 of a container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

from tests.faults.test_clock_faults import ELSEWHERE
from tests.faults.test_task_behaviour import record, settled
from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from workq import State


def test_a_worker_that_is_process_1_leaves_no_orphan_as_a_zombie_and_ends_in_order(open_leg: OpenLeg) -> None:
    leg = open_leg("sqlite", divide=10.0)
    with leg.fleet(processes=1, threads=2, app="tests.faults.forking:wq", prefix=ELSEWHERE) as fleet:
        wait_until(lambda: len(leg.app.stores.ledger.questions.workers()) == 1, timeout_s=30, what="a worker")
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
    assert leg.app.stores.ledger.questions.workers() == []


FORGETFUL: Final = """
import os, subprocess, sys, time
for _ in range(25):
    subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"], check=True)
deadline = time.monotonic() + 60
while sum(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[:2] == ["Z", "1"]
          for pid in os.listdir("/proc") if pid.isdigit()) < 25 and time.monotonic() < deadline:
    time.sleep(0.05)
sys.exit(subprocess.run([sys.executable, "-m", "workq", "doctor", "-o", "json"]).returncode)
"""


def test_doctor_tells_of_a_first_process_that_waits_for_no_child(tmp_path: Path) -> None:
    ran = subprocess.run(
        [*ELSEWHERE, sys.executable, "-c", FORGETFUL],
        cwd=tmp_path,
        env=os.environ | {"WORKQ_LEDGER_URL": "sqlite:///shop.db", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    told = [one["message"] for one in json.loads(ran.stdout)["checks"] if one["area"] == "processes"]
    assert len(told) == 1, ran
    assert "does not wait for its children: 25 that have ended stay as zombies" in told[0]
    assert "docker run --init" in told[0]
