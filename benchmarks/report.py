"""What a run prints: a table for each measure, the ratios with their goals, what failed, and the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.goals import Verdict
from benchmarks.results import Results, Spread, spread
from benchmarks.roster import Contestant

SERVERS = {"postgres": "pg", "rabbitmq": "rmq", "kafka": "kafka", "redis": "redis"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading, and how a contestant's cell is written; "" when it has none."""

    heading: str
    cell: Callable[[Results, str], str]


@dataclass(frozen=True, slots=True)
class Table:
    """One measure: who has its first figure is in the table."""

    title: str
    figure: str
    columns: tuple[Column, ...]


def _rate(heading: str, figure: str) -> Column:
    return Column(heading, lambda results, name: _written(results.spread(name, figure), "{:,.0f}"))


def _value(heading: str, figure: str, form: str) -> Column:
    return Column(heading, lambda results, name: _written(results.spread(name, figure), form))


def _one(heading: str, figure: str, form: str) -> Column:
    return Column(heading, lambda results, name: _median(results.spread(name, figure), form))


def _cpu(measure: str, who: str) -> tuple[Column, ...]:
    def servers(results: Results, name: str) -> str:
        each = ((short, results.spread(name, f"{measure}_{long}_cpu_s")) for long, short in SERVERS.items())
        return ", ".join(f"{short} {found.median:.3f}" for short, found in each if found is not None)

    return (
        _one(f"{who} CPU s/1k", f"{measure}_client_cpu_s", "{:.3f}"),
        Column("servers CPU s/1k", servers),
        _one("all CPU s/1k", f"{measure}_total_cpu_s", "{:.3f}"),
    )


def _drain_table(title: str, measure: str) -> Table:
    return Table(
        title,
        f"{measure}_rate",
        (
            _one("tasks", f"{measure}_tasks", "{:,.0f}"),
            _rate("tasks/s", f"{measure}_rate"),
            _one("middle 90 %", f"{measure}_mid90_rate", "{:,.0f}"),
            *_cpu(measure, "workers"),
            _one("workers PSS MB", f"{measure}_pss_mb", "{:.0f}"),
            _one("missing", f"{measure}_missing", "{:.0f}"),
        ),
    )


TABLES: tuple[Table, ...] = (
    _drain_table("Drain: tasks enqueued in bulk, two worker processes, first start to last start", "drain"),
    _drain_table("Drain of tasks that were enqueued one by one", "drain1"),
    Table(
        "Enqueue one by one, from one thread and from 8 (8 coroutines for asynchronous clients)",
        "enqueue_rate",
        (
            _one("tasks", "enqueue_tasks", "{:,.0f}"),
            _rate("1 thread /s", "enqueue_rate"),
            _one("until published /s", "enqueue_published_rate", "{:,.0f}"),
            _rate("8 threads /s", "threads_rate"),
            *_cpu("enqueue", "producer"),
        ),
    ),
    Table(
        "Enqueue in bulk",
        "bulk_rate",
        (
            _one("tasks", "bulk_tasks", "{:,.0f}"),
            _rate("tasks/s", "bulk_rate"),
            _rate("until published /s", "bulk_published_rate"),
            *_cpu("bulk", "producer"),
        ),
    ),
    Table(
        "Latency at 200 tasks/s, open loop, scheduled instant to start",
        "p50_ms",
        (
            _value("p50 ms", "p50_ms", "{:.2f}"),
            _one("p90 ms", "p90_ms", "{:.2f}"),
            _value("p99 ms", "p99_ms", "{:.2f}"),
            _one("max ms", "max_ms", "{:.1f}"),
            *_cpu("latency", "workers"),
        ),
    ),
    *(
        Table(
            f"Delay of {name[:-1]} s, 200 tasks/s: from the instant that a task was due at to its start",
            f"delay_{name}_p50_ms",
            (
                _value("p50 ms", f"delay_{name}_p50_ms", "{:.1f}"),
                _value("p99 ms", f"delay_{name}_p99_ms", "{:.1f}"),
                _one("max ms", f"delay_{name}_max_ms", "{:.0f}"),
                _one("earliest ms", f"delay_{name}_min_ms", "{:.1f}"),
                _one("missing", f"delay_{name}_missing", "{:.0f}"),
            ),
        )
        for name in ("1s", "5s")
    ),
    Table(
        "Sustained: a producer in bulk and two worker processes at once, end to end",
        "sustained_rate",
        (
            _one("tasks", "sustained_tasks", "{:,.0f}"),
            _rate("tasks/s", "sustained_rate"),
            _one("enqueued meanwhile /s", "sustained_enqueue_rate", "{:,.0f}"),
            _one("producer CPU s/1k", "sustained_producer_cpu_s", "{:.3f}"),
            *_cpu("sustained", "workers"),
            _one("missing", "sustained_missing", "{:.0f}"),
        ),
    ),
    Table(
        "Kill: tasks of 5 ms, every worker process killed with -9 at 30 %, started again at once",
        "last_s",
        (
            _one("tasks", "kill_tasks", "{:,.0f}"),
            _value("missing", "missing", "{:.0f}"),
            _value("completed twice", "run_twice", "{:.0f}"),
            _value("started twice", "started_twice", "{:.0f}"),
            _value("last completion, s after the kill", "last_s", "{:.1f}"),
        ),
    ),
)


