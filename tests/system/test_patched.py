"""An application that gevent has patched: its web process enqueues, and its worker says why it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.system.fleet import REPOSITORY
from tests.system.legs import Leg

ENQUEUING = """
from gevent import monkey
monkey.patch_all()
import gevent
from tests.system import witness
note = witness.wq.handler("witness.note")
requests = [gevent.spawn(note.enqueue, number) for number in range(20)]
gevent.joinall(requests, raise_error=True)
assert witness.wq.get(requests[0].value.id) is not None
note.enqueue_many({"number": number} for number in range(20, 30))
witness.wq.close()
"""
PATCHED = """
from gevent import monkey
monkey.patch_all()
from tests.system.witness import wq
"""


def run(leg: Leg, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **leg.environ, "PYTHONPATH": f"{REPOSITORY}:{leg.folder}"}
    return subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=120
    )


def test_a_patched_web_process_enqueues_and_a_patched_worker_says_what_to_do(leg: Leg) -> None:
    enqueuing = run(leg, "-c", ENQUEUING)
    assert (enqueuing.returncode, enqueuing.stderr) == (0, "")

    (leg.folder / "patched_shop.py").write_text(PATCHED, encoding="ascii")
    refused = run(leg, "-m", "workq", "worker", "--app", "patched_shop:wq")
    assert refused.returncode == 2
    [line] = refused.stderr.strip().splitlines()
    assert "gevent has patched threading, socket" in line
    assert "patched_shop:wq" in line

    with leg.fleet(processes=1, drain=True) as fleet:
        assert fleet.wait(60) == 0
    assert sorted(int(line.number) for line in leg.testimony() if line.what == "end") == [*range(30)]
