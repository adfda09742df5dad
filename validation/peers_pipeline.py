"""Compare schedules with Primus' pipeline simulator; --record writes the page.

``--optimal`` also runs ``seaailab-ilp``, where there is one, on the rows above Primus' time.
"""

import csv
import re
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from projector.errors import ScheduleError
from projector.schedule import registry
from projector.schedule.registry import SCHEDULES
from projector.schedule.replay import programs
from projector.schedule.replay.run import PipelineRun
from projector.schedule.simulate import pipeline_run

TABLE = Path(__file__).with_name("data") / "primus_pipeline.csv"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "schedules.md"
BEGIN, END = "<!-- peers -->\n", "<!-- end of peers -->\n"

ONE_CHUNK = ("zerobubble", "zerobubble-h2", "seaailab")
V_SHAPED = ("zbv-formatted", "zbv-greedy-min", "zbv-greedy-half", "zbv-greedy-zb")
FAMILIES = {
    "basic_1f1b": ("1f1b",),
    "interleaved_1f1b": ("interleaved",),
    "zerobubble": ONE_CHUNK,
    "zerobubble-heuristic": ONE_CHUNK,
    "seaailab-ilp": ONE_CHUNK,
    "zbv-formatted": V_SHAPED,
    "zbv-greedy-half": V_SHAPED,
    "zbv-greedy-min": V_SHAPED,
}
"""Our schedules of the same kind, by the name of Primus' algorithm."""

OPTIMAL = "seaailab-ilp"
SPANS = "seaailab-ilp"
"""The algorithm whose times are spans of single ranks; those of the others are makespans."""

TRIES = 3

EQUAL = 1e-9
"""Relative difference that is rounding."""


class Row(NamedTuple):
    """One run of Primus' simulator."""

    algorithm: str
    pp: int
    vpp: int
    microbatches: int
    f: float
    """Forward of one microbatch on a rank, all its chunks together; so are b and w."""
    b: float
    w: float
    p2p: float
    time: float
    memory: float | None
    """Microbatches that it held at most, or was allowed to hold; None for any number."""
    wall_s: float


class Comparison(NamedTuple):
    """A row beside ours."""

    row: Row
    schedule: str
    time: float

    @property
    def ratio(self) -> float:
        """Our time over theirs."""
        return self.time / self.row.time

    @property
    def above(self) -> bool:
        """Whether ours takes longer."""
        return self.ratio > 1.0 + EQUAL


