"""A host that dies is found in seconds, and one that keeps a way to a store is never taken for dead."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.conftest import Private
from tests.faults.far_hosts import APP, STORES, far_leg, far_network, found, signed
from tests.system.fleet import wait_until
from workq.values.certificate import ProofOfEnd

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None,
    reason="network namespaces need root, ip and unshare",
)


END = datetime.max.replace(tzinfo=UTC)


def test_a_dead_host_is_found_before_its_lease_ends_and_none_that_keeps_a_way_to_a_store(
    tmp_path: Path, private: Private
) -> None:
    with far_network() as network, far_leg(network, tmp_path, private) as leg:
        dead, *kept = [network.host() for _ in range(1 + len(STORES))]
        dead.start(leg, queues="witness")
        task = leg["note"].enqueue(1, 600.0)
        for host, store in zip(kept, STORES, strict=True):
            host.start(leg, queues=store)
        wait_until(lambda: task.id in leg.starts(), timeout_s=60.0, what="the task runs")
        with leg.fleet(processes=2, threads=4, queues="witness", app=APP):
            wait_until(lambda: len(signed(leg)) == 6, timeout_s=60.0, what="all give signs of life")
            victim = min(signed(leg), key=lambda row: row.started_at if row.queues == ("witness",) else END)
            others = {row.queues[0]: row.id for row in signed(leg) if row.queues != ("witness",)}

            for host, store in zip(kept, STORES, strict=True):
                host.cut(*(one for one in STORES if one != store))
            dead.die()
            died = time.monotonic()
            wait_until(lambda: leg.starts()[task.id] == 2, timeout_s=80.0, what="its task runs again")
            print(f"its task ran again after {time.monotonic() - died:.1f} s")
            wait_until(
                lambda: all(found(leg, others[one]).beat_age_s > 10.0 for one in ("broker", "inflight")),
                timeout_s=60.0,
                what="those without a way to the ledger are silent for as long",
            )

            certificate = found(leg, victim.id).certificate
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
