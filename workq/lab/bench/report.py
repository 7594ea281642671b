"""The figures of a run: the same facts as a page for a person and as one document for a program."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from workq.lab.bench.trial import BenchReport, Figure
from workq.values.plural import counted

_SHOWN: Final = {
    "enqueue_one_per_s": ("enqueued one by one", "/s", 1.0),
    "enqueue_many_per_s": ("enqueued in bulk, recorded", "/s", 1.0),
    "published_per_s": ("enqueued in bulk, published", "/s", 1.0),
    "drain_one_by_one_per_s": ("run, enqueued one by one", "/s", 1.0),
    "drain_per_s": ("run, enqueued in bulk", "/s", 1.0),
    "latency_p50_ms": ("latency at 200/s, p50", "ms", 1.0),
    "latency_p99_ms": ("latency at 200/s, p99", "ms", 1.0),
    "first_start_s": ("workers started to first task", "s", 1.0),
    "workers_cpu_us": ("processor of the workers", "us a task", 1.0),
    "workers_memory_bytes": ("memory of the workers", "MB", 1e6),
    "last_completion_after_kill_s": ("kill -9 of all to last of {kill_tasks:,}", "s", 1.0),
    "started_twice_after_kill": ("started twice after it", "tasks", 1.0),
}


def document(report: BenchReport) -> dict[str, Any]:
    """One JSON object. Names are only added."""
    return {
        "ok": report.missing == 0 and not report.not_removed,
        "began_at": report.began_at,
        "namespace": report.namespace,
        "tasks": report.wishes.tasks,
        "runs": report.wishes.runs,
        "processes": report.wishes.processes,
        "threads": report.wishes.threads,
        "versions": report.versions,
        "figures": {name: asdict(figure) for name, figure in report.figures.items()},
        "missing_after_kill": report.missing,
        "steps_cpu_us": report.steps,
        "threads_cpu_us": report.threads,
        "not_removed": report.not_removed,
    }


def page(report: BenchReport) -> str:
    """For a person."""
    wishes = report.wishes
    lines = [
        "",
        f"workq {report.versions['workq']}, Python {report.versions['Python']}, {report.versions['system']}, "
        f"{report.versions['processors']} processors, {report.began_at:%Y-%m-%d}",
        *(f"{name}: {report.versions[name]}" for name in ("ledger", "broker", "inflight")),
        f"{wishes.tasks:,} tasks that do nothing, {counted(wishes.processes, 'process', 'processes')} of "
        f"{counted(wishes.threads, 'thread')}, "
        f"{counted(wishes.runs, 'run')}: median (least - most)",
        "",
        *(
            _line(label.format(kill_tasks=wishes.kill_tasks), figure, unit, by)
            for name, (label, unit, by) in _SHOWN.items()
            if (figure := report.figures.get(name))
        ),
        f"  {'missing after it':<34}{report.missing:>10,} tasks",
        "",
        "Processor time of a task in the workers, in us, with a clock around each call",
        *(f"  {name:<34}{spent:>10.1f}" for name, spent in sorted(report.steps.items(), key=lambda one: -one[1])),
        "By thread: intake (fetch, hold, decode, claim), run, settle (settle, release)",
        *(f"  {name:<34}{spent:>10.1f}" for name, spent in sorted(report.threads.items(), key=lambda one: -one[1])),
    ]
    lines += [f"NOT REMOVED {one}" for one in report.not_removed]
    return "\n".join(lines)


def _line(label: str, figure: Figure, unit: str, by: float) -> str:
    median, least, most = (_number(value / by) for value in (figure.median, figure.least, figure.most))
    return f"  {label:<34}{median:>10} {unit} ({least} - {most})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
