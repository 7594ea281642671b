"""The auditor: joins what was asked (journal), what ran (witness) and what was decided (ledger), and judges.

Every second start of a task must be explained: its handler had failed, or the process that ran it was killed, was
paused longer than its lease, or was cut off from a store meanwhile. What is not explained is a finding; so is every
task that is missing, unfinished, settled without having run, run after it was settled, run before its time or after
its cancel was confirmed. Zero losses among N tasks bound the true rate below 3/N (95 %, the rule of three).

Pure: it reads values and nothing else, so that each finding has a test that provokes it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from workq.lab.certify.driver import EnqueueAnswer, JournalEntry, TaskKind
from workq.lab.certify.stage import DuplicateCause, FinalRow, Harm
from workq.lab.certify.witness import What, WitnessLine
from workq.values.task import SETTLED, State

EARLY_S = 1.0
"""How much too early, by this host's clock, is still in order."""


AWAKE_S = 2.0
"""What a process was granted before it was paused, it may start so long after it woke, before it knows."""


class Defect(StrEnum):
    """What can be wrong."""

    LOST = "lost"
    """Acknowledged, and not settled at the end; or there is no such row at all."""
    UNEXPECTED = "unexpected"
    """The caller was told that nothing was recorded, and yet it was."""
    TWIN = "twin"
    """One call, several rows."""
    GHOST = "ghost"
    """It ran, and the ledger has no such task."""
    DEAD = "dead"
    """Dead, though its budget was endless."""
    UNSEEN = "settled without having run"
    LATE_START = "started after it was settled"
    REPEATED = "one attempt ran twice"
    UNEXPLAINED = "started twice without a cause"
    OVERLAP = "two attempts ran at once without a cause"
    EARLY = "started before its time"
    CANCELLED = "started after its cancel was confirmed"
    REWRITTEN = "changed after it was settled"
    SLOW = "recovered later than promised"
    RESIDUE = "left behind"
    BROKEN = "broke"


@dataclass(frozen=True, slots=True)
class RunFinding:
    """One thing that is wrong. `task_id` and `number` where it is about one task."""

    fault: Defect
    what: str
    task_id: str | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class FaultRecovery:
    """One round of faults. Seconds from the blow, or from the end of the fault where the promise counts from there.

    `affected` tasks were acknowledged, due and not finished when it struck. `first_s` and `last_s` are None when
    nothing was. `allowed_s` is the promise and what this machine needs for the start of a process.
    """

    faults: tuple[str, ...]
    hit: str
    struck_at: float
    origin_at: float
    affected: int
    first_s: float | None
    last_s: float | None
    p50_s: float | None
    p95_s: float | None
    promised_s: float
    allowed_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """When the faults of one round struck, and what was promised."""

    faults: tuple[str, ...]
    hit: str
    struck_at: float
    origin_at: float
    promised_s: float
    allowed_s: float


@dataclass(slots=True)
class Figures:
    """What is counted; the names are those of Jepsen's total-queue checker where it has them. In tasks."""

    attempted: int = 0
    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    lost: int = 0
    recovered: int = 0
    """Of unknown outcome, and there after all."""
    unexpected: int = 0
    starts: int = 0
    retries: int = 0
    """Starts after a failure of the handler."""
    duplicate_starts: dict[str, int] = field(default_factory=dict)
    """By cause."""
    unexplained_starts: int = 0
    overlaps: int = 0
    overlap_max_s: float = 0.0
    late_results: int = 0
    handed_back: int = 0
    """Attempts that were claimed and never started."""

    @property
    def bound_95(self) -> float | None:
        """With 95 % confidence a smaller part of the tasks is lost; None when some were, or there were none."""
        return 3.0 / self.acknowledged if self.acknowledged and not self.lost else None


@dataclass(slots=True)
class RunEvidence:
    """All that is judged."""

    entries: Sequence[JournalEntry]
    lines: Sequence[WitnessLine]
    rows: Sequence[FinalRow]
    harms: Sequence[Harm]
    late_results: Sequence[tuple[str, int]] = ()
    rewritten: Sequence[str] = ()
    """Tasks whose settlement changed between two looks."""
    residue: Mapping[str, int] = field(default_factory=dict)
    trouble: Sequence[str] = ()
    rounds: Sequence[Round] = ()
    lease_s: float = 0.0


@dataclass(slots=True)
class RunVerdict:
    """The figures, the recoveries and the findings, the worst first."""

    figures: Figures
    recoveries: list[FaultRecovery]
    findings: list[RunFinding]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def judge(evidence: RunEvidence) -> RunVerdict:
    """Judge one run."""
    return _Judge(evidence).verdict()


