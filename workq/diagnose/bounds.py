"""How long a recovery may take: what follows from the times, and is measured by `workq certify`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workq.config import Times


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a recovery may take with these settings, in seconds, once the surviving servers answer.

    `local_crash_s`: a worker process died under a living supervisor: until its tasks are claimable again.
    `dead_host_s`: supervisor and all are gone; a sweep runs elsewhere.
    `unpublished_s`: the producer died, or the broker was away, before the hint was confirmed.
    `inflight_wiped_s`: Redis was wiped and a worker died with it.
    `dead_fleet_s`: more than half of the workers died at once: the brake waits for a third look.
    `forgotten_s`: the ledger was restored from a backup: a task runs by it under a worker that lives and has it not.
    `purge_s`: the broker lost hints that it had confirmed; beyond the time that a marker takes through the line.
    `absent_host_s`: as `dead_host_s`, where every store tells who is gone from it (workq/recovery/absence.py).
    `everything_s`: broker and in-flight store are empty, and every process was killed.
    """

    local_crash_s: float
    dead_host_s: float
    unpublished_s: float
    inflight_wiped_s: float
    dead_fleet_s: float
    forgotten_s: float
    purge_s: float
    everything_s: float
    absent_host_s: float

    @staticmethod
    def of(times: Times) -> Bounds:
        """The bounds that follow from the times.

        A dead host: its lease ends, the next sweep suspects it, and the first sweep at least 0.8 beats later reaps it
        (1.8 beats later, under the brake); a beat more is left for the passes themselves. A forgotten claim: its
        worker looks with each beat in the ledger, which comes with one of its lease, and decides at the second look. A
        purge: the next marker, its grace, and a sweep for each. Everything: the longer of the two, and a confirm by a
        broker that must first be told of its queues.
        """

        def second_look_s(beats: float) -> float:
            return times.sweep_s * max(1, math.ceil(beats * times.beat_s / times.sweep_s))

        def dead_s(beats: float) -> float:
            return times.lease_s + times.sweep_s + second_look_s(beats) + times.beat_s

        quiet_s = times.fills_s + times.sweep_s + second_look_s(0.8) + times.beat_s
        purge_s = times.marker_s + times.marker_grace_s + 2 * times.sweep_s
        dead_fleet_s = max(dead_s(1.8), quiet_s + times.beat_s)
        return Bounds(
            local_crash_s=2.0,
            dead_host_s=dead_s(0.8),
            unpublished_s=times.unpublished_grace_s + times.sweep_s + times.confirm_s,
            inflight_wiped_s=max(dead_s(0.8), quiet_s),
            dead_fleet_s=dead_fleet_s,
            forgotten_s=2 * times.beat_s * math.ceil(times.worker_beat_s / times.beat_s) + times.beat_s,
            purge_s=purge_s,
            everything_s=max(purge_s, dead_fleet_s) + times.confirm_s,
            absent_host_s=times.absence_s * 1.25 if times.is_absence_watched else dead_s(0.8),
        )
