"""What the comparison of lateness counts: what has arrived against when it was due."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.arrivals import Arrivals, judged, over_runs
from benchmarks.late_peers import MOMENT, Turn, status, tables


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
