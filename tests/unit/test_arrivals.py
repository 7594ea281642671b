"""What the comparison of lateness counts: what has arrived against when it was due."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.arrivals import Arrivals, judged, over_runs
from benchmarks.late_peers import MOMENT, Turn, status, tables
from benchmarks.records import DUE, Tail

REPOSITORY = Path(__file__).parents[2]


def arrivals(*late_ms: float) -> Arrivals:
    """Of messages that are due 10 ms one after the other, the first of them at second 100."""
    due = {index: 100.0 + index / 100 for index in range(len(late_ms))}
    return judged(due, [(index, due[index] + late / 1e3) for index, late in enumerate(late_ms)])


def turn(way: str, load: str, found: Arrivals, *, is_recorded_late: bool = False) -> Turn:
    cpu_s = {"sender": 0.5, "workers": 1.5, "servers": 2.5}
    return Turn(way, load, found, 5.0, is_recorded_late, cpu_s, load_before=0.5, calibration_ms=20.0)


def test_lateness_is_counted_from_the_instant_at_which_each_was_due() -> None:
    found = arrivals(*range(1, 101))

    assert (found.sent, found.missing, found.early, found.copies) == (100, 0, 0, 0)
    assert found.p50_ms == pytest.approx(51)
    assert found.p99_ms == pytest.approx(100)
    assert [found.least_ms, found.most_ms] == pytest.approx([1, 100])
    assert found.per_s == pytest.approx(100 / 1.09)


def test_what_is_missing_early_or_a_copy_is_counted_as_that() -> None:
    due = {1: 100.0, 2: 100.0, 3: 100.0, 4: 100.0}

    found = judged(due, [(2, 100.4), (1, 99.9995), (2, 100.2), (2, 100.3), (3, 100.1)])

    assert (found.sent, found.missing, found.early, found.copies) == (4, 1, 1, 2)
    assert found.least_ms == pytest.approx(-0.5)
    assert found.most_ms == pytest.approx(200), "of what came twice the first arrival counts"
    assert judged(due, []).missing == 4
    with pytest.raises(ValueError, match="message 7 has arrived and was never sent"):
        judged(due, [(7, 100.0)])


def test_runs_are_put_together_so_that_no_loss_is_hidden_by_a_median() -> None:
    good, bad = arrivals(1.0, 2.0, 3.0), replace(arrivals(4.0, 5.0, 9.0), missing=1, early=2)

    found = over_runs([good, bad, good])

    assert (found.sent, found.missing, found.early) == (9, 1, 2)
    assert found.p50_ms == pytest.approx(2)
    assert [found.least_ms, found.most_ms] == pytest.approx([1, 9])


def test_a_way_that_loses_one_or_sends_one_early_is_reported_as_that() -> None:
    found = [
        turn("hop", "1 s", replace(arrivals(1.0, 2.0), missing=1)),
        turn("workq-ledger", "1 s", arrivals(1.0, 2.0)),
        turn("celery", MOMENT, arrivals(-3.0, 2.0), is_recorded_late=True),
    ]

    lines = tables(found)

    head, _, hop, ledger, _, _, _, celery = lines[:8]
    columns = [one.strip() for one in head.split("|")]
    early, missing = columns.index("early"), columns.index("missing")
    cells = {name: [one.strip() for one in row.split("|")] for name, row in (("hop", hop), ("ledger", ledger))}
    assert (cells["hop"][early], cells["hop"][missing]) == ("0", "1")
    assert (cells["ledger"][early], cells["ledger"][missing]) == ("0", "0")
    assert "| -3.0 | 1 | 0 |" in celery
    assert lines[-1].startswith("celery: the moment came before all were recorded")
    assert status(found, []) == 0, "what a peer does is a figure"
    assert status(found, ["celery: it stood still"]) == 1
    for broken in (replace(arrivals(1.0), missing=1), arrivals(-0.1)):
        assert status([*found, turn("workq-ledger", "5 s", broken)], []) == 3


FAULTY = """
import os
from benchmarks.contestants import play, task
from benchmarks.records import RECORD

class Faulty(task.Contestant):
    def one(self, index):
        task.record(index)

    def many_at(self, indices, at):
        late_s = {4: [], 5: [-0.5], 6: [0.1, 0.2]}
        with open(os.environ["BENCH_RECORDS"], "ab") as records:
            for index in indices:
                for one in late_s.get(index, [0.1]):
                    records.write(RECORD.pack(at + one, index, os.getpid()))

steps = play.Threads(Faulty())
steps.STEP
"""


@pytest.mark.parametrize("step", ["instants(10, 1000.0, 3600.0, 1, 1)", "moment(10, 1, 1)"])
def test_a_contestant_is_judged_by_what_it_was_told_to_send_and_what_has_arrived(tmp_path: Path, step: str) -> None:
    """It loses message 4, and sends 5 early and 6 twice. The loads that `late_peers` gives, without a server."""
    records = tmp_path / "records"
    given = {"BENCH_RECORDS": str(records), "BENCH_FOLDER": str(tmp_path)}

    subprocess.run(
        [sys.executable, "-c", FAULTY.replace("STEP", step)],
        env={**os.environ, **given},
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=120,
    )

    due = {one.index: one.at for one in Tail(tmp_path / DUE).fresh()}
    found = judged(due, [(one.index, one.at) for one in Tail(records).fresh() if one.index in due])
    assert sorted(due) == list(range(1, 11))
    assert (len(set(due.values())) == 1) is step.startswith("moment")
    assert (found.sent, found.missing, found.early, found.copies) == (10, 1, 1, 1)
    assert [found.least_ms, found.p50_ms, found.most_ms] == pytest.approx([-500, 100, 100], abs=0.1)
