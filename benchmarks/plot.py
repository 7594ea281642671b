"""Draws the figures of growth.py: throughput and the p99 of a claim, an axis a row. In an environment of its own.

python plot.py FILE.png < figures.json
"""

# mypy: ignore-errors
# matplotlib is installed only where this runs

from __future__ import annotations

import json
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def main() -> None:
    """Read the figures from standard input, and write the picture."""
    found = json.load(sys.stdin)
    points = found["points"]
    axes = list(dict.fromkeys(point["axis"] for point in points))
    rows = len(axes) + 1
    figure, panels = pyplot.subplots(rows, 2, figsize=(8, 1.9 * rows), squeeze=False, layout="constrained")
    _horizon(found["horizon"], *panels[-1])
    for axis, (left, right) in zip(axes, panels, strict=False):
        mine = [point for point in points if point["axis"] == axis]
        values = [point["value"] for point in mine]
        for panel, names, label in (
            (left, ("tasks_per_s",), "tasks/s"),
            (right, ("p99_ms", "p50_ms"), "claim of 100, ms"),
        ):
            for name in names:
                panel.plot(values, [point[name] for point in mine], marker="o", label=name.removesuffix("_ms"))
            panel.set_ylim(0, 1.15 * max(point[names[0]] for point in mine))
            panel.set_xlabel(axis)
            panel.set_ylabel(label)
            if max(values) > 50 and min(values) > 0:
                panel.set_xscale("log")
            elif max(values) > 50:
                panel.set_xscale("symlog", linthresh=min(value for value in values if value > 0))
                panel.set_xlim(left=0)
    panels[0][1].legend()
    machine = found["machine"]
    commit = machine["workq"]["commit"][:9]
    figure.suptitle(f"{machine['date'][:10]}, {machine['cores']} cores, PostgreSQL, workq {commit}")
    figure.savefig(sys.argv[1], dpi=80)


def _horizon(minutes: list[dict], left: pyplot.Axes, right: pyplot.Axes) -> None:
    for number, name in enumerate(dict.fromkeys(one["contestant"] for one in minutes)):
        for is_pinned, style in ((False, "--"), (True, "-")):
            mine = [one for one in minutes if (one["contestant"], one["is_pinned"]) == (name, is_pinned)]
            at = [one["minute"] for one in mine]
            look = {"marker": "o", "linestyle": style, "color": f"C{number}", "label": name if is_pinned else None}
            left.plot(at, [one["tasks_per_s"] for one in mine], **look)
            right.plot(at, [one["dead_rows"] / 1e6 for one in mine], **look)
    for panel, label in ((left, "tasks/s, whole queue"), (right, "dead row versions, millions")):
        panel.set_ylim(bottom=0)
        panel.set_xlabel("minutes with a pinned horizon (dashed: without)")
        panel.set_ylabel(label)
        panel.legend()


main()