def read() -> list[Row]:
    """Return the rows whose simulation came to an end."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [_row(cells) for cells in csv.DictReader(file)]
    return [row for row in rows if row.time > 0.0]


def _row(cells: dict[str, str]) -> Row:
    memory: float | None = float(cells["peak_act_max"])
    given = re.search(r"max_mem=(\S+)", cells["note"])
    if given is not None:
        memory = None if given[1] == "default" else float(given[1])
    return Row(
        cells["algorithm"],
        *(int(cells[name]) for name in ("PP", "VPP", "micro_batches")),
        *(float(cells[name]) for name in ("F", "B", "W", "p2p_modelled", "step_time")),
        memory,
        float(cells["wall_s"]),
    )


def compare(row: Row, names: Sequence[str] | None = None) -> Comparison | None:
    """Run our schedules of the family of a row and return the fastest that keeps to its memory."""
    found = []
    for name in FAMILIES[row.algorithm] if names is None else names:
        try:
            result = run(name, row)
        except ScheduleError as error:
            if error.key != "memory_limit":
                raise
            continue
        held = max(result.peak_in_flight) / row.vpp
        if row.memory is None or held <= row.memory + EQUAL:
            ours = result.period_s if row.algorithm == SPANS else result.makespan_s
            found.append(Comparison(row, name, ours))
    return min(found, key=lambda each: each.time, default=None)


def run(name: str, row: Row) -> PipelineRun:
    """Replay the work of a row under one schedule of ours."""
    times = (each / row.vpp for each in (row.f, row.b, row.w))
    result = pipeline_run(
        name,
        row.pp,
        row.vpp,
        row.microbatches,
        *times,
        row.p2p,
        memory_limit=row.memory,
        objective="period" if row.algorithm == SPANS else "makespan",
    )
    result.peak_in_flight  # noqa: B018  part of the answer, so of its time
    return result


def compare_all() -> list[Comparison]:
    """Compare every row."""
    return [each for each in map(compare, read()) if each is not None]


class Clock(NamedTuple):
    """Wall time of the schedule that a row was compared with, kernels compiled."""

    first_s: float
    """With the order built anew."""
    again_s: float
    """With the order known from before."""


def clock(each: Comparison) -> Clock:
    """Run the schedule of a comparison; the best of some tries, as others use the machine too."""
    tries = []
    for _ in range(TRIES):
        registry._build.cache_clear()  # noqa: SLF001
        programs.compile_line.cache_clear()
        started = time.perf_counter()
        run(each.schedule, each.row)
        between = time.perf_counter()
        run(each.schedule, each.row)
        tries.append((between - started, time.perf_counter() - between))
    return Clock(*(min(column) for column in zip(*tries, strict=True)))


def lines(found: Sequence[Comparison]) -> list[str]:
    """Return the table of the page."""
    text = [
        "| Primus' algorithm | rows | at or below | ours / theirs | wall time of theirs, ms |",
        "|---|---|---|---|---|",
    ]
    for family in (*FAMILIES, None):
        mine = [each for each in found if family in (None, each.row.algorithm)]
        walls = [1e3 * each.row.wall_s for each in mine]
        ratios = [each.ratio for each in mine]
        cells = (
            "**all**" if family is None else f"`{family}`",
            f"{len(mine)}",
            f"{sum(not each.above for each in mine)}",
            f"{min(ratios):.3f} to {max(ratios):.3f}",
            f"{min(walls):.1f} to {max(walls):,.0f}",
        )
        text.append(f"| {' | '.join(cells)} |")
    return [*text, "", "Rows above:", "", *(_named(each) for each in found if each.above)]


def _named(each: Comparison) -> str:
    row = each.row
    limit = "no limit" if row.memory is None else f"{row.memory:g} microbatches"
    return (
        f"- `{row.algorithm}`, PP {row.pp}, {row.microbatches} microbatches, F {row.f:g}, "
        f"B {row.b:g}, W {row.w:g}, P2P {row.p2p:g}, {limit}: {each.time:.4g} (`{each.schedule}`) "
        f"against {row.time:.4g}, {each.ratio - 1.0:+.1%}"
    )


def speed(found: Sequence[Comparison]) -> str:
    """Return what the clock says, which differs from run to run."""
    parts = []
    for kind, planned in (("fixed orders", False), ("planned orders", True)):
        mine = [each for each in found if SCHEDULES[each.schedule].planned == planned]
        clocks = [clock(each) for each in mine]
        walls = [1e3 * each.first_s for each in clocks]
        theirs = [each.row.wall_s for each in mine]
        first = [wall / each.first_s for wall, each in zip(theirs, clocks, strict=True)]
        again = [wall / each.again_s for wall, each in zip(theirs, clocks, strict=True)]
        parts.append(
            f"the {len(mine)} rows with {kind} took {min(walls):.1f} to {max(walls):.0f} ms, "
            f"{_times(first)} as fast as theirs, and {_times(again)} once the order was known"
        )
    return f"{'; '.join(parts)}."


def _times(ratios: Sequence[float]) -> str:
    least, most, middle = min(ratios), max(ratios), statistics.median(ratios)
    return f"{least:.2g} to {most:,.0f} times (median {middle:.3g})"


def main() -> None:
    """Print the summary."""
    found = compare_all()
    text = [*lines(found), "", f"Wall time of ours on one core: {speed(found)}"]
    print("\n".join(text))
    if "--record" in sys.argv[1:]:
        head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        _, tail = rest.split(END)
        body = "\n".join(["", *text, ""])
        PAGE.write_text(f"{head}{BEGIN}{body}\n{END}{tail}", encoding="utf-8")
    if "--optimal" in sys.argv[1:] and OPTIMAL in SCHEDULES:
        print()
        for each in found:
            best = compare(each.row, [OPTIMAL]) if each.above and each.row.vpp == 1 else None
            if best is not None:
                print(_named(best))


if __name__ == "__main__":
    main()