class _Judge:
    def __init__(self, evidence: RunEvidence) -> None:
        self.evidence = evidence
        self.figures = Figures()
        self.findings: list[RunFinding] = []
        self.rows_of: defaultdict[int, list[FinalRow]] = defaultdict(list)
        for row in evidence.rows:
            self.rows_of[row.number].append(row)
        self.row = {row.id: row for row in evidence.rows}
        self.calls_of: defaultdict[int, list[JournalEntry]] = defaultdict(list)
        for entry in evidence.entries:
            for number in entry.numbers:
                self.calls_of[number].append(entry)
        self.lines_of: defaultdict[str, list[WitnessLine]] = defaultdict(list)
        for line in evidence.lines:
            self.lines_of[line.task_id].append(line)
        self.harms_to: defaultdict[int, list[Harm]] = defaultdict(list)
        self.cuts: list[Harm] = []
        for harm in evidence.harms:
            if harm.cause is DuplicateCause.CUT:
                self.cuts.append(harm)
            for pid in harm.pids:
                self.harms_to[pid].append(harm)

    def verdict(self) -> RunVerdict:
        self._calls()
        self._runs()
        self._rest()
        recoveries = self._recoveries()
        order = list(Defect)
        self.findings.sort(key=lambda one: (order.index(one.fault), one.number or 0))
        return RunVerdict(self.figures, recoveries, self.findings)

    def _find(self, fault: Defect, what: str, task_id: str | None = None, number: int | None = None) -> None:
        self.findings.append(RunFinding(fault, what, task_id, number))

    # -- what was asked

    def _calls(self) -> None:
        figures = self.figures
        for number, calls in self.calls_of.items():
            rows = self.rows_of.get(number, [])
            figures.attempted += 1
            answers = {call.answer for call in calls}
            if EnqueueAnswer.ACKNOWLEDGED in answers:
                figures.acknowledged += 1
                self._acknowledged(number, calls, rows)
            elif answers & {EnqueueAnswer.UNKNOWN, EnqueueAnswer.NONE}:
                figures.unknown += 1
                figures.recovered += bool(rows)
            else:
                figures.refused += 1
                if rows:
                    figures.unexpected += 1
                    self._find(
                        Defect.UNEXPECTED,
                        f"number {number}: the caller was told that nothing was recorded ({calls[0].error})",
                        rows[0].id,
                        number,
                    )
            if len(rows) > len(calls):
                self._find(Defect.TWIN, f"number {number} was asked for {len(calls)} times", rows[-1].id, number)
            for row in rows:
                self._ended(row, calls)
        for row in self.evidence.rows:
            if row.number not in self.calls_of:
                self._find(Defect.UNEXPECTED, f"number {row.number} was never asked for", row.id, row.number)
                figures.unexpected += 1

    def _acknowledged(self, number: int, calls: Sequence[JournalEntry], rows: Sequence[FinalRow]) -> None:
        missing = [task_id for call in calls for task_id in call.ids if task_id not in self.row]
        if not rows or missing:
            self.figures.lost += 1
            self._find(
                Defect.LOST, f"number {number} was acknowledged, and has no row", next(iter(missing), None), number
            )
        elif any(row.state not in SETTLED for row in rows):
            self.figures.lost += 1

    def _ended(self, row: FinalRow, calls: Sequence[JournalEntry]) -> None:
        match row.state:
            case State.SUCCEEDED:
                self.figures.completed += 1
                if calls[0].kind is TaskKind.DOOMED:
                    self._find(Defect.UNSEEN, "its handler always fails, and it succeeded", row.id, row.number)
            case State.DEAD:
                self.figures.dead += 1
                if calls[0].kind is not TaskKind.DOOMED:
                    self._find(Defect.DEAD, f"dead: {row.reason}", row.id, row.number)
            case State.CANCELLED:
                self.figures.cancelled += 1
                if calls[0].kind is not TaskKind.CANCELLED:
                    self._find(Defect.DEAD, f"cancelled by nobody: {row.reason}", row.id, row.number)
            case State.READY | State.WAITING | State.RUNNING:
                self._find(Defect.LOST, f"it is still {row.state}", row.id, row.number)

    # -- what ran

    def _runs(self) -> None:
        self.figures.late_results = len(self.evidence.late_results)
        for task_id, lines in self.lines_of.items():
            lines.sort(key=lambda line: (line.at, line.attempt))
            row = self.row.get(task_id)
            if row is None:
                self._find(Defect.GHOST, f"number {lines[0].number} ran", task_id, lines[0].number)
                continue
            starts = sorted((line for line in lines if line.what is What.START), key=lambda line: line.attempt)
            self.figures.starts += len(starts)
            for before, after in pairwise(starts):
                self._second_start(lines, before, after)
            self._settlement(row, lines, starts)
            self._time(row, starts)
        for row in self.evidence.rows:
            if row.state is State.SUCCEEDED and row.id not in self.lines_of:
                self._find(Defect.UNSEEN, "no handler ever started", row.id, row.number)
            attempts = {line.attempt for line in self.lines_of.get(row.id, ()) if line.what is What.START}
            self.figures.handed_back += max(0, row.attempt - len(attempts))

    def _second_start(self, lines: Sequence[WitnessLine], before: WitnessLine, after: WitnessLine) -> None:
        """Why the task was started again. The later attempt may begin first, if the earlier one's slept."""
        if after.attempt == before.attempt:
            what = f"attempt {after.attempt} began in process {before.pid}, and again in process {after.pid}"
            self._find(Defect.REPEATED, what, after.task_id, after.number)
            return
        ends = [line for line in lines if line.attempt == before.attempt and line.what is not What.START]
        harm = self._harm(before, after)
        if any(line.what is What.FAIL and line.at <= after.at for line in ends):
            self.figures.retries += 1
        elif harm is not None:
            counted = self.figures.duplicate_starts
            counted[harm.cause] = counted.get(harm.cause, 0) + 1
        else:
            self.figures.unexplained_starts += 1
            what = (
                f"attempt {before.attempt} (process {before.pid}), then attempt {after.attempt} (process {after.pid}): "
                "nothing had happened to the first"
            )
            self._find(Defect.UNEXPLAINED, what, after.task_id, after.number)
        self._overlap(before, after, lines, harm)

    def _harm(self, before: WitnessLine, after: WitnessLine) -> Harm | None:
        """What happened to the earlier attempt's process before the later attempt began."""
        for harm in self.harms_to.get(before.pid, ()):
            is_between = harm.at <= after.at and harm.until >= before.at
            match harm.cause:
                case DuplicateCause.KILLED:
                    if is_between:
                        return harm
                case DuplicateCause.PAUSED:
                    is_zombie = harm.at <= after.at and harm.until + AWAKE_S >= before.at
                    if is_zombie and harm.until - harm.at >= 0.8 * self.evidence.lease_s:
                        return harm
                case DuplicateCause.CUT:
                    continue
        return next((cut for cut in self.cuts if cut.at <= after.at and cut.until >= before.at), None)

    def _overlap(
        self, before: WitnessLine, after: WitnessLine, lines: Sequence[WitnessLine], harm: Harm | None
    ) -> None:
        """Two attempts at once: only after a lease was lost."""
        begin_at = max(before.at, after.at)
        end_at = min(
            max(line.at for line in lines if (line.attempt, line.pid) == (one.attempt, one.pid))
            for one in (before, after)
        )
        if end_at <= begin_at:
            return
        self.figures.overlaps += 1
        self.figures.overlap_max_s = max(self.figures.overlap_max_s, end_at - begin_at)
        if harm is None or harm.cause is DuplicateCause.KILLED:
            what = f"attempts {before.attempt} and {after.attempt} ran at once for {end_at - begin_at:.3f} s"
            self._find(Defect.OVERLAP, what, after.task_id, after.number)

    def _settlement(self, row: FinalRow, lines: Sequence[WitnessLine], starts: Sequence[WitnessLine]) -> None:
        """The settlement is that of the newest attempt, which has ended as the ledger says."""
        if row.state not in SETTLED:
            return
        newest = max((line.attempt for line in starts), default=0)
        if newest > row.attempt:
            what = f"settled by attempt {row.attempt}, and attempt {newest} was started"
            self._find(Defect.LATE_START, what, row.id, row.number)
        wanted = {State.SUCCEEDED: What.END, State.DEAD: What.FAIL}.get(row.state)
        if wanted is not None and not any(line.what is wanted and line.attempt == row.attempt for line in lines):
            what = f"{row.state} by attempt {row.attempt}, of which the witness has no {wanted}"
            self._find(Defect.UNSEEN, what, row.id, row.number)

    def _time(self, row: FinalRow, starts: Sequence[WitnessLine]) -> None:
        """Neither before its time, nor after the answer that it is cancelled."""
        call = self.calls_of[row.number][0] if row.number in self.calls_of else None
        if call is None or not starts:
            return
        first_at, last_at = min(line.at for line in starts), max(line.at for line in starts)
        if call.delay_s and first_at < call.called_at + call.delay_s - EARLY_S:
            what = f"due {call.delay_s:g} s after the call, started after {first_at - call.called_at:.2f} s"
            self._find(Defect.EARLY, what, row.id, row.number)
        if call.cancelled_at is not None and last_at > call.cancelled_at:
            what = f"started {last_at - call.cancelled_at:.2f} s after the answer"
            self._find(Defect.CANCELLED, what, row.id, row.number)

    # -- the rest

    def _rest(self) -> None:
        for task_id in self.evidence.rewritten:
            row = self.row.get(task_id)
            self._find(Defect.REWRITTEN, "its settlement is not what it was", task_id, row.number if row else None)
        for what, count in self.evidence.residue.items():
            if count:
                self._find(Defect.RESIDUE, f"{what}: {count}")
        for text, times in Counter(self.evidence.trouble).items():
            self._find(Defect.BROKEN, f"{text}{f' ({times} times)' if times > 1 else ''}")

    def _recoveries(self) -> list[FaultRecovery]:
        done_at: dict[int, float] = {}
        for row in self.evidence.rows:
            wanted = {State.SUCCEEDED: What.END, State.DEAD: What.FAIL}.get(row.state)
            for line in self.lines_of.get(row.id, ()):
                if line.what is wanted and line.attempt == row.attempt:
                    done_at[row.number] = max(line.at, done_at.get(row.number, 0.0))
        spans = sorted(
            (max(call.answered_at, call.called_at + call.delay_s), done_at[number], number)
            for number, calls in self.calls_of.items()
            if (call := calls[0]).answer is EnqueueAnswer.ACKNOWLEDGED and number in done_at
        )
        opened = [span[0] for span in spans]
        recoveries = []
        for one in self.evidence.rounds:
            until = bisect_left(opened, one.struck_at)
            ended = sorted((done, number) for _, done, number in spans[:until] if done > one.struck_at)
            affected = [done - one.origin_at for done, _ in ended]
            recovery = FaultRecovery(
                one.faults,
                one.hit,
                one.struck_at,
                one.origin_at,
                len(affected),
                affected[0] if affected else None,
                affected[-1] if affected else None,
                percentile(affected, 50),
                percentile(affected, 95),
                one.promised_s,
                one.allowed_s,
            )
            recoveries.append(recovery)
            if recovery.last_s is not None and recovery.last_s > one.allowed_s:
                number = ended[-1][1]
                self._find(
                    Defect.SLOW,
                    f"{' + '.join(one.faults)}: the last of {len(affected)} tasks after {recovery.last_s:.1f} s; "
                    f"promised {one.promised_s:.1f} s, and with the start of processes here {one.allowed_s:.1f} s",
                    self.rows_of[number][0].id,
                    number,
                )
        return recoveries


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The nearest rank of sorted values; None of none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * int(percent) // 100) - 1))]


