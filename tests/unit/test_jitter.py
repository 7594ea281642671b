"""Jitter: processes that come from one do not wait alike."""

from __future__ import annotations

import os

from workq.values.jitter import jitter


def test_forked_processes_draw_other_numbers() -> None:
    jitter.random()
    reads, writes = os.pipe()
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            os.write(writes, f"{jitter.random()}\n".encode())
            os._exit(0)
        os.waitpid(pid, 0)
    os.close(writes)
    with os.fdopen(reads) as drawn:
        assert len({*drawn.read().splitlines(), str(jitter.random())}) == 4
