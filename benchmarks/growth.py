"""`python -m benchmarks.growth`: how a claim fares as things grow, on PostgreSQL.

A point of an axis is a ledger of its own that is filled by SQL: a backlog, settled rows that are kept, tasks that run,
queues, payloads of some size. Then pages of 100 ids are claimed and settled, as a worker does it, by one process or by
several at once: tasks a second, and how long a claim takes. What a round has taken from the backlog is filled up before
the next, so that a short backlog gives as many claims as a long one: a 99th percentile of a hundred would be its worst.
The last axis is time: throughput a minute of the whole queue while the database's horizon is pinned (horizon.py), and
as many minutes without that.

Writes all figures as JSON, and one picture of them.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import text

from benchmarks import environments, horizon, machine
from benchmarks.arena import POSTGRES_OPTIONS, SETTINGS
from benchmarks.roster import ROSTER
from workq.lab.servers import PostgreSQL, start_postgres
from workq.ledger.engine import migrate
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Settlement

PAGE = 100
PAGES = 1_000
"""Claims that are measured at each point, all rounds and processes together."""
QUICK_PAGES = 20
WARM_PAGES = 20
"""Claims that each process makes before, in each round."""
TAKEN_MAX = 0.9
"""The part of a backlog that one round may take."""
FILL_AT_ONCE = 1_000_000
PINNED = ("workq-servers", "workq-postgres")
_FILL = """
INSERT INTO workq_task (id, name, queue, state, due_at, attempt, token, worker, failures_max, crashes_max, created_at,
                        queued_at, published_at, started_at, settled_at, payload)
SELECT (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(h, 14, 3) || '-8' || substr(h, 18, 3) || '-'
        || substr(h, 21, 12))::uuid,
       'bench', 'q' || g % :queues, :state, now() - make_interval(secs => 3600), CASE WHEN :is_open THEN 0 ELSE 1 END,
       CASE WHEN :is_open THEN NULL ELSE '0123456789abcdef0123456789abcdef' END,
       CASE WHEN :is_open THEN NULL ELSE :worker END, 5, 3, now(), now(), now(),
       CASE WHEN :is_open THEN NULL ELSE now() END, CASE WHEN :is_settled THEN now() END, :payload
FROM (SELECT g, lpad(to_hex(:first_ms + g / 8), 12, '0') || md5(g::text || :state) AS h
      FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS g) AS numbered
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a ledger holds before its claims are measured."""

    backlog: int = 50_000
    settled: int = 0
    running: int = 0
    queues: int = 1
    payload_bytes: int = 200
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured: tasks claimed and settled a second, and milliseconds of one claim of 100."""

    axis: str
    value: float
    tasks_per_s: float
    p50_ms: float
    p99_ms: float


def axes(*, is_quick: bool) -> dict[str, dict[int, Scene]]:
    """The points of each axis."""
    if is_quick:
        return {"backlog": {size: Scene(backlog=size) for size in (2_000, 5_000)}}
    many = {size: Scene(payload_bytes=size, backlog=10_000) for size in (100, 1_000, 10_000, 100_000)}
    return {
        "backlog": {size: Scene(backlog=size) for size in (10_000, 100_000, 1_000_000)},
        "settled rows kept": {size: Scene(settled=size) for size in (0, 100_000, 1_000_000, 10_000_000)},
        "tasks in flight": {count: Scene(running=count) for count in (10, 100, 1_000, 10_000)},
        "worker processes": {count: Scene(processes=count) for count in (1, 2, 4, 8, 16)},
        "bytes of a payload": many,
        "queues": {count: Scene(queues=count) for count in (1, 10, 200)},
    }


