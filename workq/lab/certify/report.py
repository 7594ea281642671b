"""What a run of `workq certify` was asked for, and its report: the same facts for a person and for a program."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from workq.config import Settings
from workq.diagnose.bounds import Bounds
from workq.lab.certify.verdict import FaultRecovery, RunFinding, RunVerdict


@dataclass(frozen=True, slots=True)
class CertifyWishes:
    """What was asked for. `divide` None: chosen to fit the minutes. `only` are names of faults; none means all."""

    minutes: float = 3.0
    seed: int = 0
    processes: int = 1
    threads: int = 4
    rate: float = 200.0
    divide: float | None = None
    only: frozenset[str] = frozenset()
    keep: bool = False

    @property
    def divided_by(self) -> float:
        """By how much the times are divided."""
        if self.divide is not None:
            return self.divide
        return 10.0 if self.minutes < 1.0 else 5.0

    @property
    def command(self) -> str:
        """What repeats the run."""
        words = [f"workq certify --minutes {self.minutes:g} --seed {self.seed}"]
        words += [f"--processes {self.processes} --threads {self.threads} --rate {self.rate:g}"]
        words += [f"--divide {self.divide:g}"] if self.divide is not None else []
        words += [f"--only {','.join(sorted(self.only))}"] if self.only else []
        return " ".join(words)


@dataclass(slots=True)
class CertifyReport:
    """What came of it."""

    wishes: CertifyWishes
    began_at: datetime
    seconds: float
    namespace: str
    settings: Settings
    versions: dict[str, str]
    start_s: float
    """How long a worker took to start on this machine, at most."""
    stall_s: float
    """The longest time for which this machine did not let a waiting thread run."""
    struck: dict[str, int]
    left_out: dict[str, str]
    rounds_composed: int
    verdict: RunVerdict
    logged: dict[str, int]
    shown: list[tuple[RunFinding, list[str]]]
    kept: Path | None = None
    not_removed: list[str] = field(default_factory=list)


def new_seed() -> int:
    """A seed for a run that was given none."""
    return Random().randrange(1_000_000)


def document(report: CertifyReport) -> dict[str, Any]:
    """One JSON object. Names are only added."""
    figures = report.verdict.figures
    return {
        "ok": report.verdict.is_clean and not report.not_removed,
        "began_at": report.began_at,
        "seconds": round(report.seconds, 1),
        "seed": report.wishes.seed,
        "command": report.wishes.command,
        "namespace": report.namespace,
        "versions": report.versions,
        "times": {
            "divided_by": report.wishes.divided_by,
            "beat_s": report.settings.times.beat_s,
            "lease_s": report.settings.times.lease_s,
            "sweep_s": report.settings.times.sweep_s,
            "promised_s": asdict(Bounds.of(report.settings.times)),
        },
        "machine": {"worker_start_s": round(report.start_s, 2), "longest_stall_s": round(report.stall_s, 2)},
        "faults": {
            "struck": sum(report.struck.values()),
            "rounds": len(report.verdict.recoveries),
            "composed": report.rounds_composed,
            "by_kind": report.struck,
            "left_out": report.left_out,
        },
        "tasks": {**asdict(figures), "bound_95": figures.bound_95},
        "recoveries": [
            {
                "faults": list(one.faults),
                "hit": one.hit,
                "affected": one.affected,
                "promised_s": _rounded(one.promised_s),
                "allowed_s": _rounded(one.allowed_s),
                **{name: _rounded(getattr(one, name)) for name in ("first_s", "p50_s", "p95_s", "last_s")},
            }
            for one in report.verdict.recoveries
        ],
        "logged": report.logged,
        "findings": [
            {"fault": one.fault, "what": one.what, "task_id": one.task_id, "number": one.number}
            for one in report.verdict.findings
        ],
        "timelines": [lines for _, lines in report.shown],
        "not_removed": report.not_removed,
    }


def page(report: CertifyReport) -> str:
    """For a person."""
    figures, times = report.verdict.figures, report.settings.times
    servers = [f"{name}: {report.versions[name]}" for name in ("ledger", "broker", "inflight")]
    duplicates = ", ".join(f"{count} {cause}" for cause, count in sorted(figures.duplicate_starts.items())) or "0"
    again = sum(figures.duplicate_starts.values()) + figures.unexplained_starts
    lines = [
        "",
        f"workq {report.versions['workq']}, Python {report.versions['Python']}, {report.versions['system']}",
        *servers,
        f"times divided by {report.wishes.divided_by:g}: lease {times.lease_s:g} s, beat {times.beat_s:g} s, "
        f"sweep {times.sweep_s:g} s",
        "",
        "Faults struck",
        *_columns([(name, f"{count}") for name, count in sorted(report.struck.items())]),
        f"  {sum(report.struck.values())} in {len(report.verdict.recoveries)} rounds, "
        f"{report.rounds_composed} of them several at once",
        *(f"  left out: {name}: {why}" for name, why in report.left_out.items()),
        "",
        "Tasks",
        *_columns(
            [
                ("attempted", f"{figures.attempted:,}"),
                ("acknowledged", f"{figures.acknowledged:,}"),
                ("outcome unknown", f"{figures.unknown:,} ({figures.recovered:,} were there)"),
                ("refused", f"{figures.refused:,} ({figures.unexpected:,} were there)"),
                ("completed", f"{figures.completed:,}"),
                ("dead on purpose", f"{figures.dead:,}"),
                ("cancelled", f"{figures.cancelled:,}"),
                ("lost", f"{figures.lost:,}"),
                ("starts", f"{figures.starts:,}, {figures.retries:,} of them retries"),
                ("started again", f"{again:,}: {duplicates}, {figures.unexplained_starts} unexplained"),
                ("overlaps", f"{figures.overlaps:,}, the longest {figures.overlap_max_s:.2f} s"),
                ("late results", f"{figures.late_results:,}, refused by the fence"),
            ]
        ),
        "",
        "Recovery, in seconds            rounds  first    p50    p95   last   promised",
        *_recoveries(report.verdict.recoveries),
        f"  (a worker takes {report.start_s:.1f} s to start here, the longest stall was {report.stall_s:.2f} s)",
        "",
    ]
    for at, finding in enumerate(report.verdict.findings):
        about = f" [number {finding.number}, task {finding.task_id}]" if finding.task_id else ""
        if at < len(report.shown):
            lines += [f"FINDING {finding.fault}: {finding.what}{about}", *(f"  {one}" for one in report.shown[at][1])]
    if len(report.verdict.findings) > len(report.shown):
        kinds = Counter(one.fault.value for one in report.verdict.findings)
        lines.append(f"... and more: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
    lines += [f"NOT REMOVED {one}" for one in report.not_removed]
    if figures.bound_95 is not None:
        lines.append(
            f"0 of {figures.acknowledged:,} tasks lost: with 95 % confidence fewer than 1 in "
            f"{figures.acknowledged // 3:,} (3/N = {figures.bound_95:.1e})"
        )
    lines.append(f"{'clean' if report.verdict.is_clean else 'NOT CLEAN'}; the same again: {report.wishes.command}")
    return "\n".join(lines)


def _recoveries(recoveries: list[FaultRecovery]) -> list[str]:
    """One line for each fault that struck alone, and one for all that struck together."""
    groups: dict[str, list[FaultRecovery]] = {}
    for one in recoveries:
        groups.setdefault(one.faults[0] if len(one.faults) == 1 else "several at once", []).append(one)
    lines = []
    for name, group in sorted(groups.items(), key=lambda item: (item[0] == "several at once", item[0])):
        worst = max(group, key=lambda one: one.last_s if one.last_s is not None else -1.0)
        cells = "".join(_cell(value) for value in (worst.first_s, worst.p50_s, worst.p95_s, worst.last_s))
        lines.append(f"  {name:<30}{len(group):>6}{cells}{worst.promised_s:>11.1f}")
    return lines


def _cell(value: float | None) -> str:
    return f"{'-' if value is None else f'{max(0.0, value):.2f}':>7}"


def _columns(pairs: list[tuple[str, str]]) -> list[str]:
    return [f"  {name:<30}{value}" for name, value in pairs]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
