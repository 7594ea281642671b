"""How `make idle-kafka` judges: only that part of a wait counts in which a process was idle."""

from __future__ import annotations

from tests.faults.idle_trial import BOUND_S, IdleFigures, Idleness, Waited
from tests.system.witness import Line


def line(what: str, at: float, pid: int) -> Line:
    return Line(what, f"task {pid}", 1, "0", pid, at)


def test_only_the_part_of_a_wait_counts_in_which_a_process_was_idle() -> None:
    lines = [
        *(line("start", 10.0, 1), line("start", 12.0, 2)),  # both run from 12 to 15
        *(line("end", 15.0, 2), line("start", 16.0, 2)),  # and from 16 on
        *(line("end", 20.0, 1), line("end", 20.5, 2)),
    ]

    idle = Idleness.of(reversed(lines), processes=2)

    assert [idle.between(*span) for span in ((12.0, 15.0), (11.0, 18.0), (12.5, 15.5), (16.0, 20.0), (19.0, 30.0))] == [
        *(0.0, 2.0, 0.5, 0.0, 10.0),
    ]
    assert idle.between(0.0, 10.0) == 10.0, "nothing has begun"


def test_a_long_wait_a_second_start_and_a_task_that_never_started_are_findings() -> None:
    idle = Idleness.of([], processes=1)
    well = Waited(0, 0.0, 60.0, BOUND_S, 0.0)
    for_the_machine = Waited(1, 0.0, 60.0, BOUND_S + 1.0, 1.0)
    long = Waited(2, 0.0, 60.0, BOUND_S + 0.01, 0.0)

    assert IdleFigures(2, [well, for_the_machine], 0, 0, idle).is_right
    assert IdleFigures(2, [well, long], 0, 0, idle).long == [long]
    for wrong in (
        IdleFigures(2, [well, long], 0, 0, idle),
        IdleFigures(2, [well], 0, 0, idle),
        IdleFigures(1, [well], 0, 1, idle),
        IdleFigures(0, [], 0, 0, idle),
    ):
        assert not wrong.is_right