def lines(
    contestants: Sequence[Contestant], results: Results, verdicts: Sequence[Verdict], facts: Any
) -> Iterator[str]:
    """The whole report, line by line, as Markdown."""
    for table in TABLES:
        rows = [one for one in contestants if results.spread(one.name, table.figure) is not None]
        if rows:
            yield from _table(table, rows, results)
    yield from _ratios(verdicts)
    yield from _failures(results)
    yield from _machine(results, facts)


def _table(table: Table, rows: Sequence[Contestant], results: Results) -> Iterator[str]:
    yield f"\n## {table.title}\n"
    headings = ["contestant", *(column.heading for column in table.columns), "survives kill -9", "configuration"]
    cells = [
        [
            one.name,
            *(column.cell(results, one.name) for column in table.columns),
            "yes" if one.survives is None else one.survives,
            one.configuration,
        ]
        for one in rows
    ]
    yield from _grid(headings, cells)


def _ratios(verdicts: Sequence[Verdict]) -> Iterator[str]:
    known = [verdict for verdict in verdicts if verdict.ratio is not None]
    if not known:
        return
    yield "\n## Ratios and goals: of medians, and in brackets the smallest and the largest of the runs\n"
    cells = []
    for verdict in known:
        word = "at most" if verdict.goal.is_smaller_better else "at least"
        paired = f" ({verdict.paired.low:.2f}-{verdict.paired.high:.2f})" if verdict.paired else ""
        bound = f"{word} {verdict.goal.bound:g}"
        cells.append([verdict.goal.text, f"{verdict.ratio:.2f}{paired}", verdict.rival, bound, verdict.word])
    yield from _grid(["what", "ratio", "compared with", "goal", ""], cells)


def _failures(results: Results) -> Iterator[str]:
    if results.failures:
        yield "\n## What failed\n"
    for failure in results.failures:
        yield f"- {failure.contestant}, run {failure.run}, {', '.join(failure.measures)}: {failure.message}"


def _machine(results: Results, facts: Any) -> Iterator[str]:
    yield "\n## Machine and versions\n"
    calibration = spread(ms for name in results.figures for ms in results.of(name, "calibration_ms").values())
    if calibration is not None:
        yield f"- a fixed loop of Python, before each contestant, ms: {_written(calibration, '{:.1f}')}"
    for key, value in facts.items():
        if isinstance(value, dict):
            for name, inner in value.items():
                text = ", ".join(f"{k} {v}" for k, v in inner.items()) if isinstance(inner, dict) else inner
                yield f"- {key}: {name}: {text}"
        else:
            yield f"- {key}: {value}"


def _grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table whose columns line up."""
    widths = [max(len(row[at]) for row in [headings, *rows]) for at in range(len(headings))]
    widths[-1] = 0  # the last column may be long

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    yield line(headings)
    yield "| " + " | ".join("-" * max(3, width) for width in widths) + " |"
    for row in rows:
        yield line(row)


def _written(found: Spread | None, form: str) -> str:
    """Median (minimum-maximum); the median alone of one run."""
    if found is None:
        return ""
    if found.runs == 1:
        return form.format(found.median)
    return f"{form.format(found.median)} ({form.format(found.low)}-{form.format(found.high)})"


def _median(found: Spread | None, form: str) -> str:
    return "" if found is None else form.format(found.median)
