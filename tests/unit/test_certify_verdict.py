"""The auditor sees every kind of loss and of second start: each finding is provoked once, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from workq.lab.certify.driver import EnqueueAnswer, JournalEntry, TaskKind
from workq.lab.certify.stage import DuplicateCause, FinalRow, Harm
from workq.lab.certify.verdict import Defect, Round, RunEvidence, RunVerdict, judge, percentile, timeline
from workq.lab.certify.witness import What, WitnessLine
from workq.values.task import State

A, B = 101, 102
"""Two processes."""
LEASE_S = 6.0


def called(
    kind: TaskKind = TaskKind.ONE,
    *,
    number: int = 0,
    at: float = 0.0,
    answer: EnqueueAnswer = EnqueueAnswer.ACKNOWLEDGED,
    delay_s: float = 0.0,
    ids: tuple[str, ...] = ("t0",),
    cancelled_at: float | None = None,
) -> JournalEntry:
    known = ids if answer is EnqueueAnswer.ACKNOWLEDGED else ()
    return JournalEntry(kind, range(number, number + 1), at, delay_s, answer, at + 0.01, known, cancelled_at)


def row(state: State = State.SUCCEEDED, attempt: int = 1, *, number: int = 0, task_id: str = "t0") -> FinalRow:
    return FinalRow(task_id, number, state, attempt, None)


def line(what: What, at: float, attempt: int = 1, pid: int = A, *, task_id: str = "t0", number: int = 0) -> WitnessLine:
    return WitnessLine(what, task_id, attempt, number, pid, at)


def ran(at: float = 1.0, attempt: int = 1, pid: int = A, *, took_s: float = 0.5) -> list[WitnessLine]:
    return [line(What.START, at, attempt, pid), line(What.END, at + took_s, attempt, pid)]


def judged(
    *,
    entries: Sequence[JournalEntry] | None = None,
    rows: Sequence[FinalRow] | None = None,
    lines: Sequence[WitnessLine] | None = None,
    harms: Sequence[Harm] = (),
    rounds: Sequence[Round] = (),
    rewritten: Sequence[str] = (),
    trouble: Sequence[str] = (),
    residue: dict[str, int] | None = None,
) -> RunVerdict:
    return judge(
        RunEvidence(
            entries=[called()] if entries is None else entries,
            lines=ran() if lines is None else lines,
            rows=[row()] if rows is None else rows,
            harms=harms,
            rounds=rounds,
            rewritten=rewritten,
            trouble=trouble,
            residue=residue or {},
            lease_s=LEASE_S,
        )
    )


def faults(verdict: RunVerdict) -> list[Defect]:
    return [finding.fault for finding in verdict.findings]


def again(*between: WitnessLine, second_at: float = 2.0, first_at: float = 1.0) -> list[WitnessLine]:
    """Attempt 1 began in process A and never ended; attempt 2 ran in process B."""
    return [line(What.START, first_at), *between, *ran(second_at, 2, B)]


class TestWhatWasAsked:
    def test_a_task_that_ran_and_was_settled_is_clean_and_counted(self) -> None:
        verdict = judged()

        assert verdict.is_clean
        figures = verdict.figures
        assert (figures.attempted, figures.acknowledged, figures.completed, figures.lost) == (1, 1, 1, 0)
        assert (figures.starts, figures.retries, figures.duplicate_starts) == (1, 0, {})
        assert figures.bound_95 == 3.0

    def test_an_acknowledged_task_without_a_row_is_lost(self) -> None:
        verdict = judged(rows=[], lines=[])

        assert faults(verdict) == [Defect.LOST]
        assert verdict.figures.lost == 1
        assert verdict.figures.bound_95 is None

    def test_an_acknowledged_task_with_another_id_than_answered_is_lost(self) -> None:
        assert Defect.LOST in faults(judged(entries=[called(ids=("t1",))]))

    @pytest.mark.parametrize("state", [State.READY, State.WAITING, State.RUNNING])
    def test_an_acknowledged_task_that_is_not_settled_at_the_end_is_lost(self, state: State) -> None:
        verdict = judged(rows=[row(state, 0)], lines=[])

        assert faults(verdict) == [Defect.LOST]
        assert verdict.figures.lost == 1

    def test_a_call_of_unknown_outcome_may_stand_or_not(self) -> None:
        unknown = called(answer=EnqueueAnswer.UNKNOWN)

        gone = judged(entries=[unknown], rows=[], lines=[])
        stands = judged(entries=[unknown])

        assert gone.is_clean
        assert stands.is_clean
        assert (gone.figures.unknown, gone.figures.recovered) == (1, 0)
        assert (stands.figures.unknown, stands.figures.recovered) == (1, 1)

    def test_a_refused_call_that_was_recorded_all_the_same_is_unexpected(self) -> None:
        verdict = judged(entries=[called(answer=EnqueueAnswer.REFUSED)])

        assert faults(verdict) == [Defect.UNEXPECTED]
        assert verdict.figures.unexpected == 1

    def test_a_row_that_nobody_asked_for_is_unexpected(self) -> None:
        assert Defect.UNEXPECTED in faults(judged(rows=[row(), row(number=9, task_id="t9", state=State.DEAD)]))

    def test_two_rows_for_one_call_are_twins(self) -> None:
        twin = [*ran(), line(What.START, 1.0, task_id="t1"), line(What.END, 1.1, task_id="t1")]
        assert faults(judged(rows=[row(), row(task_id="t1")], lines=twin)) == [Defect.TWIN]

    def test_a_task_that_died_with_an_endless_budget_is_a_finding_and_a_doomed_one_is_not(self) -> None:
        lines = [line(What.START, 1.0), line(What.FAIL, 1.1)]

        assert faults(judged(rows=[row(State.DEAD)], lines=lines)) == [Defect.DEAD]
        doomed = judged(entries=[called(TaskKind.DOOMED)], rows=[row(State.DEAD)], lines=lines)
        assert doomed.is_clean
        assert doomed.figures.dead == 1

    def test_the_worst_comes_first(self) -> None:
        entries = [called(), called(number=1, ids=("t1",))]
        verdict = judged(entries=entries, residue={"holds": 2})
        assert faults(verdict) == [Defect.LOST, Defect.RESIDUE]


class TestSecondStarts:
    def test_a_start_after_a_failure_is_a_retry(self) -> None:
        verdict = judged(rows=[row(attempt=2)], lines=again(line(What.FAIL, 1.1)))

        assert verdict.is_clean
        assert (verdict.figures.retries, verdict.figures.duplicate_starts) == (1, {})

    def test_a_start_without_a_cause_is_a_finding(self) -> None:
        verdict = judged(rows=[row(attempt=2)], lines=again())

        assert faults(verdict) == [Defect.UNEXPLAINED]
        assert verdict.figures.unexplained_starts == 1

    def test_a_start_after_its_process_was_killed_is_explained(self) -> None:
        killed = Harm(DuplicateCause.KILLED, "kill-consumer", 1.2, 1.3, frozenset({A}))
        verdict = judged(rows=[row(attempt=2)], lines=again(), harms=[killed])

        assert verdict.is_clean
        assert verdict.figures.duplicate_starts == {DuplicateCause.KILLED: 1}

    @pytest.mark.parametrize(
        "elsewhere",
        [
            Harm(DuplicateCause.KILLED, "another process", 1.2, 1.3, frozenset({B})),
            Harm(DuplicateCause.KILLED, "before it began", 0.2, 0.3, frozenset({A})),
            Harm(DuplicateCause.KILLED, "after the second start", 2.2, 2.3, frozenset({A})),
            Harm(DuplicateCause.PAUSED, "shorter than the lease", 1.1, 1.1 + 0.5 * LEASE_S, frozenset({A})),
            Harm(DuplicateCause.CUT, "long before", 0.1, 0.2),
        ],
        ids=lambda harm: harm.fault,
    )
    def test_what_happened_elsewhere_explains_nothing(self, elsewhere: Harm) -> None:
        assert faults(judged(rows=[row(attempt=2)], lines=again(), harms=[elsewhere])) == [Defect.UNEXPLAINED]

    def test_a_start_after_a_pause_past_the_lease_is_explained_and_may_overlap(self) -> None:
        paused = Harm(DuplicateCause.PAUSED, "pause-consumer", 1.1, 14.0, frozenset({A}))
        lines = [line(What.START, 1.0), *ran(9.0, 2, B), line(What.END, 14.2)]

        verdict = judged(rows=[row(attempt=2)], lines=lines, harms=[paused])

        assert verdict.is_clean
        assert verdict.figures.duplicate_starts == {DuplicateCause.PAUSED: 1}
        assert verdict.figures.overlaps == 1
        assert verdict.figures.overlap_max_s == pytest.approx(0.5)

    def test_what_was_granted_before_a_pause_may_begin_after_it_and_after_the_next_attempt(self) -> None:
        paused = Harm(DuplicateCause.PAUSED, "pause-consumer", 0.9, 14.0, frozenset({A}))
        lines = [*ran(9.0, 2, B), *ran(14.1, 1, A)]

        verdict = judged(rows=[row(attempt=2)], lines=lines, harms=[paused])

        assert verdict.is_clean
        assert verdict.figures.duplicate_starts == {DuplicateCause.PAUSED: 1}
        assert faults(judged(rows=[row(attempt=2)], lines=lines)) == [Defect.UNEXPLAINED]

    def test_a_start_while_its_process_was_cut_off_is_explained(self) -> None:
        cut = Harm(DuplicateCause.CUT, "wire inflight half-open", 1.1, 1.5)
        assert judged(rows=[row(attempt=2)], lines=again(), harms=[cut]).is_clean

    def test_two_attempts_at_once_after_a_mere_kill_are_a_finding(self) -> None:
        killed = Harm(DuplicateCause.KILLED, "kill-consumer", 1.2, 1.3, frozenset({A}))
        lines = [line(What.START, 1.0), *ran(2.0, 2, B), line(What.END, 2.4)]
        assert faults(judged(rows=[row(attempt=2)], lines=lines, harms=[killed])) == [Defect.OVERLAP]

    def test_an_attempt_that_begins_twice_is_a_finding_whatever_happened(self) -> None:
        killed = Harm(DuplicateCause.KILLED, "kill-consumer", 1.2, 1.3, frozenset({A}))
        lines = [line(What.START, 1.0), *ran(2.0, 1, B)]
        assert Defect.REPEATED in faults(judged(rows=[row(attempt=1)], lines=lines, harms=[killed]))


class TestSettlement:
    def test_a_success_that_no_handler_saw_is_a_finding(self) -> None:
        assert faults(judged(lines=[])) == [Defect.UNSEEN]

    def test_a_success_by_an_attempt_that_never_ended_is_a_finding(self) -> None:
        assert faults(judged(lines=[line(What.START, 1.0)])) == [Defect.UNSEEN]

    def test_a_settlement_by_an_older_attempt_is_a_finding(self) -> None:
        paused = Harm(DuplicateCause.PAUSED, "pause-consumer", 1.1, 14.0, frozenset({A}))
        lines = [line(What.START, 1.0), *ran(9.0, 2, B), line(What.END, 14.2)]
        assert faults(judged(rows=[row(attempt=1)], lines=lines, harms=[paused])) == [Defect.LATE_START]

    def test_a_task_that_runs_without_a_row_is_a_ghost(self) -> None:
        ghost = [*ran(), line(What.START, 1.0, task_id="t9", number=9)]
        assert faults(judged(lines=ghost)) == [Defect.GHOST]

    def test_a_settlement_that_changed_is_a_finding(self) -> None:
        assert faults(judged(rewritten=["t0"])) == [Defect.REWRITTEN]

    def test_attempts_that_never_started_are_counted(self) -> None:
        verdict = judged(rows=[row(attempt=3)], lines=ran(attempt=3))
        assert verdict.is_clean
        assert verdict.figures.handed_back == 2


class TestTime:
    def test_a_start_before_its_time_is_a_finding(self) -> None:
        delayed = [called(TaskKind.DELAYED, delay_s=4.0)]
        assert faults(judged(entries=delayed, lines=ran(1.0))) == [Defect.EARLY]
        assert judged(entries=delayed, lines=ran(4.1)).is_clean

    def test_a_start_after_the_cancel_was_confirmed_is_a_finding(self) -> None:
        cancelled = [called(TaskKind.CANCELLED, cancelled_at=0.5)]
        assert faults(judged(entries=cancelled, lines=ran(1.0))) == [Defect.CANCELLED]
        assert judged(entries=cancelled, rows=[row(State.CANCELLED, 0)], lines=[]).is_clean

    def test_a_recovery_is_measured_from_its_origin_over_what_was_open_then(self) -> None:
        entries = [called(number=number, at=at, ids=(f"t{number}",)) for number, at in enumerate([0.0, 0.1, 5.0])]
        rows = [row(number=number, task_id=f"t{number}") for number in range(3)]
        lines = [
            one
            for number, end in enumerate([3.0, 4.0, 9.0])
            for one in (
                line(What.START, end - 0.1, task_id=f"t{number}", number=number),
                line(What.END, end, task_id=f"t{number}", number=number),
            )
        ]

        one = Round(("kill-host",), "", struck_at=1.0, origin_at=2.0, promised_s=1.0, allowed_s=2.5)
        [recovery] = judged(entries=entries, rows=rows, lines=lines, rounds=[one]).recoveries

        assert (recovery.affected, recovery.first_s, recovery.last_s) == (2, 1.0, 2.0)
        assert (recovery.p50_s, recovery.p95_s) == (1.0, 2.0)

    def test_a_recovery_later_than_promised_is_a_finding(self) -> None:
        late = Round(("kill-host",), "", struck_at=0.5, origin_at=0.5, promised_s=0.2, allowed_s=0.5)
        assert faults(judged(rounds=[late])) == [Defect.SLOW]

    def test_percentiles_are_nearest_ranks(self) -> None:
        values = [float(one) for one in range(1, 101)]
        assert [percentile(values, percent) for percent in (50, 95, 100)] == [50.0, 95.0, 100.0]
        assert percentile([7.0], 50) == 7.0
        assert percentile([], 50) is None


def test_what_is_left_behind_and_what_broke_are_findings() -> None:
    verdict = judged(residue={"holds": 3, "leases of nobody": 0}, trouble=["a worker broke", "a worker broke"])

    assert [(one.fault, one.what) for one in verdict.findings] == [
        (Defect.RESIDUE, "holds: 3"),
        (Defect.BROKEN, "a worker broke (2 times)"),
    ]


def test_a_timeline_tells_calls_runs_and_harms_in_their_order() -> None:
    harms = [
        Harm(DuplicateCause.KILLED, "kill-consumer", 1.2, 1.3, frozenset({A})),
        Harm(DuplicateCause.KILLED, "elsewhere", 1.2, 1.3, frozenset({999})),
    ]
    evidence = RunEvidence([called()], again(), [row(attempt=2)], harms)
    [finding] = judge(RunEvidence([called()], again(), [row(attempt=2)], [])).findings

    told = [one.split("s  ", 1)[-1].strip() for one in timeline(evidence, finding, ["an event"], zero_at=0.0)]

    assert told == [
        "enqueue (one, delay 0 s)",
        "answer: acknowledged",
        f"start of attempt 1 in process {A}",
        f"-- kill-consumer begins (process {A})",
        f"-- kill-consumer ends (process {A})",
        f"start of attempt 2 in process {B}",
        f"end of attempt 2 in process {B}",
        "ledger: an event",
        "ledger: t0 is succeeded, attempt 2, no reason",
    ]