def timeline(evidence: RunEvidence, finding: RunFinding, events: Iterable[str] = (), *, zero_at: float) -> list[str]:
    """Everything that is known of the task of a finding, in order: calls, starts and ends, harms; then the row."""
    numbers = set() if finding.number is None else {finding.number}
    told: list[tuple[float, str]] = []
    pids = set()
    for entry in evidence.entries:
        if numbers & set(entry.numbers):
            told.append((entry.called_at, f"enqueue ({entry.kind}, delay {entry.delay_s:g} s)"))
            told.append((entry.answered_at or entry.called_at, f"answer: {entry.answer} {entry.error}".rstrip()))
            if entry.cancelled_at is not None:
                told.append((entry.cancelled_at, "cancel: cancelled"))
    ours = [line for line in evidence.lines if line.number in numbers or line.task_id == finding.task_id]
    for line in ours:
        pids.add(line.pid)
        told.append((line.at, f"{line.what} of attempt {line.attempt} in process {line.pid}"))
    if told:
        first, last = min(at for at, _ in told), max(at for at, _ in told)
        for harm in evidence.harms:
            if (harm.pids & pids or not harm.pids) and harm.until >= first and harm.at <= last + 60.0:
                about = f" (process {', '.join(map(str, sorted(harm.pids & pids)))})" if harm.pids else ""
                told.append((harm.at, f"-- {harm.fault} begins{about}"))
                told.append((harm.until, f"-- {harm.fault} ends{about}"))
    lines = [f"{at - zero_at:+10.3f} s  {text}" for at, text in sorted(told)]
    lines += [f"    ledger: {event}" for event in events]
    for row in evidence.rows:
        if row.number in numbers or row.id == finding.task_id:
            reason = row.reason or "no reason"
            lines.append(
                f"    ledger: {row.id} is {row.state}, attempt {row.attempt}, {reason}; {row.times}".rstrip("; ")
            )
    return lines
