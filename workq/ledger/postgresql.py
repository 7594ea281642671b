"""What only PostgreSQL needs: a limit, on our side, on how long the server may stay silent.

The server ends its own statements after `statement_timeout`, and the kernel finds hosts that are gone. A server that is
stopped but whose kernel still acknowledges packets (SIGSTOP, a frozen machine, a stuck disk) is found by neither, and
libpq would wait for ever. So every wait for an answer ends here: the connection is closed, and the ledger decides as
for any lost connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg

_Generator = Generator[Any, Any, Any]


def connecting(*, silence_s: float) -> Callable[..., psycopg.Connection[Any]]:
    """How to open a connection that waits at most `silence_s` seconds for each answer."""

    class Limited(psycopg.Connection[Any]):
        def wait(self, gen: _Generator, *args: Any, **options: Any) -> Any:
            return super().wait(_ended(gen, self, time.monotonic() + silence_s, silence_s), *args, **options)

    return Limited.connect


def _ended(gen: _Generator, connection: psycopg.Connection[Any], deadline: float, silence_s: float) -> _Generator:
    """`gen`, which psycopg resumes about ten times a second while the server is silent, until the deadline."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                gen.close()
                connection.pgconn.finish()
                raise psycopg.OperationalError(f"no answer from the server within {silence_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value
