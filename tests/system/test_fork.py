"""A web server that forks after it has enqueued: parent and child go on, each with connections of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.system.fleet import REPOSITORY
from tests.system.legs import Leg

FORKING = """
import os, sys
from tests.system import witness
note = witness.wq.handler("witness.note")
before = note.enqueue(1)
children = []
for number in (2, 3):
    pid = os.fork()
    if not pid:
        note.enqueue(number)
        sys.exit(0)  # in order: exit handlers and finalizers run in the child
    children.append(pid)
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0]
note.enqueue(4)
assert witness.wq.get(before.id) is not None
"""


def test_parent_and_children_enqueue_after_a_fork(leg: Leg) -> None:
    subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKING],
        cwd=REPOSITORY,
        env={**os.environ, **leg.environ},
        check=True,
        timeout=120,
    )
    with leg.fleet(processes=1, drain=True) as fleet:
        assert fleet.wait(60) == 0
    assert sorted(line.number for line in leg.testimony() if line.what == "end") == ["1", "2", "3", "4"]
