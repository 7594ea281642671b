"""Host death many times over: how long until a dead host is found, and whether any other is taken for dead.

    python -m tests.faults.host_trial --deaths 100 --faults 100

Hosts die some at a time, each with one worker and one long task. Meanwhile three hosts, again and again, have only one
way left, each to another store: none of their workers may be ended. Ends with 3 if one is, or if a dead one is found in
another way than by its absence.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.far_hosts import APP, STORES, FarHost, FarNetwork, far_leg, far_network, found, signed
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State
from workq.values.certificate import ProofOfEnd

AT_ONCE = 4
KNOWS_S = 16.0
"""A watch that has just begun waits for so long before it tells anything: a fleet that has run for long has done so."""


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def deaths(leg: Leg, network: FarNetwork, count: int, took: list[float]) -> list[str]:
    """Notes the seconds from each death until its task is ready for others; answers what was found otherwise."""
    wrong: list[str] = []
    while len(took) < count:
        wrong += some_deaths(leg, [network.host() for _ in range(AT_ONCE)], took)
        print(f"{len(took)} deaths, found after " + ", ".join(f"{one:.1f} s" for one in took[-AT_ONCE:]), flush=True)
    return wrong


def some_deaths(leg: Leg, hosts: Sequence[FarHost], took: list[float]) -> list[str]:
    queues = [f"far{at}" for at in range(len(hosts))]
    before = signed_for(leg, queues)
    for host, queue in zip(hosts, queues, strict=True):
        host.start(leg, queues=queue)
    tasks = [leg["note"].options(queue=queue).enqueue(at, 600.0).id for at, queue in enumerate(queues)]
    wait_until(lambda: leg.starts().keys() >= set(tasks), timeout_s=60, what="their tasks run")
    wait_until(
        lambda: len(signed_for(leg, queues) - before) == len(hosts), timeout_s=60, what="they give signs of life"
    )
    workers = signed_for(leg, queues) - before
    time.sleep(random.uniform(0.0, 10.0))  # deaths fall at any moment between two beats
    died: dict[str, float] = {}
    for host, task in zip(hosts, tasks, strict=True):
        died[task] = time.monotonic()
        host.die()
    while died:
        for task in list(died):
            known = leg.app.stores.ledger.questions.get(task)
            if known is not None and known.state is State.READY:
                took.append(time.monotonic() - died.pop(task))
                leg.app.cancel(task)
        time.sleep(0.05)
    return [f"{one}: {kind}" for one in workers if (kind := kind_of(leg, one)) is not ProofOfEnd.ABSENCE]


def signed_for(leg: Leg, queues: Sequence[str]) -> set[str]:
    """Those of these queues alone: who has one way left may not be able to give a sign just now."""
    return {row.id for row in signed(leg) if row.queues[0] in queues}


def how_it_ended(leg: Leg, worker: str) -> str | None:
    row = found(leg, worker)
    if row.state == "live":
        return None
    known = row.certificate
    return row.state if known is None else f"{known.kind}, {known.cause} (beat {known.beat_age_s} s ago)"


def kind_of(leg: Leg, worker: str) -> ProofOfEnd | None:
    certificate = found(leg, worker).certificate
    return None if certificate is None else certificate.kind


def faults(hosts: dict[str, FarHost], count: int) -> None:
    """So many times each cut, for longer than absence takes, of all ways but one."""
    done = 0
    while done < count:
        for store, host in hosts.items():
            host.cut(*(one for one in STORES if one != store))
        time.sleep(random.uniform(10.0, 14.0))
        for host in hosts.values():
            host.mend()
            done += 1
        time.sleep(random.uniform(0.0, 4.0))
    print(f"{done} network faults", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deaths", type=int, default=100)
    parser.add_argument("--faults", type=int, default=100)
    asked = parser.parse_args()
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder, far_network() as network, far_leg(network, Path(folder)) as leg:
        hosts = {store: network.host() for store in STORES}
        for store, host in hosts.items():
            host.start(leg, queues=store)
        with leg.fleet(processes=6, threads=2, queues="witness", app=APP) as others:
            wait_until(lambda: len(signed(leg)) == 6 + len(hosts), timeout_s=60, what="all give signs of life")
            kept = {row.queues[0]: row.id for row in signed(leg) if row.queues[0] in hosts}
            time.sleep(KNOWS_S)
            cutting = threading.Thread(target=faults, args=(hosts, asked.faults), daemon=True)
            cutting.start()
            wrong = deaths(leg, network, asked.deaths, took)
            cutting.join()
            ended = [
                f"{one} kept its way to the {store}: {why}"
                for store, one in kept.items()
                if (why := how_it_ended(leg, one)) is not None
            ]
            told(took, asked.faults, [*ended, *wrong])
            if ended:
                for fleet in filter(None, [others, *(host.fleet for host in hosts.values())]):
                    print(f"--- {fleet.log.name}\n{fleet.text()[-20_000:]}", flush=True)
    return 3 if ended or wrong else 0


def told(took: list[float], faults: int, ended_wrongly: list[str]) -> None:
    if took:
        shares = {name: quantile(took, part) for name, part in (("half", 0.5), ("95 %", 0.95), ("all", 1.0))}
        print(f"{len(took)} deaths: found within " + ", ".join(f"{s:.1f} s ({name})" for name, s in shares.items()))
        for second in range(int(max(took)) + 1):
            print(f"  {second:>3} s  {'#' * sum(second <= one < second + 1 for one in took)}")
    print(f"{faults} network faults, {len(ended_wrongly)} workers ended that kept a way to a store, or found otherwise")
    for one in ended_wrongly:
        print(f"  {one}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