def main() -> int:
    """Measure, write, draw. Answers 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="a claim as things grow")
    parser.add_argument("--quick", action="store_true", help="a few small points: to try it, not to quote")
    parser.add_argument("--minutes", type=int, default=10, help="how long the horizon is pinned; 0: not at all")
    parser.add_argument("--horizon", action="store_true", help="that alone: the points stay as --output has them")
    parser.add_argument("--only", choices=PINNED, help="the horizon of one contestant [both]")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="a picture of them")
    options = parser.parse_args()
    found: dict[str, Any] = {"points": []}
    if options.horizon and options.output is not None and options.output.exists():
        found |= json.loads(options.output.read_text())
    names = PINNED if options.only is None else (options.only,)
    found["horizon"] = []
    points = () if options.horizon else _points(found, is_quick=options.quick)
    minutes = _minutes(found, names, options.minutes, is_quick=options.quick)
    for line in itertools.chain(points, minutes):
        print(line, file=sys.stderr, flush=True)
        if options.output is not None:  # after each: the last ones take long, and may fail
            options.output.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot is not None:
        _plot(found, options.plot)
    print(json.dumps(found["points"] + found["horizon"]))
    return 0


def _minutes(found: dict[str, Any], names: Sequence[str], count: int, *, is_quick: bool) -> Iterator[str]:
    """Add one minute after the other; answers a line about each."""
    found["horizon_machine"] = _machine()
    names, count, minute_s = (names[-1:], 2, 1.2) if is_quick else (names, count, 60.0)
    for contestant in [one for one in ROSTER if one.name in names]:
        for is_pinned in (False, True):
            for minute in horizon.minutes(contestant, count, is_pinned=is_pinned, minute_s=minute_s):
                found["horizon"].append(asdict(minute))
                how = "horizon pinned" if is_pinned else "nothing pinned"
                yield f"{minute.contestant}, {how}, minute {minute.minute}: {minute.tasks_per_s:,.0f}/s"


def _machine() -> dict[str, Any]:
    return machine.facts([], {"postgres": "PostgreSQL"}) | {"server_settings": SETTINGS["postgres"]}


def _points(found: dict[str, Any], *, is_quick: bool) -> Iterator[str]:
    """Add one point after the other; answers a line about each."""
    with start_postgres(options=POSTGRES_OPTIONS) as server:
        found["machine"] = _machine()
        for axis, scenes in axes(is_quick=is_quick).items():
            for value, scene in scenes.items():
                point = measure(server, axis, value, scene, pages=QUICK_PAGES if is_quick else PAGES)
                found["points"].append(asdict(point))
                yield f"{axis} {value:,}: {point.tasks_per_s:,.0f}/s, p99 {point.p99_ms:.1f} ms"


def measure(server: PostgreSQL, axis: str, value: int, scene: Scene, *, pages: int = PAGES) -> Point:
    """One point, in a new database."""
    url = server.create_database()
    spent: list[float] = []
    ran_s = 0.0
    with _ledger(url) as ledger:
        rows = 0
        for state, count in (("succeeded", scene.settled), ("running", scene.running), ("ready", scene.backlog)):
            fill(ledger.database, state, count, scene, first=rows)
            rows += count
        with psycopg.connect(_plain(ledger.database), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE workq_task")
            connection.execute("CHECKPOINT")
        while len(spent) < pages:
            most = min(int(scene.backlog * TAKEN_MAX) // PAGE, pages - len(spent) + WARM_PAGES * scene.processes)
            times, round_s = _round(url, _pages(ledger.database, most), scene.processes)
            spent += times
            ran_s += round_s
            fill(ledger.database, "ready", most * PAGE, scene, first=rows)
            rows += most * PAGE
    spent.sort()
    return Point(axis, value, len(spent) * PAGE / ran_s, 1e3 * _quantile(spent, 0.5), 1e3 * _quantile(spent, 0.99))


def _round(url: str, pages: Sequence[Sequence[str]], processes: int) -> tuple[list[float], float]:
    """Claim and settle these: the seconds of each claim after the warm-up, and of all together."""
    parts = [pages[number::processes] for number in range(processes)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        claimed = pool.starmap(_claim_all, [(url, part) for part in parts])
    began, ended = min(began for _, began, _ in claimed), max(ended for _, _, ended in claimed)
    return [second for times, _, _ in claimed for second in times], ended - began


def fill(database: Database, state: str, count: int, scene: Scene, *, first: int) -> None:
    """Rows of one state, with ids that grow as those of time do. `first`: how many rows there are."""
    facts = {
        "state": state,
        "is_open": state == "ready",
        "is_settled": state == "succeeded",
        "worker": "somebody",
        "queues": scene.queues,
        "payload": json.dumps({"a": [_noise(max(0, scene.payload_bytes - 20))], "k": {}}),
        "first_ms": int(time.time() * 1e3) - 10_000_000,
    }
    for begin in range(first, first + count, FILL_AT_ONCE):
        last = min(begin + FILL_AT_ONCE, first + count) - 1
        with database.engine.begin() as connection:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text(_FILL), facts | {"first": begin, "last": last})


def _claim_all(url: str, pages: Sequence[Sequence[str]]) -> tuple[list[float], float, float]:
    """In a process of its own: the seconds of each claim after the warm-up, and when these began and ended."""
    with _ledger(url) as ledger:
        me = _join(ledger)
        warm = min(WARM_PAGES, len(pages) // 4)
        for page in pages[:warm]:
            _claim_and_settle(ledger, me, page)
        began = time.monotonic()
        return [_claim_and_settle(ledger, me, page) for page in pages[warm:]], began, time.monotonic()


def _claim_and_settle(ledger: Ledger, me: str, page: Sequence[str]) -> float:
    """The seconds that the claim took."""
    began = time.monotonic()
    claims = ledger.claims.claim(page, by=me)
    spent = time.monotonic() - began
    if len(claims) != len(page):
        raise RuntimeError(f"only {len(claims)} of {len(page)} tasks were granted")
    ledger.outcomes.settle([Settlement(claim, Done()) for claim in claims])
    return spent


def _join(ledger: Ledger) -> str:
    me = Incarnation.of_this_process()
    ledger.workers.join(me, queues=["q0"], threads=1)
    return me.id


def _pages(database: Database, count: int) -> list[list[str]]:
    """The oldest that are due, as the hints of a broker would name them."""
    query = text("SELECT id::text FROM workq_task WHERE state = 'ready' ORDER BY id LIMIT :limit")
    ids = list(database.ask(lambda tx: tx.execute(query, {"limit": count * PAGE}).scalars().all()))
    return [ids[start : start + PAGE] for start in range(0, len(ids), PAGE)]


@contextmanager
def _ledger(url: str) -> Iterator[Ledger]:
    ledger = Ledger(Database(url, statement_timeout_s=60.0), SLICES)
    migrate.migrate(ledger.database)
    try:
        yield ledger
    finally:
        ledger.close()


def _plain(database: Database) -> str:
    return database.url.set(drivername="postgresql").render_as_string(hide_password=False)


def _noise(size: int) -> str:
    """So many characters that no server can make smaller by much."""
    return base64.b64encode(os.urandom(size)).decode()[:size]


def _quantile(values: Sequence[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))]


def _plot(found: dict[str, Any], place: Path) -> None:
    python = environments.interpreter("plot")
    script = Path(__file__).with_name("plot.py")
    subprocess.run(
        [str(python), str(script), str(place)], input=json.dumps(found), text=True, check=True, timeout=120.0
    )


if __name__ == "__main__":
    sys.exit(main())
