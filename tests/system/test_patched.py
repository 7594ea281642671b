"""An application that gevent or eventlet has patched: its web process enqueues, its worker says why it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.system.fleet import REPOSITORY
from tests.system.legs import Leg

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
SPAWNS = {
    "gevent": """
import gevent
requests = [gevent.spawn(note.enqueue, number) for number in range(20)]
gevent.joinall(requests, raise_error=True)
first = requests[0].value
""",
    "eventlet": """
requests = [eventlet.spawn(note.enqueue, number) for number in range(20)]
first = [one.wait() for one in requests][0]
""",
}
ENQUEUING = """
PATCH
from tests.system import witness
note = witness.wq.handler("witness.note")
SPAWN
assert witness.wq.get(first.id) is not None
note.enqueue_many({"number": number} for number in range(20, 30))
witness.wq.close()
"""
PATCHED = """
PATCH
from tests.system.witness import wq
"""


def run(leg: Leg, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **leg.environ, "PYTHONPATH": f"{REPOSITORY}:{leg.folder}"}
    return subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(("tool", "patched"), [("gevent", "threading, socket"), ("eventlet", "thread, socket")])
@pytest.mark.one_leg
def test_a_patched_web_process_enqueues_and_a_patched_worker_says_what_to_do(leg: Leg, tool: str, patched: str) -> None:
    enqueuing = run(leg, "-c", ENQUEUING.replace("PATCH", PATCHES[tool]).replace("SPAWN", SPAWNS[tool]))
    assert enqueuing.returncode == 0, enqueuing.stderr

    (leg.folder / "patched_shop.py").write_text(PATCHED.replace("PATCH", PATCHES[tool]), encoding="ascii")
    refused = run(leg, "-m", "workq", "worker", "--app", "patched_shop:wq")
    assert refused.returncode == 2
    line = refused.stderr.strip().splitlines()[-1]
    assert f"{tool} has patched {patched}" in line
    assert "patched_shop:wq" in line

    with leg.fleet(processes=1, drain=True) as fleet:
        assert fleet.wait(60) == 0
    assert sorted(int(line.number) for line in leg.testimony() if line.what == "end") == [*range(30)]
