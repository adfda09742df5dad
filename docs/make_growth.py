"""Draw the figures of docs/growth.md from benchmarks/results/growth.csv, and print its table."""

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from make_pictures import ROOT, draw

RESULTS = ROOT / "benchmarks" / "results" / "growth.csv"
DECADE = 10.0
LEAST_S, MOST_S = 0.02, 20.0
"""All figures show the same times, so that a flat curve is flat."""

PARTS = {
    # Part -> what is counted, and whether the work is: operations of an order for its sizes.
    "jobs": ("jobs of a sweep", False),
    "layers": ("layers", False),
    "gpus": ("GPUs", False),
    "stages": ("ranks of the pipeline", True),
    "microbatches": ("microbatches", True),
    "searches": ("configurations of a search", False),
    "timelines": ("activities of a timeline", False),
    "traces": ("events of a trace", False),
}
Curves = dict[str, list[tuple[float, float, float]]]


def read() -> dict[str, Curves]:
    """Return size, work and seconds of the curves of each part."""
    parts: dict[str, Curves] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(RESULTS.open()):
        values = (float(row[name]) for name in ("size", "steps", "seconds"))
        parts[row["part"]][row["curve"]].append(tuple(values))
    for curves in parts.values():
        for points in curves.values():
            points.sort()
            # Of searches with equally many configurations the faster one.
            points[:] = [p for n, p in enumerate(points) if not n or p[0] != points[n - 1][0]]
    return parts


def exponent(points: list[tuple[float, float, float]], column: int) -> float:
    """Return the slope of the line of logarithms through the sizes of the upper decade."""
    largest = points[-1][column]
    upper = [point for point in points if point[column] >= largest / DECADE * 0.99]
    if len(upper) < 2:
        upper = points[-2:]
    x, y = (np.log([point[index] for point in upper]) for index in (column, 2))
    return float(np.polyfit(x, y, 1)[0])


def write(part: str, curves: Curves, path: Path) -> None:
    """Draw processor time against size, both by their logarithms."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.loglog([p[0] for p in points], [p[2] for p in points], marker="o", ms=3, label=name)
    least, most = (pick(p[0] for points in curves.values() for p in points) for pick in (min, max))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if most < 100 * least else (1,)))
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:,.0f}")
    axes.yaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(LEAST_S, MOST_S)
    axes.set_xlabel(PARTS[part][0], fontsize=9)
    axes.set_ylabel("processor time, s", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=110)


def table(parts: dict[str, Curves]) -> str:
    """Return the largest size, its time and the exponents of every curve."""
    lines = [
        "| against | | from | to | s at the largest | exponent | by operations |",
        "|---|---|---|---|---|---|---|",
    ]
    for part, (what, has_work) in PARTS.items():
        for name, points in parts[part].items():
            (least, _, _), (size, _, seconds) = points[0], points[-1]
            work = f"{exponent(points, 1):.2f}" if has_work else ""
            slope = f"{exponent(points, 0):.2f}"
            digits = max(0, 1 - math.floor(math.log10(seconds)))
            lines.append(
                f"| {what} | {name} | {least:,.0f} | {size:,.0f} | {seconds:.{digits}f} | {slope} "
                f"| {work} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Draw them all."""
    parts = read()
    for part, curves in parts.items():
        draw(f"growth_{part}", lambda path, part=part, curves=curves: write(part, curves, path), 64)
    print(table(parts))


if __name__ == "__main__":
    main()
