"""Throughput a minute while one idle transaction pins PostgreSQL's horizon, so that no dead row version can be removed.

The whole queue as shipped, producer, workers and sweeps at once, in a place of the benchmark's: what bends in queues
that look for their next task among dead versions is the looking, not only the claim. The same minutes without that
transaction tell what it costs: rows that are kept and a machine that is shared with others cost something as well.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.arena import Arena, Place
from benchmarks.crew import Crew
from benchmarks.records import RECORD
from benchmarks.roster import Contestant

AHEAD = 20_000
"""How many tasks the producer keeps in the queue."""
WARM_S = 10.0
_LIMIT_S = 60.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute: tasks that ran a second, and the dead versions that PostgreSQL counts in all tables at its end."""

    contestant: str
    is_pinned: bool
    minute: int
    tasks_per_s: float
    dead_rows: int


def minutes(contestant: Contestant, count: int, *, is_pinned: bool, minute_s: float = 60.0) -> Iterator[Minute]:
    """Each of so many minutes on servers of its own, as soon as it is over; a minute lasts `minute_s`.

    Raises:
        StepFailed: a worker or the producer ended by itself.
    """
    with (
        Arena([contestant]) as arena,
        arena.place(contestant) as place,
        Crew(contestant, Path(sys.executable), place) as crew,
    ):
        crew.call("prepare", limit_s=_LIMIT_S)
        url = place.environment["BENCH_POSTGRES_URL"]
        with psycopg.connect(url) as idle, psycopg.connect(url, autocommit=True) as watch:
            if is_pinned:
                idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                idle.execute("SELECT count(*) FROM workq_task")  # from here on no version that it may see is removed
            crew.start()
            crew.begin("steady", AHEAD, contestant.workers)
            _await_first(crew, place)
            time.sleep(min(WARM_S, minute_s / 4))
            before, began = _ran(place), time.monotonic()
            for minute in range(1, count + 1):
                time.sleep(max(0.0, minute_s - (time.monotonic() - began)))
                after, ended = _ran(place), time.monotonic()
                crew.check()
                yield Minute(contestant.name, is_pinned, minute, (after - before) / (ended - began), _dead_rows(watch))
                before, began = after, ended


def _await_first(crew: Crew, place: Place) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while _ran(place) == 0:
        crew.check()
        if time.monotonic() > deadline:
            raise crew.failed(f"no task ran within {_LIMIT_S:.0f} s")
        time.sleep(_LOOK_S)


def _ran(place: Place) -> int:
    return place.records.stat().st_size // RECORD.size if place.records.exists() else 0


def _dead_rows(watch: psycopg.Connection) -> int:
    row = watch.execute("SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables").fetchone()
    assert row is not None
    return int(row[0])
