"""A host that dies is found in seconds, and one that keeps a way to a store is never taken for dead."""

from __future__ import annotations

import time
from pathlib import Path

from tests.conftest import Private
from tests.faults.far_hosts import APP, STORES, far_leg, far_network, found, signed
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq.values.certificate import ProofOfEnd

THREADS = 8


def running_at(worker: str, leg: Leg) -> str:
    """Enqueues long tasks until this worker runs one of them, which is answered: both lines have room for all."""
    tasks: list[str] = []

    def is_running() -> bool:
        if len(tasks) < THREADS and leg.starts().keys() >= set(tasks):
            tasks.append(leg["note"].enqueue(len(tasks), 600.0).id)
        return bool(of_worker())

    def of_worker() -> list[str]:
        questions = leg.app.stores.ledger.questions
        return [one for one in leg.starts() if (task := questions.get(one)) is not None and task.worker == worker]

    wait_until(is_running, timeout_s=60.0, what="it runs a task")
    return of_worker()[0]


def test_a_dead_host_is_found_before_its_lease_ends_and_none_that_keeps_a_way_to_a_store(
    tmp_path: Path, private: Private
) -> None:
    with far_network() as network, far_leg(network, tmp_path, private) as leg:
        dead, *kept = [network.host() for _ in range(1 + len(STORES))]
        for host, queue in zip((dead, *kept), ("witness", *STORES), strict=True):
            host.start(leg, queues=queue)
        with leg.fleet(processes=1, threads=THREADS, queues="witness", app=APP):
            wait_until(lambda: len(signed(leg)) == 5, timeout_s=60.0, what="all give signs of life")
            [victim] = [row.id for row in signed(leg) if row.queues == ("witness",) and row.threads == 1]
            others = {row.queues[0]: row.id for row in signed(leg) if row.queues != ("witness",)}
            task = running_at(victim, leg)

            for host, store in zip(kept, STORES, strict=True):
                host.cut(*(one for one in STORES if one != store))
            dead.die()
            died = time.monotonic()
            wait_until(lambda: leg.starts()[task] == 2, timeout_s=80.0, what="its task runs again")
            print(f"its task ran again after {time.monotonic() - died:.1f} s")
            wait_until(
                lambda: all(found(leg, others[one]).beat_age_s > 10.0 for one in ("broker", "inflight")),
                timeout_s=60.0,
                what="those without a way to the ledger are silent for as long",
            )

            certificate = found(leg, victim).certificate
            assert certificate is not None
            assert certificate.kind is ProofOfEnd.ABSENCE
            assert [found(leg, one).state for one in others.values()] == ["live"] * 3
            for host in kept:
                host.mend()
            wait_until(
                lambda: all(found(leg, one).beat_age_s < 10.0 for one in others.values()),
                timeout_s=60.0,
                what="they beat again",
            )
